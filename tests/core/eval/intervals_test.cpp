// Intervals and tests against values worked out elsewhere, and their coverage by simulation.
#include "core/eval/intervals.hpp"

#include <gtest/gtest.h>

#include <random>

namespace qengine {
namespace {

TEST(Rates, AreThoseOfTheLiterature) {
  // Wilson: 15 of 20 -> 0.5313, 0.8881; 0 of 10 -> 0, 0.2775.
  const Interval a = rate_interval(15, 20);
  EXPECT_NEAR(a.low, 0.5313, 1e-4);
  EXPECT_NEAR(a.high, 0.8881, 1e-4);
  EXPECT_EQ(rate_interval(0, 10).low, 0);
  EXPECT_NEAR(rate_interval(0, 10).high, 0.2775, 1e-4);
  EXPECT_EQ(rate_interval(10, 10).high, 1);
  EXPECT_EQ(rate_interval(0, 0).high, 1);
  // Newcombe 1998, table II: 56/70 - 48/80, method 10: 0.0524 to 0.3339.
  const Interval d = rate_difference(56, 70, 48, 80);
  EXPECT_NEAR(d.value, 0.2, 1e-9);
  EXPECT_NEAR(d.low, 0.0524, 1e-4);
  EXPECT_NEAR(d.high, 0.3339, 1e-4);
}

TEST(McNemar, IsTheExactBinomialTest) {
  EXPECT_DOUBLE_EQ(mcnemar(0, 0), 1);
  EXPECT_NEAR(mcnemar(0, 5), 0.0625, 1e-12);          // 2 / 2^5
  EXPECT_NEAR(mcnemar(1, 9), 22.0 / 1024, 1e-12);     // 2 (1 + 10) / 2^10
  EXPECT_DOUBLE_EQ(mcnemar(9, 1), mcnemar(1, 9));
  EXPECT_DOUBLE_EQ(mcnemar(4, 4), 1);
  EXPECT_LT(mcnemar(5, 300), 1e-60);
}

TEST(Medians, OfOneOfEqualOnesAndOfPairs) {
  EXPECT_EQ(median_interval(std::vector<double>{7}).low, 7);
  const Interval same = median_interval(std::vector<double>{3, 3, 3, 3});
  EXPECT_EQ(same.low, 3);
  EXPECT_EQ(same.high, 3);
  const std::vector<double> a{10, 22, 30}, b{5, 11, 15};  // the level drifts, the ratio does not
  const Interval r = ratio_interval(a, b);
  EXPECT_DOUBLE_EQ(r.value, 2);
  EXPECT_DOUBLE_EQ(r.low, 2);
  EXPECT_DOUBLE_EQ(r.high, 2);
  EXPECT_TRUE(overlap({1, 0, 2}, {3, 2, 4}));
  EXPECT_FALSE(overlap({1, 0, 2}, {3, 2.1, 4}));
}

// A bootstrap of the median covers the median about as often as it says; of so few runs a little less.
TEST(Medians, TheirIntervalsCoverTheTruth) {
  std::mt19937_64 rng(11);
  std::normal_distribution<double> noise(100, 5);
  int covered = 0;
  constexpr int kTrials = 200;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> v(25);
    for (double& x : v) x = noise(rng);
    covered += median_interval(v).holds(100);
  }
  EXPECT_GE(covered, kTrials * 0.88);
  EXPECT_LT(covered, kTrials);  // an interval that always holds says nothing
}

TEST(Quantiles, RatioOfTwoSamples) {
  std::mt19937_64 rng(12);
  std::exponential_distribution<double> slow(1.0), slower(0.5);
  std::vector<double> a, b;
  for (int i = 0; i < 2000; ++i) a.push_back(slower(rng)), b.push_back(slow(rng));
  const Interval r = quantile_ratio_interval(a, b, .95);
  EXPECT_NEAR(r.value, 2, 0.3);
  EXPECT_TRUE(r.holds(2));
  EXPECT_FALSE(r.holds(1));
  EXPECT_TRUE(quantile_ratio_interval(a, a, .95).holds(1));
}

}  // namespace
}  // namespace qengine
