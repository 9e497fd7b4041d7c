// 61x: programmatic launches, on the first CUDA device of this machine, from sm_90 on.
//
// A step that is launched programmatically starts while the kernel before it still runs, and so may the kernel behind it while
// the step runs. What goes wrong then goes wrong rarely; here a copying kernel before the step is 50 us late with what it writes
// or reads, and the step and the kernel behind are long there. Whatever one of them touches too early is poison then.
#include "core/conformance/gpu_layer.hpp"

#ifdef QE_HAVE_CUDA
#include <qe/numbers.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/conformance/neighbours.hpp"
#include "core/device/cuda_check.hpp"
#endif

namespace qengine::conformance {
namespace {

constexpr int kFrom = 90;  // sm

// As session_on_gpu; not applicable below sm_90 either.
std::unique_ptr<Session> session_with_edges(const Subject& s) {
  auto session = session_on_gpu(s);
  if (session->device.sm < kFrom)
    not_applicable("%s is sm_%d; kernels can be launched programmatically from sm_%d on", list_gpus().gpus.front().name.c_str(), session->device.sm, kFrom);
  return session;
}

#ifdef QE_HAVE_CUDA

constexpr std::uint32_t kLate = 50;  // us
constexpr int kRounds = 3;           // on the stream, and as often as a graph
constexpr std::uint64_t kMark = 4096;
constexpr int kPoison = 0xff;        // NaN in bf16

using Bytes = std::vector<std::byte>;

// One step between two neighbours.
struct Step {
  GpuLayer& layer;
  std::int64_t m;
  bool steps;  // with what the plugin takes of the chain
  bool declares(std::uint32_t flag) const { return layer.declares(m, flag); }
  DeviceBytes in() const { return layer.in(m); }
  DeviceBytes out() const { return layer.out(m, steps); }
  DeviceBytes workspace() const { return layer.workspace(m); }
  bool adds() const { return steps && layer.adds_residual(m); }
  void enqueue(std::uint32_t flags) const { layer.enqueue(m, flags, steps); }
  std::string where() const { return text("%s: M = %lld%s", layer.name().c_str(), static_cast<long long>(m), steps ? ", with steps of the chain" : ""); }
};

// What `enqueue` puts on the stream, as a graph.
template <class F>
void capture(cudaStream_t stream, const std::string& where, Graph& out, F&& enqueue) {
  std::string problem;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  try {
    enqueue();
  } catch (const PluginFailure& e) {
    problem = e.what();
  }
  const cudaError_t ended = cudaStreamEndCapture(stream, &out.graph);
  if (!problem.empty()) fail("%s: declared safe for graphs, and in a capture %s", where.c_str(), problem.c_str());
  if (ended != cudaSuccess) fail("%s: declared safe for graphs, and what it does breaks a capture: %s", where.c_str(), cudaGetErrorString(ended));
  cuda_check(cudaGraphInstantiate(&out.exec, out.graph, 0), "making a graph");
}

// Memory around one layer: what its steps are given, and what its neighbours read and write.
class Stand {
 public:
  Stand(Gpu& gpu, GpuLayer& layer) : Stand(gpu, layer.in(kMost).bytes, std::max(layer.out(kMost).bytes, layer.out(kMost, true).bytes), most_workspace(layer)) {}
  // Without a layer: for the kit's own kernels.
  explicit Stand(Gpu& gpu) : Stand(gpu, 0, 0, 0) {}
  Stand(const Stand&) = delete;
  ~Stand() {
    cudaStreamSynchronize(stream());
    cudaFreeHost(go_);
  }

  cudaStream_t stream() const { return static_cast<cudaStream_t>(gpu_.stream()); }
  void fill(DeviceBytes d, int byte) {
    if (d.bytes) cuda_check(cudaMemsetAsync(d.at, byte, d.bytes, stream()), "filling memory");
  }
  void copy(DeviceBytes to, const void* from) {
    if (to.bytes) cuda_check(cudaMemcpyAsync(to.at, from, to.bytes, cudaMemcpyDeviceToDevice, stream()), "a copy");
  }
  Bytes read(const void* at, std::uint64_t bytes) {
    Bytes out(bytes);
    if (bytes) gpu_.download(out.data(), at, bytes);
    return out;
  }
  Bytes read(DeviceBytes d) { return read(d.at, d.bytes); }

  // Numbers for a step; its own memory is as before a step that nothing is late for.
  void put(const Step& step) {
    step.layer.put(step.m, 0);
    copy({input.get(), step.in().bytes}, step.in().at);
  }
  void ready(const Step& step) {
    copy(step.in(), input.get());
    copy(step.out(), before.get());
    fill(step.workspace(), 0);
  }
  // The step alone, asked for programmatically: what it gives when nobody is late.
  Bytes quiet(const Step& step) {
    ready(step);
    gpu_.wait();
    step.enqueue(QE_RUN_PDL);
    return read(step.out());
  }

  // `first`, the step, and `behind` if there is one: on the stream, where the first copies only once all three are enqueued, and
  // as a graph. ready() before each time, look(how) after it.
  template <class Ready, class Look>
  void between(const Step& step, const Copies& first, const Copies* behind, Ready&& ready, Look&& look) {
    const auto enqueue = [&](const std::uint32_t* go, std::uint32_t flags) {
      Copies c = first;
      c.go = go;
      cuda_check(enqueue_copies(c, false, stream()), "launching a copy");
      step.enqueue(QE_RUN_PDL | flags);
      if (behind) cuda_check(enqueue_copies(*behind, true, stream()), "launching a copy");
    };
    for (int i = 0; i < kRounds; ++i) {
      ready();
      gpu_.wait();
      hold();
      enqueue(go_, 0);
      let_go();
      gpu_.wait();
      look("launched on a stream");
    }
    if (!step.declares(QE_GRAPH_SAFE)) return;
    Graph graph;
    capture(stream(), step.where(), graph, [&] { enqueue(nullptr, QE_RUN_CAPTURING); });
    for (int i = 0; i < kRounds; ++i) {
      ready();
      gpu_.wait();
      cuda_check(cudaGraphLaunch(graph.exec, stream()), "launching a graph");
      gpu_.wait();
      look("in a graph");
    }
  }

  // Whether the kit's own kernels are caught: one that reads without waiting, and one that ends without waiting. Where they are not,
  // nothing starts early here, and a check would say nothing.
  bool early_readers_are_seen() {
    return caught([&] {
      cuda_check(enqueue_copies(careless().add(mark_seen.get(), mark.get(), kMark), true, stream()), "launching a copy");
    });
  }
  bool early_ends_are_seen() {
    return caught([&] {
      cuda_check(enqueue_copies(careless(), true, stream()), "launching a kernel");
      cuda_check(enqueue_copies(Copies{}.add(mark_seen.get(), mark.get(), kMark), true, stream()), "launching a copy");
    });
  }

  DeviceBuffer input, before, junk;           // the step's inputs, its outputs before it runs, what others leave in the workspace
  DeviceBuffer seen, seen_workspace;          // what a neighbour found in its outputs and in the workspace
  DeviceBuffer mark_from, mark, mark_seen;    // bytes that a kernel in front hands to one behind

 private:
  static constexpr std::int64_t kMost = kSizes[std::size(kSizes) - 1];
  static std::uint64_t most_workspace(const GpuLayer& layer) {
    std::uint64_t most = 0;
    for (const std::int64_t m : kSizes) most = std::max(most, layer.workspace(m).bytes);
    return most;
  }
  static Copies careless() {
    Copies c;
    c.waits = false;
    return c;
  }

  Stand(Gpu& gpu, std::uint64_t in, std::uint64_t out, std::uint64_t workspace) : gpu_(gpu) {
    const auto take = [&](std::uint64_t bytes) { return DeviceBuffer(gpu, std::max<std::uint64_t>(bytes, 16), MemoryOwner::kWorkspace, "memory of the kit"); };
    input = take(in), before = take(out), seen = take(out);
    junk = take(workspace), seen_workspace = take(workspace);
    mark_from = take(kMark), mark = take(kMark), mark_seen = take(kMark);
    std::vector<std::uint16_t> numbers(out / 2);
    const auto random = activations(1, static_cast<std::int64_t>(numbers.size()), 3);
    std::transform(random.begin(), random.end(), numbers.begin(), [](float v) { return qe::f32_to_bf16(v); });
    if (gpu.upload(before.get(), numbers.data(), out, gpu.stream()) != QE_OK) fail("numbers cannot be copied to the device");
    fill({junk.get(), junk.bytes()}, 0x3f);
    fill({mark_from.get(), kMark}, 0x77);
    void* go = nullptr;
    cuda_check(cudaHostAlloc(&go, sizeof *go_, cudaHostAllocMapped), "taking pinned memory");
    go_ = static_cast<std::uint32_t*>(go);
    gpu.wait();
  }

  void hold() { *static_cast<volatile std::uint32_t*>(go_) = 0; }
  void let_go() { *static_cast<volatile std::uint32_t*>(go_) = 1; }

  template <class F>
  bool caught(F&& careless) {
    bool early = false;
    for (int i = 0; i < kRounds; ++i) {
      fill({mark.get(), kMark}, 0);
      fill({mark_seen.get(), kMark}, 0);
      gpu_.wait();
      hold();
      Copies first;
      first.late_us = kLate;
      first.go = go_;
      cuda_check(enqueue_copies(first.add(mark.get(), mark_from.get(), kMark), false, stream()), "launching a copy");
      careless();
      let_go();
      early |= read(mark_seen.get(), kMark) != read(mark_from.get(), kMark);
    }
    return early;
  }

  Gpu& gpu_;
  std::uint32_t* go_ = nullptr;
};

// Equal bits where they are declared; else the numbers, up to the order of their sums.
bool agree(const Step& step, const Bytes& a, const Bytes& b) {
  if (step.declares(QE_DETERMINISTIC)) return a == b;
  double error = 0, power = 0;
  for (std::size_t i = 0; i + 1 < a.size(); i += 2) {
    std::uint16_t p, q;
    std::memcpy(&p, a.data() + i, 2), std::memcpy(&q, b.data() + i, 2);
    const double x = qe::bf16_to_f32(p), y = qe::bf16_to_f32(q);
    error += (x - y) * (x - y), power += y * y;
  }
  return a.size() == b.size() && error <= 1e-4 * power;  // NaN: no
}

// f(stand, step) for each layer and size, without the chain and with what is taken of it; `safe`: those declared QE_PDL_SAFE.
template <class F>
int each_step(Session& session, bool safe, F&& f) {
  Gpu& gpu = Gpu::open(session.device.ordinal);
  int tried = 0;
  for (const Unit& u : session.units()) {
    GpuLayer layer(session, gpu, u, /*chain=*/true);
    Stand stand(gpu, layer);
    for (const std::int64_t m : kSizes)
      for (const bool steps : {false, true}) {
        const Step step{layer, m, steps};
        if ((safe && !step.declares(QE_PDL_SAFE)) || (steps && !layer.takes_steps(m))) continue;
        stand.put(step);
        f(stand, step);
        ++tried;
      }
  }
  if (!tried) not_applicable("no regime is declared safe for programmatic launches");
  return tried;
}

void needs_early_readers(const Session& session) {
  if (!Stand(Gpu::open(session.device.ordinal)).early_readers_are_seen())
    not_applicable("on %s a kernel launched programmatically does not start before the one in front ends: a mistake would not show", list_gpus().gpus.front().name.c_str());
}

// ---- 610 -------------------------------------------------------------------------------------------------------------

const char* name_of(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel: return "a kernel";
    case cudaGraphNodeTypeMemcpy: return "a copy";
    case cudaGraphNodeTypeMemset: return "a memset";
    case cudaGraphNodeTypeEmpty: return "an empty node";
    default: return "no kernel";
  }
}

struct Edges {
  std::size_t all = 0, programmatic = 0;
  std::size_t into = 0;      // the step, from the kernel before it: programmatic ones
  std::string first;         // what the step begins with
};

// The edges of a step behind a kernel that lets others start early.
Edges edges_of(Stand& stand, const Step& step, std::uint32_t flags) {
  Graph graph;
  capture(stand.stream(), step.where(), graph, [&] {
    cuda_check(enqueue_copies(Copies{}.add(stand.mark.get(), stand.mark_from.get(), kMark), false, stand.stream()), "launching a copy");
    step.enqueue(QE_RUN_CAPTURING | flags);
  });
  std::size_t n = 1;
  cudaGraphNode_t root = nullptr;
  cuda_check(cudaGraphGetRootNodes(graph.graph, &root, &n), "looking at a graph");
  Edges out;
  cuda_check(cudaGraphGetEdges(graph.graph, nullptr, nullptr, nullptr, &out.all), "looking at a graph");
  std::vector<cudaGraphNode_t> from(out.all), to(out.all);
  std::vector<cudaGraphEdgeData> data(out.all);
  cuda_check(cudaGraphGetEdges(graph.graph, from.data(), to.data(), data.data(), &out.all), "looking at a graph");
  for (std::size_t i = 0; i < out.all; ++i) {
    const bool programmatic = data[i].type == cudaGraphDependencyTypeProgrammatic;
    out.programmatic += programmatic;
    if (from[i] != root) continue;
    out.into += programmatic;
    cudaGraphNodeType type{};
    cuda_check(cudaGraphNodeGetType(to[i], &type), "looking at a graph");
    out.first += (out.first.empty() ? "" : ", ") + std::string(name_of(type));
  }
  if (out.first.empty()) fail("%s: a step puts nothing on its stream, or nothing behind what is there", step.where().c_str());
  return out;
}

void as_asked(const Subject& s, Notes& notes) {
  auto session = session_with_edges(s);
  std::size_t all = 0, programmatic = 0;
  int graphs = 0, safe = 0;
  each_step(*session, false, [&](Stand& stand, const Step& step) {
    if (!step.declares(QE_GRAPH_SAFE)) return;  // edges can be looked at in a graph alone
    const bool declared = step.declares(QE_PDL_SAFE);
    const Edges asked = edges_of(stand, step, QE_RUN_PDL), plain = edges_of(stand, step, 0);
    if (plain.programmatic) fail("%s: %zu of %zu edges are programmatic, and nobody asked for it", step.where().c_str(), plain.programmatic, plain.all);
    if (!declared && asked.into) fail("%s: launched programmatically, and not declared safe for it", step.where().c_str());
    if (declared && !asked.into) fail("%s: declared safe for programmatic launches and asked for one, and begins plainly, with %s", step.where().c_str(), asked.first.c_str());
    all += asked.all, programmatic += asked.programmatic;
    ++graphs, safe += declared;
  });
  if (!graphs) not_applicable("no regime is declared safe for graphs");
  notes.push_back(text("%d graphs, %d of them declared safe for programmatic launches; %zu of %zu edges are programmatic", graphs, safe, programmatic, all));
}

// ---- 611, 612, 613 ---------------------------------------------------------------------------------------------------

// The kernel before stores the inputs, the residual and rubbish in the workspace late.
void late_writer(const Subject& s, Notes& notes) {
  auto session = session_with_edges(s);
  needs_early_readers(*session);
  const int tried = each_step(*session, true, [](Stand& stand, const Step& step) {
    const Bytes expected = stand.quiet(step);
    Copies first;
    first.late_us = kLate;
    first.add(step.in().at, stand.input.get(), step.in().bytes).add(step.workspace().at, stand.junk.get(), step.workspace().bytes);
    if (step.adds()) first.add(step.out().at, stand.before.get(), step.out().bytes);
    stand.between(
        step, first, nullptr,
        [&] { stand.fill(step.in(), kPoison), stand.fill(step.out(), kPoison), stand.fill(step.workspace(), 0); },
        [&](const char* how) {
          if (!agree(step, stand.read(step.out()), expected))
            fail("%s: %s, it gives other bits when the kernel before it writes %u us late: something of that is read, or written over, without waiting for it", step.where().c_str(), how, kLate);
        });
  });
  notes.push_back(text("%d steps, each %d times on a stream and as often in a graph", tried, kRounds));
}

// The kernel before still reads, late, what this one writes over.
void late_reader(const Subject& s, Notes& notes) {
  auto session = session_with_edges(s);
  needs_early_readers(*session);
  const int tried = each_step(*session, true, [](Stand& stand, const Step& step) {
    Copies first;
    first.late_us = kLate;
    first.add(stand.seen.get(), step.out().at, step.out().bytes).add(stand.seen_workspace.get(), step.workspace().at, step.workspace().bytes);
    const Bytes before = stand.read(stand.before.get(), step.out().bytes), junk = stand.read(stand.junk.get(), step.workspace().bytes);
    stand.between(
        step, first, nullptr, [&] { stand.ready(step), stand.copy(step.workspace(), stand.junk.get()); },
        [&](const char* how) {
          const char* what = stand.read(stand.seen.get(), before.size()) != before ? "its outputs" : stand.read(stand.seen_workspace.get(), junk.size()) != junk ? "the workspace" : nullptr;
          if (what) fail("%s: %s, it writes to %s while the kernel before it, %u us late, still reads there", step.where().c_str(), how, what, kLate);
        });
  });
  notes.push_back(text("%d steps, each %d times on a stream and as often in a graph", tried, kRounds));
}

// The kernel behind waits for the step, and takes its end for that of everything in front. A step whose last kernel does not wait
// ends before the kernel in front of it, and before the step's own first one.
void chain(const Subject& s, Notes& notes) {
  auto session = session_with_edges(s);
  if (!Stand(Gpu::open(session->device.ordinal)).early_ends_are_seen())
    not_applicable("on %s a kernel that does not wait does not end before the one in front: a mistake would not show", list_gpus().gpus.front().name.c_str());
  const int tried = each_step(*session, true, [](Stand& stand, const Step& step) {
    Copies first, behind;
    first.late_us = kLate;
    first.add(step.in().at, stand.input.get(), step.in().bytes).add(stand.mark.get(), stand.mark_from.get(), kMark);
    if (step.adds()) first.add(step.out().at, stand.before.get(), step.out().bytes);
    behind.add(stand.seen.get(), step.out().at, step.out().bytes).add(stand.mark_seen.get(), stand.mark.get(), kMark);
    const Bytes mark = stand.read(stand.mark_from.get(), kMark);
    stand.between(
        step, first, &behind,
        [&] {
          stand.ready(step);
          stand.fill({stand.mark.get(), kMark}, 0);
          stand.fill({stand.mark_seen.get(), kMark}, 0);
        },
        [&](const char* how) {
          if (stand.read(stand.seen.get(), step.out().bytes) != stand.read(step.out()))
            fail("%s: %s, the kernel behind it finds outputs that are not all written yet: a kernel of the step ends without waiting for those before", step.where().c_str(), how);
          if (stand.read(stand.mark_seen.get(), kMark) != mark)
            fail("%s: %s, the kernel behind it does not find what the kernel before it, %u us late, wrote: a kernel of the step ends without waiting for those before", step.where().c_str(), how, kLate);
        });
  });
  notes.push_back(text("%d steps, each %d times on a stream and as often in a graph", tried, kRounds));
}

// ---- 614 -------------------------------------------------------------------------------------------------------------

// All layers of a case, one behind the other and round again, in one workspace; as core runs them.
void same_bits(const Subject& s, Notes& notes) {
  constexpr int kTimes = 3, kReplays = 50;
  auto session = session_with_edges(s);
  Gpu& gpu = Gpu::open(session->device.ordinal);
  const auto stream = static_cast<cudaStream_t>(gpu.stream());
  int chains = 0;
  bool safe = false;
  for (const auto& c : session->cases()) {
    std::vector<std::unique_ptr<GpuLayer>> layers;
    std::vector<std::unique_ptr<Stand>> stands;
    std::uint64_t workspace_bytes = 1;
    for (const Unit& u : session->units()) {
      if (u.of != c.get()) continue;
      layers.push_back(std::make_unique<GpuLayer>(*session, gpu, u, true));
      stands.push_back(std::make_unique<Stand>(gpu, *layers.back()));
      for (const std::int64_t m : kSizes) workspace_bytes = std::max(workspace_bytes, layers.back()->workspace(m).bytes);
    }
    const DeviceBuffer workspace(gpu, workspace_bytes, MemoryOwner::kWorkspace, "workspace");
    for (const auto& l : layers) l->share_workspace(workspace.get());
    for (const std::int64_t m : kSizes)
      for (const bool steps : {false, true}) {
        std::vector<Step> chain;
        bool graph_safe = true;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const Step step{*layers[i], m, steps && layers[i]->takes_steps(m)};
          if (!step.declares(QE_DETERMINISTIC)) continue;
          stands[i]->put(step);
          chain.push_back(step);
          graph_safe &= step.declares(QE_GRAPH_SAFE);
          safe |= step.declares(QE_PDL_SAFE);
        }
        if (chain.empty() || (steps && std::none_of(chain.begin(), chain.end(), [](const Step& x) { return x.steps; }))) continue;
        const auto ready = [&](int byte) {
          for (std::size_t i = 0, at = 0; i < layers.size(); ++i)
            if (at < chain.size() && &chain[at].layer == layers[i].get()) stands[i]->ready(chain[at++]);
          cuda_check(cudaMemsetAsync(workspace.get(), byte, workspace_bytes, stream), "filling the workspace");
          gpu.wait();
        };
        const auto enqueue = [&](std::uint32_t flags) {
          for (int i = 0; i < kTimes; ++i)
            for (const Step& x : chain) x.enqueue(flags);
        };
        const auto results = [&] {
          std::vector<Bytes> out;
          for (const Step& x : chain) out.push_back(stands[0]->read(x.out()));
          return out;
        };
        ready(0);
        enqueue(0);
        const auto plain = results();
        const auto compare = [&](const char* how) {
          const auto now = results();
          for (std::size_t i = 0; i < now.size(); ++i)
            if (now[i] != plain[i]) fail("%s: %s, it gives other bits than launched plainly", chain[i].where().c_str(), how);
        };
        for (int i = 0; i < kRounds; ++i) {
          ready(i % 2 ? 0xff : 0);
          enqueue(QE_RUN_PDL);
          compare("launched programmatically behind others");
        }
        ++chains;
        if (!graph_safe) continue;
        Graph graph;
        capture(stream, chain[0].where(), graph, [&] { enqueue(QE_RUN_PDL | QE_RUN_CAPTURING); });
        for (int i = 0; i < kReplays; ++i) {
          ready(i % 2 ? 0xff : 0);
          cuda_check(cudaGraphLaunch(graph.exec, stream), "launching a graph");
          compare("launched programmatically behind others in a graph");
        }
      }
  }
  if (!safe) not_applicable("no regime is declared safe for programmatic launches");
  if (!chains) not_applicable("no regime is declared deterministic");
  notes.push_back(text("%d chains, each %d times on a stream and %d times in a graph", chains, kRounds, kReplays));
}

// ---- 615 -------------------------------------------------------------------------------------------------------------

// Microseconds of a step among others like it, the least of several launches of a graph of them.
double microseconds(Stand& stand, const Step& step, std::uint32_t flags) {
  constexpr int kSteps = 64, kLaunches = 20;
  Graph graph;
  capture(stand.stream(), step.where(), graph, [&] {
    for (int i = 0; i < kSteps; ++i) step.enqueue(QE_RUN_CAPTURING | flags);
  });
  cudaEvent_t begin, end;
  cuda_check(cudaEventCreate(&begin), "making an event");
  cuda_check(cudaEventCreate(&end), "making an event");
  float best = 1e9f;
  for (int i = 0; i < kLaunches; ++i) {
    cuda_check(cudaEventRecord(begin, stand.stream()), "recording an event");
    cuda_check(cudaGraphLaunch(graph.exec, stand.stream()), "launching a graph");
    cuda_check(cudaEventRecord(end, stand.stream()), "recording an event");
    cuda_check(cudaEventSynchronize(end), "a graph");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end), "reading a time");
    best = std::min(best, ms);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return best * 1e3 / kSteps;
}

// How much overlaps depends on the room that the blocks in front leave: it is told, and not judged. That it costs is.
void overlap(const Subject& s, Notes& notes) {
  constexpr double kTooMuch = 1.5, kNoise = 1;  // us
  auto session = session_with_edges(s);
  Gpu& gpu = Gpu::open(session->device.ordinal);
  int tried = 0;
  for (const auto& c : session->cases()) {
    const Unit* largest = nullptr;
    std::int64_t most = 0;
    for (const Unit& u : session->units()) {
      LayerArgs l(*u.of, u.parts, u.k);
      if (u.of == c.get() && l.n() * u.k > most) largest = &u, most = l.n() * u.k;
    }
    if (!largest) continue;
    GpuLayer layer(*session, gpu, *largest, true);
    Stand stand(gpu, layer);
    std::string line = layer.name() + ", a step behind another, plainly and programmatically:";
    bool any = false;
    for (const std::int64_t m : kSizes) {
      const Step step{layer, m, false};
      if (!step.declares(QE_PDL_SAFE) || !step.declares(QE_GRAPH_SAFE)) continue;
      stand.put(step);
      const double plain = microseconds(stand, step, 0), programmatic = microseconds(stand, step, QE_RUN_PDL);
      line += text("  M=%lld %.2f us, %.2f us (%+.0f %%)", static_cast<long long>(m), plain, programmatic, 100 * (programmatic / plain - 1));
      any = true, ++tried;
      if (programmatic > kTooMuch * plain + kNoise) fail("%s: %.2f us launched programmatically behind another, %.2f us plainly", step.where().c_str(), programmatic, plain);
    }
    if (any) notes.push_back(line);
  }
  if (!tried) not_applicable("no regime is declared safe for programmatic launches and for graphs");
}

#else

void as_asked(const Subject& s, Notes&) {
  session_with_edges(s);
  not_applicable("this qengine was built without CUDA");
}
void late_writer(const Subject& s, Notes& notes) { as_asked(s, notes); }
void late_reader(const Subject& s, Notes& notes) { as_asked(s, notes); }
void chain(const Subject& s, Notes& notes) { as_asked(s, notes); }
void same_bits(const Subject& s, Notes& notes) { as_asked(s, notes); }
void overlap(const Subject& s, Notes& notes) { as_asked(s, notes); }

#endif

}  // namespace

const std::vector<Check> pdl_checks{
    {"QEP-610", "pdl", "asked for it, a step that is declared safe is launched programmatically; every other one plainly", as_asked},
    {"QEP-611", "pdl", "nothing is read, or put into the workspace, before the kernel in front has written", late_writer},
    {"QEP-612", "pdl", "nothing is written over before the kernel in front has read it", late_reader},
    {"QEP-613", "pdl", "when a step has ended, all kernels in front of it and of its own have", chain},
    {"QEP-614", "pdl", "programmatically launched, steps behind each other give the bits of plain launches", same_bits},
    {"QEP-615", "pdl", "programmatically launched, a step behind another takes no longer than plainly", overlap},
};

}  // namespace qengine::conformance
