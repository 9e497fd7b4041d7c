// Single instructions, by name. Those of sm_90 do nothing before it.
#pragma once

#include <cuda_runtime.h>
#include <qe/cuda/words.cuh>

#include <cstdint>

namespace qengine::cuda {

// Those that the kernels of plugins use too.
using qe::cuda::cluster_arrive, qe::cuda::cluster_arrive_relaxed, qe::cuda::cluster_wait, qe::cuda::store_in_cluster;
using qe::cuda::pdl_launch, qe::cuda::pdl_wait;
using qe::cuda::commit_copies, qe::cuda::shared_address, qe::cuda::wait_copies;

// c[16x8] += a[16x16] * b[16x8]
__device__ __forceinline__ void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 4, 8 or 16 bytes into shared memory, in the background.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned to, const void* from) {
  if constexpr (kBytes == 16) qe::cuda::copy16(to, from);
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

// 16 bytes into another block's shared memory; `at`: where that would be in this one.
__device__ __forceinline__ void store_in_cluster(const float* at, unsigned rank, float4 v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(at)), "r"(rank));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#endif
}

// A number that another kernel may be writing just now: what it was, or what it becomes.
__device__ __forceinline__ std::int32_t load_relaxed(const std::int32_t* p) {
  std::int32_t v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

}  // namespace qengine::cuda
