#include "format.hpp"

#include <algorithm>

#include "shared/config_view.hpp"
#include "shared/zero_points.hpp"

namespace qengine::ct {
namespace {

using packed::ConfigView;
using packed::QuantArgs;
using S = QuantArgs::Strategy;

std::string method_of(const qe_model& model) { return packed::lower(ConfigView(model.cfg).text("quant_method").value_or("absent")); }
std::string named(std::string_view module, const char* suffix) { return std::string(module) + "." + suffix; }

Module no(std::string reason) {
  Module m;
  m.reason = std::move(reason);
  return m;
}

// E2M1 and MX weights from before the writer's release 0.14 are scaled otherwise than they say.
bool older_than(const std::string& version, int major, int minor) {
  int a = 0, b = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &a, &b) != 2) return false;
  return a < major || (a == major && b < minor);
}

const char* kOurFormats = "int-quantized, naive-quantized, mxfp4-pack-quantized, mxfp8-quantized, nvfp4-pack-quantized";

// The scheme of a group, whatever module it serves.
Module scheme_of(const packed::CompressedTensorsGroup& g, const std::string& file_format, const std::string& version) {
  if (!g.weights) return no("config_groups." + g.name + " does not quantize weights");
  const QuantArgs& w = *g.weights;
  const std::string format = g.format.empty() ? file_format : g.format;
  Module m;
  m.weights = w;
  const auto strategy = [&](const char* supported) { return no(std::string("strategy ") + packed::strategy_text(w.strategy) + " in format " + format + "; supported: " + supported); };
  if (format == "int-quantized" || (format == "naive-quantized" && !w.is_float)) {
    // Codes of fewer bits lie in bytes too.
    if (w.is_float || w.num_bits > 8) return no(qe::format("%d-bit %s weights in format %s; supported: int of at most 8 bits", w.num_bits, w.is_float ? "float" : "int", format.c_str()));
    if (w.strategy != S::kTensor && w.strategy != S::kChannel && w.strategy != S::kGroup) return strategy("tensor, channel, group");
    m.kind = w.symmetric && w.strategy != S::kGroup ? Kind::kInt8Row : Kind::kInt8Zero;
    m.scheme = qe::format("int%d_per_", w.num_bits) + (w.strategy == S::kTensor ? "tensor" : w.strategy == S::kChannel ? "channel" : "group");
  } else if (format == "mxfp8-quantized") {
    if (w.group_size != 32) return no(qe::format("group_size %lld in format mxfp8-quantized; supported: 32", static_cast<long long>(w.group_size)));
    m.kind = Kind::kMxFp8;
    m.scheme = "mxfp8";
  } else if (format == "mxfp4-pack-quantized") {
    if (w.group_size != 32) return no(qe::format("group_size %lld in format mxfp4-pack-quantized; supported: 32", static_cast<long long>(w.group_size)));
    if (older_than(version, 0, 14)) return no("written by compressed-tensors " + version + ", whose MXFP4 exponents were stored two too small; quantize again with 0.14 or newer");
    m.kind = Kind::kMxFp4;
    m.scheme = "mxfp4";
  } else if (format == "nvfp4-pack-quantized") {
    if (w.group_size != 16) return no(qe::format("group_size %lld in format nvfp4-pack-quantized; supported: 16", static_cast<long long>(w.group_size)));
    m.kind = Kind::kNvFp4;
    m.scheme = "nvfp4";
  } else {
    return no("format is " + (format.empty() ? std::string("absent") : format) + "; this plugin reads " + kOurFormats);
  }
  if (!g.input) return m;
  const QuantArgs& in = *g.input;
  const bool dynamic = in.dynamic != QuantArgs::Dynamic::kNo;
  using A = qe::Activation;
  if (!in.is_float && in.num_bits == 8 && dynamic && in.symmetric && (in.strategy == S::kToken || in.strategy == S::kTensor)) {
    m.activation.kind = A::i8_token;
  } else if (!in.is_float && in.num_bits == 8 && !dynamic && in.strategy == S::kTensor) {
    m.activation.kind = A::i8_static;
    m.static_input = true;
  } else if (in.is_float && in.num_bits == 8 && m.kind == Kind::kMxFp8) {
    m.activation.kind = A::mx_e4m3;
  } else if (in.is_float && in.num_bits == 4 && m.kind == Kind::kMxFp4) {
    m.activation.kind = A::mx_e2m1;
  } else if (in.is_float && in.num_bits == 4 && m.kind == Kind::kNvFp4) {
    m.activation.kind = A::nvfp4;
    m.static_input = true;
  } else {
    m.note = qe::format("weight-only: input_activations of %d-bit %s, strategy %s, are left as they are", in.num_bits, in.is_float ? "float" : "int", packed::strategy_text(in.strategy));
  }
  return m;
}

Module describe_compressed(const qe_model& model, std::string_view name, int role, bool has_codes) {
  const auto config = packed::CompressedTensorsConfig::read(model.cfg);
  if (!config.problem.empty()) return no(config.problem);
  const std::string* rule = config.ignored(name, role);
  if (rule && !has_codes) return no("listed in ignore as " + *rule);
  const packed::CompressedTensorsGroup* g = config.group_of(name, role);
  if (!g) return no("no target of config_groups names it");
  return scheme_of(*g, config.format, ConfigView(model.cfg).text("version").value_or(""));
}

std::string modelopt_algo(const qe_model& model, std::string_view name) {
  const ConfigView c(model.cfg);
  const std::string algo = packed::lower(c.text("quant_algo").value_or(""));
  if (algo != "mixed_precision") return algo;
  for (std::int64_t i = 0; i < c.size("quantized_layers"); ++i)
    if (qe::match(c.key("quantized_layers", i), name)) return packed::lower(c.text("quantized_layers.#" + std::to_string(i) + ".quant_algo").value_or(""));
  return "";
}

Module describe_modelopt(const qe_model& model, std::string_view name, bool has_codes) {
  const qe::Config cfg(model.cfg);
  if (!has_codes)
    for (const char* key : {"exclude_modules", "ignore"})
      if (cfg.lists(key, name)) return no(std::string("listed in ") + key);
  const std::string algo = modelopt_algo(model, name);
  Module m;
  m.modelopt = true;
  if (algo == "nvfp4" || algo == "w4a16_nvfp4") {
    const std::int64_t g = cfg.i64("group_size", 16);
    if (g != 16) return no(qe::format("group_size %lld with quant_algo NVFP4; supported: 16", static_cast<long long>(g)));
    m.kind = Kind::kNvFp4Multiplier;
    m.scheme = "nvfp4";
    if (algo == "nvfp4") m.note = "weight-only: FP4 activations are left as they are";
  } else if (algo == "mxfp8") {
    m.kind = Kind::kMxFp8;
    m.scheme = "mxfp8";
    m.activation.kind = qe::Activation::mx_e4m3;
  } else {
    return no("quant_algo is " + (algo.empty() ? std::string("absent") : algo) + "; this plugin reads NVFP4, W4A16_NVFP4, MXFP8");
  }
  return m;
}

bool is_modelopt(const std::string& method) { return method.starts_with("modelopt"); }

}  // namespace

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t, std::int64_t k) {
  const std::string method = method_of(model);
  const qe::Io io(model, qe::Io::Mode::plan);
  const auto weight = io.look(named(name, "weight")), words = io.look(named(name, "weight_packed"));
  const bool known = model.ckpt != nullptr;
  const bool wide = weight && (weight->dtype == QE_F32 || weight->dtype == QE_F16 || weight->dtype == QE_BF16);
  if (known && wide && !words) return no(std::string("not quantized: weight is ") + qe::dtype_name(weight->dtype));
  const bool has_codes = words || (weight && !wide);
  if ((role == QE_ROLE_EMBED || role == QE_ROLE_LM_HEAD) && !has_codes) return no(role == QE_ROLE_EMBED ? "an embedding, which these checkpoints leave in 16 bits" : "lm_head, which these checkpoints leave in 16 bits");
  Module m = method == "compressed-tensors" ? describe_compressed(model, name, role, has_codes)
             : is_modelopt(method)          ? describe_modelopt(model, name, has_codes)
                                            : no("quant_method is " + method + "; this plugin reads compressed-tensors and modelopt");
  const std::int64_t unit = m.kind == Kind::kMxFp8 || m.kind == Kind::kMxFp4 ? 32 : m.kind == Kind::kNvFp4 || m.kind == Kind::kNvFp4Multiplier ? 16 : 1;
  if (m.kind != Kind::kNone && k % unit != 0) return no(qe::format("%lld inputs; %s needs a multiple of %lld", static_cast<long long>(k), m.scheme.c_str(), static_cast<long long>(unit)));
  return m;
}

namespace {

// Scales of int8 matrices: one, one a row, one a group.
packed::ScaleGrid int8_scales(qe::Io& io, const qe::Part& p, const Module& module) {
  const QuantArgs& w = module.weights;
  const std::int64_t n = p.n(), k = p.k();
  packed::ScaleGrid s;
  if (w.strategy == S::kGroup) {
    const std::int64_t groups = (k + w.group_size - 1) / w.group_size;
    const qe_tensor t = io.tensor(p, "weight_scale", packed::kScaleFloats, {n, groups});
    s = {t.data, t.dtype, 1, w.group_size, groups, n * groups};
  } else {
    const qe_tensor t = io.tensor(p, "weight_scale", packed::kScaleFloats, {}, qe::Need::required, -1);
    const std::int64_t count = t.data ? packed::elements(t) : 0, expected = w.strategy == S::kTensor ? 1 : n;
    if (io.loading() && count != expected)
      throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, "weight_scale"),
                      qe::format("has %lld values, expected %lld for strategy %s", static_cast<long long>(count), static_cast<long long>(expected), packed::strategy_text(w.strategy)));
    s = {t.data, t.dtype, 1, k, expected == 1 ? 0 : 1, count};
  }
  if (io.loading()) packed::require_scales(s, qe::Io::join(p, "weight_scale"));
  return s;
}

void bind_input(qe::Io& io, const qe::Part& p, const Module& module, qe::Activation& a) {
  if (a.kind == qe::Activation::i8_static) {
    a.scale = packed::one_number(io, p, "input_scale");
    const qe_tensor z = io.tensor(p, "input_zero_point", qe::dtype_bit(QE_I8) | qe::dtype_bit(QE_I32), {}, qe::Need::optional, -1);
    if (z.data) a.zero = z.dtype == QE_I8 ? *static_cast<const std::int8_t*>(z.data) : *static_cast<const std::int32_t*>(z.data);
  } else if (a.kind == qe::Activation::nvfp4) {
    a.scale = packed::one_number(io, p, "input_global_scale");
  } else {
    for (const char* unused : {"input_scale", "input_zero_point", "input_global_scale"}) io.tensor(p, unused, 0, {}, qe::Need::optional, -1);
  }
  (void)module;
}

void bind_shape(qe::Io& io, const qe::Part& p) { io.tensor(p, "weight_shape", qe::dtype_bit(QE_I64) | qe::dtype_bit(QE_I32), {2}, qe::Need::optional); }

}  // namespace

packed::ByteMatrix bind_bytes(qe::Io& io, const qe::Part& p, const Module& module) {
  packed::ByteMatrix m;
  m.n = p.n();
  m.k = p.k();
  m.activation = module.activation;
  if (module.kind == Kind::kMxFp8) {
    m.q = static_cast<const std::uint8_t*>(io.tensor(p, "weight", qe::dtype_bit(QE_E4M3) | qe::dtype_bit(QE_U8), {m.n, m.k}).data);
    const qe_tensor t = io.tensor(p, "weight_scale", qe::dtype_bit(QE_U8) | qe::dtype_bit(QE_E8M0), {m.n, m.k / 32});
    m.scale = {t.data, QE_E8M0, 1, 32, m.k / 32, m.n * (m.k / 32)};
    if (io.loading()) packed::require_scales(m.scale, qe::Io::join(p, "weight_scale"), true);
  } else {
    m.q = static_cast<const std::uint8_t*>(io.tensor(p, "weight", qe::dtype_bit(QE_I8), {m.n, m.k}).data);
    m.scale = int8_scales(io, p, module);
    packed::require_no_offset(io, p, "weight_zero_point");
  }
  bind_input(io, p, module, m.activation);
  return m;
}

Int8ZeroSource bind_int8_zero(qe::Io& io, const qe::Part& p, const Module& module) {
  Int8ZeroSource m;
  m.n = p.n();
  m.k = p.k();
  m.activation = module.activation;
  m.q = static_cast<const std::uint8_t*>(io.tensor(p, "weight", qe::dtype_bit(QE_I8), {m.n, m.k}).data);
  m.scale = int8_scales(io, p, module);
  const bool zeros = !module.weights.symmetric;
  if (!zeros) packed::require_no_offset(io, p, "weight_zero_point");
  const qe_tensor z = zeros ? io.tensor(p, "weight_zero_point", qe::dtype_bit(QE_I8), {}, qe::Need::required, -1) : qe_tensor{};
  if (zeros && io.loading() && packed::elements(z) != m.scale.count)
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, "weight_zero_point"),
                    qe::format("has %lld values, the scales have %lld", static_cast<long long>(packed::elements(z)), static_cast<long long>(m.scale.count)));
  if (zeros) m.zero = static_cast<const std::int8_t*>(z.data);
  bind_input(io, p, module, m.activation);
  return m;
}

packed::NibbleMatrix bind_nibbles(qe::Io& io, const qe::Part& p, const Module& module) {
  packed::NibbleMatrix m;
  m.n = p.n();
  m.k = p.k();
  m.activation = module.activation;
  m.q = io.u8(p, module.modelopt ? "weight" : "weight_packed", {m.n, m.k / 2});
  const std::string scale = qe::Io::join(p, "weight_scale");
  if (module.kind == Kind::kMxFp4) {
    const qe_tensor t = io.tensor(p, "weight_scale", qe::dtype_bit(QE_U8) | qe::dtype_bit(QE_E8M0), {m.n, m.k / 32});
    m.scale = {t.data, QE_E8M0, 1, 32, m.k / 32, m.n * (m.k / 32)};
    if (io.loading()) packed::require_scales(m.scale, scale, true);
  } else {
    const qe_tensor t = io.tensor(p, "weight_scale", qe::dtype_bit(QE_E4M3) | qe::dtype_bit(QE_U8), {m.n, m.k / 16});
    m.scale = {t.data, QE_E4M3, 1, 16, m.k / 16, m.n * (m.k / 16)};
    if (io.loading()) packed::require_scales(m.scale, scale);
    const char* name = module.modelopt ? "weight_scale_2" : "weight_global_scale";
    const qe_tensor g = io.tensor(p, name, packed::kScaleFloats, {}, qe::Need::required, -1);
    if (g.data) {
      if (packed::elements(g) != 1) throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, name), qe::format("has %lld values, expected 1", static_cast<long long>(packed::elements(g))));
      m.global = packed::ScaleGrid{g.data, g.dtype, 1, 1, 0, 1}.at(0);
      if (!std::isfinite(m.global) || m.global <= 0) {
        // A tensor of zeros has no amax to divide by; then every scale must be zero too.
        bool zero = m.scale.data != nullptr;
        for (std::int64_t i = 0; zero && i < m.scale.count; ++i) zero = m.scale.at(i) == 0;
        if (!zero) throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, name), qe::format("is %g, expected a positive number", static_cast<double>(m.global)), "the file is damaged or the quantizer failed");
        m.global = 1.0f;
      }
    }
  }
  bind_shape(io, p);
  bind_input(io, p, module, m.activation);
  return m;
}

int detect(const qe_model& model, qe::Reason& why) {
  const std::string method = method_of(model);
  if (is_modelopt(method)) {
    const std::string algo = packed::lower(ConfigView(model.cfg).text("quant_algo").value_or("absent"));
    const bool ours = algo == "nvfp4" || algo == "w4a16_nvfp4" || algo == "mxfp8";
    why("ModelOpt with quant_algo %s%s", algo.c_str(), ours || algo == "mixed_precision" ? "" : "; this plugin reads NVFP4, W4A16_NVFP4, MXFP8");
    return ours ? 1000 : algo == "mixed_precision" ? 600 : 0;
  }
  if (method != "compressed-tensors") return why("quant_method is %s; this plugin reads compressed-tensors and modelopt", method.c_str()), 0;
  const auto c = packed::CompressedTensorsConfig::read(model.cfg);
  if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
  std::size_t ours = 0;
  std::string first;
  for (const auto& g : c.groups) {
    const Module m = scheme_of(g, c.format, ConfigView(model.cfg).text("version").value_or(""));
    ours += m.kind != Kind::kNone;
    if (m.kind == Kind::kNone && first.empty()) first = m.reason;
  }
  if (ours == c.groups.size() && ours) return why("compressed-tensors %s", c.format.c_str()), 1000;
  if (ours || c.groups.size() > 1) return why("compressed-tensors with %zu of %zu groups in %s", ours, c.groups.size(), kOurFormats), 600;
  return why("%s", first.empty() ? "no config_groups" : first.c_str()), 0;
}

}  // namespace qengine::ct
