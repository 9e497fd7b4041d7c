// One head between the qkv product and attention, by one warp: bias, norm, rotation; and its place in the
// cache. qkv_finish and the decode kernel share it, so that both give the same bits.
//
// Lane l has dimensions l, l + 32, ... of the head. REQUIRES: head_dim <= 32 N. D: the head size where it is known in
// advance, else 0; what is known costs no instruction, and decode waits for this code.
#pragma once

#include <cuda_fp8.h>

#include "core/layers/cuda/launch.cuh"

namespace qengine::cuda {

template <int D>
__device__ __forceinline__ int size_of_head(const QkvFinish& a) {
  return D ? D : a.head_dim;
}

// ---- what no kernel of a step writes, for this lane's dimensions: may be read before the wait -------------

template <int D, int N>
__device__ __forceinline__ void load_norm(const QkvFinish& a, const float* norm, float (&w)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int i = j * 32 + threadIdx.x % 32;
    w[j] = norm && i < size_of_head<D>(a) ? norm[i] : 0.0f;
  }
}

template <int N>
struct Rotation {
  int position = -1;
  float c[N], s[N];
  __device__ __forceinline__ void load(const QkvFinish& a, int at) {
    position = at;
    if (!a.cos_sin) return;
    const int half = a.rot_dim / 2;
    const float* cs = a.cos_sin + static_cast<std::int64_t>(at) * a.rot_dim;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = j * 32 + threadIdx.x % 32, pair = i < half ? i : i - half;
      c[j] = s[j] = 0;
      if (i < a.rot_dim) c[j] = cs[pair], s[j] = cs[half + pair];
    }
  }
};

// ---- the head ----------------------------------------------------------------------------------------------

// `head`: counted through q, k and v. As the product left it, and its bias.
template <int D, int N>
__device__ __forceinline__ void load_head(const QkvFinish& a, int row, int head, float (&v)[N]) {
  const __nv_bfloat16* x = a.qkv + row * a.stride + static_cast<std::int64_t>(head) * size_of_head<D>(a);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int i = j * 32 + threadIdx.x % 32;
    v[j] = i < size_of_head<D>(a) ? __bfloat162float(x[i]) : 0.0f;
  }
  if (a.bias)
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (const int i = j * 32 + threadIdx.x % 32; i < size_of_head<D>(a)) v[j] += a.bias[static_cast<std::int64_t>(head) * size_of_head<D>(a) + i];
}

// Of q and k. `normed`: by w. `scratch`: [rot_dim] of shared memory, this warp's.
template <int D, int N>
__device__ __forceinline__ void finish_head(const QkvFinish& a, bool normed, const float (&w)[N], const Rotation<N>& rotation, float* scratch, float (&v)[N]) {
  const int lane = threadIdx.x % 32;
  if (normed) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) sum = fmaf(v[j], v[j], sum);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    const float rstd = rsqrtf(sum / static_cast<float>(size_of_head<D>(a)) + a.eps);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = v[j] * rstd * w[j];
  }
  if (!a.cos_sin) return;
  const int half = a.rot_dim / 2;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (const int i = j * 32 + lane; i < a.rot_dim) scratch[i] = v[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int i = j * 32 + lane;
    if (i >= a.rot_dim) continue;
    v[j] = fmaf(v[j], rotation.c[j], i < half ? -(scratch[i + half] * rotation.s[j]) : scratch[i - half] * rotation.s[j]);
  }
  __syncwarp();
}

template <KvType T>
__device__ __forceinline__ void store_code(void* base, std::int64_t at, float v, float scale) {
  if constexpr (T == KvType::kBf16) static_cast<__nv_bfloat16*>(base)[at] = __float2bfloat16(v);
  else static_cast<__nv_fp8_storage_t*>(base)[at] = __nv_cvt_float_to_fp8(v / scale, __NV_SATFINITE, __NV_E4M3);
}

// Into the cache, where the row has a slot (`slot` >= 0); `head` as above, of k or v. And to `copy` where there is one.
template <int D, KvType T, int N>
__device__ __forceinline__ void append_head(const QkvFinish& a, std::int64_t slot, int head, const float (&v)[N], void* copy = nullptr) {
  const bool is_k = head < a.heads + a.kv_heads;
  const int kv_head = is_k ? head - a.heads : head - a.heads - a.kv_heads;
  const KvPool& pool = a.pool;
  const float* scales = is_k ? pool.k_scale : pool.v_scale;
  const float scale = T != KvType::kBf16 && scales ? scales[kv_head] : 1.0f;
  if (copy)
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (const int i = j * 32 + threadIdx.x % 32; i < size_of_head<D>(a)) store_code<T>(copy, i, v[j], scale);
  if (slot < 0) return;
  const unsigned tokens = static_cast<unsigned>(pool.block_tokens), block = static_cast<unsigned>(slot) / tokens;  // a card has fewer than 2^32 slots
  const std::int64_t at = block * pool.block_stride + (static_cast<unsigned>(slot) - block * tokens) * pool.token_stride + kv_head * pool.head_stride;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (const int i = j * 32 + threadIdx.x % 32; i < size_of_head<D>(a)) store_code<T>(is_k ? pool.k : pool.v, at + i, v[j], scale);
}

}  // namespace qengine::cuda
