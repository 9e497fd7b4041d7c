// Row work and choosing on a GPU, against plain loops in double.
#include <cmath>
#include <random>

#include "core/layers/cuda/kernels.hpp"
#include "tests/support/gpu.hpp"

namespace qengine {
namespace {

using test::bf16_bits;
using test::bf16_value;
using test::OnGpu;

__nv_bfloat16* as_bf16(OnGpu<std::uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }

std::vector<float> random_floats(std::mt19937& rng, std::size_t n, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}
std::vector<std::uint16_t> random_bf16(std::mt19937& rng, std::size_t n, float scale) {
  std::vector<std::uint16_t> out;
  for (const float x : random_floats(rng, n, scale)) out.push_back(bf16_bits(x));
  return out;
}
std::vector<float> values(const std::vector<std::uint16_t>& bits) {
  std::vector<float> out;
  for (const std::uint16_t b : bits) out.push_back(bf16_value(b));
  return out;
}

struct RowCase {
  int n, rows;
  bool bias;
};
class CudaRows : public ::testing::TestWithParam<RowCase> {};

TEST_P(CudaRows, AddNormIsTheSumAndItsNorm) {
  QE_NEEDS_GPU();
  const auto [n, rows, with_bias] = GetParam();
  std::mt19937 rng(static_cast<unsigned>(n * 31 + rows));
  const auto x = random_floats(rng, static_cast<std::size_t>(n * rows), 3), w = random_floats(rng, static_cast<std::size_t>(n), 1), bias = random_floats(rng, static_cast<std::size_t>(n), 0.5f);
  const auto delta = random_bf16(rng, static_cast<std::size_t>(n * rows), 1);
  OnGpu<float> gx(x), gw(w), gb(bias);
  OnGpu<std::uint16_t> gd(delta), out(delta.size());
  out.fill(0xff);
  ASSERT_EQ(cuda::add_norm({.x = gx.get(), .delta = as_bf16(gd), .delta_stride = n, .bias = with_bias ? gb.get() : nullptr, .w = gw.get(), .out = as_bf16(out), .out_stride = n, .eps = 1e-5f, .n = n, .rows = rows}, {}), cudaSuccess);
  const auto got_x = gx.read();
  const auto got = values(out.read());
  std::vector<double> want(got.size());
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      const std::size_t at = static_cast<std::size_t>(r * n + i);
      const float v = x[at] + (bf16_value(delta[at]) + (with_bias ? bias[static_cast<std::size_t>(i)] : 0.0f));
      ASSERT_EQ(got_x[at], v) << r << ' ' << i;  // sums of two are exact to the bit
      sum += double{v} * v;
    }
    for (int i = 0; i < n; ++i) want[static_cast<std::size_t>(r * n + i)] = got_x[static_cast<std::size_t>(r * n + i)] / std::sqrt(sum / n + 1e-5) * w[static_cast<std::size_t>(i)];
  }
  EXPECT_LT(test::nmse(got, want), 1e-5);
  EXPECT_GT(test::nmse(got, want), 1e-8) << "nothing was rounded to bf16";
}

TEST_P(CudaRows, RowsArePickedAndFirstRowsAreSet) {
  QE_NEEDS_GPU();
  const auto [n, rows, unused] = GetParam();
  std::mt19937 rng(7);
  const auto x = random_floats(rng, static_cast<std::size_t>(n * rows), 3), w = random_floats(rng, static_cast<std::size_t>(n), 1);
  const auto first = random_bf16(rng, static_cast<std::size_t>(n * rows), 1);
  OnGpu<float> gx(x), gw(w);
  OnGpu<std::uint16_t> gd(first), out(first.size()), other(first.size());
  std::vector<std::int32_t> pick;
  for (int r = rows - 1; r >= 0; --r) pick.push_back(r);
  OnGpu<std::int32_t> gp(pick);
  ASSERT_EQ(cuda::add_norm({.x = gx.get(), .w = gw.get(), .out = as_bf16(out), .out_stride = n, .eps = 1e-5f, .n = n, .rows = rows}, {}), cudaSuccess);
  ASSERT_EQ(cuda::add_norm({.x = gx.get(), .w = gw.get(), .out = as_bf16(other), .out_stride = n, .pick = gp.get(), .eps = 1e-5f, .n = n, .rows = rows}, {}), cudaSuccess);
  EXPECT_EQ(gx.read(), x);
  const auto a = out.read(), b = other.read();
  for (int r = 0; r < rows; ++r)
    EXPECT_EQ(std::memcmp(a.data() + r * n, b.data() + (rows - 1 - r) * n, static_cast<std::size_t>(n) * 2), 0) << r;
  ASSERT_EQ(cuda::add_norm({.x = gx.get(), .delta = as_bf16(gd), .delta_stride = n, .eps = 1e-5f, .n = n, .rows = rows, .set = true}, {}), cudaSuccess);
  EXPECT_EQ(gx.read(), values(first));
}

TEST_P(CudaRows, ActMul) {
  QE_NEEDS_GPU();
  const auto [n, rows, with_bias] = GetParam();
  std::mt19937 rng(11);
  const auto g = random_bf16(rng, static_cast<std::size_t>(2 * n * rows), 2);
  const auto bias = random_floats(rng, static_cast<std::size_t>(2 * n), 0.5f);
  OnGpu<std::uint16_t> gg(g), out(static_cast<std::size_t>(n * rows));
  OnGpu<float> gb(bias);
  for (const cuda::Act act : {cuda::Act::kSilu, cuda::Act::kGeluTanh, cuda::Act::kGelu}) {
    out.fill(0xff);
    ASSERT_EQ(cuda::act_mul({.g = as_bf16(gg), .g_stride = 2 * n, .bias = with_bias ? gb.get() : nullptr, .out = as_bf16(out), .out_stride = n, .n = n, .rows = rows, .act = act}, {}), cudaSuccess);
    std::vector<double> want;
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < n; ++i) {
        double x = bf16_value(g[static_cast<std::size_t>(r * 2 * n + i)]), u = bf16_value(g[static_cast<std::size_t>(r * 2 * n + n + i)]);
        if (with_bias) x += bias[static_cast<std::size_t>(i)], u += bias[static_cast<std::size_t>(n + i)];
        const double a = act == cuda::Act::kSilu       ? x / (1 + std::exp(-x))
                         : act == cuda::Act::kGeluTanh ? 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
                                                       : 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        want.push_back(a * u);
      }
    EXPECT_LT(test::nmse(values(out.read()), want), 1e-5) << static_cast<int>(act);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaRows,
                         ::testing::Values(RowCase{576, 1, false}, RowCase{1024, 17, true}, RowCase{4096, 3, true}, RowCase{12288, 2, false}, RowCase{7, 2, true}, RowCase{130, 5, false}, RowCase{1, 1, false}));

TEST(CudaArgmax, LowestOfEqualsBelowTheLimitAndBadRowsAreSeen) {
  QE_NEEDS_GPU();
  constexpr int kN = 151936, kRows = 5;
  std::mt19937 rng(3);
  auto x = random_floats(rng, std::size_t{kN} * kRows, 4);
  x[100000] = x[31] = x[99999] = 50;                  // row 0: a tie
  x[kN + kN - 1] = 60, x[kN + 5] = 40;                // row 1: the largest lies beyond the limit
  x[2 * kN + 77] = std::nanf("");                     // row 2
  for (int i = 0; i < kN; ++i) x[static_cast<std::size_t>(3 * kN + i)] = -INFINITY;  // row 3
  OnGpu<float> gx(x);
  OnGpu<cuda::Best> out(kRows), partial(kRows * cuda::kBestChunks);
  OnGpu<std::uint32_t> counters(kRows);
  OnGpu<std::int32_t> token(kRows);
  counters.fill(0);
  for (int round = 0; round < 3; ++round) {  // counters come back to zero
    ASSERT_EQ(cuda::argmax({.x = gx.get(), .stride = kN, .n = kN, .limit = kN - 10, .rows = kRows, .partial = partial.get(), .counters = counters.get(), .out = out.get(), .token = token.get()}, {}), cudaSuccess);
    const auto got = out.read();
    EXPECT_EQ(got[0].index, 31);
    EXPECT_EQ(got[0].value, 50);
    EXPECT_EQ(got[0].finite, 1);
    EXPECT_EQ(got[1].index, 5);
    EXPECT_EQ(got[2].finite, 0);
    EXPECT_EQ(got[3].finite, 0);
    EXPECT_EQ(got[3].index, 0);
    const float* row = x.data() + 4 * std::size_t{kN};
    EXPECT_EQ(got[4].index, std::max_element(row, row + kN - 10) - row);
    EXPECT_EQ(token.read()[0], 31);
    EXPECT_EQ(counters.read(), std::vector<std::uint32_t>(kRows, 0));
  }
}

}  // namespace
}  // namespace qengine
