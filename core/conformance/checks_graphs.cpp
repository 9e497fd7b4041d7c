// 60x: graph capture, on the first CUDA device of this machine.
#include "core/conformance/gpu_layer.hpp"

#ifdef QE_HAVE_CUDA
#include "core/device/cuda_check.hpp"
#endif

namespace qengine::conformance {
namespace {

using ll = long long;

#ifdef QE_HAVE_CUDA

constexpr int kReplays = 100;

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
      if (layer.declares(m, QE_GRAPH_SAFE)) f(*session, layer, m), ++tried;
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
