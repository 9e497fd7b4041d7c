// Both builds of the kernels against loops in double precision, and against each other bit for bit.
#include "core/layers/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/layers/rope.hpp"

namespace qengine {
namespace {

std::vector<float> random_row(std::int64_t n, unsigned seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = d(rng);
  return x;
}

std::vector<const Kernels*> builds() {
  std::vector<const Kernels*> all{&kernels_ref()};
  if (const Kernels* fast = kernels_avx2()) all.push_back(fast);
  return all;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what << ": the builds differ";
}

class KernelRows : public ::testing::TestWithParam<int> {};  // row lengths: one, tails, many

TEST_P(KernelRows, RmsNormScalesToUnitSquares) {
  const int n = GetParam();
  const auto x = random_row(n, 1, 3), w = random_row(n, 2);
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  const double r = 1 / std::sqrt(sum / n + 1e-5);
  std::vector<std::vector<float>> outs;
  for (const Kernels* k : builds()) {
    std::vector<float> out(x.size());
    k->rms_norm(x.data(), w.data(), 1e-5f, n, out.data());
    for (int i = 0; i < n; ++i) ASSERT_NEAR(out[i], x[i] * r * w[i], 1e-6 * (1 + std::fabs(x[i] * r * w[i]))) << k->name << ' ' << i;
    outs.push_back(out);
  }
  expect_same_bits(outs.front(), outs.back(), "rms_norm");
}

TEST_P(KernelRows, GatedActivations) {
  const int n = GetParam();
  const auto g = random_row(n, 3, 8), u = random_row(n, 4);
  std::vector<std::vector<float>> outs;
  for (const Kernels* k : builds()) {
    auto silu = g, gelu = g;
    k->silu_mul(silu.data(), u.data(), n);
    k->gelu_tanh_mul(gelu.data(), u.data(), n);
    for (int i = 0; i < n; ++i) {
      const double x = g[i], s = x / (1 + std::exp(-x)) * u[i];
      const double t = 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * u[i];
      ASSERT_NEAR(silu[i], s, 2e-7 + 4e-7 * std::fabs(s)) << k->name << " silu of " << x;
      ASSERT_NEAR(gelu[i], t, 1e-6 + 2e-6 * std::fabs(t)) << k->name << " gelu of " << x;
    }
    silu.insert(silu.end(), gelu.begin(), gelu.end());
    outs.push_back(silu);
  }
  expect_same_bits(outs.front(), outs.back(), "activations");
}

TEST_P(KernelRows, AddTouchesNothingBeyondTheRow) {
  const int n = GetParam();
  for (const Kernels* k : builds()) {
    auto x = random_row(n + 8, 5);
    const auto before = x, y = random_row(n, 6);
    k->add(x.data(), y.data(), n);
    for (int i = 0; i < n + 8; ++i) ASSERT_EQ(x[i], i < n ? before[i] + y[i] : before[i]) << k->name;
  }
}

TEST_P(KernelRows, ArgmaxFindsTheFirstOfTheLargestAndAnythingNonFinite) {
  const int n = GetParam();
  for (const Kernels* k : builds()) {
    auto x = random_row(n, 7);
    const int at = n / 2;
    x[at] = 50;
    x[n - 1] = 50;
    Argmax r = k->argmax(x.data(), n);
    EXPECT_EQ(r.index, at);
    EXPECT_EQ(r.value, 50);
    EXPECT_TRUE(r.finite);
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const int where : {0, at, n - 1}) {
        auto y = x;
        y[where] = bad;
        EXPECT_FALSE(k->argmax(y.data(), n).finite) << k->name << ' ' << bad << " at " << where;
      }
  }
}

TEST_P(KernelRows, SumExpIsTheSoftmaxDenominator) {
  const int n = GetParam();
  const auto x = random_row(n, 8, 4);
  double want = 0;
  for (const float v : x) want += std::exp((v - 5.0) * 0.7);
  std::vector<std::vector<float>> outs;
  std::vector<double> sums;
  for (const Kernels* k : builds()) {
    std::vector<float> terms(x.size(), -1);
    const double sum = k->sum_exp(x.data(), 5.0f, 0.7f, n, terms.data());
    EXPECT_NEAR(sum, want, 1e-6 * want) << k->name;
    EXPECT_EQ(k->sum_exp(x.data(), 5.0f, 0.7f, n, nullptr), sum);
    for (int i = 0; i < n; ++i) ASSERT_NEAR(terms[i], std::exp((x[i] - 5.0) * 0.7), 2e-6 * terms[i]) << k->name;
    outs.push_back(terms);
    sums.push_back(sum);
  }
  expect_same_bits(outs.front(), outs.back(), "sum_exp");
  EXPECT_EQ(sums.front(), sums.back());
}

TEST_P(KernelRows, RopeTurnsPairsByTheirAngle) {
  const int half = GetParam();
  RopeRows rows(std::vector<float>(static_cast<std::size_t>(half), 0.3f), 1.25f, 2);
  const std::int32_t positions[] = {0, 11};
  rows.fill(positions);
  const auto x = random_row(2 * half, 9);
  std::vector<std::vector<float>> outs;
  for (const Kernels* k : builds()) {
    auto y = x;
    k->rope(y.data(), rows.cos(1), rows.sin(1), 0.5f, half);
    for (int i = 0; i < half; ++i) {
      const double c = std::cos(double{11 * 0.3f}) * 1.25, s = std::sin(double{11 * 0.3f}) * 1.25;
      ASSERT_NEAR(y[i], (x[i] * c - x[i + half] * s) * 0.5, 1e-6);
      ASSERT_NEAR(y[i + half], (x[i + half] * c + x[i] * s) * 0.5, 1e-6);
    }
    outs.push_back(y);
  }
  expect_same_bits(outs.front(), outs.back(), "rope");
}

INSTANTIATE_TEST_SUITE_P(Lengths, KernelRows, ::testing::Values(1, 3, 8, 15, 33, 64, 576, 1537, 9001));

TEST(Kernels, ExpIsAccurateAndEndsInZeroAndNotInGarbage) {
  for (const Kernels* k : builds()) {
    double worst = 0;
    for (double x = -87.3; x < 87.9; x += 0.00317) {
      const float f = static_cast<float>(x);
      float e = 0;
      k->sum_exp(&f, 0, 1, 1, &e);
      worst = std::max(worst, std::fabs(e / std::exp(double{f}) - 1));
    }
    EXPECT_LT(worst, 1.5e-7) << k->name;
    for (const float x : {-88.0f, -1000.0f, -INFINITY}) EXPECT_EQ(k->sum_exp(&x, 0, 1, 1, nullptr), 0) << x;
    const float nan = NAN;
    EXPECT_TRUE(std::isnan(k->sum_exp(&nan, 0, 1, 1, nullptr)));
  }
}

TEST(Kernels, Float16RoundsToNearestEvenAndOverflowsToInf) {
  // half of each exact value, computed by hand: value, expected
  const std::pair<float, float> cases[] = {{1.0f, 1.0f}, {2049.0f, 2048.0f}, {2051.0f, 2052.0f}, {65504.0f, 65504.0f}, {65519.0f, 65504.0f},
                                           {65520.0f, INFINITY}, {-1e6f, -INFINITY}, {0x1p-24f, 0x1p-24f}, {0x1p-25f, 0.0f}, {0x1.8p-24f, 0x1p-23f},
                                           {0x1.8p-25f, 0x1p-24f}, {-0x1p-14f, -0x1p-14f}};
  for (const Kernels* k : builds())
    for (const auto& [x, want] : cases) {
      float y = x;
      EXPECT_EQ(k->round_f16(&y, 1), std::fabs(x));
      EXPECT_EQ(y, want) << k->name << ' ' << x;
    }
  for (std::uint32_t h = 0; h < 0x10000; ++h) {  // every half survives a store and a load
    for (const Kernels* k : builds()) {
      const auto half = static_cast<std::uint16_t>(h);
      _Float16 as;
      std::memcpy(&as, &half, 2);
      float x = static_cast<float>(as), y = x;
      if (std::isnan(x)) continue;
      k->round_f16(&y, 1);
      ASSERT_EQ(x, y) << k->name << ' ' << h;
    }
  }
}

TEST(Kernels, StoredKeysAndValuesAreRoundedToNearestEven) {
  const auto x = random_row(20, 10, 100);
  for (const Kernels* k : builds()) {
    std::vector<std::uint16_t> key(20 * 16, 0xaaaa), value(24, 0xaaaa);
    k->store_k(KvDtype::kBf16, x.data(), 20, 16, key.data() + 3);
    k->store_v(KvDtype::kBf16, x.data(), 20, 24, value.data());
    for (int i = 0; i < 20; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &x[i], 4);
      const std::uint32_t low = bits & 0xffff, up = bits >> 16;
      const std::uint32_t want = low > 0x8000 || (low == 0x8000 && (up & 1)) ? up + 1 : up;
      EXPECT_EQ(key[i * 16 + 3], want) << k->name;
      EXPECT_EQ(value[i], want) << k->name;
    }
    for (int i = 20; i < 24; ++i) EXPECT_EQ(value[i], 0);
    EXPECT_EQ(key[2], 0xaaaa);
    EXPECT_EQ(key[4], 0xaaaa);
  }
}

}  // namespace
}  // namespace qengine
