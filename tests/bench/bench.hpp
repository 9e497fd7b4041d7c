// A stack of layers with the shapes of a 135M model (hidden 576, 9 + 3 heads of 64, intermediate 1536, 30 layers, head of
// 49152 rows), packed in one format with random codes: what a decode step and a prompt read and multiply.
//
// Each line: tok/s, GB/s of weights, and the share of the read bandwidth measured at the start.
#pragma once

#include <benchmark/benchmark.h>
#include <qe/format_impl.hpp>
#include <qe/linear.hpp>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/thread_pool.hpp"
#include "tests/sdk/formats.hpp"

namespace qe_bench {

qengine::ThreadPool& pool();
double read_bandwidth();  // GB/s of all threads of the pool
std::byte* allocate(std::size_t bytes);

template <class F>
std::unique_ptr<qe::detail::Handle> random_layer(std::initializer_list<std::int64_t> ns, std::int64_t k, std::int64_t group, int flags, bool ordered) {
  using namespace qe::cpu;
  auto h = std::make_unique<qe::detail::Handle>();
  const typename F::Source s{group};
  h->k = k;
  h->flags = flags;
  h->threads = pool().threads();
  std::int64_t total = 0;
  for (const std::int64_t n : ns) {
    qe::detail::Handle::Packed p;
    p.ops = &qe::format_ops<F>();
    p.layout = layout<F>(s, n, k);
    p.row = h->n;
    h->n += n;
    total += p.layout.bytes();
    h->parts.push_back(p);
  }
  static std::mt19937_64 rng(1);
  h->weights = allocate(std::size_t(total));
  for (std::int64_t i = 0; i + 8 <= total; i += 8) {
    const std::uint64_t v = rng() & 0xbfbfbfbfbfbfbfbfu;  // no exponent of all ones in any wide format
    std::memcpy(h->weights + i, &v, 8);
  }
  std::byte* at = h->weights;
  h->weight_bytes = std::uint64_t(total);
  for (auto& p : h->parts) {
    p.base = at;
    const Layout& l = p.layout;
    for (std::int64_t i = 0; i < l.panels; ++i) {
      const PanelOf<std::byte> panel = panel_at(l, at, i);
      for (int r = 0; r < 8; ++r) {
        if constexpr (F::Meta::kBytes > 0)
          for (std::int64_t c = 0; c < l.columns; c += l.span) F::Meta::pack(qe_test::record<typename F::Meta>(std::uint32_t(c * 77 + r)), record_at<F>(l, panel, c) + r * (qe::meta_shared<typename F::Meta> ? 0 : F::Meta::kBytes));
        if constexpr (qe::meta_super_bytes<typename F::Meta> > 0)
          for (std::int64_t c = 0; c < l.columns; c += 256) F::Meta::pack_super(F::super(s, r, c), super_at<F>(l, panel, c) + r * F::Meta::kSuperBytes);
        if constexpr (qe::HasRowScale<F>) {
          const float f = 0.01f;
          std::memcpy(panel.row + 4 * r, &f, 4);
        }
      }
    }
    at += l.bytes();
  }
  const Layout& l = h->parts[0].layout;
  if (ordered) {
    h->map = reinterpret_cast<std::int32_t*>(allocate(std::size_t(l.columns) * 4));
    for (std::int64_t c = 0; c < l.columns; ++c) h->map[c] = c < k ? std::int32_t((c * 7 + 3) % k) : -1;
  }
  h->need = {k, l.columns, l.spans, l.span, ((flags & QE_LAYER_EXACT) ? Path::exact : h->parts[0].ops->fast_path) == Path::integer, ordered, false};
  return h;
}

template <class F>
struct Model {
  std::vector<std::unique_ptr<qe::detail::Handle>> layers;
  std::unique_ptr<qe::detail::Handle> head;
  std::vector<std::byte> workspace;
  double bytes = 0, macs = 0;
  Model(std::int64_t group, int flags, bool ordered, std::int64_t m, int depth) {
    const auto add = [&](std::initializer_list<std::int64_t> ns, std::int64_t k) {
      layers.push_back(random_layer<F>(ns, k, group, flags, ordered));
      bytes += double(layers.back()->weight_bytes);
      macs += double(layers.back()->n * k);
    };
    for (int i = 0; i < depth; ++i) add({576, 192, 192}, 576), add({576}, 576), add({1536, 1536}, 576), add({576}, 1536);
    head = random_layer<F>({49152}, 576, group, flags, ordered);
    std::uint64_t most = 0;
    for (const auto& l : layers) most = std::max(most, qe::cpu::workspace_bytes(l->need, m));
    workspace.resize(most + 64);
  }
  ~Model() {
    for (auto& l : layers) l->weights = nullptr, l->map = nullptr;  // the bench's memory lives on
    head->weights = nullptr, head->map = nullptr;
  }
  void run(const qe::detail::Handle& h, const float* in, float* out, std::int64_t m) {
    qe_run r{};
    r.m = m;
    r.in.dtype = r.out.dtype = QE_F32;
    r.in.rank = r.out.rank = 2;
    r.in.dim[0] = r.out.dim[0] = m;
    r.in.dim[1] = r.in.stride[0] = h.k;
    r.out.dim[1] = r.out.stride[0] = h.n;
    r.in.data = const_cast<float*>(in);
    r.out.data = out;
    r.workspace = workspace.data();
    r.workspace_bytes = workspace.size();
    qe::detail::run_layer(h, r);
  }
};

std::byte* release_mark(std::byte* to = nullptr);

// Range 0: tokens a step. The head runs on at most 8 rows (decode: all of them; a prompt: the last).
template <class F>
void step(benchmark::State& state, std::int64_t group, int flags = 0, bool ordered = false) {
  const std::int64_t m = state.range(0);
  std::byte* mark = release_mark();
  {
    Model<F> model(group, flags, ordered, m, 30);
    std::vector<float> x(std::size_t(m) * 1536), y(std::size_t(std::max<std::int64_t>(m * 3072, 49152 * std::min<std::int64_t>(m, 8))));
    std::mt19937 rng(2);
    std::normal_distribution<float> d;
    for (float& v : x) v = d(rng);
    const std::int64_t head_rows = m <= 8 ? m : 1;
    for (auto _ : state) {
      for (const auto& l : model.layers) model.run(*l, x.data(), y.data(), m);
      model.run(*model.head, x.data(), y.data(), head_rows);
      benchmark::DoNotOptimize(y.data());
    }
    const double bytes = model.bytes + double(model.head->weight_bytes);
    state.counters["tok/s"] = benchmark::Counter(double(m), benchmark::Counter::kIsIterationInvariantRate);
    if (m <= 8) {
      state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
      state.counters["share"] = benchmark::Counter(bytes * 1e-9 / read_bandwidth(), benchmark::Counter::kIsIterationInvariantRate);
    } else {
      state.counters["GMAC/s"] = benchmark::Counter(model.macs * double(m) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    }
    state.counters["MB"] = bytes * 1e-6;
  }
  release_mark(mark);
}

}  // namespace qe_bench

#define QE_BENCH(NAME, F, ...)                                                                         \
  static void NAME(benchmark::State& s) { qe_bench::step<F>(s, __VA_ARGS__); }                         \
  BENCHMARK(NAME)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(512)->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.5)
