// argmax: the largest of a row of logits, and whether all of them are finite. advance: what follows from it.
//
// Mapping  kBestChunks blocks a row, 256 threads each; the last block of a row to end joins what they
//          left, in the order of the chunks. Of equals the lowest index wins at every join.
// Bound    Memory.
#include "core/layers/cuda/launch.cuh"

namespace qengine::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ void join(Best& a, const Best& b) {
  if (b.value > a.value || (b.value == a.value && b.index < a.index)) a.value = b.value, a.index = b.index;
  a.finite &= b.finite;
}

__device__ __forceinline__ Best shuffled(const Best& a, int o) {
  return {__shfl_xor_sync(~0u, a.index, o), __shfl_xor_sync(~0u, a.value, o), __shfl_xor_sync(~0u, a.finite, o), 0};
}

__global__ void argmax_kernel(ArgMax a) {
  __shared__ Best shared[kThreads / 32];
  __shared__ bool last;
  pdl_begin();
  const int limit = a.limit_at ? *a.limit_at : a.limit;
  const int row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* x = a.x + row * a.stride;
  const int per = ((a.n + kBestChunks - 1) / kBestChunks + 3) / 4 * 4;
  const int begin = blockIdx.x * per, end = min(a.n, begin + per);
  Best best{0x7fffffff, -INFINITY, 1, 0};
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    const float v = x[i];
    if (!isfinite(v)) best.finite = 0;
    if (i < limit && v > best.value) best.value = v, best.index = i;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) join(best, shuffled(best, o));
  if (lane == 0) shared[warp] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) join(best, shared[w]);
    a.partial[row * kBestChunks + blockIdx.x] = best;
    __threadfence();
    last = atomicInc(a.counters + row, kBestChunks - 1) == kBestChunks - 1;
  }
  __syncthreads();
  if (!last || warp != 0) return;
  __threadfence();
  static_assert(kBestChunks == 32);
  const volatile Best& p = a.partial[row * kBestChunks + lane];
  best = {p.index, p.value, p.finite, 0};
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) join(best, shuffled(best, o));
  if (lane == 0) {
    if (best.index == 0x7fffffff) best.index = 0;  // nothing above -inf
    a.out[row] = best;
    if (a.token) a.token[row] = best.index;
  }
}

__global__ void advance_kernel(Advance a) {
  pdl_begin();
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= a.rows) return;
  const int len = a.seq_len[r];
  if (len < 0) {
    a.ids[r] = 0;
    a.slots[r] = -1;
    return;
  }
  const int p = a.positions[r] + 1;
  a.ids[r] = a.tokens[r];
  a.positions[r] = p;
  a.seq_len[r] = len + 1;
  a.slots[r] = static_cast<std::int64_t>(a.block_table[r * a.table_stride + p / a.block_tokens]) * a.block_tokens + p % a.block_tokens;
}

}  // namespace

cudaError_t advance(const Advance& a, At at) {
  if (a.rows == 0) return cudaSuccess;
  return launch(advance_kernel, dim3(static_cast<unsigned>((a.rows + 127) / 128)), dim3(128), 0, at, a);
}

cudaError_t argmax(const ArgMax& a, At at) {
  if (a.rows == 0) return cudaSuccess;
  return launch(argmax_kernel, dim3(kBestChunks, static_cast<unsigned>(a.rows)), dim3(kThreads), 0, at, a);
}

}  // namespace qengine::cuda
