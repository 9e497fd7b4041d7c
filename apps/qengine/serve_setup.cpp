#include "apps/qengine/serve_setup.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/plugin_text.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine {
namespace {

constexpr const char* kOnly = "default";  // the name of what runs where the profile lists no [[backend]]

std::vector<std::string> keys_of(const Invocation& in, const std::string& flag) {
  std::vector<std::string> keys;
  if (!in.values.has(flag)) return keys;
  const std::string file = in.values.text(flag);
  std::ifstream stream(file);
  if (!stream) throw Error("E101", "cannot read --" + flag + " " + file).hint("one key a line; the file must be readable by this user");
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) throw Error("E101", "--" + flag + " " + file + " holds no key").hint("one key a line");
  return keys;
}

std::vector<std::string> api_keys(const Invocation& in) {
  std::vector<std::string> keys = in.values.list("api-key");
  for (std::string& k : keys_of(in, "api-key-file")) keys.push_back(std::move(k));
  for (const std::string& k : keys)
    if (k.empty()) throw Error("E101", "an API key is empty").hint("leave --api-key out to serve without keys");
  return keys;
}

server::LiveOptions live_options(const Invocation& in) {
  const Values& v = in.values;
  server::LiveOptions o;
  o.api_keys = api_keys(in);
  o.admin_keys = keys_of(in, "admin-key-file");
  o.max_num_queued_reqs = v.integer("max-num-queued-reqs", 0);
  o.max_num_queued_tokens = v.integer("max-num-queued-tokens", 0);
  o.overload_status = v.text("overload-status") == "503" ? 503 : 429;
  o.request_timeout_s = v.number("request-timeout").value_or(0);
  o.shutdown_timeout_s = v.number("shutdown-timeout").value_or(30);
  o.log_prompts = v.flag("log-prompts");
  o.log_stats = !v.flag("disable-log-stats");
  o.max_logprobs = static_cast<std::int32_t>(v.integer("max-logprobs", 20));
  o.log_level = v.flag("quiet") && !v.given("log-level") ? "error" : v.text("log-level");
  o.swap.mode = server::swap_mode(v.text("swap-mode")).value_or(server::SwapSettings::Mode::kAuto);
  o.swap.drain_timeout_s = v.number("swap-drain-timeout").value_or(300);
  o.swap.gates = {v.number("kl-mean-ok"), v.number("kl-mean-fail"), v.number("same-top-warn"), v.given("ppl-ratio-fail") ? v.number("ppl-ratio-fail") : std::nullopt};
  server::CanaryOptions& c = o.canary;
  c.backend = v.text("canary-backend");
  c.percent = v.number("canary-percent").value_or(c.percent);
  for (const std::string& text : v.list("canary-steps")) {
    const auto step = parse_number(text);
    if (!step || *step < 0 || *step > 100 || (!c.steps.empty() && *step <= c.steps.back()))
      throw Error("E101", v.at("canary-steps").where + ": \"" + text + "\" is no step").hint("shares of the requests in percent, each larger than the one before: 1,5,25,50,100");
    c.steps.push_back(*step);
  }
  c.step_hold_s = v.number("canary-step-hold-s").value_or(c.step_hold_s);
  c.min_requests = v.integer("canary-min-requests", c.min_requests);
  c.shadow_fraction = v.number("canary-shadow-fraction").value_or(c.shadow_fraction);
  c.sticky = v.text("canary-sticky");
  if (c.sticky.starts_with("header:") && c.sticky.size() > 7)
    std::transform(c.sticky.begin(), c.sticky.end(), c.sticky.begin(), [](char x) { return x >= 'A' && x <= 'Z' ? static_cast<char>(x + 32) : x; });
  else if (c.sticky != "user" && c.sticky != "api_key" && c.sticky != "none")
    throw Error("E101", v.at("canary-sticky").where + ": \"" + c.sticky + "\" is nothing to go by").hint("header:NAME, user, api_key or none");
  c.allow_pin = v.flag("canary-allow-pin");
  c.limits = {v.number("canary-error-rate-delta").value_or(0.01), v.number("canary-ttft-p95-ratio").value_or(1.25), v.number("canary-itl-p95-ratio").value_or(1.25), v.number("canary-structured-fail-delta").value_or(0.02),
              v.number("canary-tool-fail-delta").value_or(0.02), v.number("canary-feedback-negative-delta").value_or(0.05), v.number("canary-shadow-kl-mean").value_or(0.05)};
  bool known = c.backend.empty();
  std::string names;
  for (const ProfileBackend& b : in.profile.backends) known |= b.name == c.backend, names += (names.empty() ? "" : ", ") + b.name;
  if (!known) throw Error("E101", v.at("canary-backend").where + ": the profile has no [[backend]] called " + c.backend).hint(names.empty() ? "it has none at all" : "it has " + names);
  return o;
}

// What a load would read: name, size and time of the files at a place, one level deep.
std::string files_at(const std::filesystem::path& place) {
  std::error_code ec;
  std::vector<std::string> lines;
  const auto add = [&](const std::filesystem::path& p) {
    const auto size = std::filesystem::file_size(p, ec);
    const auto time = std::filesystem::last_write_time(p, ec);
    lines.push_back(p.string() + " " + std::to_string(size) + " " + std::to_string(time.time_since_epoch().count()));
  };
  if (std::filesystem::is_directory(place, ec))
    for (const auto& entry : std::filesystem::directory_iterator(place, ec)) add(entry.path());
  else add(place);
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const std::string& l : lines) out += l + "\n";
  return out;
}

// Everything that decides what is loaded.
std::string key_of(const Arguments& a, const EngineOptions& options) {
  std::string text;
  for (const auto& [name, value] : a.values.all())
    if (value.setting->reload == Reload::kSwap && name != "active-backend") {
      text += name;
      for (const std::string& t : value.texts) text += "\n " + t;
      text += "\n";
    }
  for (const ProfileOption& o : a.profile.options) text += o.plugin + "." + o.key + "=" + o.value + "\n";
  for (const ProfileOverride& o : a.profile.overrides) text += o.match + "=" + o.plugin + "\n";
  text += files_at(options.model);
  for (const auto& p : options.plugins.paths) text += files_at(p);
  return sha256_of(text);
}

server::BackendSpec spec_of(const Invocation& in, const std::string& name, Arguments arguments) {
  const auto all = std::make_shared<const Arguments>(std::move(arguments));
  const Invocation one{in.command, all->values, all->profile, all->words};
  server::BackendSpec s{name, {}, engine_options(one), {}};
  s.options.serving = true;
  s.key = key_of(*all, s.options);
  s.sampling = [all, &command = in.command](const Checkpoint& checkpoint) { return sampling_params({command, all->values, all->profile, all->words}, checkpoint); };
  return s;
}

Arguments arguments_of(const Invocation& in) { return {in.values, in.profile, in.words, {}}; }

std::vector<server::BackendSpec> backends_of(const Invocation& in) {
  std::vector<server::BackendSpec> out;
  for (const ProfileBackend& b : in.profile.backends) out.push_back(spec_of(in, b.name, with_backend(arguments_of(in), b)));
  if (out.empty()) out.push_back(spec_of(in, kOnly, arguments_of(in)));
  return out;
}

std::string active_name(const Invocation& in, const std::vector<server::BackendSpec>& backends) {
  const std::string name = in.values.text("active-backend");
  if (name.empty()) return backends.front().name;
  std::string names;
  for (const auto& b : backends) {
    if (b.name == name) return name;
    names += (names.empty() ? "" : ", ") + b.name;
  }
  throw Error("E101", "--active-backend " + name + ": the profile has no such [[backend]]").hint(in.profile.backends.empty() ? "it has none at all" : "it has " + names);
}

// What was changed in the profile and stays as it was when the server started.
std::vector<std::string> needs_restart(const Invocation& start, const Invocation& now) {
  std::vector<std::string> out;
  const auto note = [&](const std::string& key) { out.push_back(key + " was changed: that takes a restart, and stays as it is until then"); };
  for (const auto& [name, value] : start.values.all())
    if (value.setting->reload == Reload::kRestart && *value.setting->key && value.texts != now.values.at(name).texts) note(value.setting->key);
  const auto same = std::equal(start.profile.allow.begin(), start.profile.allow.end(), now.profile.allow.begin(), now.profile.allow.end(),
                               [](const ProfilePlugin& a, const ProfilePlugin& b) { return a.id == b.id && a.sha256 == b.sha256; });
  if (!same) note("plugins.allow");
  return out;
}

server::Reread reread(const Invocation& start) {
  const auto all = std::make_shared<const Arguments>(start.again());
  const auto now = std::make_shared<const Invocation>(Invocation{start.command, all->values, all->profile, all->words});
  // Which code may run was decided when the server started.
  const auto keep = [&start](server::BackendSpec s) {
    const PluginHostOptions first = plugin_options(start);
    s.options.plugins.paths = first.paths;
    s.options.plugins.trust = first.trust;
    s.options.plugins.allow = first.allow;
    s.options.plugins.deny_deprecated = first.deny_deprecated;
    s.options.device = start.values.text("device");
    return s;
  };
  server::Reread r;
  for (server::BackendSpec& b : backends_of(*now)) r.backends.push_back(keep(std::move(b)));
  r.active = active_name(*now, r.backends);
  r.live = live_options(*now);
  r.notices = needs_restart(start, *now);
  r.backend_of = [all, now, keep](const Json& object) {
    const std::filesystem::path folder = now->profile.path.empty() ? std::filesystem::current_path() : std::filesystem::absolute(now->profile.path).parent_path();
    ProfileBackend own = parse_backend(object.dump(), "backend", folder);
    Arguments arguments = arguments_of(*now);
    for (const ProfileBackend& b : now->profile.backends)
      if (b.name == own.name) arguments = with_backend(arguments, b);
    return keep(spec_of(*now, own.name.empty() ? "request" : own.name, with_backend(arguments, own)));
  };
  return r;
}

}  // namespace

server::BackendSpec active_backend(const Invocation& in) {
  for (const ProfileBackend& b : in.profile.backends)
    for (const ProfileValue& v : b.values) {
      const Value& given = in.values.at(v.setting->name);
      if (given.origin == Origin::kFlag || given.origin == Origin::kEnvironment) log("config").warn("{} is given, and backend {} has its own ({}), which holds", given.where == "argument" ? "MODEL" : given.where, b.name, v.where);
    }
  std::vector<server::BackendSpec> all = backends_of(in);
  const std::string name = active_name(in, all);
  return std::move(*std::find_if(all.begin(), all.end(), [&](const auto& b) { return b.name == name; }));
}

server::ServiceOptions service_options(const Invocation& in, const Engine& engine) {
  const Values& v = in.values;
  server::ServiceOptions o;
  o.http.host = v.text("host");
  o.http.port = static_cast<int>(v.integer("port", 8000));
  o.http.uds = v.text("uds");
  o.http.admin_uds = v.text("admin-uds");
  o.http.max_body_bytes = static_cast<std::size_t>(v.integer("max-body-bytes", 32 << 20));
  o.limits.trust_request_chat_template = v.flag("trust-request-chat-template");
  o.served_names = v.list("served-model-name");
  if (o.served_names.empty()) {
    const std::filesystem::path model = engine.options().model, whole = std::filesystem::absolute(model).lexically_normal();
    const std::filesystem::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
    o.served_names = {whole.extension() == ".gguf" ? whole.stem().string() : name.string()};
  }
  o.live = live_options(in);
  o.reread = [&in] { return reread(in); };
  if (v.has("canary-state-file")) {
    o.canary_state = v.text("canary-state-file");
  } else if (!o.live.canary.backend.empty()) {
    // One file a profile, where systemd or the user keeps state.
    const std::string name = "canary-" + sha256_of(std::filesystem::absolute(in.profile.path).string()).substr(0, 12) + ".json";
    const auto set = [](const char* variable) { const char* x = std::getenv(variable); return std::filesystem::path(x ? x : ""); };
    if (const auto state = set("STATE_DIRECTORY"); !state.empty()) o.canary_state = state / name;
    else if (const auto xdg = set("XDG_STATE_HOME"); !xdg.empty()) o.canary_state = xdg / "qengine" / name;
    else if (const auto home = set("HOME"); !home.empty()) o.canary_state = home / ".local/state/qengine" / name;
  }
  o.allowed_origins = v.list("allowed-origins");
  if (v.has("chat-template")) o.chat_template = read_text(v.text("chat-template"), 4 << 20);
  if (v.has("default-chat-template-kwargs")) {
    o.default_template_kwargs = Json::parse(v.text("default-chat-template-kwargs"), nullptr, false);
    if (!o.default_template_kwargs.is_object()) throw Error("E101", "--default-chat-template-kwargs is no JSON object").hint("for example '{\"enable_thinking\": false}'");
  }
  o.tool_parser = v.flag("enable-auto-tool-choice") ? v.text("tool-call-parser") : "none";
  o.reasoning_parser = v.text("reasoning-parser");
  o.request_id_headers = v.flag("enable-request-id-headers");
  o.tokenizer_info = v.flag("enable-tokenizer-info-endpoint");
  const Json document = json_document(in.command);
  o.version = document.value("version", std::string());
  o.build = document.value("build", Json::object());
  return o;
}

}  // namespace qengine
