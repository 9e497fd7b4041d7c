// qkv_finish: bias, norm of q's and k's heads, rotation, and the append to the cache, in one launch.
//
// Mapping  A warp a (row, head): lane l holds dimensions l, l + 32, ... of the head, in registers; the
//          partner of a rotated pair comes from shared memory.
// Bound    Latency at few rows, memory at many.
// Numbers  float32; q and k are rounded to bf16 once, at the store (an e4m3 cache is filled from the
//          float32 value). The rotation reads cosines and sines made in float32 on the host.
#include "core/layers/cuda/finish_head.cuh"

namespace qengine::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostDim = 256;

__global__ void qkv_finish_kernel(QkvFinish a) {
  __shared__ float shared[kWarps][kMostDim];
  pdl_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.x * kWarps + warp, row = blockIdx.y;
  if (head >= a.heads + 2 * a.kv_heads) return;
  constexpr int kN = kMostDim / 32;
  float v[kN], w[kN];
  load_head<0>(a, row, head, v);
  if (head < a.heads + a.kv_heads) {
    const float* norm = head < a.heads ? a.q_norm : a.k_norm;
    load_norm<0>(a, norm, w);
    Rotation<kN> rotation;
    rotation.load(a, a.cos_sin ? a.position[row] : 0);
    finish_head<0>(a, norm != nullptr, w, rotation, shared[warp], v);
  }
  if (head >= a.heads && a.slot) {
    if (a.pool.type == KvType::kBf16) append_head<0, KvType::kBf16>(a, a.slot[row], head, v);
    else append_head<0, KvType::kE4m3>(a, a.slot[row], head, v);
    return;
  }
  __nv_bfloat16* x = a.qkv + row * a.stride + static_cast<std::int64_t>(head) * a.head_dim;
#pragma unroll
  for (int j = 0; j < kN; ++j)
    if (const int i = j * 32 + lane; i < a.head_dim) x[i] = __float2bfloat16(v[j]);
}

}  // namespace

cudaError_t qkv_finish(const QkvFinish& a, At at) {
  if (a.rows == 0) return cudaSuccess;
  if (a.head_dim > kMostDim) return cudaErrorInvalidValue;
  const int all = a.heads + 2 * a.kv_heads;
  return launch(qkv_finish_kernel, dim3(static_cast<unsigned>((all + kWarps - 1) / kWarps), static_cast<unsigned>(a.rows)), dim3(kWarps * 32), 0, at, a);
}

}  // namespace qengine::cuda
