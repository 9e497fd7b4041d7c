#include "format.hpp"

#include <algorithm>

namespace qengine::awq {
namespace {

using packed::ConfigView;
using packed::IntMatrix;
using packed::Packing;
using packed::Stored;

std::string method_of(const qe_model& model) { return packed::lower(ConfigView(model.cfg).text("quant_method").value_or("absent")); }

bool is_rounded(const qe_model& model) {  // AutoRound with our packing
  return method_of(model).ends_with("auto-round") && packed::lower(ConfigView(model.cfg).text("packing_format").value_or("")).find("awq") != std::string::npos;
}

std::string not_ours(const std::string& method) { return "quant_method is " + method + "; this plugin reads awq and compressed-tensors W4A16_ASYM"; }

std::string named(std::string_view module, const char* suffix) { return std::string(module) + "." + suffix; }

const std::byte* bytes(const qe_tensor& t) { return static_cast<const std::byte*>(t.data); }

// Outputs that the file holds: a quantized head or embedding may be padded to whole words.
std::int64_t stored_outputs(const qe::Io& io, const qe::Part& part, const char* suffix, int axis, std::int64_t per_dim, std::int64_t dim_holds) {
  if (part.role() != QE_ROLE_LM_HEAD && part.role() != QE_ROLE_EMBED) return part.n();
  const auto t = io.look(qe::Io::join(part, suffix));
  if (!t || t->rank != 2 || t->dim[axis] % per_dim != 0) return part.n();
  const std::int64_t n = t->dim[axis] / per_dim * dim_holds;
  return n >= part.n() && n - part.n() < 1024 ? n : part.n();
}

// A module name holds one of the listed words. The host hears of it too, so that it can tell which entries
// match nothing.
const std::string* skipped(const std::vector<std::string>& skip, std::string_view name) {
  const std::string* hit = nullptr;
  for (const std::string& word : skip) {
    const bool pattern = word.starts_with("re:") || word.find('*') != std::string::npos;
    const bool found = qe::match(pattern ? word : "*" + word + "*", name) || (!pattern && name.find(word) != std::string_view::npos);
    if (found && !hit) hit = &word;
  }
  return hit;
}

IntMatrix bind_awq(qe::Io& io, const qe::Part& part, const Module& module) {
  const auto name = [&](const char* suffix) { return qe::Io::join(part, suffix); };
  const auto i32 = qe::dtype_bit(QE_I32);
  const auto need_zeros = module.zero_point ? qe::Need::required : qe::Need::optional;
  IntMatrix m;
  m.bits = 4;
  m.n = part.n();
  m.k = part.k();
  packed::set_plain_groups(m, module.group_size);
  m.groups = (m.k + m.group_size - 1) / m.group_size;
  m.zero_constant = 8;
  qe_tensor zeros{};

  switch (module.layout) {
    case Layout::kGemm: {
      const std::int64_t columns = stored_outputs(io, part, "scales", 1, 1, 1), row_words = (columns + 7) / 8;
      m.q = {bytes(io.tensor(part, "qweight", i32, {m.k, row_words})), 4 * row_words, 4, Packing::kAwq};
      m.codes = IntMatrix::Codes::kColumns;
      packed::expect_groups(io, part, "scales", m, 0);
      m.scales = packed::float_table(io.tensor(part, "scales", packed::kFloats, {m.groups, columns}), 1, columns);
      zeros = io.tensor(part, "qzeros", i32, {m.groups, row_words}, need_zeros);
      if (module.zero_point || zeros.data) {
        m.zeros = IntMatrix::Zeros::kByGroup;
        m.z = {bytes(zeros), 4 * row_words, 4, Packing::kAwq};
      }
      break;
    }
    case Layout::kGemv: {
      const std::int64_t row_words = (m.k + 7) / 8;
      // Zero points are padded along groups; how far is the writer's choice.
      std::int64_t zero_words = (m.groups + 7) / 8;
      if (const auto t = io.look(name("scales")); t && t->rank == 2 && t->dim[1] >= m.groups && t->dim[1] % 8 == 0) zero_words = t->dim[1] / 8;
      m.q = {bytes(io.tensor(part, "qweight", i32, {m.n, row_words})), 4 * row_words, 4, Packing::kStream};
      zeros = io.tensor(part, "qzeros", i32, {m.n, zero_words}, need_zeros);
      if (module.zero_point || zeros.data) {
        m.zeros = IntMatrix::Zeros::kByRow;
        m.z = {bytes(zeros), 4 * zero_words, 4, Packing::kStream};
      }
      m.scales = packed::float_table(io.tensor(part, "scales", packed::kFloats, {m.n, 8 * zero_words}), 8 * zero_words, 1);
      break;
    }
    case Layout::kGemvFast: {
      m.codes = IntMatrix::Codes::kGemvFast;
      m.q.data = bytes(io.tensor(part, "qweight", qe::dtype_bit(QE_I16), {m.n / 4, m.k}));
      std::int64_t rows = 8 * ((m.groups + 7) / 8);
      if (const auto t = io.look(name("scales")); t && t->rank == 2 && t->dim[0] >= m.groups) rows = t->dim[0];
      m.scales = packed::float_table(io.tensor(part, "scales", packed::kFloats, {rows, m.n}), 1, m.n);
      // An early writer calls them scaled_zeros.
      const char* offsets = !io.has(part, "qzeros") && io.has(part, "scaled_zeros") ? "scaled_zeros" : "qzeros";
      m.offsets = packed::float_table(io.tensor(part, offsets, packed::kFloats, {rows, m.n}), 1, m.n);
      if (io.loading()) packed::require(packed::check_finite(m, m.offsets), name(offsets));
      break;
    }
    case Layout::kMarlin: {
      m.n = stored_outputs(io, part, "qweight", 1, 2, 1);
      m.codes = IntMatrix::Codes::kMarlin;
      m.q.data = bytes(io.tensor(part, "qweight", i32, {m.k / 16, 2 * m.n}));
      m.scales = packed::float_table(io.tensor(part, "scales", packed::kFloats, {m.groups, m.n}), 1, m.n);
      m.scales.order = m.groups > 1 ? packed::FloatTable::Order::kMarlinGrouped : packed::FloatTable::Order::kMarlinSingle;
      break;
    }
  }
  if (io.loading()) {
    packed::require(packed::check_finite(m, m.scales), name("scales"));
    if (!module.note.empty()) qe::log(packed::speaks_for_all(part) ? qe::Log::warn : qe::Log::debug, std::string(part.name()) + ": " + module.note);
  }
  return m;
}

}  // namespace

const char* layout_text(Layout l) {
  switch (l) {
    case Layout::kGemm: return "gemm";
    case Layout::kGemv: return "gemv";
    case Layout::kGemvFast: return "gemv_fast";
    case Layout::kMarlin: return "marlin";
  }
  return "?";
}

Config Config::read(qe_cfg cfg) {
  const ConfigView view(cfg);
  Config c;
  const auto complain = [&](std::string text) {
    if (c.problem.empty()) c.problem = std::move(text);
  };
  const auto integer = [&](std::initializer_list<const char*> spellings, const char* supported) -> std::int64_t {
    for (const char* key : spellings) {
      if (!view.has(key)) continue;
      if (const auto v = view.whole(key)) return *v;
      complain(key + (" is " + view.shown(key)) + "; supported: " + supported);
    }
    return 0;
  };
  const std::int64_t bits = integer({"bits", "w_bit"}, "4");
  if (bits == 0 && !view.has("bits") && !view.has("w_bit")) complain("bits is absent; supported: 4");
  if (bits != 4) complain(qe::format("bits is %lld; supported: 4", static_cast<long long>(bits)));
  c.bits = 4;
  c.group_size = integer({"group_size", "q_group_size"}, "-1 and positive numbers");
  if (!view.has("group_size") && !view.has("q_group_size")) complain("group_size is absent; supported: -1 and positive numbers");
  if (c.group_size == 0 || c.group_size < -1)
    complain(qe::format("group_size is %lld; supported: -1 and positive numbers", static_cast<long long>(c.group_size)));
  // AutoRound says `sym` instead.
  c.zero_point = view.has("zero_point") ? view.flag("zero_point", true) : !view.flag("sym", false);

  std::string version;
  for (const char* key : {"version", "checkpoint_format", "format"})
    if (version.empty()) version = packed::lower(view.text(key).value_or(""));
  c.version_written = version.empty() ? "gemm" : version;
  if (version.empty() || version == "gemm" || version == "exllama" || version == "ipex" || version.starts_with("auto_round")) {
    c.version = Layout::kGemm;
  } else if (version == "gemv") {
    c.version = Layout::kGemv;
  } else if (version == "gemv_fast" || version == "llm-awq") {
    c.version = Layout::kGemvFast;
  } else if (version == "marlin") {
    c.version = Layout::kMarlin;
  } else {
    complain("version is " + version + "; supported: gemm, gemv, gemv_fast, marlin, exllama, ipex, llm-awq");
  }
  c.lm_head = view.flag("lm_head", false);
  for (std::int64_t i = 0; i < view.size("modules_to_not_convert"); ++i)
    if (const auto s = view.text("modules_to_not_convert.#" + std::to_string(i))) c.skip.push_back(*s);
  return c;
}

Layout layout_of(const qe_tensor& q, const qe_tensor* s, std::int64_t n, std::int64_t k, std::int64_t group_size, Layout written) {
  if (q.rank != 2) return written;
  const std::int64_t groups = group_size < 0 ? 1 : (k + group_size - 1) / group_size;
  const auto scales_are = [&](std::int64_t rows, std::int64_t columns) {
    return !s || (s->rank == 2 && (rows < 0 || s->dim[0] == rows) && (columns < 0 || s->dim[1] == columns));
  };
  const auto fits = [&](Layout l) {
    switch (l) {
      case Layout::kGemm: return q.dtype == QE_I32 && q.dim[0] == k && q.dim[1] >= (n + 7) / 8 && scales_are(groups, -1) && (!s || s->dim[1] >= n);
      case Layout::kGemv: return q.dtype == QE_I32 && q.dim[0] == n && q.dim[1] == (k + 7) / 8 && scales_are(n, -1);
      case Layout::kGemvFast: return q.dtype == QE_I16 && q.dim[0] == n / 4 && q.dim[1] == k && scales_are(-1, n);
      case Layout::kMarlin: return q.dtype == QE_I32 && q.dim[0] == k / 16 && q.dim[1] >= 2 * n && scales_are(groups, -1);
    }
    return false;
  };
  if (fits(written)) return written;
  for (Layout l : {Layout::kGemm, Layout::kGemv, Layout::kGemvFast, Layout::kMarlin})
    if (fits(l)) return l;
  return written;
}

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k) {
  Module m;
  const auto no = [&](std::string reason) {
    m.storage = Module::Storage::kNone;
    m.reason = std::move(reason);
    return m;
  };

  if (method_of(model) == "compressed-tensors") {
    const auto config = packed::CompressedTensorsConfig::read(model.cfg);
    const packed::PackedModule p = packed::packed_module(config, model, name, role);
    if (!p.ours) return no(p.reason);
    if (p.weights.num_bits != 4) return no(qe::format("%d-bit weights; this plugin reads 4-bit", p.weights.num_bits));
    m.storage = Module::Storage::kPackQuantized;
    m.partial = p.partial;
    m.packed = p;
    m.group_size = p.weights.strategy == packed::QuantArgs::Strategy::kGroup ? p.weights.group_size : -1;
    if (packed::scale_dtype(model, name, "weight_scale", QE_BF16) == QE_F32) m.records = Module::Records::kWideScaleZero;
    return m;
  }

  if (method_of(model) != "awq" && !is_rounded(model)) return no(not_ours(method_of(model)));
  const Config config = Config::read(model.cfg);
  if (!config.problem.empty()) return no(config.problem);
  const std::string* rule = skipped(config.skip, name);
  const std::string not_quantized = rule                                              ? "listed in modules_to_not_convert as " + *rule
                                    : role == QE_ROLE_EMBED                           ? std::string("an embedding")
                                    : role == QE_ROLE_LM_HEAD && !config.lm_head      ? std::string("lm_head is false")
                                                                                      : std::string();
  const Stored stored = packed::stored_as(model, name, {"qweight"});
  if (stored == Stored::kPlain) return no(packed::plain_reason(model, name, "qweight") + (not_quantized.empty() ? "" : "; " + not_quantized));
  if (stored != Stored::kPacked && !not_quantized.empty()) return no(not_quantized);

  m.storage = Module::Storage::kAwq;
  m.group_size = config.group_size;
  m.zero_point = config.zero_point;
  m.layout = config.version;
  const qe::Io io(model, qe::Io::Mode::plan);
  const auto qweight = io.look(named(name, "qweight")), scales = io.look(named(name, "scales"));
  if (qweight) m.layout = layout_of(*qweight, scales ? &*scales : nullptr, n, k, config.group_size, config.version);
  if (m.layout != config.version)
    m.note = qe::format("qweight is in %s layout, though version is %s; it is read as what it is", layout_text(m.layout), config.version_written.c_str());
  if (m.layout == Layout::kGemvFast) {
    if (n % 4 != 0 || k % 64 != 0)
      return no(qe::format("gemv_fast with %lld outputs and %lld inputs; supported: multiples of 4 and 64", static_cast<long long>(n), static_cast<long long>(k)));
    m.records = Module::Records::kScaleOffset;
  } else if (m.layout == Layout::kMarlin) {
    if (k % 16 != 0 || (role != QE_ROLE_LM_HEAD && n % 64 != 0))
      return no(qe::format("Marlin order with %lld outputs and %lld inputs; supported: multiples of 64 and 16", static_cast<long long>(n), static_cast<long long>(k)));
  }
  if (m.layout != Layout::kGemvFast && scales && scales->dtype == QE_F32) m.records = Module::Records::kWideScaleZero;
  return m;
}

IntMatrix bind(qe::Io& io, const qe::Part& part, const Module& module) {
  switch (module.storage) {
    case Module::Storage::kAwq: return bind_awq(io, part, module);
    case Module::Storage::kPackQuantized: return packed::bind_pack_quantized(io, part, module.packed);
    case Module::Storage::kNone: break;
  }
  throw qe::Error(QE_E_UNSUPPORTED, std::string(part.name()), module.reason);
}

int detect(const qe_model& model, qe::Reason& why) {
  const std::string method = method_of(model);
  if (method == "awq" || is_rounded(model)) {
    const Config c = Config::read(model.cfg);
    if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
    const std::string group = c.group_size < 0 ? "one group a row" : "group " + std::to_string(c.group_size);
    why("quant_method %s, 4 bit, %s, version %s", method.c_str(), group.c_str(), c.version_written.c_str());
    return method == "awq" ? 1000 : 900;
  }
  if (method == "compressed-tensors") {
    const auto c = packed::CompressedTensorsConfig::read(model.cfg);
    if (!c.problem.empty()) return why("%s", c.problem.c_str()), 0;
    std::size_t ours = 0;
    for (const auto& g : c.groups)
      ours += g.weights && !g.weights->is_float && g.weights->num_bits == 4 && !g.weights->symmetric && g.format == "pack-quantized";
    if (ours == c.groups.size()) return why("compressed-tensors pack-quantized, 4 bit with zero points"), 900;
    why("compressed-tensors without 4-bit zero points throughout; this plugin reads W4A16_ASYM");
    return 0;
  }
  return why("%s", not_ours(method).c_str()), 0;
}

}  // namespace qengine::awq
