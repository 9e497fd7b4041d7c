// A KV format of int8 with a scale a token and head, and ways of getting it wrong. See wrong.cpp.
#include <qe/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "fault.h"

struct qe_kv_s {
  std::int64_t heads, dim, block_tokens;
};

namespace {

bool fault(const char* name) { return qe_fault_is(name) != 0; }

std::int32_t detect(const qe_model*, qe_reason why) noexcept {
  qe::Reason reason(why);
  reason("only by name");
  return 0;
}

qe_status plan(const qe_device* d, const qe_model* m, std::int32_t block_tokens, qe_kv_plan* out, qe_error*) noexcept {
  qe::Reason why(out->reason);
  out->claim = 0;
  if (d->kind != QE_CPU) return why("a CUDA device; this plugin stores on the CPU"), QE_OK;
  out->claim = 2;
  out->encoding = QE_KV_OPAQUE;
  out->scale_kind = QE_KV_SCALE_NONE;
  out->block_bytes_k = out->block_bytes_v = std::uint64_t(block_tokens) * std::uint64_t(m->kv_heads) * std::uint64_t(m->head_dim);
  out->block_bytes_scale = std::uint64_t(block_tokens) * std::uint64_t(m->kv_heads) * 2 * sizeof(float);
  out->align = fault("odd alignment") ? 48 : 16;
  if (!fault("kv without a reason")) why("int8, a scale a token and head");
  return QE_OK;
}

qe_status open(qe_dev, const qe_model* m, std::int32_t block_tokens, qe_kv* out, qe_error* e) noexcept {
  return qe::guard(e, [&] { *out = new qe_kv_s{m->kv_heads, m->head_dim, block_tokens}; });
}

struct Place {
  std::int8_t* codes;
  float* scale;
};
Place place(const qe_kv_s& kv, const qe_kv_args& a, std::int64_t slot, std::int64_t head, bool value) {
  auto* pool = static_cast<std::int8_t*>(value ? a.pool_v : a.pool_k);
  return {pool + (slot * kv.heads + head) * kv.dim, static_cast<float*>(a.pool_scale) + (slot * kv.heads + head) * 2 + value};
}

void* volatile scratch = nullptr;

qe_status store(qe_kv kv, const qe_kv_args* a, qe_error*) noexcept {
  if (fault("kv allocates")) { scratch = std::malloc(256); std::free(scratch); }
  for (std::int32_t t = 0; t < a->n_tokens; ++t) {
    std::int64_t slot = a->slot[t];
    if (slot < 0 && !fault("stores skipped tokens")) continue;
    slot = std::max<std::int64_t>(slot, 0);
    for (std::int64_t h = 0; h < kv->heads; ++h)
      for (const bool value : {false, true}) {
        const float* x = static_cast<const float*>(value ? a->v.data : a->k.data) + t * (value ? a->v : a->k).stride[0] + h * kv->dim;
        const Place p = place(*kv, *a, slot, h, value);
        float amax = 1e-8f;
        for (std::int64_t i = 0; i < kv->dim; ++i) amax = std::max(amax, std::fabs(x[i]));
        float s = amax / 127;
        // what an earlier owner of the block left is taken for a scale of this one
        if (fault("keeps the old scale") && *p.scale > s && *p.scale < 1e3f) s = *p.scale;
        if (fault("coarse")) s = amax / 3;
        *p.scale = s;
        const int mark = fault("codes know their block") ? int(slot / kv->block_tokens % 4) : 0;
        for (std::int64_t i = 0; i < kv->dim; ++i) p.codes[i] = std::int8_t(std::clamp(std::lrintf(x[i] / s), -127l, 127l) ^ mark);
      }
  }
  return QE_OK;
}

float read(const qe_kv_s& kv, const qe_kv_args& a, std::int64_t slot, std::int64_t h, std::int64_t i, bool value) {
  const Place p = place(kv, a, slot, h, value);
  const int mark = fault("codes know their block") ? int(slot / kv.block_tokens % 4) : 0;
  return float(std::int8_t(p.codes[i] ^ mark)) * *p.scale;
}

std::int64_t slot_of(const qe_kv_s& kv, const qe_kv_args& a, std::int32_t s, std::int64_t t) {
  return std::int64_t{a.block_table[std::int64_t{s} * a.max_blocks + t / kv.block_tokens]} * kv.block_tokens + t % kv.block_tokens;
}

qe_status gather(qe_kv kv, const qe_kv_args* a, qe_error*) noexcept {
  std::int64_t row = 0;
  for (std::int32_t s = 0; s < a->n_seqs; ++s)
    for (std::int64_t t = 0; t < a->seq_len[s]; ++t, ++row)
      for (const bool value : {false, true})
        for (std::int64_t h = 0; h < kv->heads; ++h)
          for (std::int64_t i = 0; i < kv->dim; ++i)
            (static_cast<float*>(value ? a->v.data : a->k.data) + row * (value ? a->v : a->k).stride[0])[h * kv->dim + i] = read(*kv, *a, slot_of(*kv, *a, s, t), h, i, value);
  return QE_OK;
}

qe_status decode(qe_kv kv, const qe_kv_args* a, qe_error* e) noexcept {
  return qe::guard(e, [&] {
    const std::int64_t heads = a->q.dim[1] / kv->dim, each = heads / kv->heads;
    for (std::int32_t s = 0; s < a->n_seqs; ++s)
      for (std::int64_t h = 0; h < heads; ++h) {
        const float* q = static_cast<const float*>(a->q.data) + s * a->q.stride[0] + h * kv->dim;
        float* out = static_cast<float*>(a->out.data) + s * a->out.stride[0] + h * kv->dim;
        const std::int64_t n = a->seq_len[s] - (fault("forgets the last token") ? 1 : 0);
        std::vector<double> p(static_cast<std::size_t>(n));
        double top = -1e300, sum = 0;
        for (std::int64_t t = 0; t < n; ++t) {
          double dot = 0;
          for (std::int64_t i = 0; i < kv->dim; ++i) dot += double(q[i]) * double(read(*kv, *a, slot_of(*kv, *a, s, t), h / each, i, false));
          p[std::size_t(t)] = dot * double(a->sm_scale);
          top = std::max(top, p[std::size_t(t)]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (std::int64_t i = 0; i < kv->dim; ++i) {
          double o = 0;
          for (std::int64_t t = 0; t < n; ++t) o += p[std::size_t(t)] * double(read(*kv, *a, slot_of(*kv, *a, s, t), h / each, i, true));
          out[i] = float(o / sum);
        }
      }
  });
}

void close(qe_kv kv) noexcept { delete kv; }

const qe_kv_v1 kTable{sizeof(qe_kv_v1), 0, plan, open, store, gather, decode, nullptr, close};
const qe_capability kCpu{sizeof(qe_capability), QE_CPU, 0, 0, 1};
const qe_capability* const kRows[] = {&kCpu};
const qe_method kInt8{sizeof(qe_method), 1, "int8", "", "int8 with a scale a token and head", kRows};
const qe_method* const kMethods[] = {&kInt8};

qe_status init(const qe_host* host, qe_error*) noexcept {
  qe::detail::host_table = host;
  return QE_OK;
}
void shutdown() noexcept {}
qe_status dev_open(const qe_device*, qe_dev* out, qe_error*) noexcept {
  *out = nullptr;
  return QE_OK;
}
void dev_close(qe_dev) noexcept {}
const void* extension(const char* id) noexcept { return std::string_view(id) == "qe.kv/1" ? &kTable : nullptr; }

const qe_plugin kPlugin{sizeof(qe_plugin), QE_MAGIC, QE_ABI_MAJOR, QE_ABI_MINOR, QE_ABI_MINOR, 1, 0, 0, "test.wrong", "wrong", "0.1.0", "Nobody", "Apache-2.0", "",
                        __VERSION__, qe::kSdkVersion, kMethods, nullptr, nullptr, init, shutdown, detect, dev_open, dev_close, extension};

}  // namespace

extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(std::uint32_t host_major, std::uint32_t) {
  return host_major == QE_ABI_MAJOR ? &kPlugin : nullptr;
}
