#include "wrong_pdl.hpp"

#include <qe/format_cuda.cuh>

#include "format.hpp"

QE_FORMAT_CUDA(Nibbles)

namespace wrong {
namespace {

using qe::cuda::pdl_launch, qe::cuda::pdl_wait;

__device__ uint16_t staged[kMostStaged];

__global__ void stage(const uint16_t* in, std::int64_t words) {
  pdl_launch();
  const std::int64_t first = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x, stride = std::int64_t(gridDim.x) * blockDim.x;
  constexpr int kEach = 16;
  for (std::int64_t i = first; i < words; i += kEach * stride) {
    uint16_t held[kEach];
    for (int j = 0; j < kEach; ++j) held[j] = i + j * stride < words ? __ldcg(in + i + j * stride) : uint16_t(0);
    pdl_wait();  // what was read before it is too old
    for (int j = 0; j < kEach; ++j)
      if (i + j * stride < words) staged[i + j * stride] = held[j];
  }
  pdl_wait();
}

__global__ void clear(uint8_t* at, std::uint64_t bytes) {
  pdl_launch();
  for (std::uint64_t i = blockIdx.x * std::uint64_t(blockDim.x) + threadIdx.x; i < bytes; i += std::uint64_t(gridDim.x) * blockDim.x) at[i] = 0;
  pdl_wait();
}

__global__ void nothing() { pdl_launch(); }

__device__ std::uint64_t nanoseconds() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__global__ void wait_longer(std::uint32_t us) {
  pdl_launch();
  pdl_wait();
  for (const std::uint64_t begin = nanoseconds(); nanoseconds() - begin < us * 1000ull;) __nanosleep(200);
}

__global__ void change(uint16_t* at, std::uint16_t bits) { *at ^= bits; }

template <class... Params, class... Args>
const char* launch(void (*kernel)(Params...), int blocks, bool programmatic, qe_stream stream, Args... args) {
  cudaLaunchConfig_t c{};
  c.gridDim = dim3(unsigned(blocks));
  c.blockDim = dim3(256);
  c.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute at{};
  at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  at.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &at;
  c.numAttrs = programmatic ? 1 : 0;
  const cudaError_t e = cudaLaunchKernelEx(&c, kernel, static_cast<Params>(args)...);
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

}  // namespace

const char* stage_early(const void* in, std::int64_t words, bool programmatic, qe_stream stream, void** to) {
  const cudaError_t e = cudaGetSymbolAddress(to, staged);
  if (e != cudaSuccess) return cudaGetErrorString(e);
  return launch(stage, 64, programmatic, stream, static_cast<const uint16_t*>(in), words);
}
const char* clear_early(void* at, std::uint64_t bytes, bool programmatic, qe_stream stream) { return launch(clear, 16, programmatic, stream, static_cast<uint8_t*>(at), bytes); }
const char* end_early(bool programmatic, qe_stream stream) { return launch(nothing, 1, programmatic, stream); }
const char* idle(std::uint32_t us, bool programmatic, qe_stream stream) { return launch(wait_longer, 1, programmatic, stream, us); }
const char* flip(void* at, std::uint16_t bits, qe_stream stream) {
  change<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint16_t*>(at), bits);
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

}  // namespace wrong
