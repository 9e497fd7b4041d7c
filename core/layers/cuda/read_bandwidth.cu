// read_bandwidth: what the memory gives when nothing is done with it.
//
// Mapping  as many blocks of 512 threads as run at once; a thread has eight loads of 16 bytes in flight.
// Bound    Memory.
#include <algorithm>

#include "core/layers/cuda/launch.cuh"

namespace qengine::cuda {
namespace {

constexpr int kThreads = 512, kLoads = 8, kRounds = 10;

__global__ void __launch_bounds__(kThreads) read_all(const uint4* p, std::int64_t n, std::uint32_t* never) {
  std::uint32_t x = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i + (kLoads - 1) * step < n; i += kLoads * step) {
    uint4 v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) v[j] = __ldcs(p + i + j * step);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) x |= v[j].x | v[j].y | v[j].z | v[j].w;
  }
  if (x != 0) *never = x;  // all are zero
}

}  // namespace

cudaError_t read_bandwidth(void* zeros, std::uint64_t bytes, cudaStream_t stream, double* bytes_s) {
  *bytes_s = 0;
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, read_all, kThreads, 0);
  cudaEvent_t begin = nullptr, end = nullptr;
  if (error == cudaSuccess) error = cudaEventCreate(&begin);
  if (error == cudaSuccess) error = cudaEventCreate(&end);
  const std::int64_t all = std::int64_t{processors} * blocks * kThreads * kLoads;
  const std::int64_t n = all > 0 ? static_cast<std::int64_t>(bytes / 16) / all * all : 0;  // what the loop reads
  for (int round = 0; round < kRounds && error == cudaSuccess && n > 0; ++round) {
    float ms = 0;
    error = cudaEventRecord(begin, stream);
    read_all<<<static_cast<unsigned>(processors * blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(zeros), n, static_cast<std::uint32_t*>(zeros));
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaEventRecord(end, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
    if (ms > 0) *bytes_s = std::max(*bytes_s, static_cast<double>(n) * 16e3 / ms);
  }
  if (begin) cudaEventDestroy(begin);
  if (end) cudaEventDestroy(end);
  return error;
}

}  // namespace qengine::cuda
