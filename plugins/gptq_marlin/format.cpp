#include "format.hpp"

#include <algorithm>

namespace qengine::gptq {
namespace {

using packed::ConfigView;
using packed::IntMatrix;
using packed::Packing;
using packed::Stored;

std::string method_of(const qe_model& model) { return packed::lower(ConfigView(model.cfg).text("quant_method").value_or("absent")); }

bool is_gptq(const std::string& method) { return method == "gptq" || method == "marlin" || method == "auto-round" || method == "intel/auto-round"; }

std::string not_ours(const std::string& method) {
  return "quant_method is " + method + "; this plugin reads gptq, marlin, auto-round and compressed-tensors pack-quantized";
}

std::string named(std::string_view module, const char* suffix) { return std::string(module) + "." + suffix; }

const std::byte* bytes(const qe_tensor& t) { return static_cast<const std::byte*>(t.data); }

// Columns that the file holds for N outputs: a quantized head or embedding is padded to whole words or tiles.
std::int64_t stored_columns(const qe::Io& io, const qe::Part& part, const char* suffix, std::int64_t per_column) {
  if (part.role() != QE_ROLE_LM_HEAD && part.role() != QE_ROLE_EMBED) return part.n();
  const auto t = io.look(qe::Io::join(part, suffix));
  if (!t || t->rank != 2 || t->dim[1] % per_column != 0) return part.n();
  const std::int64_t n = t->dim[1] / per_column;
  return n >= part.n() && n - part.n() < 1024 ? n : part.n();
}

IntMatrix bind_gptq(qe::Io& io, const qe::Part& part, const Module& module) {
  const auto name = [&](const char* suffix) { return qe::Io::join(part, suffix); };
  const auto i32 = qe::dtype_bit(QE_I32);
  const Parameters& p = module.parameters;
  IntMatrix m;
  m.bits = p.bits;
  m.n = part.n();
  m.k = part.k();
  packed::set_plain_groups(m, p.group_size);
  m.groups = (m.k + m.group_size - 1) / m.group_size;

  const std::int64_t columns = stored_columns(io, part, "qweight", 1);
  // 2, 4 and 8 bits lie alike in both.
  const Packing packing = module.format == DiskFormat::kPlanar && 32 % m.bits != 0 ? Packing::kPlanar : Packing::kStream;
  const std::int64_t zero_words = packed::words(Packing::kStream, m.bits, columns);
  const std::int64_t code_words = packed::words(Packing::kStream, m.bits, m.k);
  packed::expect_shape(io, part, "qweight", {code_words, columns},
                       qe::format("%lld outputs, %lld inputs and %d bits", static_cast<long long>(m.n), static_cast<long long>(m.k), m.bits));
  m.q = {bytes(io.tensor(part, "qweight", i32, {code_words, columns})), 4, 4 * columns, packing};
  packed::expect_groups(io, part, "scales", m, 0);
  m.scales = packed::float_table(io.tensor(part, "scales", packed::kFloats, {m.groups, columns}), 1, columns);
  m.zeros = IntMatrix::Zeros::kByGroup;
  m.z = {bytes(io.tensor(part, "qzeros", i32, {m.groups, zero_words})), 4 * zero_words, 4, packing};
  m.zero_add = module.format == DiskFormat::kGptq ? 1 : 0;

  const bool needs_index = p.desc_act && m.groups > 1;
  const qe_tensor index = io.tensor(part, "g_idx", i32, {m.k}, needs_index ? qe::Need::required : qe::Need::optional);
  if (index.data && m.groups > 1) {
    const auto* g = static_cast<const std::int32_t*>(index.data);
    if (std::any_of(g, g + m.k, [](std::int32_t v) { return v != 0; })) {
      packed::require(packed::set_group_index(m, g), name("g_idx"));
      if (io.loading() && !m.g_idx.empty() && m.run != m.group_size)
        qe::log(packed::speaks_for_all(part) ? qe::Log::warn : qe::Log::debug,
                name("g_idx") + " has groups of other sizes than group_size " + std::to_string(m.group_size) + "; it is followed as it stands");
    } else if (needs_index) {
      throw qe::Error(QE_E_CHECKPOINT, name("g_idx"),
                      qe::format("is all zero, but desc_act is true and there are %lld groups", static_cast<long long>(m.groups)),
                      "the order of inputs was lost when the file was written; without it the weights cannot be read");
    }  // else: unset, groups are in order
  }

  packed::cut_order(m, part);
  if (!io.loading()) return m;
  packed::require(packed::check_finite(m, m.scales), name("scales"));
  if (p.sym) {
    // What is stored decides, not the label: files of either version under the other's name exist.
    const ZeroPoints found = zero_points_of(m);
    if (found == ZeroPoints::kMixed && p.sym_given)
      throw qe::Error(QE_E_CHECKPOINT, name("qzeros"),
                      qe::format("holds zero points other than %u (gptq) and %u (gptq_v2), though sym is true", (1u << (m.bits - 1)) - 1, 1u << (m.bits - 1)),
                      "bits or sym in quantization_config is not what the tensors were made with");
    if (found != ZeroPoints::kMixed) {
      const std::uint32_t add = found == ZeroPoints::kOneLess ? 1 : 0;
      if (add != m.zero_add)
        qe::log(packed::speaks_for_all(part) ? qe::Log::warn : qe::Log::debug,
                qe::format("%s holds the zero points of %s, though checkpoint_format is %s; they are read as what they are",
                           name("qzeros").c_str(), add ? "gptq" : "gptq_v2 or gptq_p", disk_format_text(module.format)));
      m.zero_add = add;
    }
  }
  return m;
}

IntMatrix bind_marlin(qe::Io& io, const qe::Part& part, const Module& module) {
  IntMatrix m;
  m.bits = 4;
  m.k = part.k();
  packed::set_plain_groups(m, module.parameters.group_size);
  m.groups = (m.k + m.group_size - 1) / m.group_size;
  // The index formulas need the stored width; rows beyond part.n() are never asked for.
  m.n = stored_columns(io, part, "B", 2);
  m.codes = IntMatrix::Codes::kMarlin;
  m.q.data = bytes(io.tensor(part, "B", qe::dtype_bit(QE_I32), {m.k / 16, 2 * m.n}));
  m.zero_constant = 8;
  m.scales = packed::float_table(io.tensor(part, "s", packed::kFloats, {m.groups, m.n}), 1, m.n);
  m.scales.order = m.groups > 1 ? packed::FloatTable::Order::kMarlinGrouped : packed::FloatTable::Order::kMarlinSingle;
  if (io.loading()) packed::require(packed::check_finite(m, m.scales), qe::Io::join(part, "s"));
  return m;
}

}  // namespace

ZeroPoints zero_points_of(const IntMatrix& m) {
  const std::uint32_t half = 1u << (m.bits - 1);
  bool one_less = true, exact = true;
  for (std::int64_t g = 0; g < m.groups && (one_less || exact); ++g)
    for (std::int64_t n = 0; n < m.n; ++n) {
      const std::uint32_t stored = packed::get_field(m.z, m.bits, g, n);
      one_less = one_less && stored == half - 1;
      exact = exact && stored == half;
    }
  return one_less ? ZeroPoints::kOneLess : exact ? ZeroPoints::kTrue : ZeroPoints::kMixed;
}

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k) {
  Module m;
  const auto no = [&](std::string reason) {
    m.storage = Module::Storage::kNone;
    m.reason = std::move(reason);
    return m;
  };

  const std::string method = method_of(model);
  if (method == "compressed-tensors") {
    const auto config = packed::CompressedTensorsConfig::read(model.cfg);
    const packed::PackedModule p = packed::packed_module(config, model, name, role);
    if (!p.ours) return no(p.reason);
    m.storage = Module::Storage::kPackQuantized;
    m.partial = p.partial;
    m.packed = p;
    m.bits = p.weights.num_bits;
    m.group_size = p.weights.strategy == packed::QuantArgs::Strategy::kGroup ? p.weights.group_size : -1;
    m.wide_scales = packed::scale_dtype(model, name, "weight_scale", QE_BF16) == QE_F32;
    return m;
  }

  if (!is_gptq(method)) return no(not_ours(method));
  const Config config = Config::read(model.cfg);
  if (!config.problem.empty()) return no(config.problem);
  const Config::Answer answer = config.module(model.cfg, name, role);
  const Stored stored = packed::stored_as(model, name, {"qweight", "B"});
  if (stored == Stored::kPlain)
    return no(packed::plain_reason(model, name, "qweight") + (answer.not_quantized.empty() ? "" : "; " + answer.not_quantized));
  if (stored != Stored::kPacked && !answer.not_quantized.empty()) return no(answer.not_quantized);
  if (!answer.problem.empty()) return no(answer.problem);

  m.parameters = answer.parameters;
  m.bits = m.parameters.bits;
  m.group_size = m.parameters.group_size;
  m.format = config.format;
  const qe::Io io(model, qe::Io::Mode::plan);
  const bool tiles = stored == Stored::kPacked ? !io.look(named(name, "qweight")) : config.format == DiskFormat::kMarlin;
  if (!tiles) {
    m.storage = Module::Storage::kGptq;
    if (m.format == DiskFormat::kMarlin) m.format = DiskFormat::kGptq;  // a Marlin label over plain GPTQ tensors
    m.wide_scales = packed::scale_dtype(model, name, "scales", QE_F16) == QE_F32;
    return m;
  }
  if (m.bits != 4) return no(qe::format("%d-bit weights in Marlin order; supported there: 4", m.bits));
  if (k % 16 != 0 || (role != QE_ROLE_LM_HEAD && role != QE_ROLE_EMBED && n % 64 != 0))
    return no(qe::format("Marlin order with %lld outputs and %lld inputs; supported: multiples of 64 and 16", static_cast<long long>(n), static_cast<long long>(k)));
  m.storage = Module::Storage::kMarlin;
  m.bits = 4;
  m.wide_scales = packed::scale_dtype(model, name, "s", QE_F16) == QE_F32;
  return m;
}

IntMatrix bind(qe::Io& io, const qe::Part& part, const Module& module) {
  switch (module.storage) {
    case Module::Storage::kGptq: return bind_gptq(io, part, module);
    case Module::Storage::kMarlin: return bind_marlin(io, part, module);
    case Module::Storage::kPackQuantized: return packed::bind_pack_quantized(io, part, module.packed);
    case Module::Storage::kNone: break;
  }
  throw qe::Error(QE_E_UNSUPPORTED, std::string(part.name()), module.reason);
}

int detect(const qe_model& model, qe::Reason& why) {
  const std::string method = method_of(model);
  if (is_gptq(method)) {
    const Config c = Config::read(model.cfg);
    if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
    const std::string group = c.base.group_size < 0 ? "one group a row" : "group " + std::to_string(c.base.group_size);
    why("quant_method %s, %d bit, %s%s", method.c_str(), c.base.bits, group.c_str(), c.rules.empty() ? "" : ", rules for single modules");
    return c.dialect == Config::Dialect::kGptq ? 1000 : 900;
  }
  if (method == "compressed-tensors") {
    const auto c = packed::CompressedTensorsConfig::read(model.cfg);
    if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
    std::size_t ours = 0, awq = 0;
    for (const auto& g : c.groups) {
      if (!g.weights || g.weights->is_float || g.format != "pack-quantized" || g.weights->num_bits < 2 || g.weights->num_bits > 8) continue;
      ++ours;
      awq += g.weights->num_bits == 4 && !g.weights->symmetric;
    }
    if (ours == 0) return why("format is %s; this plugin reads pack-quantized integers", c.format.empty() ? "absent" : c.format.c_str()), 0;
    if (awq == c.groups.size()) return why("pack-quantized 4-bit weights with zero points, which awq_marlin owns"), 600;
    why("compressed-tensors pack-quantized, %zu of %zu config_groups", ours, c.groups.size());
    return ours == c.groups.size() ? 900 : 600;
  }
  return why("%s", not_ours(method).c_str()), 0;
}

}  // namespace qengine::gptq
