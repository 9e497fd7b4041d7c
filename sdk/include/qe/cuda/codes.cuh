// qe/cuda/codes.cuh: tokens to FP8 codes, and the codes of weights to plain rows (codes.hpp).
//
// Bound    Memory: 3 bytes an input (a token that is read twice comes from L1 or L2), 2 bytes a weight.
// Numbers  Those of qe/activation.hpp, operation by operation: the largest magnitude is exact in any order, divisions are
//          rounded once, codes to nearest even, saturating.
#pragma once

#include <qe/activation.hpp>
#include <qe/cuda/codes.hpp>
#include <qe/cuda/words.cuh>
#include <qe/numbers.hpp>

namespace qe::cuda {

inline constexpr int kQuantizeThreads = 256;

// Codes of two numbers, the first in the low byte.
__device__ __forceinline__ uint32_t e4m3x2(float first, float second) {
#if __CUDA_ARCH__ >= 890
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(second), "f"(first));
  return d;
#else
  return f32_to_e4m3(first) | uint32_t(f32_to_e4m3(second)) << 8;
#endif
}

struct EightInputs {
  float v[8];
  __device__ __forceinline__ EightInputs(const __nv_bfloat16* from, bool aligned) {
    if (aligned) {
      const uint4 w = *reinterpret_cast<const uint4*>(from);
      const uint32_t pair[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) v[2 * i] = __uint_as_float(pair[i] << 16), v[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __bfloat162float(from[i]);
    }
  }
  __device__ __forceinline__ float most(float m) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) m = fmaxf(m, fabsf(v[i]));
    return m;
  }
  __device__ __forceinline__ uint2 codes(float scale) const {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = e4m3x2(__fdiv_rn(v[2 * i], scale), __fdiv_rn(v[2 * i + 1], scale));
    return {pair[0] | pair[1] << 16, pair[2] | pair[3] << 16};
  }
};

// A block a token, or 16 lanes a group of 128 inputs. k is a multiple of 16.
template <bool kGroups>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_tokens(const __grid_constant__ QuantizeArgs a) {
  const auto* in = static_cast<const __nv_bfloat16*>(a.in);
  if constexpr (kGroups) {
    const int64_t groups = (a.k + 127) / 128, pairs = (groups + 1) / 2;
    const int64_t item = int64_t(blockIdx.x) * (kQuantizeThreads / 32) + (threadIdx.x >> 5);
    if (item >= pairs * a.m) return;
    const int64_t t = item % a.m, group = item / a.m * 2 + (threadIdx.x >> 4 & 1), c = group * 128 + (threadIdx.x & 15) * 8;
    const bool some = c < a.k;
    const EightInputs x(in + t * a.in_stride + (some ? c : 0), a.aligned);
    float most = some ? x.most(0.0f) : 0.0f;
#pragma unroll
    for (int by = 8; by; by >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
    const float scale = __fdiv_rn(fmaxf(most, 1e-10f), 448.0f);
    if (some) *reinterpret_cast<uint2*>(a.codes + t * a.k + c) = x.codes(scale);
    if ((threadIdx.x & 15) == 0 && some) {
      if (t < a.first) a.scales[group * a.first + t] = scale;
      if (a.tail && t >= a.m - kTailTokens) a.tail[group * kTailTokens + (t - (a.m - kTailTokens))] = scale;
    }
  } else {
    const int64_t t = blockIdx.x;
    const auto* token = in + t * a.in_stride;
    float scale = a.scale;
    if (a.kind == Activation::e4m3_token) {
      __shared__ float of_warp[kQuantizeThreads / 32];
      float most = 0.0f;
      for (int c = threadIdx.x * 8; c < a.k; c += kQuantizeThreads * 8) most = EightInputs(token + c, a.aligned).most(most);
#pragma unroll
      for (int by = 16; by; by >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
      if ((threadIdx.x & 31) == 0) of_warp[threadIdx.x >> 5] = most;
      __syncthreads();
#pragma unroll
      for (int w = 0; w < kQuantizeThreads / 32; ++w) most = fmaxf(most, of_warp[w]);
      if (a.bound > 0.0f) most = fminf(most, a.bound);
      scale = fmaxf(__fdiv_rn(most, 448.0f), 1.0f / (448.0f * 512.0f));
    }
    for (int c = threadIdx.x * 8; c < a.k; c += kQuantizeThreads * 8) *reinterpret_cast<uint2*>(a.codes + t * a.k + c) = EightInputs(token + c, a.aligned).codes(scale);
    if (threadIdx.x == 0) a.scales[t] = scale;
  }
}

inline constexpr int kCodesWarps = 8;

// A warp a unit: code_byte() is read backwards.
template <bool kBlocks>
__global__ void __launch_bounds__(kCodesWarps * 32) unpack_codes(const __grid_constant__ CodesArgs a) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int64_t warps = int64_t(gridDim.x) * kCodesWarps;
  for (int64_t item = int64_t(blockIdx.x) * kCodesWarps + (threadIdx.x >> 5); item < a.rows / kStrip * a.width; item += warps) {
    const int64_t strip = item / a.width, u = item % a.width;
    const uint8_t* unit = a.units + ((a.first / kStrip + strip) * a.width + u) * a.unit_bytes;
    uint4 v[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) v[q] = stream16(unit + q * 512 + lane * 16);
    uint8_t* row = a.out + (strip * kStrip + g) * a.k;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t c = u * kUnit + q * 32 + t * 8;
      if (c >= a.k) continue;
      *reinterpret_cast<uint2*>(row + c) = make_uint2(__byte_perm(v[q].x, v[q].y, 0x6420), __byte_perm(v[q].z, v[q].w, 0x6420));
      *reinterpret_cast<uint2*>(row + 8 * int64_t(a.k) + c) = make_uint2(__byte_perm(v[q].x, v[q].y, 0x7531), __byte_perm(v[q].z, v[q].w, 0x7531));
    }
    if constexpr (kBlocks) {
      if (strip % (kScaleBlock / kStrip)) continue;
      float* scales = a.scales + strip / (kScaleBlock / kStrip) * a.scale_stride;
      if (lane == 0) scales[u] = *reinterpret_cast<const float*>(unit + kUnit * kStrip);
      for (int64_t i = a.width + lane; u == 0 && i < a.scale_stride; i += 32) scales[i] = 0.0f;
    }
  }
}

}  // namespace qe::cuda
