// CudaHost: a MockHost whose device is a real GPU, and device memory as a type. For tests with the label gpu.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/mock_host.hpp"

namespace qengine::test {

// Why there is nothing to run on; empty when there is a GPU.
inline std::string no_gpu() {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) return cudaGetErrorString(e);
  return count ? "" : "no CUDA device";
}

#define QE_CUDA_OK(call)                                                              \
  do {                                                                                \
    const cudaError_t qe_e = (call);                                                  \
    if (qe_e != cudaSuccess) throw std::runtime_error(std::string(#call ": ") + cudaGetErrorString(qe_e)); \
  } while (0)

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) { QE_CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(1, n * sizeof(T)))); }
  explicit DeviceArray(const std::vector<T>& v) : DeviceArray(v.size()) { put(v); }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  void put(const std::vector<T>& v) { QE_CUDA_OK(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  void poison() { QE_CUDA_OK(cudaMemset(data_, 0xff, n_ * sizeof(T))); }
  std::vector<T> get() const {
    std::vector<T> v(n_);
    QE_CUDA_OK(cudaMemcpy(v.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  std::size_t n_;
  T* data_ = nullptr;
};

class CudaHost : public MockHost {
 public:
  CudaHost() {
    cudaDeviceProp p{};
    QE_CUDA_OK(cudaGetDeviceProperties(&p, 0));
    device.kind = QE_CUDA;
    device.sm = p.major * 10 + p.minor;
    device.sm_count = p.multiProcessorCount;
    device.smem_optin = p.sharedMemPerBlockOptin;
    device.l2_bytes = std::uint64_t(p.l2CacheSize);
    device.mem_bytes = p.totalGlobalMem;
    table.alloc = [](void* s, const qe_device*, std::uint64_t bytes, std::uint64_t, std::int32_t mem, void** out) noexcept -> qe_status {
      auto& me = *static_cast<CudaHost*>(static_cast<MockHost*>(s));
      *out = nullptr;
      if (cudaMalloc(out, bytes) != cudaSuccess) return QE_E_OOM;
      cudaMemset(*out, 0xa5, bytes);  // nobody may count on zeros
      me.allocated[mem] += bytes;
      ++me.live;
      return QE_OK;
    };
    table.free = [](void* s, const qe_device*, void* p) noexcept { cudaFree(p), --static_cast<MockHost*>(s)->live; };
    table.upload = [](void*, void* to, const void* from, std::uint64_t bytes, qe_stream) noexcept -> qe_status {
      return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? QE_OK : QE_E_DEVICE;
    };
  }
};

}  // namespace qengine::test
