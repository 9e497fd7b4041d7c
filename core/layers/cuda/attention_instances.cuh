// One head size: both kernels, both kinds of cache. A file for each, so that they build side by side.
#pragma once

#include "core/layers/cuda/attention_decode.cuh"
#include "core/layers/cuda/attention_prefill.cuh"

#define QE_ATTENTION(D)                                                                                          \
  cudaError_t decode_##D(const Decode& d, At at) {                                                               \
    if (d.finishes) return d.a.pool.type == KvType::kBf16 ? decode_as<D, KvType::kBf16, true>(d, at) : decode_as<D, KvType::kE4m3, true>(d, at); \
    return d.a.pool.type == KvType::kBf16 ? decode_as<D, KvType::kBf16, false>(d, at) : decode_as<D, KvType::kE4m3, false>(d, at);               \
  }                                                                                                              \
  cudaError_t prefill_##D(const Prefill& p, At at) {                                                             \
    return p.a.pool.type == KvType::kBf16 ? prefill_as<D, KvType::kBf16>(p, at) : prefill_as<D, KvType::kE4m3>(p, at);    \
  }
