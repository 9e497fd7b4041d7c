#include "format.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "shared/config_view.hpp"

namespace qengine::bnb {
namespace {

using packed::ConfigView;

std::string method_of(const qe_model& model) { return packed::lower(ConfigView(model.cfg).text("quant_method").value_or("absent")); }
std::string named(std::string_view module, const std::string& suffix) { return std::string(module) + "." + suffix; }

constexpr const char* kState[] = {"weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"};

struct State {
  std::int64_t blocksize = 0, n = 0, k = 0, nested_blocksize = 256;
  float nested_offset = 0;
  bool nested = false;
};

State read_state(const qe_tensor& t, const std::string& tensor) {
  const auto bad = [&](const std::string& what) { return qe::Error(QE_E_CHECKPOINT, tensor, what, "the file is damaged or was written by something else than bitsandbytes"); };
  if (t.rank != 1 || t.dim[0] > 65536) throw bad("is no list of bytes");
  const auto* text = static_cast<const char*>(t.data);
  const auto j = nlohmann::json::parse(text, text + t.dim[0], nullptr, false);
  if (j.is_discarded() || !j.is_object()) throw bad("does not hold a JSON object");
  const auto whole = [&](const char* key, std::int64_t absent) {
    const auto it = j.find(key);
    if (it == j.end() || it->is_null()) return absent;
    if (!it->is_number_integer()) throw bad(std::string(key) + " is no whole number");
    return it->get<std::int64_t>();
  };
  State s;
  s.blocksize = whole("blocksize", 0);
  if (s.blocksize < 32 || s.blocksize > 4096 || (s.blocksize & (s.blocksize - 1)))
    throw bad(qe::format("has blocksize %lld; supported: powers of two from 32 to 4096", static_cast<long long>(s.blocksize)));
  const auto shape = j.find("shape");
  if (shape == j.end() || !shape->is_array() || shape->size() != 2 || !(*shape)[0].is_number_integer() || !(*shape)[1].is_number_integer())
    throw bad("has no shape of two numbers");
  s.n = (*shape)[0].get<std::int64_t>();
  s.k = (*shape)[1].get<std::int64_t>();
  s.nested = j.contains("nested_blocksize") && !j["nested_blocksize"].is_null();
  s.nested_blocksize = whole("nested_blocksize", 256);
  if (s.nested_blocksize < 1) throw bad("has nested_blocksize below 1");
  if (const auto it = j.find("nested_offset"); it != j.end() && it->is_number()) s.nested_offset = it->get<float>();
  return s;
}

}  // namespace

Module describe(const qe_model& model, std::string_view name, int role) {
  Module m;
  const std::string method = method_of(model);
  const auto no = [&](std::string reason) {
    m.reason = std::move(reason);
    return m;
  };
  if (method != "bitsandbytes") return no("quant_method is " + method + "; this plugin reads bitsandbytes");
  const ConfigView c(model.cfg);
  const bool eight = c.flag("load_in_8bit", false) || c.flag("_load_in_8bit", false);
  if (model.ckpt) {
    const qe::Io io(model, qe::Io::Mode::plan);
    if (io.look(named(name, kState[0]))) m.kind = Kind::kNf4;
    else if (io.look(named(name, kState[1]))) m.kind = Kind::kFp4;
    else if (io.look(named(name, "SCB"))) m.kind = Kind::kInt8;
    const auto w = io.look(named(name, "weight"));
    if (m.kind == Kind::kNone && w && (w->dtype == QE_F32 || w->dtype == QE_F16 || w->dtype == QE_BF16))
      return no(std::string("not quantized: weight is ") + qe::dtype_name(w->dtype));
    if (m.kind == Kind::kNone && w && w->dtype == QE_U8) return no("weight is U8, and there is no quant_state beside it; supported: bitsandbytes__nf4, bitsandbytes__fp4");
    if (m.kind == Kind::kNone && w && w->dtype == QE_I8) m.kind = Kind::kInt8;  // its SCB is asked for, and missed by name
    if (m.kind != Kind::kNone) return m;
  }
  if (role == QE_ROLE_EMBED || role == QE_ROLE_LM_HEAD) return no(role == QE_ROLE_EMBED ? "an embedding, which bitsandbytes leaves in 16 bits" : "lm_head, which bitsandbytes leaves in 16 bits");
  if (qe::Config(model.cfg).lists("llm_int8_skip_modules", name)) return no("listed in llm_int8_skip_modules");
  m.kind = eight ? Kind::kInt8 : packed::lower(c.text("bnb_4bit_quant_type").value_or("fp4")) == "nf4" ? Kind::kNf4 : Kind::kFp4;
  return m;
}

FourBit bind_four(qe::Io& io, const qe::Part& part, Kind kind) {
  FourBit m;
  m.n = part.n();
  m.k = part.k();
  const char* state_name = kState[kind == Kind::kNf4 ? 0 : 1];
  const auto name = [&](const char* suffix) { return qe::Io::join(part, suffix); };
  // Small enough to be read while planning: the block size decides the record's reach.
  const qe_tensor state = io.tensor(part, state_name, qe::dtype_bit(QE_U8), {-1});
  State s;
  s.n = m.n;
  s.k = m.k;
  s.blocksize = qe::Config(part.model().cfg).i64("bnb_4bit_blocksize", 64);
  if (state.data) s = read_state(state, name(state_name));
  if (s.n != m.n || s.k != m.k)
    throw qe::Error(QE_E_CHECKPOINT, name(state_name), qe::format("has shape [%lld, %lld]; the model's configuration makes it [%lld, %lld]", static_cast<long long>(s.n),
                                                                  static_cast<long long>(s.k), static_cast<long long>(m.n), static_cast<long long>(m.k)));
  m.blocksize = s.blocksize;
  const std::int64_t total = m.n * m.k, blocks = (total + s.blocksize - 1) / s.blocksize, bytes = (total + 1) / 2;
  const qe_tensor q = io.tensor(part, "weight", 0, {}, qe::Need::required, -1);
  m.q = static_cast<const std::uint8_t*>(q.data);
  const bool nested = s.nested;
  const qe_tensor absmax = io.tensor(part, "weight.absmax", nested ? qe::dtype_bit(QE_U8) : qe::dtype_bit(QE_F32), {blocks});
  const qe_tensor map = io.tensor(part, "weight.quant_map", qe::dtype_bit(QE_F32), {16});
  qe_tensor nested_absmax{}, nested_map{};
  const std::int64_t outer = (blocks + s.nested_blocksize - 1) / s.nested_blocksize;
  if (nested) {
    nested_absmax = io.tensor(part, "weight.nested_absmax", qe::dtype_bit(QE_F32), {outer});
    nested_map = io.tensor(part, "weight.nested_quant_map", qe::dtype_bit(QE_F32), {256});
  }
  if (!io.loading()) return m;

  std::int64_t width = 1;
  if (q.dtype == QE_F16 || q.dtype == QE_BF16 || q.dtype == QE_I16) width = 2;
  if (q.dtype == QE_F32 || q.dtype == QE_I32) width = 4;
  std::int64_t elements = packed::elements(q);
  if (elements * width != bytes)
    throw qe::Error(QE_E_CHECKPOINT, name("weight"), qe::format("has %lld bytes; %lld x %lld weights of 4 bits need %lld", static_cast<long long>(elements * width),
                                                                static_cast<long long>(m.n), static_cast<long long>(m.k), static_cast<long long>(bytes)));
  const packed::ScaleGrid table{map.data, QE_F32, 1, 1, 0, 16};
  for (int c = 0; c < 16; ++c) {
    const float ours = kind == Kind::kNf4 ? kNf4[c] : fp4_value(static_cast<std::uint32_t>(c));
    if (!(std::fabs(table.at(c) - ours) <= 1e-6f))
      throw qe::Error(QE_E_CHECKPOINT, name("weight.quant_map"), qe::format("has %g for code %d, expected %g", static_cast<double>(table.at(c)), c, static_cast<double>(ours)),
                      "only the built-in NF4 and FP4 tables are read");
  }
  auto resolved = std::make_shared<std::vector<float>>(static_cast<std::size_t>(blocks));
  const packed::ScaleGrid plain{absmax.data, QE_F32, 1, 1, 0, blocks};
  const packed::ScaleGrid second{nested_absmax.data, QE_F32, 1, 1, 0, outer}, codebook{nested_map.data, QE_F32, 1, 1, 0, 256};
  for (int c = 0; nested && c < 256; ++c)  // also the entries that no block uses: the table is damaged
    if (!std::isfinite(codebook.at(c)))
      throw qe::Error(QE_E_CHECKPOINT, name("weight.nested_quant_map"), qe::format("has a value that is not finite for code %d", c), "the file is damaged or the quantizer failed");
  for (std::int64_t i = 0; i < blocks; ++i) {
    float v = nested ? 0.0f : plain.at(i);
    if (nested) {
      v = codebook.at(static_cast<const std::uint8_t*>(absmax.data)[i]) * second.at(i / s.nested_blocksize);
      v = v + s.nested_offset;
    }
    if (!std::isfinite(v))
      throw qe::Error(QE_E_CHECKPOINT, name(nested ? "weight.nested_absmax" : "weight.absmax"), qe::format("gives a value that is not finite for block %lld", static_cast<long long>(i)),
                      "the file is damaged or the quantizer failed");
    (*resolved)[static_cast<std::size_t>(i)] = v;
  }
  m.absmax = std::move(resolved);
  return m;
}

packed::ByteMatrix bind_int8(qe::Io& io, const qe::Part& part) {
  packed::ByteMatrix m;
  m.n = part.n();
  m.k = part.k();
  m.q = static_cast<const std::uint8_t*>(io.tensor(part, "weight", qe::dtype_bit(QE_I8), {m.n, m.k}).data);
  const qe_tensor t = io.tensor(part, "SCB", qe::dtype_bit(QE_F32), {m.n});
  m.scale = {t.data, QE_F32, 1, m.k, 1, m.n};
  if (io.loading()) packed::require_scales(m.scale, qe::Io::join(part, "SCB"));
  const qe_tensor f = io.tensor(part, "weight_format", qe::dtype_bit(QE_U8), {}, qe::Need::optional, -1);
  if (f.data && packed::elements(f) == 1 && *static_cast<const std::uint8_t*>(f.data) != 0)
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(part, "weight_format"), qe::format("is %d; supported: 0 (row-major)", *static_cast<const std::uint8_t*>(f.data)),
                    "load it with bitsandbytes once and save it again");
  return m;
}

int detect(const qe_model& model, qe::Reason& why) {
  const std::string method = method_of(model);
  if (method != "bitsandbytes") return why("quant_method is %s; this plugin reads bitsandbytes", method.c_str()), 0;
  const ConfigView c(model.cfg);
  const bool eight = c.flag("load_in_8bit", false) || c.flag("_load_in_8bit", false);
  why("bitsandbytes, %s", eight ? "LLM.int8()" : packed::lower(c.text("bnb_4bit_quant_type").value_or("fp4")).c_str());
  return 1000;
}

}  // namespace qengine::bnb
