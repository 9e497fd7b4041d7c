// Layers packed on the first CUDA device of this machine, and memory for their steps. For the checks of 6xx.
//
// A check is a process of its own: the driver is started here and never in the kit's process, which forks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/conformance/subject.hpp"
#include "core/device/gpu.hpp"

#ifdef QE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace qengine::conformance {

// A plugin with kernels, on a device that is there; else not applicable, with the reason.
std::unique_ptr<Session> session_on_gpu(const Subject& s);

#ifdef QE_HAVE_CUDA

constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 32, 64, 128};  // rows of captured steps: core's buckets, and an odd one

// One packed layer with device memory for the largest of kSizes.
class GpuLayer {
 public:
  GpuLayer(Session& session, Gpu& gpu, const Unit& u);
  GpuLayer(const GpuLayer&) = delete;
  ~GpuLayer();

  const std::string& name() const { return name_; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(gpu_.stream()); }
  bool declares(std::int64_t m, std::uint32_t flag) const;  // of the regime that serves m tokens

  // Inputs of `m` tokens; another seed, others.
  void put(std::int64_t m, std::uint32_t seed);
  // What a step must not depend on, and must write over.
  void rubbish(int byte);
  void enqueue(std::int64_t m, std::uint32_t flags);
  std::vector<std::uint16_t> result(std::int64_t m);

 private:
  qe_run run_of(std::int64_t m, std::uint32_t flags) const;

  Session& session_;
  Gpu& gpu_;
  std::string name_;
  LayerArgs args_;
  Packed packed_;
  std::int64_t most_;
  std::uint64_t workspace_bytes_ = 0;
  DeviceBuffer in_, out_, workspace_;
};

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  Graph() = default;
  Graph(const Graph&) = delete;
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
  }
};

#endif

}  // namespace qengine::conformance
