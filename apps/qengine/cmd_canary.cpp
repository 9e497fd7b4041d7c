// canary: what a running server's canary does, from the shell of whoever runs it.
#include <cstdio>

#include "apps/qengine/command.hpp"
#include "core/load_test/openai_client.hpp"
#include "core/load_test/unix_call.hpp"
#include "core/model/checkpoint.hpp"  // Json

namespace qengine {
namespace {

const SettingGroup& canary_client_settings() {
  static const SettingGroup group{
      "Server",
      {
          {.name = "url", .value = "URL", .shown = "of the profile, else http://127.0.0.1:8000", .help = "the server; unix:FILE for its admin socket"},
          {.name = "admin-key", .value = "KEY", .help = "its admin key, or a client's key where it has none of its own", .secret = true},
      }};
  return group;
}

// Where the profile's server listens: on its admin socket where it has one. What a client cannot connect to by that name is this machine.
std::string url_of(const Invocation& in) {
  if (in.values.has("url")) return in.values.text("url");
  std::string host = "127.0.0.1", port = "8000";
  for (const ProfileValue& v : in.profile.values) {
    if (std::string_view(v.setting->key) == "server.host" && v.texts[0] != "0.0.0.0" && v.texts[0] != "::") host = v.texts[0];
    if (std::string_view(v.setting->key) == "server.port") port = v.texts[0];
    if (std::string_view(v.setting->key) == "server.admin_uds") return "unix:" + v.texts[0];
  }
  return "http://" + host + ":" + port;
}

Json ask(const Invocation& in, const std::string& method, const std::string& path, const Json& body = {}) {
  constexpr int kPatience = 60;  // seconds
  const std::string url = url_of(in), what = body.is_null() ? "" : body.dump();
  const auto [status, text] = [&] {
    if (url.starts_with("unix:")) return unix_call(url.substr(5), method, path, what, kPatience);
    OpenAiClient::Options o;
    o.url = parse_url(url);
    o.api_key = in.values.text("admin-key");
    o.timeout_s = kPatience;
    return OpenAiClient(std::move(o)).call(method, path, what);
  }();
  const Json answer = Json::parse(text, nullptr, false);
  if (status == 200 && answer.is_object()) return answer;
  std::string why = "HTTP " + std::to_string(status);
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object()) why = answer["error"].value("message", why);
  throw Error("E505", "the server does not do it: " + why).hint(status == 401 ? "--admin-key KEY" : "qengine canary status says how it stands");
}

std::string number(const Json& j, const char* format) {
  char text[48];
  if (!j.is_number()) return "-";
  std::snprintf(text, sizeof text, format, j.get<double>());
  return text;
}

void show(const Json& status) {
  const Json& c = status["canary"];
  const std::string state = c.value("state", std::string("off"));
  std::string out = "stable   " + (status["backend"].is_string() ? status["backend"].get<std::string>() : std::string("none: the server is changing its model")) + "\n";
  if (!c.contains("backend")) return print(out + "canary   none: the profile has no [canary]\n");
  out += "canary   " + c.value("backend", std::string()) + ", " + state + ", " + number(c["percent"], "%g") + " % of the requests";
  if (c.contains("steps") && c["steps"].size() > 1 && (state == "running" || state == "passed")) out += ", step " + std::to_string(c.value("step", 0) + 1) + " of " + std::to_string(c["steps"].size());
  out += "\n";
  const auto row = [&](const char* name, auto cell) {
    char line[96];
    std::snprintf(line, sizeof line, "%-24s %12s %12s\n", name, cell(c["stable"]).c_str(), cell(c["canary"]).c_str());
    out += line;
  };
  row("", [&](const Json& a) { return std::string(&a == &c["canary"] ? "canary" : "stable"); });
  row("requests", [](const Json& a) { return number(a["requests"], "%.0f"); });
  row("failed", [](const Json& a) { return number(a["errors"], "%.0f"); });
  row("broken forms", [](const Json& a) { return number(a["structured_failed"], "%.0f") + " of " + number(a["structured"], "%.0f"); });
  row("broken tool calls", [](const Json& a) { return number(a["tools_failed"], "%.0f") + " of " + number(a["tools"], "%.0f"); });
  row("feedback bad", [](const Json& a) { return number(a["feedback_bad"], "%.0f") + " of " + number(Json(a["feedback_bad"].get<std::int64_t>() + a["feedback_good"].get<std::int64_t>()), "%.0f"); });
  row("TTFT ms, P95", [](const Json& a) { return number(a["ttft_p95_ms"], "%.2f"); });
  row("ITL ms, P95", [](const Json& a) { return number(a["itl_p95_ms"], "%.2f"); });
  const Json& s = c["shadow"];
  out += "scored on both           " + number(s["prompts"], "%.0f") + " prompts, " + number(s["tokens"], "%.0f") + " tokens" + (s.contains("kl_mean") ? ", mean KL " + number(s["kl_mean"], "%.4g") : "") + "\n";
  if (c.contains("message")) out += "why      " + c["message"].get<std::string>() + "\n";
  if (c.contains("next_look_at")) out += "judged   " + std::string(c["verdict"].is_string() ? "again " : "") + "after " + number(c["next_look_at"], "%.0f") + " requests of the canary\n";
  print(out + "verdict: " + (c["verdict"].is_string() ? c["verdict"].get<std::string>() : std::string("none yet")) + "\n");
}

int status(const Invocation& in) {
  const Json now = ask(in, "GET", "/admin/status");
  if (!in.json()) return show(now), 0;
  Json doc = json_document(in.command);
  doc["backend"] = now["backend"];
  doc["canary"] = now["canary"];
  print_json(doc);
  return 0;
}

int done(const Invocation& in, const Json& answer) {
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["canary"] = answer["canary"];
    print_json(doc);
  } else {
    print(answer["canary"].value("backend", std::string()) + ": " + answer["canary"].value("state", std::string()) + ", " + number(answer["canary"]["percent"], "%g") + " % of the requests\n");
  }
  return 0;
}

int set(const Invocation& in) {
  const auto percent = in.words.empty() ? std::nullopt : parse_number(in.words[0]);
  if (!percent || *percent < 0 || *percent > 100) throw Error("E101", in.words.empty() ? "no share" : "\"" + in.words[0] + "\" is no share of the requests").hint("qengine canary set 25: a number from 0 to 100");
  return done(in, ask(in, "POST", "/admin/canary", {{"percent", *percent}}));
}

int abort(const Invocation& in) { return done(in, ask(in, "POST", "/admin/abort", Json::object())); }

}  // namespace

extern const Command canary_status_command;
const Command canary_status_command = {
    .name = "canary status",
    .summary = "what the canary of a running server does, and how it compares",
    .usage = {"[--url http://127.0.0.1:8000] [--admin-key KEY]", "--config /etc/qengine/NAME.toml"},
    .groups = {&canary_client_settings()},
    .run = status,
};

extern const Command canary_set_command;
const Command canary_set_command = {
    .name = "canary set",
    .summary = "give the canary of a running server another share of the requests",
    .usage = {"PERCENT [--url http://127.0.0.1:8000]"},
    .details = "Its steps rest from then on. One that was sent home is loaded, checked and tried again.",
    .groups = {&canary_client_settings()},
    .max_words = 1,
    .run = set,
};

extern const Command canary_abort_command;
const Command canary_abort_command = {
    .name = "canary abort",
    .summary = "send the canary of a running server home",
    .usage = {"[--url http://127.0.0.1:8000]"},
    .groups = {&canary_client_settings()},
    .run = abort,
};

}  // namespace qengine
