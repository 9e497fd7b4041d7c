#include "core/eval/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/eval/verdict.hpp"

namespace qengine {
namespace {

struct Sample {
  std::vector<std::vector<float>> base, q;
  std::vector<std::int32_t> token;
};

Sample sample(int n, int vocabulary, float noise, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Sample s;
  for (int i = 0; i < n; ++i) {
    s.base.emplace_back(vocabulary);
    for (float& x : s.base.back()) x = 3 * normal(rng);
    s.q.push_back(s.base.back());
    for (float& x : s.q.back()) x += noise * normal(rng);
    s.token.push_back(static_cast<std::int32_t>(rng() % vocabulary));
  }
  return s;
}

KlStats stats(const Sample& s) {
  KlStats k;
  for (std::size_t i = 0; i < s.token.size(); ++i) k.add(s.base[i], s.q[i], s.token[i]);
  return k;
}

// Against probabilities written out in full.
TEST(KlStats, FollowTheDefinitions) {
  const Sample s = sample(200, 50, 0.3f, 1);
  const KlStats k = stats(s);
  double kld = 0, nll_q = 0, nll_b = 0, dp = 0, dp2 = 0;
  int same = 0;
  std::vector<double> all;
  for (std::size_t i = 0; i < s.token.size(); ++i) {
    const auto softmax = [](const std::vector<float>& x) {
      std::vector<long double> p(x.size());
      long double sum = 0;
      for (std::size_t j = 0; j < x.size(); ++j) sum += p[j] = std::exp(static_cast<long double>(x[j]));
      for (auto& v : p) v /= sum;
      return p;
    };
    const auto p = softmax(s.base[i]), q = softmax(s.q[i]);
    double d = 0;
    for (std::size_t j = 0; j < p.size(); ++j)
      if (std::log(p[j]) > -16) d += static_cast<double>(p[j] * std::log(p[j] / q[j]));
    all.push_back(d);
    kld += d;
    nll_q -= static_cast<double>(std::log(q[s.token[i]]));
    nll_b -= static_cast<double>(std::log(p[s.token[i]]));
    dp += static_cast<double>(q[s.token[i]] - p[s.token[i]]);
    dp2 += static_cast<double>((q[s.token[i]] - p[s.token[i]]) * (q[s.token[i]] - p[s.token[i]]));
    same += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
  }
  const double n = 200;
  EXPECT_NEAR(k.kld().value, kld / n, 1e-7);
  EXPECT_NEAR(k.ppl_q().value / std::exp(nll_q / n), 1, 1e-9);
  EXPECT_NEAR(k.ppl_base().value / std::exp(nll_b / n), 1, 1e-9);
  EXPECT_NEAR(k.ln_ppl_ratio().value, (nll_q - nll_b) / n, 1e-9);
  EXPECT_NEAR(k.delta_p().value, dp / n, 1e-7);
  EXPECT_NEAR(k.delta_p_rms().value, std::sqrt(dp2 / n), 1e-6);
  EXPECT_EQ(k.same_top().value, same / n);
  std::sort(all.begin(), all.end());
  EXPECT_NEAR(k.kld_distribution().max, all.back(), 1e-6);
  EXPECT_NEAR(k.kld_distribution().median, (all[99] + all[100]) / 2, 1e-6);
  EXPECT_NEAR(k.kld_distribution().p90, all[179] + 0.1 * (all[180] - all[179]), 1e-6);
}

// The errors that are printed are those that repeating the measurement shows, within a factor.
TEST(KlStats, ErrorsAreThoseOfRepetition) {
  std::vector<double> kld, ratio, difference, same;
  double kld_error = 0, ratio_error = 0, difference_error = 0, same_error = 0;
  constexpr int kRepeats = 300;
  for (int r = 0; r < kRepeats; ++r) {
    const KlStats k = stats(sample(100, 20, 0.5f, 100 + r));
    kld.push_back(k.kld().value);
    ratio.push_back(k.ln_ppl_ratio().value);
    difference.push_back(k.ppl_difference().value / k.ppl_base().value);
    same.push_back(k.same_top().value);
    kld_error += k.kld().error / kRepeats;
    ratio_error += k.ln_ppl_ratio().error / kRepeats;
    difference_error += k.ppl_difference().error / k.ppl_base().value / kRepeats;
    same_error += k.same_top().error / kRepeats;
  }
  const auto deviation = [](const std::vector<double>& v) {
    double m = 0, d = 0;
    for (const double x : v) m += x / v.size();
    for (const double x : v) d += (x - m) * (x - m) / (v.size() - 1);
    return std::sqrt(d);
  };
  // 300 repeats know a standard deviation to 4 %; first-order propagation adds a little for PPL itself.
  EXPECT_NEAR(kld_error / deviation(kld), 1, 0.15);
  EXPECT_NEAR(ratio_error / deviation(ratio), 1, 0.15);
  EXPECT_NEAR(difference_error / deviation(difference), 1, 0.25);
  EXPECT_NEAR(same_error / deviation(same), 1, 0.15);
}

TEST(KlStats, AModelAgainstItselfHasNone) {
  const KlStats k = stats(sample(150, 40, 0, 5));
  EXPECT_EQ(k.kld().value, 0);
  EXPECT_EQ(k.same_top().value, 1);
  EXPECT_EQ(k.ppl_ratio().value, 1);
  EXPECT_NEAR(k.correlation(), 1, 1e-9);
  EXPECT_EQ(judge(k, default_gates(16, 1'000'000, 16)).grade, Verdict::kPass);
}

TEST(KlStats, NonFiniteLogitsAreCountedAndFail) {
  Sample s = sample(150, 40, 0.01f, 6);
  s.q[3][7] = std::numeric_limits<float>::quiet_NaN();
  s.q[4][7] = std::numeric_limits<float>::infinity();
  const KlStats k = stats(s);
  EXPECT_EQ(k.non_finite(), 2);
  EXPECT_EQ(k.count(), 148);
  EXPECT_TRUE(std::isfinite(k.kld().value));
  EXPECT_EQ(judge(k, default_gates(4, 1'000'000, 16)).grade, Verdict::kFail);
}

TEST(Verdict, NamesTheGateItsValueAndItsLimit) {
  const KlStats k = stats(sample(300, 40, 1.0f, 8));
  const Verdict v = judge(k, {.kl_mean_ok = 1e-6, .kl_mean_fail = 1e-5, .same_top_warn = 0.999, .ppl_ratio_fail = 1.5});
  EXPECT_EQ(v.grade, Verdict::kFail);
  ASSERT_GE(v.reasons.size(), 2u);
  EXPECT_EQ(v.reasons[0].gate, "kl_mean_fail");
  EXPECT_EQ(v.reasons[0].limit, 1e-5);
  EXPECT_EQ(v.reasons[1].gate, "same_top_warn");
  EXPECT_EQ(judge(k, {.kl_mean_ok = 1e-6, .kl_mean_fail = 1e9, .same_top_warn = 0, .ppl_ratio_fail = 100}).grade, Verdict::kWarn);
}

TEST(PerplexityStats, IsTheExponentOfTheMean) {
  PerplexityStats p;
  for (int i = 0; i < 100; ++i) p.add(i % 2 ? 1.0 : 3.0);
  EXPECT_NEAR(p.ppl().value, std::exp(2.0), 1e-12);
  EXPECT_NEAR(p.nll().error, std::sqrt(1.0 / 99), 1e-12);
  EXPECT_TRUE(p.finite());
  p.add(NAN);
  EXPECT_FALSE(p.finite());
  EXPECT_EQ(p.count(), 100);
}

TEST(KlText, HasTheLinesThatPeopleLookFor) {
  const std::string text = kl_text(stats(sample(120, 30, 0.2f, 9)));
  for (const char* name : {"====== Perplexity statistics ======", "Mean PPL(Q)", "Mean PPL(base)", "Cor(ln(PPL(Q)), ln(PPL(base)))", "Mean ln(PPL(Q)/PPL(base))",
                           "Mean PPL(Q)/PPL(base)", "Mean PPL(Q)-PPL(base)", "====== KL divergence statistics ======", "Mean    KLD:", "Maximum KLD:", "99.9%   KLD:",
                           "Median  KLD:", " 0.1%   KLD:", "Minimum KLD:", "====== Token probability statistics ======", "Mean    Δp:", "75.0%   Δp:", "RMS Δp    :",
                           "Same top p:"})
    EXPECT_NE(text.find(name), text.npos) << name;
}

}  // namespace
}  // namespace qengine
