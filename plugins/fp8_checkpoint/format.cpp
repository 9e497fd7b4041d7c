#include "format.hpp"

#include <algorithm>

#include "shared/config_view.hpp"
#include "shared/zero_points.hpp"

namespace qengine::fp8 {
namespace {

using packed::ConfigView;
using packed::QuantArgs;
using Grid = Module::Grid;

std::string method_of(const qe_model& model) { return packed::lower(ConfigView(model.cfg).text("quant_method").value_or("absent")); }
bool is_modelopt(const std::string& method) { return method.starts_with("modelopt"); }

std::string named(std::string_view module, const char* suffix) { return std::string(module) + "." + suffix; }

// The list of modules left alone under either of its names, matched exactly, by suffix at a dot, or as a pattern.
const char* listed(const qe_model& model, std::string_view name, std::initializer_list<const char*> keys, std::string& rule) {
  const qe::Config cfg(model.cfg);
  for (const char* key : keys)
    for (const std::string& entry : cfg.strings(key)) {
      const bool suffix = name.size() > entry.size() && name.ends_with(entry) && name[name.size() - entry.size() - 1] == '.';
      if (qe::match(entry, name) || suffix) {
        rule = entry;
        return key;
      }
    }
  return nullptr;
}

struct Weights {
  bool known = false;  // there are files
  bool is_fp8 = false, is_byte = false, present = false;
  std::string dtype;
};
Weights weights_of(const qe_model& model, std::string_view name) {
  Weights w;
  if (!model.ckpt) return w;
  w.known = true;
  const auto t = qe::Io(model, qe::Io::Mode::plan).look(named(name, "weight"));
  if (!t) return w;
  w.present = true;
  w.is_fp8 = t->dtype == QE_E4M3;
  w.is_byte = w.is_fp8 || t->dtype == QE_U8 || t->dtype == QE_I8;
  w.dtype = qe::dtype_name(t->dtype);
  return w;
}

Module no(std::string reason) {
  Module m;
  m.reason = std::move(reason);
  return m;
}

std::int64_t scale_values(const qe_model& model, std::string_view name, const char* suffix) {
  const auto t = qe::Io(model, qe::Io::Mode::plan).look(named(name, suffix));
  return t ? packed::elements(*t) : -1;
}

// The first of two spellings that is there; neither: the first.
const char* spelled(const qe_model& model, std::string_view name, const char* one, const char* other) {
  return scale_values(model, name, one) < 0 && scale_values(model, name, other) > 0 ? other : one;
}

// quant_method fp8
struct Fp8Config {
  std::string scheme, problem;
  std::int64_t block[2] = {0, 0};
  bool dynamic = false;
};
Fp8Config read_fp8(const ConfigView& c) {
  Fp8Config f;
  const auto complain = [&](std::string text) {
    if (f.problem.empty()) f.problem = std::move(text);
  };
  if (c.has("weight_block_size")) {
    for (int i : {0, 1}) {
      const auto v = c.whole("weight_block_size.#" + std::to_string(i));
      f.block[i] = v.value_or(0);
    }
    if (f.block[0] < 1 || f.block[1] < 1 || c.size("weight_block_size") != 2)
      complain(qe::format("weight_block_size is [%lld, %lld]; supported: two positive numbers, such as [128, 128]", static_cast<long long>(f.block[0]),
                          static_cast<long long>(f.block[1])));
  }
  const std::string act = packed::lower(c.text("activation_scheme").value_or("dynamic"));
  if (act != "static" && act != "dynamic") complain("activation_scheme is " + act + "; supported: static, dynamic");
  f.dynamic = act != "static";
  if (f.block[0] > 0 && !f.dynamic) complain("activation_scheme is static with weight_block_size; supported with blocks: dynamic");
  const std::string fmt = packed::lower(c.text("fmt").value_or("e4m3"));
  if (fmt != "e4m3" && fmt != "float8_e4m3fn") complain("fmt is " + fmt + "; supported: e4m3");
  return f;
}

Module describe_fp8(const qe_model& model, std::string_view name, int role) {
  const Fp8Config f = read_fp8(ConfigView(model.cfg));
  if (!f.problem.empty()) return no(f.problem);
  Module m;
  if (f.block[0] > 0) {
    m.grid = Grid::kBlock;
    m.scale_name = spelled(model, name, "weight_scale_inv", "weight_scale");
    m.block_n = f.block[0];
    m.block_k = f.block[1];
    m.activation.kind = qe::Activation::e4m3_group;
    m.activation.group = static_cast<std::int32_t>(f.block[1]);
    m.scheme = qe::format("fp8_block%lldx%lld", static_cast<long long>(f.block[0]), static_cast<long long>(f.block[1]));
  } else {
    m.scale_name = spelled(model, name, "weight_scale", "weight_scale_inv");
    m.input_name = spelled(model, name, "input_scale", "activation_scale");
    m.grid = scale_values(model, name, m.scale_name) > 1 ? Grid::kRow : Grid::kTensor;
    m.static_input = !f.dynamic;
    m.activation.kind = f.dynamic ? qe::Activation::e4m3_token : qe::Activation::e4m3_static;
    m.scheme = m.grid == Grid::kRow ? "fp8_per_channel" : "fp8_per_tensor";
  }
  (void)role;
  return m;
}

Module describe_compressed(const packed::CompressedTensorsConfig& config, std::string_view name, int role, bool has_codes) {
  if (!config.problem.empty()) return no(config.problem);
  const std::string* rule = config.ignored(name, role);
  const packed::CompressedTensorsGroup* g = config.group_of(name, role);
  if (rule && !has_codes) return no("listed in ignore as " + *rule);
  if (!g) return no("no target of config_groups names it");
  if (!g->weights) return no("config_groups." + g->name + " does not quantize weights");
  const QuantArgs& w = *g->weights;
  if (g->format != "float-quantized" && g->format != "naive-quantized" && !g->format.empty())
    return no("config_groups." + g->name + " has format " + g->format + "; this plugin reads float-quantized");
  if (!w.is_float || w.num_bits != 8) return no(qe::format("%d-bit %s weights; this plugin reads 8-bit float", w.num_bits, w.is_float ? "float" : "int"));
  Module m;
  using S = QuantArgs::Strategy;
  switch (w.strategy) {
    case S::kTensor: m.grid = Grid::kTensor, m.scheme = "fp8_per_tensor"; break;
    case S::kChannel: m.grid = Grid::kRow, m.scheme = "fp8_per_channel"; break;
    case S::kBlock:
      m.grid = Grid::kBlock, m.block_n = w.block[0], m.block_k = w.block[1];
      m.scheme = qe::format("fp8_block%lldx%lld", static_cast<long long>(w.block[0]), static_cast<long long>(w.block[1]));
      break;
    case S::kGroup:
      m.grid = Grid::kGroup, m.block_k = w.group_size;
      m.scheme = qe::format("fp8_g%lld", static_cast<long long>(w.group_size));
      break;
    default: return no(std::string("strategy ") + packed::strategy_text(w.strategy) + "; supported: tensor, channel, block, group");
  }
  if (g->input) {
    const QuantArgs& in = *g->input;
    const bool dynamic = in.dynamic != QuantArgs::Dynamic::kNo;
    if (!in.is_float || in.num_bits != 8) {
      m.note = qe::format("weight-only: input_activations of %d-bit %s are left as they are", in.num_bits, in.is_float ? "float" : "int");
    } else if (!dynamic && in.strategy == S::kTensor) {
      m.activation.kind = qe::Activation::e4m3_static;
      m.static_input = true;
    } else if (dynamic && (in.strategy == S::kToken || in.strategy == S::kTensor)) {
      m.activation.kind = qe::Activation::e4m3_token;
    } else if (dynamic && in.strategy == S::kGroup && in.group_size > 0) {
      m.activation.kind = qe::Activation::e4m3_group;
      m.activation.group = static_cast<std::int32_t>(in.group_size);
    } else {
      m.note = std::string("weight-only: input_activations with strategy ") + packed::strategy_text(in.strategy) + " are left as they are";
    }
  }
  return m;
}

Module describe_modelopt(const qe_model& model, std::string_view name) {
  const ConfigView c(model.cfg);
  std::string algo = c.text("quant_algo").value_or("");
  std::string where = "quant_algo";
  if (packed::lower(algo) == "mixed_precision") {
    algo.clear();
    for (std::int64_t i = 0; i < c.size("quantized_layers") && algo.empty(); ++i) {
      const std::string key = c.key("quantized_layers", i);
      if (qe::match(key, name)) algo = c.text("quantized_layers.#" + std::to_string(i) + ".quant_algo").value_or(""), where = "quantized_layers." + key;
    }
    if (algo.empty()) return no("quantized_layers does not name it");
  }
  const std::string a = packed::lower(algo);
  Module m;
  if (a == "fp8") {
    m.grid = Grid::kTensor;
    m.static_input = scale_values(model, name, "input_scale") > 0;
    m.activation.kind = m.static_input ? qe::Activation::e4m3_static : qe::Activation::none;
    m.scheme = "fp8_per_tensor";
  } else if (a == "fp8_per_channel_per_token") {
    m.grid = Grid::kRow;
    m.activation.kind = qe::Activation::e4m3_token;
    m.scheme = "fp8_per_channel";
  } else if (a == "fp8_pb_wo") {
    m.grid = Grid::kBlock;
    m.block_n = m.block_k = 128;
    m.modelopt_block = true;
    m.scheme = "fp8_block128x128";
  } else {
    return no(where + " is " + (algo.empty() ? "absent" : algo) + "; this plugin reads FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO");
  }
  return m;
}

Module describe_fbgemm(const qe_model& model) {
  Module m;
  m.grid = Grid::kRow;
  m.activation.kind = qe::Activation::e4m3_token;
  m.bound_name = "input_scale_ub";
  m.activation.bound = static_cast<float>(qe::Config(model.cfg).f64("activation_scale_ub", 1200.0));
  m.scheme = "fp8_per_channel";
  return m;
}

}  // namespace

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t, std::int64_t) {
  const std::string method = method_of(model);
  const Weights w = weights_of(model, name);
  std::string rule;
  const char* list = method == "compressed-tensors" ? nullptr : listed(model, name, {"ignored_layers", "modules_to_not_convert", "exclude_modules", "ignore"}, rule);
  const std::string skipped = list ? std::string("listed in ") + list + " as " + rule : std::string();
  if (w.known && w.present && !w.is_byte) return no("not quantized: weight is " + w.dtype + (skipped.empty() ? "" : "; " + skipped));
  const bool has_codes = w.known && w.is_byte;
  if (list && !has_codes) return no(skipped);
  const bool table = role == QE_ROLE_EMBED || role == QE_ROLE_LM_HEAD;
  if (table && !has_codes) return no(role == QE_ROLE_EMBED ? "an embedding, which these checkpoints leave in 16 bits" : "lm_head, which these checkpoints leave in 16 bits");

  Module m = method == "fp8"                   ? describe_fp8(model, name, role)
             : method == "compressed-tensors"  ? describe_compressed(packed::CompressedTensorsConfig::read(model.cfg), name, role, has_codes)
             : is_modelopt(method)             ? describe_modelopt(model, name)
             : method == "fbgemm_fp8"          ? describe_fbgemm(model)
                                               : no("quant_method is " + method + "; this plugin reads fp8, compressed-tensors float-quantized, modelopt, fbgemm_fp8");
  if (m.grid == Grid::kBlock && m.block_n % 8 != 0) m.grid = Grid::kGroup;
  return m;
}

qe::Activation activation_of(const Module& module, std::int32_t flags) {
  qe::Activation a = module.activation;
  if (a.kind != qe::Activation::none || !(flags & QE_LAYER_ACT_TOKEN) || !module.note.empty()) return a;
  a.kind = module.grid == Grid::kBlock ? qe::Activation::e4m3_group : qe::Activation::e4m3_token;
  if (module.grid == Grid::kBlock) a.group = static_cast<std::int32_t>(module.block_k);
  return a;
}

packed::ByteMatrix bind(qe::Io& io, const qe::Part& part, const Module& module) {
  if (module.grid == Grid::kNone) throw qe::Error(QE_E_UNSUPPORTED, std::string(part.name()), module.reason);
  packed::ByteMatrix m;
  m.n = part.n();
  m.k = part.k();
  m.activation = activation_of(module, part.layer().flags);
  // Files written before the type had a name hold the codes as U8 or I8.
  m.q = static_cast<const std::uint8_t*>(io.tensor(part, "weight", qe::dtype_bit(QE_E4M3) | qe::dtype_bit(QE_U8) | qe::dtype_bit(QE_I8), {m.n, m.k}).data);
  const std::string name = qe::Io::join(part, module.scale_name);
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  packed::ScaleGrid& s = m.scale;
  qe_tensor t{};
  switch (module.grid) {
    case Grid::kTensor:
      t = io.tensor(part, module.scale_name, packed::kScaleFloats, {}, qe::Need::required, -1);
      if (io.loading() && packed::elements(t) != 1)
        throw qe::Error(QE_E_CHECKPOINT, name, qe::format("has %lld values; one for the tensor or one for each of %lld rows was expected", static_cast<long long>(packed::elements(t)),
                                                           static_cast<long long>(m.n)));
      s = {t.data, t.dtype, 1, m.k, 0, 1};
      break;
    case Grid::kRow:
      t = io.tensor(part, module.scale_name, packed::kScaleFloats, {}, qe::Need::required, -1);
      if (io.loading() && packed::elements(t) != m.n && packed::elements(t) != 1)
        throw qe::Error(QE_E_CHECKPOINT, name, qe::format("has %lld values; one for the tensor or one for each of %lld rows was expected", static_cast<long long>(packed::elements(t)),
                                                           static_cast<long long>(m.n)));
      s = {t.data, t.dtype, 1, m.k, t.data && packed::elements(t) == m.n ? 1 : 0, t.data ? packed::elements(t) : 0};
      break;
    case Grid::kBlock:
    case Grid::kGroup: {
      const std::int64_t a = ceil_div(m.n, module.block_n), b = ceil_div(m.k, module.block_k);
      const std::uint64_t types = packed::kScaleFloats | qe::dtype_bit(QE_E8M0) | qe::dtype_bit(QE_U8);
      const auto stored = io.look(name);
      t = module.modelopt_block && !(stored && stored->rank == 2) ? io.tensor(part, module.scale_name, types, {a, 1, b, 1}) : io.tensor(part, module.scale_name, types, {a, b});
      s = {t.data, t.dtype, module.block_n, module.block_k, b, a * b};
      break;
    }
    case Grid::kNone: break;
  }
  const float input = packed::one_number(io, part, module.input_name, module.static_input ? qe::Need::required : qe::Need::optional);
  if (module.static_input) m.activation.scale = input;
  if (module.bound_name) m.activation.bound = packed::one_number(io, part, module.bound_name, qe::Need::optional, m.activation.bound);
  for (const char* zeros : {"weight_zero_point", "input_zero_point"}) packed::require_no_offset(io, part, zeros);
  if (!io.loading()) return m;
  packed::require_scales(s, name, s.dtype == QE_E8M0 || s.dtype == QE_U8);
  if (module.grid == Grid::kTensor && s.at(0) == 0 && std::any_of(m.q, m.q + m.n * m.k, [](std::uint8_t code) { return (code & 0x7f) != 0; }))
    throw qe::Error(QE_E_CHECKPOINT, name, "is 0, and the weights are not", "the file is damaged or the quantizer failed");
  return m;
}

int detect(const qe_model& model, qe::Reason& why) {
  const std::string method = method_of(model);
  if (method == "fp8") {
    const Fp8Config f = read_fp8(ConfigView(model.cfg));
    if (!f.problem.empty()) return why("%s", f.problem.c_str()), 0;
    if (f.block[0]) why("quant_method fp8, blocks of %lldx%lld", static_cast<long long>(f.block[0]), static_cast<long long>(f.block[1]));
    else why("quant_method fp8, per tensor or row, %s activations", f.dynamic ? "dynamic" : "static");
    return 1000;
  }
  if (method == "fbgemm_fp8") return why("quant_method fbgemm_fp8, a scale a row"), 1000;
  if (is_modelopt(method)) {
    const std::string algo = packed::lower(ConfigView(model.cfg).text("quant_algo").value_or("absent"));
    const bool ours = algo == "fp8" || algo == "fp8_per_channel_per_token" || algo == "fp8_pb_wo";
    why("ModelOpt with quant_algo %s%s", algo.c_str(), ours || algo == "mixed_precision" ? "" : "; this plugin reads FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO");
    return ours ? 1000 : algo == "mixed_precision" ? 600 : 0;
  }
  if (method == "compressed-tensors") {
    const auto c = packed::CompressedTensorsConfig::read(model.cfg);
    if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
    std::size_t ours = 0;
    for (const auto& g : c.groups)
      ours += g.weights && g.weights->is_float && g.weights->num_bits == 8 && (g.format == "float-quantized" || g.format == "naive-quantized" || g.format.empty());
    if (ours == 0) return why("compressed-tensors without 8-bit float weights; this plugin reads float-quantized"), 0;
    if (ours == c.groups.size()) return why("compressed-tensors float-quantized"), 1000;
    return why("compressed-tensors with %zu of %zu groups in 8-bit float", ours, c.groups.size()), 600;
  }
  return why("quant_method is %s; this plugin reads fp8, compressed-tensors float-quantized, modelopt, fbgemm_fp8", method.c_str()), 0;
}

}  // namespace qengine::fp8
