#include "scales.hpp"

#include <cmath>
#include <exception>
#include <optional>

namespace qengine::kv_fp8 {
namespace {

struct Found {
  std::string name;
  std::vector<float> values;  // 1 or heads
};

std::optional<Found> look(const qe_model& m, const std::string& name) {
  const auto t = qe::Io(m, qe::Io::Mode::plan).look(name);
  if (!t) return std::nullopt;
  std::int64_t n = 1;
  for (int i = 0; i < t->rank && i < 4; ++i) n *= t->dim[i];
  if (t->dtype != QE_F32 && t->dtype != QE_F16 && t->dtype != QE_BF16)
    throw qe::Error(QE_E_CHECKPOINT, name, std::string("is ") + qe::dtype_name(t->dtype) + ", expected F32, F16 or BF16");
  if (n != 1 && n != m.kv_heads)
    throw qe::Error(QE_E_CHECKPOINT, name, qe::format("has %lld values, expected 1 or one for each of %d KV heads", static_cast<long long>(n), m.kv_heads));
  Found f{name, {}};
  if (!t->data) return f;
  for (std::int64_t i = 0; i < n; ++i) {
    float v;
    if (t->dtype == QE_F32) {
      std::memcpy(&v, static_cast<const std::byte*>(t->data) + 4 * i, 4);
    } else {
      std::uint16_t h;
      std::memcpy(&h, static_cast<const std::byte*>(t->data) + 2 * i, 2);
      v = t->dtype == QE_F16 ? qe::f16_to_f32(h) : qe::bf16_to_f32(h);
    }
    if (!std::isfinite(v) || v < 0)
      throw qe::Error(QE_E_CHECKPOINT, name, qe::format("is %g, expected a positive number", static_cast<double>(v)), "the file is damaged or the calibration failed");
    f.values.push_back(v);
  }
  return f;
}

// All spellings are looked at, also after a hit or a fault: whatever is there belongs to the cache. `fault` keeps the first one.
std::optional<Found> first(const qe_model& m, const std::string& base, std::initializer_list<const char*> spellings, std::exception_ptr& fault) {
  std::optional<Found> hit;
  for (const char* s : spellings) try {
      if (auto f = look(m, base + s); f && !hit) hit = std::move(f);
    } catch (const qe::Error&) {
      if (!fault) fault = std::current_exception();
    }
  return hit;
}

}  // namespace

Scales find_scales(const qe_model& m) {
  Scales out;
  out.layers = m.layers;
  out.heads = m.kv_heads;
  const auto size = static_cast<std::size_t>(m.layers) * static_cast<std::size_t>(m.kv_heads);
  out.k.assign(size, 1.0f);
  out.v.assign(size, 1.0f);
  if (!m.ckpt) return out;
  std::string only_v, zero, without;  // the last of each kind
  int copied = 0, zeros = 0, bare = 0;
  std::exception_ptr fault;
  for (std::int32_t l = 0; l < m.layers; ++l) {
    const std::string base = "model.layers." + std::to_string(l) + ".self_attn.";
    for (const char* z : {"k_zero_point", "v_zero_point", "attn.k_zero_point", "k_proj.k_zero_point", "v_proj.v_zero_point"})
      if (qe::Io(m, qe::Io::Mode::plan).look(base + z) && !fault)
        fault = std::make_exception_ptr(qe::Error(QE_E_UNSUPPORTED, base + z, "belongs to an asymmetric integer cache", "quantize the cache to FP8, or use --kv-cache-dtype bfloat16"));
    auto k = first(m, base, {"k_scale", "k_proj.k_scale", "attn.k_scale", "qkv_proj.k_scale", "k_proj.output_scale"}, fault);
    auto v = first(m, base, {"v_scale", "v_proj.v_scale", "attn.v_scale", "qkv_proj.v_scale", "v_proj.output_scale"}, fault);
    const auto both = first(m, base, {"kv_scale", "attn.kv_scale", "qkv_proj.kv_scale"}, fault);
    first(m, base, {"q_scale", "q_proj.q_scale", "attn.q_scale", "attn.prob_scale", "prob_scale", "q_proj.output_scale"}, fault);  // of FP8 attention, which is not used
    if (!k) k = both;
    if (!v) v = both;
    if (!k && !v) without = base + "k_scale", ++bare;
    if (!k && v) k = v, ++copied, only_v = v->name;
    if (!v && k) v = k, ++copied, only_v = k->name;
    const auto fill = [&](const std::optional<Found>& f, std::vector<float>& to) {
      if (!f) return;
      out.from_checkpoint = true;
      out.per_head |= f->values.size() > 1;
      for (std::int32_t h = 0; h < m.kv_heads && !f->values.empty(); ++h) {
        const float s = f->values[f->values.size() > 1 ? static_cast<std::size_t>(h) : 0];
        if (s == 0) ++zeros, zero = f->name;
        to[static_cast<std::size_t>(l) * static_cast<std::size_t>(m.kv_heads) + static_cast<std::size_t>(h)] = s == 0 ? 1.0f : s;
      }
    };
    fill(k, out.k);
    fill(v, out.v);
  }
  if (fault) std::rethrow_exception(fault);
  if (bare && out.from_checkpoint) out.notes.push_back(qe::format("%s and its v_scale are missing, as in %d of %d layers; scale 1.0 is used there", without.c_str(), bare, m.layers));
  if (copied) out.notes.push_back(qe::format("%s has no partner in %d layers; its value is used for both k and v", only_v.c_str(), copied));
  if (zeros) out.notes.push_back(qe::format("%s is 0; scale 1.0 is used in its place (%d values)", zero.c_str(), zeros));
  return out;
}

}  // namespace qengine::kv_fp8
