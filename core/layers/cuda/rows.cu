// add_norm and act_mul: the row-wise work of a layer.
//
//   add_norm   x[r, i] += delta[r, i] + bias[i];  out[r, i] = x[r, i] * rstd[r] * w[i]
//   act_mul    out[r, i] = act(g[r, i]) * g[r, n + i]
//
// Mapping  add_norm: a block a row, four neighbours a thread, two passes over a row that stays in L1.
//          act_mul: a thread four neighbours.
// Bound    Memory; at one row, latency.
// Numbers  float32 throughout, one rounding to bf16 at the store.
#include "core/layers/cuda/launch.cuh"

namespace qengine::cuda {
namespace {

__device__ __forceinline__ float4 load4(const __nv_bfloat16* p) {
  const uint2 w = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u)};
}
__device__ __forceinline__ void store4(__nv_bfloat16* p, float4 v) {
  __nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
  *reinterpret_cast<uint2*>(p) = {*reinterpret_cast<unsigned*>(&lo), *reinterpret_cast<unsigned*>(&hi)};
}

// REQUIRES: n % 4 == 0 and all rows aligned to 8 bytes (bf16) and 16 (float); else the tail loop takes all.
__global__ void add_norm_kernel(AddNorm a, bool vectors) {
  __shared__ float shared[33];
  pdl_begin();
  const int row = blockIdx.x;
  float* x = a.x + static_cast<std::int64_t>(a.pick ? a.pick[row] : row) * a.n;
  const __nv_bfloat16* delta = a.delta ? a.delta + row * a.delta_stride : nullptr;
  const int whole = vectors ? a.n & ~3 : 0;
  float sum = 0;
  for (int i = threadIdx.x * 4; i < whole; i += blockDim.x * 4) {
    float4 v = a.set ? float4{} : *reinterpret_cast<const float4*>(x + i);
    if (delta) {
      float4 d = load4(delta + i);
      if (a.bias) {
        const float4 b = *reinterpret_cast<const float4*>(a.bias + i);
        d.x += b.x, d.y += b.y, d.z += b.z, d.w += b.w;
      }
      v.x += d.x, v.y += d.y, v.z += d.z, v.w += d.w;
      *reinterpret_cast<float4*>(x + i) = v;
    }
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  for (int i = whole + threadIdx.x; i < a.n; i += blockDim.x) {
    float v = a.set ? 0.0f : x[i];
    if (delta) x[i] = v += __bfloat162float(delta[i]) + (a.bias ? a.bias[i] : 0.0f);
    sum += v * v;
  }
  if (!a.w) return;
  const float rstd = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.n) + a.eps);
  __nv_bfloat16* out = a.out + row * a.out_stride;
  for (int i = threadIdx.x * 4; i < whole; i += blockDim.x * 4) {  // the same thread wrote them
    const float4 v = *reinterpret_cast<const float4*>(x + i), w = *reinterpret_cast<const float4*>(a.w + i);
    store4(out + i, {v.x * rstd * w.x, v.y * rstd * w.y, v.z * rstd * w.z, v.w * rstd * w.w});
  }
  for (int i = whole + threadIdx.x; i < a.n; i += blockDim.x) out[i] = __float2bfloat16(x[i] * rstd * a.w[i]);
}

__device__ __forceinline__ float activate(float x, Act act) {
  if (act == Act::kSilu) return x / (1.0f + __expf(-x));
  if (act == Act::kGeluTanh) return x / (1.0f + __expf(-2.0f * 0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

__global__ void act_mul_kernel(ActMul a, bool vectors) {
  pdl_begin();
  const __nv_bfloat16* g = a.g + blockIdx.y * a.g_stride;
  __nv_bfloat16* out = a.out + blockIdx.y * a.out_stride;
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (vectors && first + 4 <= a.n) {
    float4 x = load4(g + first), u = load4(g + a.n + first);
    if (a.bias) {
      x.x += a.bias[first], x.y += a.bias[first + 1], x.z += a.bias[first + 2], x.w += a.bias[first + 3];
      const float* b = a.bias + a.n + first;
      u.x += b[0], u.y += b[1], u.z += b[2], u.w += b[3];
    }
    store4(out + first, {activate(x.x, a.act) * u.x, activate(x.y, a.act) * u.y, activate(x.z, a.act) * u.z, activate(x.w, a.act) * u.w});
    return;
  }
  for (int i = first; i < min(first + 4, a.n); ++i) {
    float x = __bfloat162float(g[i]), u = __bfloat162float(g[a.n + i]);
    if (a.bias) x += a.bias[i], u += a.bias[a.n + i];
    out[i] = __float2bfloat16(activate(x, a.act) * u);
  }
}

bool aligned(const void* p, std::uintptr_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

}  // namespace

cudaError_t add_norm(const AddNorm& a, At at) {
  if (a.rows == 0) return cudaSuccess;
  const bool vectors = a.n % 4 == 0 && aligned(a.x, 16) && aligned(a.delta, 8) && a.delta_stride % 4 == 0 && aligned(a.out, 8) && a.out_stride % 4 == 0 && aligned(a.w, 16) && aligned(a.bias, 16);
  const int threads = a.n >= 4096 ? 1024 : a.n >= 2048 ? 512 : 256;
  return launch(add_norm_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(static_cast<unsigned>(threads)), 0, at, a, vectors);
}

cudaError_t act_mul(const ActMul& a, At at) {
  if (a.rows == 0) return cudaSuccess;
  const bool vectors = a.n % 4 == 0 && aligned(a.g, 8) && a.g_stride % 4 == 0 && aligned(a.out, 8) && a.out_stride % 4 == 0;
  constexpr int kThreads = 256;
  return launch(act_mul_kernel, dim3(static_cast<unsigned>((a.n + 4 * kThreads - 1) / (4 * kThreads)), static_cast<unsigned>(a.rows)), dim3(kThreads), 0, at, a, vectors);
}

}  // namespace qengine::cuda
