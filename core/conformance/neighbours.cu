#include "core/conformance/neighbours.hpp"

#include <qe/cuda/words.cuh>

namespace qengine::conformance {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kPatience = 2'000'000'000;  // ns

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ Copies c) {
  qe::cuda::pdl_launch();
  if (c.waits) qe::cuda::pdl_wait();
  if (threadIdx.x == 0) {
    const auto* go = reinterpret_cast<const volatile std::uint32_t*>(c.go);
    for (const std::uint64_t begin = nanoseconds(); go && *go == 0 && nanoseconds() - begin < kPatience;) __nanosleep(200);
    for (const std::uint64_t begin = nanoseconds(); nanoseconds() - begin < c.late_us * 1000ull;) __nanosleep(200);
  }
  __syncthreads();
  // From L2 (__ldcg): what another kernel writes meanwhile is to be seen.
  for (int i = 0; i < c.n; ++i) {
    const Copies::Copy& o = c.list[i];
    std::uint64_t done = 0;
    if ((reinterpret_cast<std::uintptr_t>(o.to) | reinterpret_cast<std::uintptr_t>(o.from)) % 16 == 0) {
      const auto* from = static_cast<const uint4*>(o.from);
      auto* to = static_cast<uint4*>(o.to);
      done = o.bytes / 16 * 16;
      constexpr int kEach = 4;  // on their way at once
      for (std::uint64_t j = threadIdx.x; j < o.bytes / 16; j += kEach * kThreads) {
        uint4 v[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          if (j + e * kThreads < o.bytes / 16) v[e] = __ldcg(from + j + e * kThreads);
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          if (j + e * kThreads < o.bytes / 16) to[j + e * kThreads] = v[e];
      }
    }
    const auto* from = static_cast<const std::uint8_t*>(o.from);
    auto* to = static_cast<std::uint8_t*>(o.to);
    for (std::uint64_t j = done + threadIdx.x; j < o.bytes; j += kThreads) to[j] = __ldcg(from + j);
  }
}

}  // namespace

cudaError_t enqueue_copies(const Copies& c, bool programmatic, cudaStream_t stream) {
  // As the products ask for: a multiprocessor that divides its memory otherwise takes no block of theirs.
  static const cudaError_t prepared = cudaFuncSetAttribute(copy, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (prepared != cudaSuccess) return prepared;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  return cudaLaunchKernelEx(&config, copy, c);
}

}  // namespace qengine::conformance
