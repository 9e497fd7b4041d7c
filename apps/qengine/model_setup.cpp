#include "apps/qengine/model_setup.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/plugin_text.hpp"
#include "core/base/log.hpp"
#include "core/tokenizer/chat_template.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

// "ID.KEY=VALUE". A value that reads as JSON is that number, truth value or list; else it is a text.
void plugin_option(const std::string& text, std::map<std::string, Json>& options) {
  const auto equals = text.find('=');
  const auto dot = text.substr(0, equals).rfind('.');
  if (equals == text.npos || dot == text.npos || dot == 0 || dot + 1 == equals)
    throw Error("E101", "--plugin-opt " + text + " is not ID.KEY=VALUE").hint("for example --plugin-opt awq_marlin.fp32_scales=true");
  const std::string value = text.substr(equals + 1);
  Json parsed = Json::parse(value, nullptr, false);
  Json& of = options[text.substr(0, dot)];
  if (!of.is_object()) of = Json::object();
  of[text.substr(dot + 1, equals - dot - 1)] = parsed.is_discarded() ? Json(value) : std::move(parsed);
}

}  // namespace

std::vector<const SettingGroup*> with_model_groups(std::vector<const SettingGroup*> own) {
  own.insert(own.end(), {&model_settings(), &engine_settings(), &plugin_settings()});
  return own;
}

fs::path model_path(const Invocation& in) {
  if (!in.values.has("model"))
    throw Error("E101", "no model").hint(std::string("qengine ") + in.command.name + " MODEL, or --model MODEL: a folder or a .gguf file");
  const fs::path path = in.values.text("model");
  const std::string format = in.values.knows("load-format") ? in.values.text("load-format") : "auto";
  if (format == "dummy") throw Error("E101", "this command needs the files of the model").hint("leave --load-format dummy out");
  if (format != "auto" && (format == "gguf") != (path.extension() == ".gguf"))
    throw Error("E101", "--load-format " + format + " does not fit " + path.string()).hint("leave --load-format out; the path decides");
  return path;
}

PluginHostOptions plugin_options(const Invocation& in) {
  PluginHostOptions o = plugin_host_options(in);
  for (const ProfileOption& p : in.profile.options) {
    Json& of = o.plugin_options[p.plugin];
    if (!of.is_object()) of = Json::object();
    of[p.key] = Json::parse(p.value);
  }
  for (const std::string& text : in.values.list("plugin-opt")) plugin_option(text, o.plugin_options);
  o.deny_deprecated = in.values.flag("deny-deprecated");
  return o;
}

FormatOptions format_options(const Invocation& in) {
  const Values& v = in.values;
  FormatOptions o;
  o.plugin = v.text("plugin");
  o.quantization = v.text("quantization");
  o.quantize_lm_head = v.text("quantize-lm-head");
  for (const ProfileOverride& r : in.profile.overrides) o.overrides.push_back({r.match, r.plugin, r.where});
  o.ignore_tensors = v.list("ignore-tensor");
  for (const std::string& rule : v.list("require-format")) {
    const auto equals = rule.rfind('=');
    if (equals == rule.npos || equals == 0 || equals + 1 == rule.size())
      throw Error("E101", "--require-format " + rule + " is not PATTERN=SCHEME").hint("for example --require-format linear=awq_marlin");
    o.require_format.emplace_back(rule.substr(0, equals), rule.substr(equals + 1));
  }
  const std::string fallback = v.text("fallback");
  o.fallback = fallback == "error" ? Fallback::kError : fallback == "allow" ? Fallback::kAllow : Fallback::kWarn;
  const std::string act = v.text("activation-quant");
  o.activation_quant = act == "off"       ? ActivationQuant::kOff
                       : act == "dynamic" ? ActivationQuant::kDynamic
                       : act == "auto"    ? ActivationQuant::kAuto
                                          : ActivationQuant::kCheckpoint;
  o.exact = v.flag("exact");
  o.tensor_parallel = static_cast<int>(v.integer("tensor-parallel-size", 1));
  return o;
}

EngineOptions engine_options(const Invocation& in) {
  const Values& v = in.values;
  EngineOptions o;
  o.format = format_options(in);
  o.dummy = dummy_model(in, o.format);
  if (!o.dummy) o.model = model_path(in);
  o.tokenizer = v.text("tokenizer");
  o.plugins = plugin_options(in);
  o.device = v.text("device");
  const std::string dtype = v.text("dtype");
  o.dtype = dtype == "half" ? "float16" : dtype == "float" ? "float32" : dtype;
  o.kv_cache_dtype = v.text("kv-cache-dtype");
  o.kv_plugin = v.text("kv-plugin");
  o.kv_cache_memory_bytes = v.integer("kv-cache-memory-bytes", 0);
  o.num_gpu_blocks_override = v.integer("num-gpu-blocks-override", 0);
  o.gpu_memory_utilization = v.number("gpu-memory-utilization").value_or(o.gpu_memory_utilization);
  o.max_model_len = v.has("max-model-len") ? v.integer("max-model-len", -1) : 0;  // "auto" is -1
  o.max_num_seqs = v.integer("max-num-seqs", 0);
  o.max_num_batched_tokens = v.integer("max-num-batched-tokens", 0);
  o.block_size = static_cast<std::int32_t>(v.integer("block-size", 16));
  o.chunked_prefill = v.flag("enable-chunked-prefill");
  o.prefix_caching = v.flag("enable-prefix-caching");
  o.enforce_eager = v.flag("enforce-eager");
  o.max_logprobs = static_cast<std::int32_t>(v.integer("max-logprobs", 20));
  o.seed = static_cast<std::uint64_t>(v.integer("seed", 0));
  o.threads = static_cast<int>(v.integer("threads", 0));
  o.exact = v.flag("exact");
  return o;
}

OpenModel open_model(const Invocation& in) {
  OpenModel m;
  const fs::path path = model_path(in);
  m.host = std::make_unique<PluginHost>(plugin_options(in));
  m.host->scan();
  m.checkpoint = Checkpoint::open(path, false, m.host->dialects());
  for (const std::string& w : m.checkpoint->warnings()) log("model").warn("{}", w);
  m.config = read_model_config(*m.checkpoint);
  m.plan = FormatPlan::make(*m.host, m.checkpoint, m.config, format_options(in));
  return m;
}

SamplingParams sampling_params(const Invocation& in, const Checkpoint& checkpoint) {
  const Values& v = in.values;
  SamplingParams p;
  p.max_tokens = 0;

  // generation_config.json of the model, of another folder, or none.
  const std::string source = v.text("generation-config");
  Json file;
  if (source == "auto") file = checkpoint.generation_config();
  else if (source != "vllm") {
    const fs::path path = fs::path(source) / "generation_config.json";
    file = Json::parse(read_text(path.string(), 1 << 20), nullptr, false);
    if (!file.is_object()) throw Error("E207", path.string() + " is not a JSON object").from("--generation-config " + source);
  }
  const auto number = [&](const char* key, auto& field, double least, double most) {
    if (!file.is_object() || !file.contains(key) || file[key].is_null()) return;
    if (!file[key].is_number() || !(file[key].get<double>() >= least && file[key].get<double>() <= most)) {
      log("model").warn("generation_config.json: {} is {}, which is no value for it; ignored", key, file[key].dump());
      return;
    }
    field = file[key].get<std::remove_reference_t<decltype(field)>>();
  };
  number("temperature", p.temperature, 0, 100);
  number("top_p", p.top_p, 0, 1);
  number("top_k", p.top_k, -1, 1e9);
  number("min_p", p.min_p, 0, 1);
  number("repetition_penalty", p.repetition_penalty, 0.01, 100);
  number("max_new_tokens", p.max_tokens, 1, 1e9);

  const auto set = [](auto& field, const auto& value) {
    if (value) field = *value;
  };
  set(p.max_tokens, v.integer("max-tokens"));
  set(p.temperature, v.number("temperature"));
  set(p.top_p, v.number("top-p"));
  set(p.top_k, v.integer("top-k"));
  set(p.min_p, v.number("min-p"));
  set(p.repetition_penalty, v.number("repetition-penalty"));
  set(p.presence_penalty, v.number("presence-penalty"));
  set(p.frequency_penalty, v.number("frequency-penalty"));
  set(p.min_tokens, v.integer("min-tokens"));
  p.stop = v.list("stop");
  for (const std::string& id : v.list("stop-token-ids"))
    for (const std::int32_t i : parse_ids(id)) p.stop_token_ids.push_back(i);
  p.ignore_eos = v.flag("ignore-eos");
  p.skip_special_tokens = v.flag("skip-special-tokens");
  p.include_stop_str_in_output = v.flag("include-stop-str-in-output");
  if (v.knows("logprobs")) p.logprobs = static_cast<std::int32_t>(v.integer("logprobs", -1));
  if (v.given("seed")) p.seed = v.integer("seed");
  return p;
}

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  const char *p = text.data(), *end = p + text.size();
  for (bool more = true; more;) {
    while (p < end && *p == ' ') ++p;
    std::int32_t id = 0;
    const auto [next, ec] = std::from_chars(p, end, id);
    if (ec != std::errc() || next == p || id < 0) throw Error("E101", "\"" + text.substr(0, 60) + "\" is not a list of token ids").hint("write them as 1,2,3");
    ids.push_back(id);
    p = next;
    while (p < end && *p == ' ') ++p;
    more = p < end && *p == ',';
    if (more) ++p;
    else if (p != end) throw Error("E101", "\"" + text.substr(0, 60) + "\" is not a list of token ids").hint("write them as 1,2,3");
  }
  return ids;
}

std::string read_text(const std::string& file, std::uint64_t most) {
  std::string text;
  std::FILE* in = file == "-" ? stdin : std::fopen(file.c_str(), "rb");
  const std::string name = file == "-" ? "standard input" : file;
  if (!in) throw Error("E101", "cannot read " + name + ": " + std::strerror(errno));
  char buffer[1 << 16];
  std::size_t n;
  while ((n = std::fread(buffer, 1, sizeof buffer, in)) > 0 && text.size() <= most) text.append(buffer, n);
  const bool failed = std::ferror(in);
  const int error = errno;
  if (in != stdin) std::fclose(in);
  if (failed) throw Error("E101", "cannot read " + name + ": " + std::strerror(error));
  if (text.size() > most) throw Error("E101", name + " is longer than " + std::to_string(most) + " bytes");
  return text;
}

std::vector<std::int32_t> chat_prompt(const Invocation& in, const Tokenizer& tokenizer, Json messages) {
  const std::string file = in.values.text("chat-template");
  std::string source = file.empty() ? tokenizer.chat_template() : read_text(file, 1 << 20);
  if (source.empty())
    throw Error("E504", "no chat template: tokenizer_config.json has none and there is no chat_template.jinja")
        .hint("--chat-template FILE, or leave --chat out and give the whole prompt");
  Json variables{{"messages", std::move(messages)}, {"add_generation_prompt", true}};
  if (const std::string text = in.values.text("default-chat-template-kwargs"); !text.empty()) {
    const Json extra = Json::parse(text, nullptr, false);
    if (!extra.is_object()) throw Error("E101", "--default-chat-template-kwargs is not a JSON object").hint("for example --default-chat-template-kwargs '{\"enable_thinking\":false}'");
    for (const auto& [key, value] : extra.items()) variables[key] = value;
  }
  const ChatTemplate chat(std::move(source), tokenizer.bos_text(), tokenizer.eos_text());
  return tokenizer.encode(chat.render(variables), /*add_special=*/false);
}

Json layers_json(const FormatPlan& plan) {
  Json out = Json::array();
  for (const LayerReport& r : plan.report())
    out.push_back({{"name", r.name}, {"plugin", r.plugin}, {"scheme", r.scheme}, {"kernel", r.kernel}, {"tier", r.tier},
                   {"bytes", r.bytes}, {"reason", r.reason}});
  return out;
}

std::string size_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (bytes >= 1024 && u < 4) bytes /= 1024, ++u;
  char text[32];
  std::snprintf(text, sizeof text, u == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, units[u]);
  return text;
}

}  // namespace qengine
