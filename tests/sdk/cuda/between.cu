// What stands between two products of a bench in place of attention: 64 blocks, each for two microseconds.
#include <cuda_runtime.h>
#include <qe/cuda/words.cuh>

#include "tests/sdk/cuda/between.hpp"

namespace qe_test {
namespace {

__global__ void __launch_bounds__(128) wait_a_little() {
  qe::cuda::pdl_wait();
  qe::cuda::pdl_launch();
  for (int i = 0; i < 4; ++i) __nanosleep(500);
}

}  // namespace

cudaError_t between(cudaStream_t stream, bool pdl) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(64);
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = 20000;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = pdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, wait_a_little);
}

}  // namespace qe_test
