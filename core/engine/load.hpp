// The part of a load that depends on the device: weights, cache and runner. One function a device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "core/device/gpu.hpp"
#include "core/engine/engine_impl.hpp"

namespace qengine {

// Rows of one forward pass on the CPU: enough that a product reads its weights seldom, few enough that
// the workspace stays small beside a small model.
inline constexpr std::int64_t kCpuForwardRows = 256;
// On a GPU a step is one pass, unless it is very long.
inline constexpr std::int64_t kGpuMostRows = 16384;

// --max-num-batched-tokens unless given: long steps read the weights seldom, short ones let nobody wait. serving.md 1.3.
inline std::int64_t default_batched_tokens(const GpuInfo* gpu, bool serving) {
  if (!gpu) return serving ? 2048 : 4096;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  if (gpu->device.mem_bytes >= 160 * kGiB) return 16384;
  if (gpu->device.mem_bytes >= 70 * kGiB && gpu->name.find("A100") == std::string::npos) return serving ? 8192 : 16384;
  return serving ? 2048 : 8192;
}
inline std::int64_t gpu_forward_rows(const EngineOptions& o) {
  return std::clamp<std::int64_t>(std::max(o.max_num_batched_tokens, o.max_num_seqs), 16, kGpuMostRows);
}

struct LoadedDevice {
  std::int64_t num_blocks = 0;
  std::string identity;  // what the numbers in a block mean: blocks of another meaning are never shared
};

// Fill s.runner, s.weights_bytes, s.kv_report, s.max_model_len and the sizes among s.options. Throw Error.
LoadedDevice load_on_cpu(Engine::Impl& s, const std::function<void(double)>& progress);
LoadedDevice load_on_gpu(Engine::Impl& s, const GpuInfo& gpu, const std::function<void(double)>& progress);

// "2.48 GiB"
std::string gib(std::uint64_t bytes);
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace qengine
