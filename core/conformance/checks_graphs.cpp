// 6xx: graph capture, on the first CUDA device of this machine. What programmatic launches promise has no check yet; numbers from
// QEP-610 on are kept for it.
//
// A check is a process of its own: the driver is started here and never in the kit's process, which forks.
#include "core/conformance/check.hpp"

#include <algorithm>
#include <cstring>

#include "core/conformance/subject.hpp"
#include "core/device/gpu.hpp"

#ifdef QE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <qe/numbers.hpp>

#include "core/device/cuda_check.hpp"
#endif

namespace qengine::conformance {
namespace {

using ll = long long;

// A plugin with kernels, on a device that is there; else why not.
std::unique_ptr<Session> session_on_gpu(const Subject& s) {
  auto session = weight_session(s);
  bool row = false;
  for (std::uint32_t i = 0; i < session->plugin->n_methods; ++i)
    for (std::uint32_t r = 0; r < session->plugin->methods[i]->n_rows; ++r) row |= session->plugin->methods[i]->rows[r]->kind == QE_CUDA;
  if (!row) not_applicable("no method has a CUDA row");
  const GpuList& list = list_gpus();
  if (list.gpus.empty()) not_applicable("no CUDA device: %s", list.why.c_str());
  const GpuInfo& gpu = list.gpus.front();
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    const qe_plan plan = session->plan(l, &gpu.device);
    if (plan.claim == 0) not_applicable("%s: the plugin declines %s: %s", u.name().c_str(), gpu.name.c_str(), reason_of(plan.reason).c_str());
  }
  session->device = gpu.device;
  session->host.use_gpu(Gpu::open(gpu.device.ordinal));
  return session;
}

#ifdef QE_HAVE_CUDA

constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 32, 64, 128};  // rows of captured steps: core's buckets, and an odd one
constexpr int kReplays = 100;

qe_tensor matrix(void* data, std::int64_t rows, std::int64_t cols) { return {QE_BF16, 2, {rows, cols, 0, 0}, {cols, 1, 0, 0}, data}; }

// One packed layer with device memory for the largest of kSizes.
class GpuLayer {
 public:
  GpuLayer(Session& session, Gpu& gpu, const Unit& u)
      : session_(session), gpu_(gpu), name_(u.name()), args_(*u.of, u.parts, u.k), packed_(session.load(args_)), most_(*std::max_element(std::begin(kSizes), std::end(kSizes))) {
    for (const std::int64_t m : kSizes) workspace_bytes_ = std::max(workspace_bytes_, packed_.workspace_bytes(m));
    in_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.k) * 2, MemoryOwner::kWorkspace, "inputs");
    out_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.n) * 2, MemoryOwner::kWorkspace, "outputs");
    workspace_ = DeviceBuffer(gpu, std::max<std::uint64_t>(workspace_bytes_, 1), MemoryOwner::kWorkspace, "workspace");
    cuda_check(cudaDeviceSynchronize(), "loading");
    if (session.weight->warmup) {
      put(1, 0), rubbish(0);
      const qe_run scratch = run_of(most_, 0);
      session.checked("warmup", name_, [&](qe_error* e) { return session.weight->warmup(packed_.raw(), kSizes, static_cast<std::uint32_t>(std::size(kSizes)), &scratch, e); });
      gpu.wait();
    }
  }
  ~GpuLayer() { cudaStreamSynchronize(stream()); }

  const std::string& name() const { return name_; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(gpu_.stream()); }
  bool graph_safe(std::int64_t m) const {
    const qe_plan& p = packed_.plan;
    for (int i = 0; i < p.n_regimes && i < 4; ++i)
      if (m <= p.regime[i].m_hi || i + 1 == p.n_regimes) return p.regime[i].flags & QE_GRAPH_SAFE;
    return false;
  }

  // Inputs of `m` tokens; another seed, others.
  void put(std::int64_t m, std::uint32_t seed) {
    const auto x = activations(m, packed_.k, 7 + seed);
    std::vector<std::uint16_t> half(x.size());
    std::transform(x.begin(), x.end(), half.begin(), [](float v) { return qe::f32_to_bf16(v); });
    if (gpu_.upload(in_.get(), half.data(), half.size() * 2, gpu_.stream()) != QE_OK) fail("the inputs cannot be copied to the device");
  }
  // What a step must not depend on, and must write over.
  void rubbish(int byte) {
    cuda_check(cudaMemsetAsync(workspace_.get(), byte, workspace_.bytes(), stream()), "filling the workspace");
    cuda_check(cudaMemsetAsync(out_.get(), 0xff, out_.bytes(), stream()), "filling the outputs");
  }
  void enqueue(std::int64_t m, std::uint32_t flags) {
    const qe_run r = run_of(m, flags);
    session_.checked("run", name_, [&](qe_error* e) { return session_.weight->run(packed_.raw(), &r, e); });
  }
  std::vector<std::uint16_t> result(std::int64_t m) {
    std::vector<std::uint16_t> y(static_cast<std::size_t>(m * packed_.n));
    gpu_.download(y.data(), out_.get(), y.size() * 2);
    return y;
  }

 private:
  qe_run run_of(std::int64_t m, std::uint32_t flags) const {
    qe_run r{};
    r.struct_size = sizeof r;
    r.flags = flags;
    r.m = m;
    r.in = matrix(in_.get(), m, packed_.k);
    r.out = matrix(out_.get(), m, packed_.n);
    r.workspace_bytes = packed_.workspace_bytes(m);
    r.workspace = r.workspace_bytes ? workspace_.get() : nullptr;
    r.stream = gpu_.stream();
    return r;
  }

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

// Captures one step. The driver refuses what may not be there, allocations and waiting among it, and the capture breaks.
void capture(Session& session, GpuLayer& layer, std::int64_t m, Graph& out) {
  const auto at = text("%s: M = %lld", layer.name().c_str(), static_cast<ll>(m));
  const int allocations = session.host.allocations;
  std::string problem;
  cuda_check(cudaStreamBeginCapture(layer.stream(), cudaStreamCaptureModeThreadLocal), "beginning a capture");
  try {
    layer.enqueue(m, QE_RUN_CAPTURING);
  } catch (const PluginFailure& e) {
    problem = e.what();
  }
  const cudaError_t ended = cudaStreamEndCapture(layer.stream(), &out.graph);
  if (!problem.empty()) fail("%s: declared safe for graphs, and in a capture %s", at.c_str(), problem.c_str());
  if (ended != cudaSuccess) fail("%s: declared safe for graphs, and what it does breaks a capture: %s", at.c_str(), cudaGetErrorString(ended));
  if (session.host.allocations != allocations) fail("%s: a step asks the host for memory", at.c_str());
  std::size_t n = 0;
  cuda_check(cudaGraphGetNodes(out.graph, nullptr, &n), "looking at a graph");
  if (n == 0) fail("%s: a step puts nothing on its stream", at.c_str());
  std::vector<cudaGraphNode_t> nodes(n);
  cuda_check(cudaGraphGetNodes(out.graph, nodes.data(), &n), "looking at a graph");
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    cuda_check(cudaGraphNodeGetType(node, &type), "looking at a graph");
    if (type == cudaGraphNodeTypeHost) fail("%s: a step calls a function of the host", at.c_str());
    if (type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree) fail("%s: a step takes device memory", at.c_str());
  }
  cuda_check(cudaGraphInstantiate(&out.exec, out.graph, 0), "making a graph");
}

// f(session, layer, rows) for each size that is declared safe; returns how many.
template <class F>
int each_safe_step(const Subject& s, F&& f) {
  auto session = session_on_gpu(s);
  Gpu& gpu = Gpu::open(session->device.ordinal);
  int tried = 0;
  for (const Unit& u : session->units()) {
    GpuLayer layer(*session, gpu, u);
    for (const std::int64_t m : kSizes)
      if (layer.graph_safe(m)) f(*session, layer, m), ++tried;
  }
  if (!tried) not_applicable("no regime is declared safe for graphs");
  return tried;
}

void can_be_captured(const Subject& s, Notes& notes) {
  const int tried = each_safe_step(s, [](Session& session, GpuLayer& layer, std::int64_t m) {
    Graph graph;
    capture(session, layer, m, graph);
  });
  notes.push_back(text("%d graphs", tried));
}

void replays_are_eager(const Subject& s, Notes& notes) {
  const int tried = each_safe_step(s, [](Session& session, GpuLayer& layer, std::int64_t m) {
    std::vector<std::uint16_t> eager[2];
    for (const std::uint32_t i : {0u, 1u}) {
      layer.put(m, i), layer.rubbish(0);
      layer.enqueue(m, 0);
      eager[i] = layer.result(m);
    }
    Graph graph;
    capture(session, layer, m, graph);
    for (int i = 0; i < kReplays; ++i) {
      const auto which = static_cast<std::uint32_t>(i % 2);
      layer.put(m, which), layer.rubbish(i % 3 ? 0xff : 0);
      cuda_check(cudaGraphLaunch(graph.exec, layer.stream()), "launching a graph");
      if (layer.result(m) != eager[which]) fail("%s: M = %lld: replay %d gives other bits than the same step outside of a graph", layer.name().c_str(), static_cast<ll>(m), i + 1);
    }
  });
  notes.push_back(text("%d graphs, %d replays each", tried, kReplays));
}

#else

void can_be_captured(const Subject& s, Notes&) {
  session_on_gpu(s);
  not_applicable("this qengine was built without CUDA");
}
void replays_are_eager(const Subject& s, Notes& notes) { can_be_captured(s, notes); }

#endif

}  // namespace

const std::vector<Check> graph_checks{
    {"QEP-601", "graphs", "a step that is declared safe for graphs can be captured: no memory, no waiting, nothing on the host", can_be_captured},
    {"QEP-602", "graphs", "replayed, it gives the bits of an eager step, for new inputs and whatever lies in the workspace", replays_are_eager},
};

}  // namespace qengine::conformance
