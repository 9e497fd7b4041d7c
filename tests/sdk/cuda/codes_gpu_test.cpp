// Products in FP8 on a GPU: the bits of codes and scales, and the products themselves, against the emulation of
// qe/activation.hpp. Skipped where there is no GPU.
#include <gtest/gtest.h>
#include <qe/cuda/linear.hpp>

#include <memory>
#include <numeric>

#include "core/device/gemm.hpp"
#include "tests/sdk/cuda/codes_cases.hpp"
#include "tests/support/cuda_host.hpp"

namespace {

using namespace qe_test;
using qengine::test::CudaHost;
using qengine::test::DeviceArray;

// The host's product, counted; it can be told to have none in FP8.
struct Products {
  inline static int fp8 = 0, refused = 0, bf16 = 0;
  inline static bool no_fp8 = false;
  static void reset() { fp8 = refused = bf16 = 0, no_fp8 = false; }
  static qe_status gemm(void*, const qe_gemm_args* a, qe_error* e) noexcept {
    const bool codes = a->in.dtype == QE_E4M3;
    if (codes && no_fp8) return ++refused, QE_E_UNSUPPORTED;
    const qe_gemm_v1* g = qengine::dense_gemm();
    const qe_status s = g ? g->gemm(g->self, a, e) : QE_E_UNSUPPORTED;
    ++(!codes ? bf16 : s == QE_E_UNSUPPORTED ? refused : fp8);
    return s;
  }
  static const void* extension(void*, const char* id) noexcept {
    static const qe_gemm_v1 table{sizeof table, 0, nullptr, gemm, nullptr};
    return std::string_view(id) == QE_GEMM_ID ? &table : nullptr;
  }
};

class CudaCodes : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = qengine::test::no_gpu(); !why.empty()) GTEST_SKIP() << why;
    if (!qengine::dense_gemm()) GTEST_SKIP() << "no dense product: " << qengine::why_no_gemm();
    Products::reset();
    codes_case() = {};
  }
};

TEST_F(CudaCodes, TokensBecomeTheCodesOfTheEmulation) {
  for (const Activation& a : {rule(Activation::e4m3_static, 0.01f), rule(Activation::e4m3_token), rule(Activation::e4m3_token, 1.0f, 1.5f), rule(Activation::e4m3_group)})
    for (const std::int64_t m : {65, 511})
      for (const std::int64_t k : {16, 272, 1024, 5120})
        for (const std::int64_t stride : {k, k + 8, k + 3}) {
          SCOPED_TRACE(testing::Message() << "rule " << a.kind << " bound " << a.bound << ": " << m << " x " << k << " by " << stride);
          const bool groups = a.kind == Activation::e4m3_group;
          const std::int64_t n_groups = (k + 127) / 128, first = groups ? m / 4 * 4 : m;
          const auto x = inputs(m, k, stride);
          DeviceArray<std::uint16_t> in(x);
          DeviceArray<std::uint8_t> codes(std::size_t(m * k));
          DeviceArray<float> scales(std::size_t(groups ? n_groups * first : m)), tail(std::size_t(n_groups * 64));
          codes.poison(), scales.poison(), tail.poison();
          qe::cuda::QuantizeArgs q{};
          q.in = in.data(), q.codes = codes.data(), q.scales = scales.data(), q.tail = groups && first < m ? tail.data() : nullptr;
          q.in_stride = stride, q.m = int(m), q.k = int(k), q.first = int(first), q.aligned = stride % 8 == 0;
          q.kind = a.kind, q.scale = a.scale, q.bound = a.bound;
          const char* problem = (groups ? qe::cuda::kernels<CodesBlock>() : qe::cuda::kernels<CodesRow>()).quantize(q, nullptr);
          ASSERT_EQ(problem, nullptr) << problem;
          QE_CUDA_OK(cudaDeviceSynchronize());
          const auto c = codes.get();
          const auto s = scales.get(), last = tail.get();
          std::vector<float> y(static_cast<std::size_t>(k));
          for (std::int64_t t = 0; t < m; ++t) {
            const auto token = token_of(x, t, k, stride);
            qe::act::quantize_dequantize(a, token.data(), y.data(), k);
            for (std::int64_t i = 0; i < k; ++i) {
              const float scale = !groups ? s[std::size_t(t)] : t < first ? s[std::size_t(i / 128 * first + t)] : last[std::size_t(i / 128 * 64 + t - (m - 64))];
              const std::uint8_t code = c[std::size_t(t * k + i)];
              ASSERT_EQ(code, qe::f32_to_e4m3(token[std::size_t(i)] / scale)) << t << ' ' << i;
              ASSERT_EQ(qe::e4m3_to_f32(code) * scale, y[std::size_t(i)]) << t << ' ' << i;
              if (q.tail && t >= m - 64 && t < first) {
                ASSERT_EQ(scale, last[std::size_t(i / 128 * 64 + t - (m - 64))]) << t << ' ' << i;
              }
            }
          }
        }
}

struct Case {
  std::vector<std::int64_t> ns;
  std::int64_t k;
  bool certain = true;  // whether cuBLASLt has to have it; else it may decline, and weights alone are quantized
};

template <class F>
struct Gpu {
  CudaHost host;
  LayerView view_;
  const std::vector<std::int64_t> ns;
  const std::int64_t n, k;
  qe_plan plan{};
  std::unique_ptr<qe::cuda::Layer> layer;
  std::vector<float> w;  // [n, k]
  Gpu(const Case& c, std::int64_t m_max) : view_(c.ns, c.k, m_max, QE_LAYER_ACT_QUANT), ns(c.ns), n(std::accumulate(c.ns.begin(), c.ns.end(), std::int64_t{0})), k(c.k) {
    host.table.extension = Products::extension;
    qe::detail::host_table = &host.table;
    const qe_model m = host.model();
    const std::vector<const qe::cuda::Kernels*> each(c.ns.size(), &qe::cuda::kernels<F>());
    qe::Io io(m, qe::Io::Mode::plan);
    const qe::cuda::LayerPlan p = qe::cuda::plan_layer(host.device, m, view_.layer, each, io);
    plan.struct_size = sizeof plan;
    qe::cuda::describe_plan(p, view_.layer, plan);
    layer = std::make_unique<qe::cuda::Layer>(host.device, m, view_.layer, each, nullptr);
    w = weights_of<F>(c.ns, k);
  }
  ~Gpu() {
    layer.reset();
    EXPECT_EQ(host.live, 0);
  }

  template <class Out>
  std::vector<float> run(const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t in_stride) {
    const std::int64_t stride = n + 16;
    DeviceArray<std::uint16_t> in(x);
    DeviceArray<Out> out(std::size_t(m * stride));
    const std::uint64_t bytes = plan.regime[plan.n_regimes - 1].workspace_bytes;
    DeviceArray<std::uint8_t> workspace(static_cast<std::size_t>(bytes));
    out.poison(), workspace.poison();
    qe_run r{};
    r.struct_size = sizeof r;
    r.m = m;
    r.in = view(in.data(), QE_BF16, m, k, in_stride);
    r.out = view(out.data(), sizeof(Out) == 4 ? QE_F32 : QE_BF16, m, n, stride);
    r.workspace = workspace.data(), r.workspace_bytes = bytes;
    layer->run(r);
    QE_CUDA_OK(cudaDeviceSynchronize());
    const auto all = out.get();
    Out poison;
    std::memset(&poison, 0xff, sizeof poison);
    std::vector<float> y;
    for (std::int64_t t = 0; t < m; ++t)
      for (std::int64_t i = 0; i < stride; ++i) {
        const Out& v = all[std::size_t(t * stride + i)];
        if (i >= n) {
          EXPECT_EQ(std::memcmp(&v, &poison, sizeof v), 0) << "wrote beside the output";
        } else if constexpr (sizeof(Out) == 4) {
          y.push_back(v);
        } else {
          y.push_back(qe::bf16_to_f32(v));
        }
      }
    return y;
  }

  std::vector<double> expected(const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t stride, bool quantized) const { return expected_of<F>(ns, k, w, x, m, stride, quantized); }
};

// What remains is the sum's rounding: float32 outputs, partial sums of 14 bits between promotions, 2^-26 of a token's energy
// a step of 32 inputs; bf16 outputs half a unit in the last place more, 2^-9 of an amplitude: (sqrt(2e-6) + 2^-9)^2. Quantized
// tokens differ from whole ones by 1e-4 and more of their energy.
constexpr double kFloatBound = 2e-6, kHalfBound = 1.14e-5, kQuantized = 5e-5;

template <class F>
void agrees(const Case& c) {
  SCOPED_TRACE(testing::Message() << testing::PrintToString(c.ns) << " x " << c.k << " rule " << codes_case().activation.kind << (codes_case().one_scale ? ", one scale" : ""));
  Gpu<F> gpu(c, 700);
  const bool planned = std::string_view(gpu.plan.regime[gpu.plan.n_regimes - 1].kernel) == "panel+gemm_fp8";
  if (gpu.host.device.sm == 90) {
    ASSERT_TRUE(planned);
  }
  if (!planned) return;
  const std::int64_t stride = gpu.k + 8;
  for (const std::int64_t m : {64, 65, 66, 128, 511}) {
    SCOPED_TRACE(testing::Message() << "m " << m);
    Products::reset();
    const auto x = inputs(m, gpu.k, stride);
    const auto wide = gpu.template run<float>(x, m, stride), half = gpu.template run<std::uint16_t>(x, m, stride);
    const auto whole = gpu.expected(x, m, stride, false);
    if (m <= 64) {
      EXPECT_EQ(Products::fp8 + Products::refused, 0);
      EXPECT_LE(error_of(wide, whole, gpu.n), 2e-5) << "activations stay whole";
      continue;
    }
    if (!c.certain && Products::refused) {
      std::printf("no product in FP8 for %lld tokens of %lld x %lld\n", static_cast<long long>(m), static_cast<long long>(gpu.n), static_cast<long long>(gpu.k));
      EXPECT_LE(error_of(half, whole, gpu.n), 2e-5);
      return;
    }
    EXPECT_GT(Products::fp8, 0);
    EXPECT_EQ(Products::refused + Products::bf16, 0);
    const auto expected = gpu.expected(x, m, stride, true);
    EXPECT_LE(error_of(wide, expected, gpu.n), kFloatBound);
    EXPECT_LE(error_of(half, expected, gpu.n), kHalfBound);
    EXPECT_GE(error_of(wide, whole, gpu.n), kQuantized) << "nothing was quantized";
    EXPECT_EQ(gpu.template run<float>(x, m, stride), wide) << "again";
    std::printf("  %lld tokens of %lld x %lld: %.2e in float32, %.2e in bf16\n", static_cast<long long>(m), static_cast<long long>(gpu.n), static_cast<long long>(gpu.k), error_of(wide, expected, gpu.n),
                error_of(half, expected, gpu.n));
  }
}

TEST_F(CudaCodes, OneScale) {
  codes_case() = {.one_scale = true, .activation = rule(Activation::e4m3_static, 0.02f)};
  for (const Case& c : {Case{{304}, 272}, Case{{128}, 1040}, Case{{16}, 16, false}, Case{{208, 80, 48}, 528}}) agrees<CodesRow>(c);
  codes_case().scale_of_part = 1.5f;  // tokens are quantized for each part
  agrees<CodesRow>({{208, 80, 48}, 528});
}

TEST_F(CudaCodes, AScaleARow) {
  codes_case() = {.activation = rule(Activation::e4m3_token)};
  for (const Case& c : {Case{{304}, 272}, Case{{128}, 1040}, Case{{16}, 16, false}, Case{{208, 80, 48}, 528}}) agrees<CodesRow>(c);
  codes_case().activation.bound = 1.5f;
  agrees<CodesRow>({{304}, 272});
  codes_case().activation = rule(Activation::e4m3_static, 0.02f);
  agrees<CodesRow>({{304}, 272});
}

TEST_F(CudaCodes, Blocks) {
  codes_case() = {.activation = rule(Activation::e4m3_group)};
  for (const Case& c : {Case{{384}, 512}, Case{{304}, 640}, Case{{48}, 128}, Case{{256, 128, 48}, 768}, Case{{80, 48}, 256}, Case{{304}, 272, false}, Case{{128}, 1040, false}, Case{{16}, 16, false}})
    agrees<CodesBlock>(c);
}

TEST_F(CudaCodes, WithoutAProductInFp8WeightsAloneAreQuantized) {
  codes_case() = {.activation = rule(Activation::e4m3_token)};
  Gpu<CodesRow> gpu({{304}, 272}, 700);
  Products::no_fp8 = true;
  const auto x = inputs(130, 272, 272);
  const auto y = gpu.run<float>(x, 130, 272);
  EXPECT_LE(error_of(y, gpu.expected(x, 130, 272, false), gpu.n), 2e-5);
  EXPECT_GT(Products::bf16, 0);
  if (gpu.host.device.sm == 90) {
    EXPECT_EQ(Products::refused, 1);
  }
  Products::no_fp8 = false;
  EXPECT_EQ(gpu.run<float>(x, 130, 272), y) << "decided once for a layer";
  EXPECT_EQ(Products::fp8, 0);
}

}  // namespace
