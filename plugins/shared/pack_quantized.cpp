#include "shared/pack_quantized.hpp"

#include <algorithm>

#include "shared/zero_points.hpp"

namespace qengine::packed {
namespace {

std::string named(std::string_view module, const char* suffix) { return std::string(module) + "." + suffix; }

qe::Io looker(const qe_model& model) { return {model, qe::Io::Mode::plan}; }

const std::byte* bytes(const qe_tensor& t) { return static_cast<const std::byte*>(t.data); }

}  // namespace

Stored stored_as(const qe_model& model, std::string_view module, std::initializer_list<const char*> packed_suffixes) {
  if (!model.ckpt) return Stored::kUnknown;
  const qe::Io io = looker(model);
  for (const char* suffix : packed_suffixes)
    if (io.look(named(module, suffix))) return Stored::kPacked;
  const auto weight = io.look(named(module, "weight"));
  return weight ? Stored::kPlain : Stored::kMissing;
}

std::string plain_reason(const qe_model& model, std::string_view module, const char* packed_suffix) {
  const auto weight = looker(model).look(named(module, "weight"));
  return qe::format("not quantized: weight is %s and there is no %s", weight ? qe::dtype_name(weight->dtype) : "absent", packed_suffix);
}

std::int32_t scale_dtype(const qe_model& model, std::string_view module, const char* suffix, std::int32_t assumed) {
  const auto t = looker(model).look(named(module, suffix));
  return t ? t->dtype : assumed;
}

void require(const ValueFault& fault, const std::string& tensor) {
  if (fault) throw qe::Error(QE_E_CHECKPOINT, tensor, fault.message, fault.hint);
}

namespace {
constexpr const char* kMismatch = "bits or group_size in quantization_config do not match the tensors; compare with qengine inspect --layers";
}

void expect_shape(const qe::Io& io, const qe::Part& part, const char* suffix, std::initializer_list<std::int64_t> dims, const std::string& because) {
  const auto t = io.look(qe::Io::join(part, suffix));
  if (!t || (t->rank == static_cast<int>(dims.size()) && std::equal(dims.begin(), dims.end(), t->dim))) return;
  const auto text = [](const std::int64_t* d, std::size_t n) {
    std::string s = "[";
    for (std::size_t i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(d[i]);
    return s + "]";
  };
  throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(part, suffix),
                  "has shape " + text(t->dim, t->rank) + "; " + because + " make it " + text(dims.begin(), dims.size()), kMismatch);
}

void expect_groups(const qe::Io& io, const qe::Part& part, const char* suffix, const IntMatrix& m, int group_axis) {
  const auto t = io.look(qe::Io::join(part, suffix));
  if (!t || t->rank != 2 || t->dim[group_axis] == m.groups) return;
  const std::string size = m.group_size == m.k ? "one group a row" : "group_size " + std::to_string(m.group_size);
  throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(part, suffix),
                  qe::format("has %lld %s; in_features %lld with %s needs %lld%s", static_cast<long long>(t->dim[group_axis]), group_axis ? "columns" : "rows",
                             static_cast<long long>(m.k), size.c_str(), static_cast<long long>(m.groups), m.k % m.group_size ? " (the last group is short)" : ""),
                  kMismatch);
}

void cut_order(IntMatrix& m, const qe::Part& part) {
  const qe_layer& l = part.layer();
  if (m.g_idx.empty() || l.k_end <= l.k_begin || l.k_end - l.k_begin == l.k) return;
  set_cut_order(m, l.k_begin, l.k_end);
}

FloatTable float_table(const qe_tensor& t, std::int64_t row_stride, std::int64_t group_stride) {
  return {bytes(t), t.dtype, row_stride, group_stride, FloatTable::Order::kPlain};
}

PackedModule packed_module(const CompressedTensorsConfig& config, const qe_model& model, std::string_view name, int role) {
  PackedModule m;
  const auto no = [&](std::string reason) {
    m.reason = std::move(reason);
    return m;
  };
  if (!config.problem.empty()) return no(config.problem);
  const std::string* rule = config.ignored(name, role);
  const CompressedTensorsGroup* group = config.group_of(name, role);
  const Stored stored = stored_as(model, name, {"weight_packed"});
  if (stored == Stored::kPlain) return no(plain_reason(model, name, "weight_packed") + (rule ? "; listed in ignore" : ""));
  if (stored != Stored::kPacked) {
    if (rule) return no("listed in ignore as " + *rule);
    if (!group) return no("no target of config_groups names it");
  }
  if (!group) return no("has weight_packed, but no target of config_groups names it");
  if (!group->weights) return no("config_groups." + group->name + " does not quantize weights");
  const QuantArgs& w = *group->weights;
  if (group->format != "pack-quantized" && !(group->format.empty() && stored == Stored::kPacked))
    return no("config_groups." + group->name + " has format " + (group->format.empty() ? "absent" : group->format) + "; this plugin reads pack-quantized");
  if (w.is_float || w.num_bits < 2 || w.num_bits > 8)
    return no(qe::format("%d-bit %s weights; supported: 2 to 8-bit int", w.num_bits, w.is_float ? "float" : "int"));
  using S = QuantArgs::Strategy;
  if (w.strategy != S::kGroup && w.strategy != S::kChannel && w.strategy != S::kTensor)
    return no(std::string("strategy ") + strategy_text(w.strategy) + "; supported: group, channel, tensor");
  if (w.strategy == S::kTensor && !w.symmetric) return no("asymmetric weights with strategy tensor; supported: group, channel");
  m.ours = true;
  m.weights = w;
  if (group->input) {
    const QuantArgs& in = *group->input;
    const bool by_token = in.strategy == S::kToken && in.dynamic == QuantArgs::Dynamic::kYes && in.symmetric && in.num_bits == 8;
    m.activation.kind = !by_token ? qe::Activation::none : in.is_float ? qe::Activation::e4m3_token : qe::Activation::i8_token;
    if (!by_token)
      m.partial = qe::format("weight-only: input_activations of %d-bit %s, strategy %s, are left as they are", in.num_bits, in.is_float ? "float" : "int",
                             strategy_text(in.strategy));
  }
  return m;
}

IntMatrix bind_pack_quantized(qe::Io& io, const qe::Part& part, const PackedModule& module) {
  const QuantArgs& w = module.weights;
  IntMatrix m;
  m.activation = module.activation;
  m.bits = w.num_bits;
  m.n = part.n();
  m.k = part.k();
  using S = QuantArgs::Strategy;
  set_plain_groups(m, w.strategy == S::kGroup ? w.group_size : -1);
  m.groups = (m.k + m.group_size - 1) / m.group_size;
  const auto name = [&](const char* suffix) { return qe::Io::join(part, suffix); };
  const auto i32 = qe::dtype_bit(QE_I32);

  // Stream or padded: equal where b divides 32, else told apart by the sizes of both packed tensors. Sizes that
  // fit neither are left to the comparison with what a stream needs.
  const auto codes_found = io.look(name("weight_packed")), zeros_found = io.look(name("weight_zero_point"));
  const auto fits = [&](Packing p) {
    const bool zeros_packed = !w.symmetric && zeros_found && zeros_found->dtype == QE_I32 && zeros_found->rank == 2;
    return codes_found && codes_found->rank == 2 && codes_found->dim[1] == words(p, m.bits, m.k) &&
           (!zeros_packed || zeros_found->dim[0] == words(p, m.bits, m.n));
  };
  const Packing packing = !fits(Packing::kStream) && fits(Packing::kPadded) ? Packing::kPadded : Packing::kStream;
  const std::string sizes = qe::format("%lld outputs, %lld inputs and %d bits", static_cast<long long>(m.n), static_cast<long long>(m.k), m.bits);
  const std::int64_t row_words = words(packing, m.bits, m.k);
  expect_shape(io, part, "weight_packed", {m.n, row_words}, sizes);
  const qe_tensor codes = io.tensor(part, "weight_packed", i32, {m.n, row_words});
  m.q = {bytes(codes), 4 * row_words, 4, packing};

  qe_tensor scales{};
  if (w.strategy == S::kTensor) {
    scales = io.tensor(part, "weight_scale", kFloats, {}, qe::Need::required, -1);  // [], [1] or [1, 1]
    std::int64_t count = 1;
    for (int i = 0; i < scales.rank; ++i) count *= scales.dim[i];
    if (scales.data && count != 1)
      throw qe::Error(QE_E_CHECKPOINT, name("weight_scale"), qe::format("has %lld values, expected 1 for strategy tensor", static_cast<long long>(count)));
    m.scales = float_table(scales, 0, 0);
  } else if (const auto t = io.look(name("weight_scale")); w.strategy == S::kChannel && t && t->rank == 1) {
    scales = io.tensor(part, "weight_scale", kFloats, {m.n});
    m.scales = float_table(scales, 1, 0);
  } else {
    expect_groups(io, part, "weight_scale", m, 1);
    scales = io.tensor(part, "weight_scale", kFloats, {m.n, m.groups});
    m.scales = float_table(scales, m.groups, 1);
  }

  const qe_tensor shape = io.tensor(part, "weight_shape", qe::dtype_bit(QE_I64) | i32, {2}, qe::Need::optional);
  if (shape.data) {
    std::int64_t stored[2];
    for (int i : {0, 1})
      stored[i] = shape.dtype == QE_I64 ? static_cast<const std::int64_t*>(shape.data)[i] : static_cast<const std::int32_t*>(shape.data)[i];
    if (stored[0] != m.n || stored[1] != m.k)
      throw qe::Error(QE_E_CHECKPOINT, name("weight_shape"),
                      qe::format("says [%lld, %lld]; the model's configuration makes it [%lld, %lld]", static_cast<long long>(stored[0]),
                                 static_cast<long long>(stored[1]), static_cast<long long>(m.n), static_cast<long long>(m.k)),
                      "weights and config.json belong to different models, or the file is damaged");
  }

  m.zero_constant = 1u << (m.bits - 1);
  if (!w.symmetric) {
    if (zeros_found && zeros_found->dtype == QE_I8) {
      m.zeros = IntMatrix::Zeros::kSigned;
      m.z.data = bytes(io.tensor(part, "weight_zero_point", qe::dtype_bit(QE_I8), {m.n, m.groups}));
    } else {
      m.zeros = IntMatrix::Zeros::kByGroup;
      m.z = {bytes(io.tensor(part, "weight_zero_point", i32, {words(packing, m.bits, m.n), m.groups})), 4, 4 * m.groups, packing};
    }
  } else if (zeros_found && zeros_found->dtype == QE_I32) {
    // Packed like those of asymmetric weights: half of the range, which stands for zero.
    const PackedFields z{bytes(io.tensor(part, "weight_zero_point", i32, {words(packing, m.bits, m.n), m.groups}, qe::Need::optional)), 4, 4 * m.groups, packing};
    for (std::int64_t g = 0; io.loading() && g < m.groups; ++g)
      for (std::int64_t n = 0; n < m.n; ++n)
        if (get_field(z, m.bits, g, n) != m.zero_constant)
          throw qe::Error(QE_E_CHECKPOINT, name("weight_zero_point"), "holds zero points, though symmetric is true",
                          "symmetric in quantization_config is not what the tensors were made with");
  } else if (zeros_found) {
    require_no_offset(io, part, "weight_zero_point");
  }

  const bool needs_index = w.actorder == QuantArgs::Actorder::kGroup && m.groups > 1;
  const qe_tensor index = io.tensor(part, "weight_g_idx", i32, {m.k}, needs_index ? qe::Need::required : qe::Need::optional);
  if (index.data && m.groups > 1) {
    const auto* g = static_cast<const std::int32_t*>(index.data);
    bool unset = true;  // all -1: the columns were left in their order
    for (std::int64_t k = 0; k < m.k && unset; ++k) unset = g[k] == -1;
    if (!unset) require(set_group_index(m, g), name("weight_g_idx"));
  }
  cut_order(m, part);
  if (io.loading()) require(check_finite(m, m.scales), name("weight_scale"));
  return m;
}

}  // namespace qengine::packed
