// Tests that need an NVIDIA GPU: they skip with the reason where there is none.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/device/gpu.hpp"

#define QE_NEEDS_GPU() \
  if (qengine::list_gpus().gpus.empty()) GTEST_SKIP() << "no GPU: " << qengine::list_gpus().why

namespace qengine::test {

// An array on the current device; its host copy comes with read().
template <class T>
class OnGpu {
 public:
  explicit OnGpu(std::size_t n) : n_(n) { EXPECT_EQ(cudaMalloc(&data_, std::max<std::size_t>(n, 1) * sizeof(T)), cudaSuccess); }
  explicit OnGpu(std::span<const T> host) : OnGpu(host.size()) { write(host); }
  explicit OnGpu(const std::vector<T>& host) : OnGpu(std::span<const T>(host)) {}
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  void write(std::span<const T> host) { EXPECT_EQ(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice), cudaSuccess); }
  std::vector<T> read() const {
    std::vector<T> out(n_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }
  void fill(int byte) { EXPECT_EQ(cudaMemset(data_, byte, n_ * sizeof(T)), cudaSuccess); }
  T* get() const { return static_cast<T*>(data_); }
  std::size_t size() const { return n_; }

 private:
  std::size_t n_;
  void* data_ = nullptr;
};

inline float bf16_value(std::uint16_t bits) {
  const std::uint32_t b = std::uint32_t{bits} << 16;
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
inline std::uint16_t bf16_bits(float f) {  // to nearest even; finite
  std::uint32_t b;
  std::memcpy(&b, &f, 4);
  return static_cast<std::uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// sum (y - r)^2 / sum r^2
inline double nmse(std::span<const float> y, std::span<const double> r) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < r.size(); ++i) error += (y[i] - r[i]) * (y[i] - r[i]), size += r[i] * r[i];
  return size > 0 ? error / size : error;
}

}  // namespace qengine::test
