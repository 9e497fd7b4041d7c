// inspect: what a load with these flags would make, from the plan alone: no weight is read.
// --check reads everything once and says what is wrong with it.
#include <qe/plugin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/thread_pool.hpp"
#include "core/plugin_host/kv_format.hpp"

namespace qengine {
namespace {

const SettingGroup& inspect_settings() {
  static const SettingGroup group{"Inspect",
                                  {
                                      {.name = "layers", .kind = Kind::kBool, .fallback = "false", .help = "a line for every layer"},
                                      {.name = "check", .kind = Kind::kBool, .fallback = "false", .help = "read every tensor; list NaN, infinite and zero values where they cannot be"},
                                  }};
  return group;
}

// ---- the KV cache, as far as it is known without loading -------------------------------------------

Json kv_json(const Invocation& in, const OpenModel& m, ThreadPool& pool) {
  const std::string asked = in.values.text("kv-cache-dtype");
  KvFormatOptions options{.dtype = asked, .plugin = in.values.text("kv-plugin"), .block_tokens = static_cast<std::int32_t>(in.values.integer("block-size", 16))};
  if (asked == "auto" && in.values.flag("exact")) options.dtype = "float32";
  if (const auto format = KvFormat::make(*m.host, m.checkpoint, m.config, options, pool))
    return {{"plugin", format->plugin().name + (format->scheme().empty() ? "" : ":" + format->scheme())}, {"dtype", format->scheme().empty() ? asked : format->scheme()},
            {"bytes_per_token", format->bytes_per_token()}, {"scale_source", format->scale_source()}, {"why", format->why()}};
  std::string dtype = options.dtype, why = asked != "auto" ? "--kv-cache-dtype" : in.values.flag("exact") ? "--exact" : "the model's dtype";
  if (dtype == "auto") dtype = in.values.text("dtype");
  if (dtype == "auto") dtype = m.config.dtype.empty() ? "bfloat16" : m.config.dtype;
  if (dtype == "half") dtype = "float16";
  if (dtype == "float") dtype = "float32";
  return {{"plugin", "core"}, {"dtype", dtype}, {"bytes_per_token", 2 * m.config.num_layers * m.config.kv_size() * (dtype == "float32" ? 4 : 2)}, {"scale_source", "none"}, {"why", why}};
}

// ---- the check of values ---------------------------------------------------------------------------

struct Counts {
  std::uint64_t nan = 0, inf = 0, zero = 0, negative = 0;
};

float half(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24) : std::ldexp(static_cast<float>(mantissa | 0x400), static_cast<int>(exponent) - 25);
  return sign ? -value : value;
}

// nullopt for dtypes that hold no numbers of their own.
std::optional<Counts> count(std::int32_t dtype, std::span<const std::byte> data) {
  Counts c;
  const auto note = [&](double x) {
    c.nan += std::isnan(x);
    c.inf += std::isinf(x);
    c.zero += x == 0;
    c.negative += x < 0;
  };
  const auto each = [&]<class T>(T, auto&& value) {
    for (std::size_t i = 0; i + sizeof(T) <= data.size(); i += sizeof(T)) {
      T raw;
      std::memcpy(&raw, data.data() + i, sizeof raw);
      note(value(raw));
    }
  };
  switch (dtype) {
    case QE_F32: each(float{}, [](float x) { return x; }); break;
    case kDtypeF64: each(double{}, [](double x) { return x; }); break;
    case QE_F16: each(std::uint16_t{}, half); break;
    case QE_BF16: each(std::uint16_t{}, [](std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }); break;
    case QE_E4M3: each(std::uint8_t{}, [](std::uint8_t x) { return (x & 0x7f) == 0x7f ? NAN : (x & 0x7f) == 0 ? 0.0f : x & 0x80 ? -1.0f : 1.0f; }); break;
    case QE_E5M2: each(std::uint8_t{}, [](std::uint8_t x) { return half(static_cast<std::uint16_t>(x << 8)); }); break;
    case QE_E8M0: each(std::uint8_t{}, [](std::uint8_t x) { return x == 0xff ? NAN : 1.0f; }); break;
    default: return std::nullopt;
  }
  return c;
}

// Factors of a format: zero makes a row vanish, below zero mirrors it. Neither is ever meant.
bool is_scale(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last.find("scale") != last.npos || last == "absmax" || last == "SCB";
}

std::vector<std::string> check(const Invocation& in, const OpenModel& m, ThreadPool& pool) {
  std::vector<std::string> problems;
  Progress progress(in, "checking");
  const auto tensors = m.checkpoint->tensors();
  const double steps = static_cast<double>(tensors.size() + m.plan->layers().size());
  std::size_t done = 0;
  for (const Tensor& t : tensors) {
    const auto c = count(t.dtype, m.checkpoint->data(t));
    m.checkpoint->release(t);
    progress.at(static_cast<double>(++done) / steps, t.name);
    if (!c) continue;
    const auto say = [&](std::uint64_t n, const char* what) {
      if (n > 0) problems.push_back(t.name + " has " + std::to_string(n) + " " + what + " values in " + m.checkpoint->files()[t.file].path.filename().string());
    };
    say(c->nan, "NaN");
    say(c->inf, "infinite");
    if (!is_scale(t.name)) continue;
    say(c->negative, "negative");
    say(c->zero, "zero");
  }
  // The plugins' own checks, and values that lie inside of blocks.
  for (std::size_t i = 0; i < m.plan->layers().size(); ++i) {
    try {
      m.plan->load(i, pool);
    } catch (const Error& e) {
      problems.push_back(e.code() + " " + e.message());
    }
    progress.at(static_cast<double>(++done) / steps, m.plan->layers()[i].name);
  }
  return problems;
}

// ---- output ----------------------------------------------------------------------------------------

struct ByDtype {
  std::uint64_t count = 0, bytes = 0;
};

std::map<std::string, ByDtype> by_dtype(const Checkpoint& c) {
  std::map<std::string, ByDtype> out;
  for (const Tensor& t : c.tensors()) {
    ByDtype& d = out[dtype_name(t.dtype)];
    ++d.count;
    d.bytes += t.bytes;
  }
  return out;
}

std::int64_t parameters(const FormatPlan& plan) {
  std::int64_t n = 0;
  for (const LayerSpec& l : plan.layers())
    for (const PartSpec& p : l.parts) n += p.n * l.k;
  return n;
}

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : ", ") + s;
  return out.empty() ? "none" : out;
}

int run(const Invocation& in) {
  const OpenModel m = open_model(in);
  const FormatPlan& plan = *m.plan;
  ThreadPool pool(static_cast<int>(in.values.integer("threads", 0)));
  const Json kv = kv_json(in, m, pool);
  const std::vector<std::string> problems = in.values.flag("check") ? check(in, m, pool) : std::vector<std::string>();

  if (in.json()) {
    Json doc = json_document(in.command);
    const ModelConfig& c = m.config;
    doc["model"] = {{"architecture", c.architecture}, {"model_type", c.model_type}, {"params", parameters(plan)}, {"dtype", c.dtype}, {"layers", c.num_layers}, {"hidden_size", c.hidden_size},
                    {"intermediate_size", c.intermediate_size}, {"heads", c.num_heads}, {"kv_heads", c.num_kv_heads}, {"head_dim", c.head_dim}, {"vocab_size", c.vocab_size},
                    {"max_model_len", c.max_position}, {"tied", c.tied}};
    doc["choice"] = plan.choice();
    doc["layers"] = layers_json(plan);
    doc["kv"] = {{"plugin", kv["plugin"]}, {"dtype", kv["dtype"]}, {"bytes_per_token", kv["bytes_per_token"]}, {"scale_source", kv["scale_source"]}};
    Json& tensors = doc["tensors"] = Json::object();
    for (const auto& [name, d] : by_dtype(*m.checkpoint)) tensors[name] = {{"count", d.count}, {"bytes", d.bytes}};
    doc["ignored_tensors"] = plan.ignored_tensors();
    doc["unused_rules"] = plan.unused_rules();
    doc["warnings"] = plan.warnings();
    doc["total_bytes"] = plan.weight_bytes();
    if (in.values.flag("check")) doc["problems"] = problems;
    print_json(doc);
  } else {
    const ModelConfig& c = m.config;
    std::string out = c.architecture + ", " + std::to_string(c.num_layers) + " layers, hidden " + std::to_string(c.hidden_size) + ", " + std::to_string(c.num_heads) + "/" + std::to_string(c.num_kv_heads) +
                      " heads of " + std::to_string(c.head_dim) + ", vocabulary " + std::to_string(c.vocab_size) + ", context " + std::to_string(c.max_position) + "\n";
    std::string tensors;
    for (const auto& [name, d] : by_dtype(*m.checkpoint)) tensors += (tensors.empty() ? "" : ", ") + std::to_string(d.count) + " " + name + " (" + format_bytes(d.bytes) + ")";
    out += "tensors: " + tensors + "\n" + plan.choice() + "\n\n";
    const std::string kv_plugin = kv["plugin"];
    const TableRow row{"kv cache", kv_plugin == "core" ? kv["dtype"].get<std::string>() : kv_plugin, "", "", format_bytes(kv["bytes_per_token"].get<std::uint64_t>()) + " a token", kv["why"]};
    out += format_table(plan.report(), in.values.flag("layers"), std::span(&row, 1));
    std::string fallbacks;
    for (const LayerReport& r : plan.report())
      if (r.tier != "native" && fallbacks.find(r.plugin) == fallbacks.npos) fallbacks += (fallbacks.empty() ? "" : ", ") + r.plugin + " (" + r.tier + ")";
    out += "total " + format_bytes(plan.weight_bytes()) + " weights   fallbacks: " + (fallbacks.empty() ? "none" : fallbacks) + "   unused rules: " + joined(plan.unused_rules()) +
           "   ignored tensors: " + joined(plan.ignored_tensors()) + "\n";
    if (in.values.flag("check")) {
      out += problems.empty() ? "\nchecked: every tensor was read, nothing wrong\n" : "\nproblems\n";
      for (const std::string& p : problems) out += "  " + p + "\n";
    }
    print(out);
  }
  if (problems.empty()) return 0;
  throw Error("E206", std::to_string(problems.size()) + " problems in the values of " + m.checkpoint->path().string()).hint("the file is damaged or the quantizer failed: get it again, or quantize again");
}

}  // namespace

extern const Command inspect_command;
const Command inspect_command = {
    .name = "inspect",
    .summary = "what each layer is, which plugin takes it, and its bytes",
    .usage = {"MODEL", "MODEL --quantization fp8_per_channel --layers", "MODEL --check"},
    .groups = with_model_groups({&inspect_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
