// kv_fp8: the KV cache in FP8, E4M3 or E5M2, half the bytes of bf16. Scales per tensor or per head from the checkpoint, else 1.
//
//   pool_k, pool_v   a byte a value: slot * kv_heads * head_dim + head * head_dim + i
//   stored           round to nearest even, saturating: code(x / scale); x' = value(code) * scale
#include <qe/plugin.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "scales.hpp"

struct qe_kv_s {
  qengine::kv_fp8::Scales scales;
  std::int64_t width = 0, head_dim = 0, block_tokens = 16;
  bool e5m2 = false;
};

namespace qengine::kv_fp8 {
namespace {

bool wants_e5m2(const qe_model& m) { return qe::Config(m.cfg).str("options.method", "e4m3") == "e5m2"; }

// 0: nothing asks for an FP8 cache.
std::int32_t detect(const qe_model* m, qe_reason why) noexcept {
  qe::Reason reason(why);
  std::int32_t score = 0;
  qe_error error{};
  if (qe::guard(&error, [&] {
        const qe::Config c(m->cfg);
        for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"})  // the second is an object, or a name like the first
          if (const std::string algo = c.str(key); algo == "FP8" || algo == "fp8") return reason("%s is FP8", key), void(score = 900);
        if (c.size("kv_cache_scheme") <= 0) return reason("the checkpoint asks for no quantized KV cache");
        const std::string type = c.str("kv_cache_scheme.type", "float");
        const std::int64_t bits = c.i64("kv_cache_scheme.num_bits", 8);
        if (type != "float" || bits != 8)
          return reason("kv_cache_scheme is %lld-bit %s; this plugin stores 8-bit float", static_cast<long long>(bits), type.c_str());
        reason("kv_cache_scheme of the checkpoint");
        score = 900;
      }) != QE_OK)
    reason("%s", error.message);
  return score;
}

qe_status plan(const qe_device* device, const qe_model* m, std::int32_t block_tokens, qe_kv_plan* out, qe_error* error) noexcept {
  return qe::guard(error, [&] {
    out->claim = 0;
    qe::Reason why(out->reason);
    const std::string method = qe::Config(m->cfg).str("options.method", "e4m3");
    if (method != "e4m3" && method != "e5m2") return why("scheme %s; supported: e4m3, e5m2", method.c_str());
    const bool e5m2 = method == "e5m2";
    if (device->kind != QE_CPU && e5m2) return why("scheme e5m2 on a GPU; supported there: e4m3");
    const Scales s = find_scales(*m);
    out->claim = 2;
    out->encoding = e5m2 ? QE_KV_OPAQUE : s.per_head ? QE_KV_E4M3_HEAD : QE_KV_E4M3_TENSOR;
    out->scale_kind = e5m2 ? QE_KV_SCALE_NONE : s.from_checkpoint ? QE_KV_SCALE_CHECKPOINT : QE_KV_SCALE_ONE;
    out->block_bytes_k = out->block_bytes_v = std::uint64_t(block_tokens) * std::uint64_t(m->kv_heads) * std::uint64_t(m->head_dim);
    out->block_bytes_scale = 0;
    out->align = 16;
    why("%s, %s", method.c_str(), e5m2 ? "no scales" : s.per_head ? "scales of the checkpoint, one a head" : s.from_checkpoint ? "scales of the checkpoint" : "scale 1.0");
  });
}

qe_status open(qe_dev, const qe_model* m, std::int32_t block_tokens, qe_kv* out, qe_error* error) noexcept {
  return qe::guard(error, [&] {
    auto kv = std::make_unique<qe_kv_s>();
    kv->scales = find_scales(*m);
    kv->head_dim = m->head_dim;
    kv->width = std::int64_t{m->kv_heads} * m->head_dim;
    kv->block_tokens = block_tokens;
    kv->e5m2 = wants_e5m2(*m);
    if (kv->e5m2) {  // E5M2 has the range of a half: its scales are always 1
      kv->scales.k.assign(kv->scales.k.size(), 1.0f);
      kv->scales.v.assign(kv->scales.v.size(), 1.0f);
    }
    for (const std::string& note : kv->scales.notes) qe::log(qe::Log::warn, note);
    *out = kv.release();
  });
}

const float* scales_of(const qe_kv_s& kv, const qe_kv_args& a, bool value) {
  if (a.layer < 0 || a.layer >= kv.scales.layers) throw qe::Error(QE_E_ARGUMENT, "layer", qe::format("is %d of %d", a.layer, kv.scales.layers));
  return (value ? kv.scales.v : kv.scales.k).data() + std::size_t(a.layer) * std::size_t(kv.scales.heads);
}

qe_status store(qe_kv kv, const qe_kv_args* a, qe_error* error) noexcept {
  return qe::guard(error, [&] {
    for (const bool value : {false, true}) {
      const float* scale = scales_of(*kv, *a, value);
      const qe_tensor& x = value ? a->v : a->k;
      auto* pool = static_cast<std::uint8_t*>(value ? a->pool_v : a->pool_k);
      for (std::int32_t t = 0; t < a->n_tokens; ++t) {
        if (a->slot[t] < 0) continue;
        const float* from = static_cast<const float*>(x.data) + t * x.stride[0];
        std::uint8_t* to = pool + a->slot[t] * kv->width;
        for (std::int32_t h = 0; h < kv->scales.heads; ++h)
          for (std::int64_t i = 0; i < kv->head_dim; ++i, ++from, ++to) *to = kv->e5m2 ? qe::f32_to_e5m2(*from) : qe::f32_to_e4m3(*from / scale[h]);
      }
    }
  });
}

constexpr std::array<float, 256> kE4M3 = [] {
  std::array<float, 256> t{};
  for (int c = 0; c < 256; ++c) t[std::size_t(c)] = qe::e4m3_to_f32(std::uint8_t(c));
  return t;
}();
constexpr std::array<float, 256> kE5M2 = [] {
  std::array<float, 256> t{};
  for (int c = 0; c < 256; ++c) t[std::size_t(c)] = qe::e5m2_to_f32(std::uint8_t(c));
  return t;
}();

qe_status gather(qe_kv kv, const qe_kv_args* a, qe_error* error) noexcept {
  return qe::guard(error, [&] {
    const std::array<float, 256>& table = kv->e5m2 ? kE5M2 : kE4M3;
    for (const bool value : {false, true}) {
      const float* scale = scales_of(*kv, *a, value);
      const qe_tensor& x = value ? a->v : a->k;
      const auto* pool = static_cast<const std::uint8_t*>(value ? a->pool_v : a->pool_k);
      std::int64_t row = 0;
      for (std::int32_t s = 0; s < a->n_seqs; ++s) {
        const std::int32_t* blocks = a->block_table + std::int64_t{s} * a->max_blocks;
        for (std::int64_t t = 0; t < a->seq_len[s]; ++t, ++row) {
          const std::uint8_t* from = pool + (std::int64_t{blocks[t / kv->block_tokens]} * kv->block_tokens + t % kv->block_tokens) * kv->width;
          float* to = static_cast<float*>(x.data) + row * x.stride[0];
          for (std::int32_t h = 0; h < kv->scales.heads; ++h)
            for (std::int64_t i = 0; i < kv->head_dim; ++i) *to++ = table[*from++] * scale[h];
        }
      }
    }
  });
}

void close(qe_kv kv) noexcept { delete kv; }

// On a GPU core stores and attends by itself: it knows E4M3.
qe_status scales(qe_kv kv, std::int32_t layer, float* k, float* v, qe_error* error) noexcept {
  return qe::guard(error, [&] {
    const qe_kv_args at{.struct_size = sizeof at, .layer = layer};
    std::copy_n(scales_of(*kv, at, false), kv->scales.heads, k);
    std::copy_n(scales_of(*kv, at, true), kv->scales.heads, v);
  });
}

const qe_kv_v1 kTable{sizeof(qe_kv_v1), 0, plan, open, store, gather, nullptr, nullptr, close, scales};

const qe_capability kCpu{sizeof(qe_capability), QE_CPU, 0, 0, 1};
const qe_capability kGpu{sizeof(qe_capability), QE_CUDA, 80, 0, 1};
const qe_capability* const kRows[] = {&kCpu};
const qe_capability* const kBothRows[] = {&kCpu, &kGpu};
const qe_method kE4M3Method{sizeof(qe_method), 2, "e4m3", "", "E4M3, scales per tensor or per head", kBothRows};
const qe_method kE5M2Method{sizeof(qe_method), 1, "e5m2", "", "E5M2, no scales", kRows};
const qe_method* const kMethods[] = {&kE4M3Method, &kE5M2Method};
const qe_alias kAliasList[] = {{sizeof(qe_alias), 4, "kv-cache-dtype=fp8", "", "kv_fp8:e4m3", "", "", ""},
                               {sizeof(qe_alias), 4, "kv-cache-dtype=fp8_e4m3", "", "kv_fp8:e4m3", "", "", ""},
                               {sizeof(qe_alias), 4, "kv-cache-dtype=fp8_e5m2", "", "kv_fp8:e5m2", "", "", ""}};
const qe_alias* const kAliases[] = {&kAliasList[0], &kAliasList[1], &kAliasList[2]};

qe_status init(const qe_host* host, qe_error*) noexcept {
  qe::detail::host_table = host;
  return QE_OK;
}
void shutdown() noexcept {}
qe_status dev_open(const qe_device*, qe_dev* out, qe_error*) noexcept {
  *out = nullptr;  // nothing is kept for a device
  return QE_OK;
}
void dev_close(qe_dev) noexcept {}
const void* extension(const char* id) noexcept { return std::string_view(id) == "qe.kv/1" ? &kTable : nullptr; }

const qe_plugin kPlugin{sizeof(qe_plugin), QE_MAGIC, QE_ABI_MAJOR, QE_ABI_MINOR, QE_ABI_MINOR, 2, 3, 0,
                        "qengine.kv_fp8", "kv_fp8", "0.1.0", "qengine", "Apache-2.0", "", __VERSION__, qe::kSdkVersion,
                        kMethods, kAliases, nullptr, init, shutdown, detect, dev_open, dev_close, extension};

}  // namespace
}  // namespace qengine::kv_fp8

extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(std::uint32_t host_major, std::uint32_t) {
  return host_major == QE_ABI_MAJOR ? &qengine::kv_fp8::kPlugin : nullptr;
}
