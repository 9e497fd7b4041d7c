// Launching in a chain, and what every kernel of the chain does.
//
//   pdl_begin()   first: lets the next kernel be scheduled, then waits until all kernels before this
//                 one have ended and their writes are visible. Nothing that another kernel writes is
//                 touched before it, and nothing is written before it.
//
// Below sm_90 it is empty, and launches carry plain edges.
#pragma once

#include <cuda_runtime.h>

#include "core/layers/cuda/instructions.cuh"
#include "core/layers/cuda/kernels.hpp"

namespace qengine::cuda {

__device__ __forceinline__ void pdl_begin() {
  pdl_launch();
  pdl_wait();
}

// `cluster`: neighbouring blocks along x that reach each other's shared memory; more than 1 from sm_90 on.
template <class... Params, class... Args>
cudaError_t launch_clusters(void (*kernel)(Params...), int cluster, dim3 grid, dim3 block, std::size_t smem, At at, Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = at.stream;
  cudaLaunchAttribute attributes[2]{};
  if (at.pdl) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = static_cast<unsigned>(cluster);
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  config.attrs = attributes;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}
template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t smem, At at, Args... args) {
  return launch_clusters(kernel, 1, grid, block, smem, at, args...);
}

// A multiprocessor divides its memory into cache and shared memory, and must be empty to divide it anew: kernels of a
// chain ask for the same as the products do, so that one may start while the one before it ends.
template <class... Params>
cudaError_t beside_others(void (*kernel)(Params...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

// The sum over a block of at most 1024 threads, in every thread; `shared` holds 33 floats.
__device__ __forceinline__ float block_sum(float v, float* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < warps ? shared[lane] : 0.0f;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (lane == 0) shared[32] = v;
  }
  __syncthreads();
  return shared[32];
}

}  // namespace qengine::cuda
