// Products, rows and exact weights on a GPU, against the definition of each format. Skipped where there is no GPU.
#include <gtest/gtest.h>
#include <qe/cuda/linear.hpp>

#include <memory>
#include <numeric>
#include <random>

#include "tests/sdk/cuda/formats.hpp"
#include "tests/sdk/layer_view.hpp"
#include "tests/support/cuda_host.hpp"

namespace {

using namespace qe_test;
using qengine::test::CudaHost;
using qengine::test::DeviceArray;

template <class F> constexpr bool two_level = qe::meta_super_bytes<typename F::Meta> > 0;

struct Shape {
  std::vector<std::int64_t> ns;
  std::int64_t k;
  int group;
  std::int64_t n() const { return std::accumulate(ns.begin(), ns.end(), std::int64_t{0}); }
};

qe_tensor view(void* data, int dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  qe_tensor t{};
  t.dtype = dtype, t.rank = 2, t.dim[0] = rows, t.dim[1] = cols, t.stride[0] = stride, t.stride[1] = 1, t.data = data;
  return t;
}

// W[n,k] as the format defines it; rows of a part begin at 0.
template <class F>
std::vector<float> definition(const Shape& s) {
  using M = typename F::Meta;
  const Source source{s.group};
  std::vector<float> w;
  for (const std::int64_t rows : s.ns)
    for (std::int64_t n = 0; n < rows; ++n)
      for (std::int64_t k = 0; k < s.k; ++k) {
        typename M::Value v = F::meta(source, n, k);
        std::byte record[16]{}, super[16]{};
        M::pack(v, record);
        if constexpr (two_level<F>) M::pack_super(F::super(source, n, k), super);
        float row = 1.0f;
        if constexpr (qe::HasRowScale<F>) row = F::row_scale(source, n);
        w.push_back(qe::weight<F>(F::value(F::code(source, n, k)), qe::terms_of<M>(super, record), row));
      }
  return w;
}

struct Loaded {
  CudaHost& host;
  std::unique_ptr<qe::cuda::Layer> layer;
  Loaded(CudaHost& host, LayerView& v, const qe::cuda::Kernels& kernels) : host(host) {
    qe::detail::host_table = &host.table;
    const qe_model m = host.model();
    const std::vector<const qe::cuda::Kernels*> each(v.layer.n_parts, &kernels);
    qe::Io io(m, qe::Io::Mode::plan);
    const qe::cuda::LayerPlan plan = qe::cuda::plan_layer(host.device, m, v.layer, each, io);
    EXPECT_TRUE(plan.fuse) << plan.apart;
    layer = std::make_unique<qe::cuda::Layer>(host.device, m, v.layer, each, nullptr);
    EXPECT_EQ(layer->bytes(QE_MEM_WEIGHT), plan.weight_bytes);
    EXPECT_EQ(layer->bytes(QE_MEM_PERSIST), plan.persist_bytes);
    EXPECT_EQ(host.allocated[QE_MEM_WEIGHT], std::max<std::uint64_t>(1, plan.weight_bytes));
    EXPECT_EQ(host.allocated[QE_MEM_PERSIST], plan.persist_bytes);
  }
  ~Loaded() {
    layer.reset();
    EXPECT_EQ(host.live, 0);
  }
};

std::vector<std::uint16_t> inputs(std::int64_t m, std::int64_t k, std::int64_t stride, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d;
  std::vector<std::uint16_t> x(std::size_t(m * stride), 0x7fc0);  // NaN between the rows: never read
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < k; ++i) x[std::size_t(t * stride + i)] = qe::f32_to_bf16(d(rng) * (0.2f + 2.0f * unit(hash(std::uint64_t(i), 5))));
  return x;
}

struct Gpu {
  Loaded& l;
  std::int64_t n, k;
  // Outputs with the stride of a wider matrix, poisoned first.
  template <class Out>
  std::vector<Out> run(const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t in_stride, unsigned flags = 0) {
    const std::int64_t stride = n + 3;
    DeviceArray<std::uint16_t> in(x);
    DeviceArray<Out> out(std::size_t(std::max<std::int64_t>(1, m) * stride));
    out.poison();
    qe_run r{};
    r.struct_size = sizeof r;
    r.flags = flags;
    r.m = m;
    r.in = view(in.data(), QE_BF16, m, k, in_stride);
    r.out = view(out.data(), sizeof(Out) == 4 ? QE_F32 : QE_BF16, m, n, stride);
    l.layer->run(r);
    QE_CUDA_OK(cudaDeviceSynchronize());
    const std::vector<Out> all = out.get();
    std::vector<Out> y;
    Out poison;
    std::memset(&poison, 0xff, sizeof poison);
    for (std::int64_t t = 0; t < m; ++t) {
      y.insert(y.end(), all.begin() + t * stride, all.begin() + t * stride + n);
      for (std::int64_t i = n; i < stride; ++i) EXPECT_EQ(std::memcmp(&all[std::size_t(t * stride + i)], &poison, sizeof poison), 0) << "wrote beside the output";
    }
    return y;
  }
};

float number(std::uint16_t v) { return qe::bf16_to_f32(v); }
float number(float v) { return v; }

template <class Out>
double nmse(const std::vector<Out>& y, const std::vector<float>& w, const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t k, std::int64_t n, std::int64_t stride) {
  double err = 0, ref = 0;
  std::vector<double> row(static_cast<std::size_t>(k));
  for (std::int64_t t = 0; t < m; ++t) {
    for (std::int64_t j = 0; j < k; ++j) row[std::size_t(j)] = qe::bf16_to_f32(x[std::size_t(t * stride + j)]);
    for (std::int64_t i = 0; i < n; ++i) {
      double s = 0;
      for (std::int64_t j = 0; j < k; ++j) s += double(w[std::size_t(i * k + j)]) * row[std::size_t(j)];
      const double d = number(y[std::size_t(t * n + i)]) - s;
      if (!(d == d)) return INFINITY;
      err += d * d, ref += s * s;
    }
  }
  return ref > 0 ? err / ref : err;
}

// The bound is one for sums over many outputs; a few may all be rounded badly: half a unit in the last place of
// bf16 twice (a weight from a table, the output).
double bound(std::int64_t outputs) { return outputs >= 64 ? 1e-5 : 4 * 0x1p-16; }

template <class F>
class CudaLinear : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = qengine::test::no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};
#define QE_TEST_TYPE(name, ...) , Fmt##name
template <class Skip, class... F> struct TypesOf { using type = testing::Types<F...>; };
using Formats = TypesOf<void QE_TEST_FORMATS(QE_TEST_TYPE)>::type;
struct Names {
  template <class F> static std::string GetName(int i) {
#define QE_TEST_NAME(name, ...) #name,
    static const char* const names[] = {QE_TEST_FORMATS(QE_TEST_NAME)};
    return names[i];
  }
};
TYPED_TEST_SUITE(CudaLinear, Formats, Names);

TYPED_TEST(CudaLinear, AgreesWithTheDefinition) {
  using F = TypeParam;
  std::vector<Shape> shapes = {{{33}, 512, 32}, {{7}, 256, 16}, {{40, 24, 24}, 256, 32}, {{2200}, 512, 32}};
  if (!two_level<F>)
    shapes.insert(shapes.end(), {{{24}, 512, 128}, {{48, 33}, 768, 0}, {{13}, 100, 24}, {{17}, 272, 128}, {{1}, 1, 0}, {{20}, 330, 48}, {{64}, 1152, 64}});
  for (const Shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.n() << " x " << s.k << " group " << s.group);
    group_size() = s.group;
    if constexpr (requires { F::width(); }) F::width() = s.k;
    const std::int64_t n = s.n(), k = s.k;
    const bool odd = k % 8 != 0;
    const std::int64_t stride = odd ? k : k + 8;
    LayerView v(s.ns, s.k, 511);
    const std::vector<float> w = definition<F>(s);
    CudaHost host;
    Loaded gpu(host, v, qe::cuda::kernels<F>());
    Gpu g{gpu, n, k};
    {  // exact weights, all and some
      DeviceArray<float> out(std::size_t(n * k));
      out.poison();
      qe_tensor t = view(out.data(), QE_F32, n, k, k);
      gpu.layer->dequant(0, n, t, nullptr);
      QE_CUDA_OK(cudaDeviceSynchronize());
      const auto exact = out.get();
      for (std::size_t i = 0; i < w.size(); ++i) ASSERT_EQ(exact[i], w[i]) << i / std::size_t(k) << ' ' << i % std::size_t(k);
      const std::int64_t from = n / 3, to = n - n / 4;
      out.poison();
      gpu.layer->dequant(from, to, t, nullptr);
      QE_CUDA_OK(cudaDeviceSynchronize());
      const auto some = out.get();
      for (std::int64_t i = 0; i < (to - from) * k; ++i) ASSERT_EQ(some[std::size_t(i)], w[std::size_t(from * k + i)]) << i;
    }
    {  // rows, one of them no row
      std::vector<std::int32_t> ids = {int(n) - 1, 0, int(n / 2), int(n), -1};
      DeviceArray<std::int32_t> device_ids(ids);
      DeviceArray<std::uint16_t> out(ids.size() * std::size_t(k + 1));
      out.poison();
      qe_tensor t = view(out.data(), QE_BF16, std::int64_t(ids.size()), k, k + 1);
      gpu.layer->rows(device_ids.data(), std::int64_t(ids.size()), t, nullptr);
      QE_CUDA_OK(cudaDeviceSynchronize());
      const auto rows = out.get();
      for (std::size_t i = 0; i < ids.size(); ++i)
        for (std::int64_t c = 0; c < k; ++c)
          ASSERT_EQ(rows[i * std::size_t(k + 1) + std::size_t(c)], i < 3 ? qe::f32_to_bf16(w[std::size_t(ids[i] * k + c)]) : 0) << i << ' ' << c;
    }
    std::vector<std::uint16_t> first;
    for (const std::int64_t m : {0, 1, 2, 7, 8, 9, 16, 17, 64, 511}) {
      if (n > 1000 && m > 17) continue;
      SCOPED_TRACE(testing::Message() << "m " << m);
      const auto x = inputs(m, k, stride, 3);
      const auto y = g.template run<std::uint16_t>(x, m, stride);
      EXPECT_LE(nmse(y, w, x, m, k, n, stride), bound(m * n));
      if (m == 1) first = y;
      // the same bits for every m of one tile, with programmatic edges, and again
      if (m >= 1 && m <= 8) {
        EXPECT_TRUE(std::equal(first.begin(), first.end(), y.begin()));
      }
      if (m == 2 || m == 9) {
        EXPECT_EQ(y, g.template run<std::uint16_t>(x, m, stride, QE_RUN_PDL));
        const auto wide = g.template run<float>(x, m, stride);
        EXPECT_LE(nmse(wide, w, x, m, k, n, stride), bound(m * n) / 2);
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], qe::f32_to_bf16(wide[i])) << i;
      }
    }
  }
}

// What stands next to a product, taken into it, against the same in double precision.
TYPED_TEST(CudaLinear, TakesWhatStandsNextToIt) {
  using F = TypeParam;
  for (const Shape& s : {Shape{{208, 208}, 512, 32}, Shape{{200, 200}, 256, 32}, Shape{{312}, 512, 32}, Shape{{2208}, 512, 32}}) {
    SCOPED_TRACE(testing::Message() << s.n() << " x " << s.k);
    group_size() = s.group;
    if constexpr (requires { F::width(); }) F::width() = s.k;
    const std::int64_t n = s.n(), k = s.k;
    LayerView v(s.ns, s.k, 16);
    const std::vector<float> w = definition<F>(s);
    CudaHost host;
    Loaded gpu(host, v, qe::cuda::kernels<F>());
    std::vector<float> gain(static_cast<std::size_t>(k)), bias(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < k; ++i) gain[std::size_t(i)] = qe::bf16_to_f32(qe::f32_to_bf16(0.5f + unit(hash(std::uint64_t(i), 1))));
    for (std::int64_t i = 0; i < n; ++i) bias[std::size_t(i)] = unit(hash(std::uint64_t(i), 2)) - 0.5f;
    DeviceArray<float> device_gain(gain), device_bias(bias);
    qe_step_norm norm{};
    norm.head = {sizeof norm, QE_STEP_RMS_NORM};
    norm.weight = view(device_gain.data(), QE_F32, 1, k, k);
    norm.eps = 1e-5f;
    qe_step_simple add{}, residual{}, act{};
    add.head = {sizeof add, QE_STEP_BIAS};
    add.value = view(device_bias.data(), QE_F32, 1, n, n);
    residual.head = {sizeof residual, QE_STEP_RESIDUAL};
    act.head = {sizeof act, QE_STEP_ACT_MUL};
    const bool pairs = s.ns.size() == 2;
    std::vector<std::vector<std::uint16_t>> first;
    for (const std::int64_t m : {1, 3, 8, 9, 16, 33, 64}) {
      SCOPED_TRACE(testing::Message() << "m " << m);
      const auto x = inputs(m, k, k, 3), res = inputs(m, n, n, 4);
      DeviceArray<std::uint16_t> in(x), device_res(res);
      residual.value = view(device_res.data(), QE_BF16, m, n, n);
      std::size_t which = 0;
      for (const bool with_norm : {false, true})
        for (const int tail : {0, 1, 2}) {  // bias; bias and residual, or bias and activation; the last alone
          if (with_norm && m > 8) continue;
          SCOPED_TRACE(testing::Message() << "norm " << with_norm << " tail " << tail);
          const qe_step* before[] = {&norm.head};
          std::vector<const qe_step*> after;
          if (tail < 2) after.push_back(&add.head);
          if (tail > 0) after.push_back(pairs ? &act.head : &residual.head);
          act.variant = tail == 2;
          const std::int64_t width = pairs && tail > 0 ? n / 2 : n;
          DeviceArray<std::uint16_t> out(std::size_t(m * width));
          out.poison();
          qe_run r{};
          r.struct_size = sizeof r;
          r.flags = QE_RUN_PDL;
          r.m = m;
          r.n_before = with_norm, r.before = before;
          r.n_after = std::uint32_t(after.size()), r.after = after.data();
          r.in = view(in.data(), QE_BF16, m, k, k);
          r.out = view(out.data(), QE_BF16, m, width, width);
          gpu.layer->run(r);
          QE_CUDA_OK(cudaDeviceSynchronize());
          const auto y = out.get();
          double err = 0, ref = 0;
          std::vector<double> row(static_cast<std::size_t>(n));
          for (std::int64_t t = 0; t < m; ++t) {
            double squares = 0;
            for (std::int64_t j = 0; j < k; ++j) squares += double(qe::bf16_to_f32(x[std::size_t(t * k + j)])) * qe::bf16_to_f32(x[std::size_t(t * k + j)]);
            // the tokens that the sums see: with a norm, times its weights and rounded
            std::vector<float> token(static_cast<std::size_t>(k));
            for (std::int64_t j = 0; j < k; ++j) {
              token[std::size_t(j)] = qe::bf16_to_f32(x[std::size_t(t * k + j)]);
              if (with_norm) token[std::size_t(j)] = qe::bf16_to_f32(qe::f32_to_bf16(token[std::size_t(j)] * gain[std::size_t(j)]));
            }
            const double rms = with_norm ? 1 / std::sqrt(squares / double(k) + 1e-5) : 1;
            for (std::int64_t i = 0; i < n; ++i) {
              double sum = 0;
              for (std::int64_t j = 0; j < k; ++j)
                sum += double(w[std::size_t(i * k + j)]) * token[std::size_t(j)];
              row[std::size_t(i)] = sum * rms + (tail < 2 ? bias[std::size_t(i)] : 0.0f);
            }
            for (std::int64_t i = 0; i < width; ++i) {
              double expected = row[std::size_t(i)];
              if (tail > 0 && !pairs) expected += qe::bf16_to_f32(res[std::size_t(t * n + i)]);
              if (tail > 0 && pairs) {
                const double gate = expected, act_of = tail == 1 ? gate / (1 + std::exp(-gate)) : 0.5 * gate * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)));
                expected = act_of * row[std::size_t(i + n / 2)];
              }
              const double d = qe::bf16_to_f32(y[std::size_t(t * width + i)]) - expected;
              err += d * d, ref += expected * expected;
            }
          }
          // Values of a table are rounded to bf16 once more, and a product of two sums has the errors of both.
          const bool table = qe::cuda::kDecoding<F> == qe::cuda::Decoding::table;
          EXPECT_LE(err / ref, table && pairs && tail > 0 ? 2e-5 : 1e-5);
          if (m == 1) first.push_back(y);
          if (m <= 8) {
            EXPECT_TRUE(std::equal(first[which].begin(), first[which].end(), y.begin())) << "the first token's bits depend on m";
          }
          ++which;
        }
    }
  }
}

// More strips than a block takes at once, and columns in slices: 64 tokens of one launch are those of four of 16.
TYPED_TEST(CudaLinear, SixtyFourTokensAreFourTimesSixteen) {
  using F = TypeParam;
  for (const Shape& s : {Shape{{27000}, 256, 32}, Shape{{13440, 13440}, 256, 32}, Shape{{2560}, 2304, 32}, Shape{{200}, 2304, 32}}) {
    SCOPED_TRACE(testing::Message() << s.n() << " x " << s.k);
    group_size() = s.group;
    if constexpr (requires { F::width(); }) F::width() = s.k;
    const std::int64_t n = s.n(), k = s.k, width = s.ns.size() == 2 ? n / 2 : n;
    LayerView v(s.ns, s.k, 64);
    CudaHost host;
    Loaded gpu(host, v, qe::cuda::kernels<F>());
    const auto x = inputs(64, k, k, 3), res = inputs(64, n, n, 4);
    DeviceArray<std::uint16_t> in(x), device_res(res);
    const auto run = [&](std::int64_t first, std::int64_t m) {
      qe_step_simple step{};
      step.head = {sizeof step, width < n ? QE_STEP_ACT_MUL : QE_STEP_RESIDUAL};
      if (width == n) step.value = view(device_res.data() + first * n, QE_BF16, m, n, n);
      const qe_step* after[] = {&step.head};
      DeviceArray<std::uint16_t> out(std::size_t(m * width));
      out.poison();
      qe_run r{};
      r.struct_size = sizeof r;
      r.m = m;
      r.n_after = 1, r.after = after;
      r.in = view(in.data() + first * k, QE_BF16, m, k, k);
      r.out = view(out.data(), QE_BF16, m, width, width);
      gpu.layer->run(r);
      QE_CUDA_OK(cudaDeviceSynchronize());
      return out.get();
    };
    for (const std::int64_t m : {64, 41}) {
      const auto together = run(0, m);
      double err = 0, ref = 0;
      for (std::int64_t first = 0; first < m; first += 16) {
        const auto few = run(first, std::min<std::int64_t>(16, m - first));
        for (std::size_t i = 0; i < few.size(); ++i) {
          const double a = qe::bf16_to_f32(together[std::size_t(first * width) + i]), b = qe::bf16_to_f32(few[i]);
          err += (a - b) * (a - b), ref += b * b;
        }
      }
      EXPECT_LE(err, 1e-5 * ref) << m << " tokens";  // both round to bf16
      EXPECT_EQ(run(0, m), together) << "again";
    }
  }
}

// Kernels that follow each other in two buffers, as in a model: a graph with programmatic edges gives the bits of one
// with plain edges, a thousand times over.
template <class F>
void replay(std::int64_t m) {
  group_size() = 128;
  const Shape s{{1024}, 1024, 128};
  CudaHost host;
  LayerView v(s.ns, s.k, 16);
  Loaded gpu(host, v, qe::cuda::kernels<F>());
  std::vector<float> gain(1024, 1.0f);
  DeviceArray<float> device_gain(gain);
  qe_step_norm norm{};
  norm.head = {sizeof norm, QE_STEP_RMS_NORM};
  norm.weight = view(device_gain.data(), QE_F32, 1, 1024, 1024);
  norm.eps = 1e-5f;
  const qe_step* before[] = {&norm.head};
  const auto x = inputs(m, 1024, 1024, 9);
  DeviceArray<std::uint16_t> start(x), a(x.size()), b(x.size());
  cudaStream_t stream;
  QE_CUDA_OK(cudaStreamCreate(&stream));
  std::vector<std::uint16_t> expected;
  for (const bool programmatic : {false, true}) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    QE_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const std::uint16_t* in = start.data();
    for (int i = 0; i < 24; ++i) {
      std::uint16_t* out = i % 2 ? b.data() : a.data();
      qe_run r{};
      r.struct_size = sizeof r;
      r.flags = QE_RUN_CAPTURING | (programmatic ? QE_RUN_PDL : 0);
      r.m = m;
      r.n_before = 1, r.before = before;
      r.in = view(const_cast<std::uint16_t*>(in), QE_BF16, m, 1024, 1024);
      r.out = view(out, QE_BF16, m, 1024, 1024);
      r.stream = stream;
      gpu.layer->run(r);
      in = out;
    }
    QE_CUDA_OK(cudaStreamEndCapture(stream, &graph));
    std::size_t edges = 0, found = 0;
    QE_CUDA_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    std::vector<cudaGraphNode_t> from(edges), to(edges);
    std::vector<cudaGraphEdgeData> data(edges);
    QE_CUDA_OK(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges));
    for (const auto& d : data) found += d.type == cudaGraphDependencyTypeProgrammatic;
    EXPECT_EQ(edges, 23u);
    if (host.device.sm >= 90) {
      EXPECT_EQ(found, programmatic ? 23u : 0u);
    }
    QE_CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < (programmatic ? 1000 : 1); ++i) {
      if (i % 100 == 0) a.poison(), b.poison();
      QE_CUDA_OK(cudaGraphLaunch(exec, stream));
      if (i % 100 != 0) continue;
      QE_CUDA_OK(cudaStreamSynchronize(stream));
      const auto y = b.get();
      if (expected.empty()) expected = y;
      for (const std::uint16_t e : y) ASSERT_TRUE(std::isfinite(qe::bf16_to_f32(e)));
      ASSERT_EQ(y, expected) << "replay " << i;
    }
    QE_CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(b.get(), expected);
    QE_CUDA_OK(cudaGraphExecDestroy(exec));
    QE_CUDA_OK(cudaGraphDestroy(graph));
  }
  QE_CUDA_OK(cudaStreamDestroy(stream));
}

TEST(CudaGraph, ProgrammaticEdgesChangeNothing) {
  if (const std::string why = qengine::test::no_gpu(); !why.empty()) GTEST_SKIP() << why;
  for (const std::int64_t m : {1, 5, 8}) {
    replay<FmtW4ZeroWord>(m);
    replay<FmtBF16>(m);
    replay<FmtFp8Row>(m);
  }
}

}  // namespace
