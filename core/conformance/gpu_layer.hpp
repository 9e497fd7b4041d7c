// Layers packed on the first CUDA device of this machine, and memory for their steps. For the checks of 6xx.
//
// A check is a process of its own: the driver is started here and never in the kit's process, which forks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/conformance/subject.hpp"
#include "core/device/gpu.hpp"
#include "core/plugin_host/step_chain.hpp"

#ifdef QE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace qengine::conformance {

// A plugin with kernels, on a device that is there; else not applicable, with the reason.
std::unique_ptr<Session> session_on_gpu(const Subject& s);

#ifdef QE_HAVE_CUDA

constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 32, 64, 128};  // rows of captured steps: core's buckets, and an odd one

struct DeviceBytes {
  void* at = nullptr;
  std::uint64_t bytes = 0;
};

// One packed layer with device memory for the largest of kSizes.
class GpuLayer {
 public:
  // `chain`: the plan is offered what the model does next to the product (plugin_host/step_chain).
  GpuLayer(Session& session, Gpu& gpu, const Unit& u, bool chain = false);
  GpuLayer(const GpuLayer&) = delete;
  ~GpuLayer();

  const std::string& name() const { return name_; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(gpu_.stream()); }
  Gpu& gpu() { return gpu_; }
  const qe_regime& regime(std::int64_t m) const;  // that serves m tokens
  bool declares(std::int64_t m, std::uint32_t flag) const { return regime(m).flags & flag; }
  // With `steps` a step does as much of the chain as its regime takes. A residual lies in the outputs, as in core.
  bool takes_steps(std::int64_t m) const { return regime(m).n_before + regime(m).n_after > 0; }
  bool adds_residual(std::int64_t m) const { return ends_with(m, QE_STEP_RESIDUAL); }
  DeviceBytes in(std::int64_t m) const { return {in_.get(), static_cast<std::uint64_t>(m * packed_.k) * 2}; }
  DeviceBytes out(std::int64_t m, bool steps = false) const { return {out_.get(), static_cast<std::uint64_t>(m * columns(m, steps)) * 2}; }
  DeviceBytes workspace(std::int64_t m) const { return {common_ ? common_ : workspace_.get(), packed_.workspace_bytes(m)}; }
  // From now on steps use this memory, which holds what the largest needs.
  void share_workspace(void* common) { common_ = common; }

  // Inputs of `m` tokens; another seed, others.
  void put(std::int64_t m, std::uint32_t seed);
  // What a step must not depend on, and must write over.
  void rubbish(int byte);
  void enqueue(std::int64_t m, std::uint32_t flags, bool steps = false);
  std::vector<std::uint16_t> result(std::int64_t m, bool steps = false);

 private:
  Packed load();
  qe_run run_of(std::int64_t m, std::uint32_t flags) const;
  bool ends_with(std::int64_t m, int kind) const;
  std::int64_t columns(std::int64_t m, bool steps) const { return steps && ends_with(m, QE_STEP_ACT_MUL) ? args_.parts[0].n : packed_.n; }

  Session& session_;
  Gpu& gpu_;
  std::string name_;
  LayerArgs args_;
  StepChain chain_;
  Packed packed_;
  std::int64_t most_;
  std::uint64_t workspace_bytes_ = 0;
  DeviceBuffer in_, out_, workspace_, norm_, bias_;
  void* common_ = nullptr;
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
