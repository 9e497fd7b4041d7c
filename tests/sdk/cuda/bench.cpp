// qe_cuda_bench: products of few tokens on a GPU, as they run in a decode step: in a captured graph with programmatic
// edges, weights of 256 MiB and more in rotation, so that L2 holds none of them. Not a test.
//
//   qe_cuda_bench [--formats W4ZeroWord,BF16] [--m 1,8,16,64] [--shapes 4b,0.6b,8192] [--batch 2] [--plain] [--fused] [--between] [--gib 3]
//
// --gib: memory that the weights are spread over; a chain longer than that comes round.
// --fused: with RMSNorm, residual and activation as in a model.
// --between: in a layer, a kernel of 64 blocks and two microseconds behind the first product, where attention stands in a
//     model. Without it every kernel has a block a multiprocessor, which is kinder than a model is.
//
// One JSON object a line: time of a kernel (or of the four of a layer), bytes over time, and the share of the time
// that the bytes alone take at 4.30 TB/s. Median of 7 measurements of 3 replays.
#include <cuda_runtime_api.h>
#include <qe/cuda/container.hpp>
#include <qe/cuda/kernels.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/sdk/cuda/between.hpp"
#include "tests/sdk/cuda/formats.hpp"

namespace {

constexpr double kFloor = 4.30e12;

void ok(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  std::exit(1);
}
void ok(const char* problem) {
  if (!problem) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}

struct Format {
  std::string name;
  const qe::cuda::Kernels* kernels;
  int run;
  bool row;
  std::function<std::vector<std::byte>(std::int64_t width, int strips)> pack;  // some strips of real weights
};

template <class F>
Format format(const char* name) {
  qe_test::group_size() = 128;
  const auto layout = [](std::int64_t width, int strips) {
    return qe::cuda::layout<F>(qe_test::Source{qe::meta_super_bytes<typename F::Meta> ? 32 : 128}, strips * 16, width * 128);
  };
  return {name, &qe::cuda::kernels<F>(), layout(2, 1).run, qe::HasRowScale<F>, [layout](std::int64_t width, int strips) {
            if constexpr (requires { F::width(); }) F::width() = width * 128;
            const qe_test::Source source{qe::meta_super_bytes<typename F::Meta> ? 32 : 128};
            const qe::cuda::Layout l = layout(width, strips);
            std::vector<std::byte> out(std::size_t(strips * l.strip_bytes()));
            std::vector<qe::Code<F>> scratch;
            float factors[16];
            for (int i = 0; i < strips; ++i) qe::cuda::pack_strip<F>(source, l, {}, i * 16, 16, 0, out.data() + i * l.strip_bytes(), factors, scratch);
            return out;
          }};
}

struct Shape {
  const char* name;
  int n, k;
  bool norm = false, pairs = false, residual = false;  // with --fused
};
struct Gpu {
  qe::cuda::Gpu gpu;
  cudaStream_t stream = nullptr;
  std::byte* arena = nullptr;
  std::size_t arena_bytes = std::size_t{3} << 30;
  float* rows = nullptr;
  std::uint16_t *x = nullptr, *y[2] = {};
};

struct Launch {
  const qe::cuda::Kernels* kernels;
  qe::cuda::Kernel kernel;
  qe::cuda::Work work;
  qe::cuda::StreamArgs args{};
  std::size_t bytes = 0;
  bool between = false;  // with something behind it
};

Launch make(const Gpu& g, const Format& f, const Shape& s, int m, bool pdl, bool fused, int batch, std::size_t& at, const void* in, void* out, bool other_before = false,
            bool other_behind = false) {
  Launch l{f.kernels, {}, {}, {}, 0, other_behind};
  f.kernels->describe(m > 16 ? qe::cuda::kWideTokens / 8 : m > 8 ? 2 : 1, f.run, &l.kernel);
  l.kernel.batch = batch;
  const qe::cuda::Extras extras{f.row, fused && s.norm && m <= 8, fused && s.pairs};
  const int strips = (s.n + 15) / 16, width = (s.k + 127) / 128;
  l.work = qe::cuda::plan_work(l.kernel, g.gpu, strips, width, m, extras);
  if (!l.work.fits) ok("does not fit; above 16 tokens not before sm_90");
  l.bytes = std::size_t(strips) * std::size_t(width) * std::size_t(l.kernel.unit_bytes) + (f.row ? std::size_t(strips) * 64 : 0);
  if (at + l.bytes > g.arena_bytes) at = 0;
  qe::cuda::StreamArgs& a = l.args;
  a.units = reinterpret_cast<const std::uint8_t*>(g.arena + at);
  at += (l.bytes + 255) / 256 * 256;
  a.row = f.row ? g.rows : nullptr;
  a.in = in, a.out = out, a.in_stride = s.k, a.out_stride = s.n;
  a.m = m, a.by_m = 65536u / unsigned(m) + 1, a.k = s.k, a.strips = strips, a.width = width;
  a.slices = l.work.slices, a.depth = l.work.depth, a.batch = l.work.batch, a.token_bytes = l.work.token_bytes;
  a.aligned = s.k % 8 == 0, a.parts = 1;
  if (pdl) qe::cuda::join_chain(l.work, a, g.gpu, other_before, other_behind);
  a.part[0] = {0, 0, s.n};
  if (extras.norm) a.norm = g.rows, a.norm_f32 = 1, a.eps = 1e-6f;
  if (extras.pairs) {
    a.pairs = 1, a.parts = 2, a.out_stride = s.n / 2;
    a.part[0] = {0, 0, s.n / 2}, a.part[1] = {strips / 2, s.n / 2, s.n / 2};
  }
  if (fused && s.residual) a.residual = g.x, a.residual_stride = s.n;
  return l;
}

struct Time { double us, low, high; std::size_t edges; };
Time measure(const Gpu& g, const std::vector<Launch>& launches) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ok(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (const Launch& l : launches) {
    ok(l.kernels->stream(l.kernel, l.work, l.args, g.stream));
    if (l.between) ok(qe_test::between(g.stream, l.args.pdl), "between");
  }
  ok(cudaStreamEndCapture(g.stream, &graph), "capture");
  std::size_t n = 0, programmatic = 0;
  ok(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &n), "edges");
  std::vector<cudaGraphNode_t> from(n), to(n);
  std::vector<cudaGraphEdgeData> data(n);
  ok(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &n), "edges");
  for (const auto& d : data) programmatic += d.type == cudaGraphDependencyTypeProgrammatic;
  ok(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  ok(cudaEventCreate(&begin), "event"), ok(cudaEventCreate(&end), "event");
  for (int i = 0; i < 2; ++i) ok(cudaGraphLaunch(exec, g.stream), "launch");
  std::vector<double> us;
  for (int i = 0; i < 7; ++i) {
    ok(cudaEventRecord(begin, g.stream), "event");
    for (int r = 0; r < 3; ++r) ok(cudaGraphLaunch(exec, g.stream), "launch");
    ok(cudaEventRecord(end, g.stream), "event");
    ok(cudaEventSynchronize(end), "event");
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, begin, end), "event");
    us.push_back(ms * 1e3 / 3);
  }
  std::sort(us.begin(), us.end());
  ok(cudaGraphExecDestroy(exec), "graph"), ok(cudaGraphDestroy(graph), "graph");
  ok(cudaEventDestroy(begin), "event"), ok(cudaEventDestroy(end), "event");
  return {us[3], us[0], us[6], programmatic};
}

void fill(const Gpu& g, const Format& f, int width) {
  const auto strips = f.pack(width, 64);
  std::size_t at = 0;
  const std::size_t n = std::min(strips.size(), g.arena_bytes);
  ok(cudaMemcpy(g.arena, strips.data(), n, cudaMemcpyHostToDevice), "copy");
  for (at = n; at < g.arena_bytes; at += std::min(at, g.arena_bytes - at))  // doubles
    ok(cudaMemcpy(g.arena + at, g.arena, std::min(at, g.arena_bytes - at), cudaMemcpyDeviceToDevice), "copy");
}

std::vector<std::string> list(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(item);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string formats = "BF16,Fp8Row,Fp8Block,Int8Row,W4ZeroWord,W4Half,Q4K,MxFp4,Nf4Wide", ms = "1,8,16", shapes = "0.6b,4b,8192";
  bool pdl = true, fused = false, between = false;
  int batch = 0, gib = 3;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--plain") pdl = false;
    else if (arg == "--fused") fused = true;
    else if (arg == "--between") between = true;
    else if (arg == "--formats" && i + 1 < argc) formats = argv[++i];
    else if (arg == "--gib" && i + 1 < argc) gib = std::atoi(argv[++i]);
    else if (arg == "--batch" && i + 1 < argc) batch = std::atoi(argv[++i]);
    else if (arg == "--m" && i + 1 < argc) ms = argv[++i];
    else if (arg == "--shapes" && i + 1 < argc) shapes = argv[++i];
    else return std::fprintf(stderr, "unknown argument %s\n", argv[i]), 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || !count) return std::fprintf(stderr, "no CUDA device\n"), 77;
  Gpu g;
  g.arena_bytes = std::size_t(gib) << 30;
  cudaDeviceProp p{};
  ok(cudaGetDeviceProperties(&p, 0), "device");
  g.gpu = {p.major * 10 + p.minor, p.multiProcessorCount, std::int64_t(p.sharedMemPerBlockOptin) - 1024};
  ok(cudaStreamCreate(&g.stream), "stream");
  ok(cudaMalloc(reinterpret_cast<void**>(&g.arena), g.arena_bytes), "memory");
  std::vector<float> ones(1 << 16, 0.01f);
  ok(cudaMalloc(reinterpret_cast<void**>(&g.rows), ones.size() * 4), "memory");
  ok(cudaMemcpy(g.rows, ones.data(), ones.size() * 4, cudaMemcpyHostToDevice), "copy");
  std::mt19937 rng(5);
  std::normal_distribution<float> d;
  std::vector<std::uint16_t> x(64 * 32768);
  for (auto& v : x) v = qe::f32_to_bf16(d(rng));
  for (std::uint16_t** at : {&g.x, &g.y[0], &g.y[1]}) {
    ok(cudaMalloc(reinterpret_cast<void**>(at), x.size() * 2), "memory");
    ok(cudaMemcpy(*at, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy");
  }
  std::printf("{\"what\":\"device\",\"name\":\"%s\",\"sms\":%d,\"pdl\":%d,\"fused\":%d,\"between\":%d}\n", p.name, p.multiProcessorCount, pdl, fused, between);

#define QE_BENCH_FORMAT(name, ...) format<qe_test::Fmt##name>(#name),
  const Format all[] = {QE_TEST_FORMATS(QE_BENCH_FORMAT)};
  const std::vector<std::pair<std::string, std::vector<Shape>>> models = {
      {"0.6b", {{"0.6B qkv", 4096, 1024, true}, {"0.6B o", 1024, 2048, false, false, true}, {"0.6B gate_up", 6144, 1024, true, true}, {"0.6B down", 1024, 3072, false, false, true}}},
      {"4b", {{"4B qkv", 6144, 2560, true}, {"4B o", 2560, 4096, false, false, true}, {"4B gate_up", 19456, 2560, true, true}, {"4B down", 2560, 9728, false, false, true}}},
      {"8192", {{"8192x8192", 8192, 8192}}}};
  for (const std::string& name : list(formats))
    for (const Format& f : all) {
      if (f.name != name) continue;
      ok(f.kernels->prepare(0));
      fill(g, f, 20);
      for (const std::string& m_text : list(ms)) {
        const int m = std::atoi(m_text.c_str());
        for (const auto& [model, layers] : models) {
          if (const auto wanted = list(shapes); std::find(wanted.begin(), wanted.end(), model) == wanted.end()) continue;
          const auto report = [&](const char* what, const std::vector<Launch>& l, double per) {
            const Time t = measure(g, l);
            std::size_t bytes = 0;
            for (const Launch& one : l) bytes += one.bytes;
            const double us = t.us / per, mb = double(bytes) / per / 1e6, floor = mb * 1e12 / kFloor;
            std::printf("{\"what\":\"%s\",\"format\":\"%s\",\"m\":%d,\"us\":%.3f,\"low\":%.3f,\"high\":%.3f,\"mb\":%.3f,\"gb_s\":%.0f,\"share\":%.3f,\"floor_us\":%.3f,"
                        "\"edges\":%zu,\"blocks\":%d,\"slices\":%d,\"warps\":%d,\"depth\":%d,\"batch\":%d,\"shared\":%zu}\n",
                        what, f.name.c_str(), m, us, t.low / per, t.high / per, mb, mb * 1e3 / us, floor / us, floor, t.edges, l[0].work.blocks, l[0].work.slices,
                        l[0].kernel.warps, l[0].work.depth, l[0].work.batch, l[0].work.shared);
            std::fflush(stdout);
          };
          for (const Shape& s : layers) {
            std::vector<Launch> l;
            std::size_t at = 0, bytes = 0;
            while (l.size() < 40 || bytes < (std::size_t{256} << 20)) {
              l.push_back(make(g, f, s, m, pdl, fused, batch, at, g.x, g.y[0]));
              bytes += l.back().bytes;
              if (l.size() >= 300) break;
            }
            report(s.name, l, double(l.size()));
          }
          if (layers.size() == 4) {  // a layer's four products, one after the other, as in a model
            std::vector<Launch> l;
            std::size_t at = 0;
            const int depth = model == "4b" ? 36 : 28;
            for (int i = 0; i < depth; ++i)
              for (int j = 0; j < 4; ++j) l.push_back(make(g, f, layers[std::size_t(j)], m, pdl, fused, batch, at, j % 2 ? g.y[0] : g.x, g.y[j % 2],
                                                           (between && j == 1) || (!l.empty() && l.back().work.blocks != g.gpu.sms), between && j == 0));
            report((model + " layer").c_str(), l, depth);
          }
        }
      }
    }
  return 0;
}
