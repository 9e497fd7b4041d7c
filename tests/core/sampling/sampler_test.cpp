#include "core/sampling/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "core/base/error.hpp"
#include "core/sampling/constraint.hpp"

namespace qengine {
namespace {

std::vector<float> random_logits(std::size_t n, unsigned seed, float scale = 2) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = d(rng);
  return x;
}

SamplingParams greedy() {
  SamplingParams p;
  p.temperature = 0;
  return p;
}

std::int32_t pick(const SamplingParams& p, std::vector<float> logits, std::vector<std::int32_t> output = {}, std::vector<std::int32_t> prompt = {},
                  std::vector<std::int32_t> ends = {}) {
  Sampler s(p, static_cast<std::int32_t>(logits.size()), prompt, std::move(ends), 1);
  for (const std::int32_t t : output) s.accept(t);
  return s.sample(logits).token;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualsAndNoPadding) {
  const SamplingParams p = greedy();
  const std::vector<float> logits{1, 5, 5, 9};
  EXPECT_EQ(Sampler(p, 3, {}, {}, 0).sample(logits).token, 1);  // id 3 is not in the tokenizer
}

TEST(Sampler, ANonFiniteLogitIsReportedWhereverItIs) {
  const SamplingParams p = greedy();
  for (std::size_t at : {0u, 40u, 99u}) {
    auto logits = random_logits(100, 1);
    logits[at] = NAN;
    EXPECT_EQ(Sampler(p, 90, {}, {}, 0).sample(logits).status, SampleResult::Status::kNonFinite) << at;
  }
}

TEST(Sampler, BiasPenaltiesAndBans) {
  SamplingParams p = greedy();
  EXPECT_EQ(pick(p, {1, 2, 3}), 2);
  p.logit_bias = {{0, 5.0f}};
  EXPECT_EQ(pick(p, {1, 2, 3}), 0);
  p = greedy();
  p.repetition_penalty = 2;
  EXPECT_EQ(pick(p, {1, 2, 3}, {2}), 1);       // 3 / 2
  EXPECT_EQ(pick(p, {1, 2, 3}, {}, {2}), 1);   // prompt counts too
  EXPECT_EQ(pick(p, {-3, -2.5f, -2}, {2}), 1); // negative logits are multiplied
  EXPECT_EQ(pick(p, {0, 2.2f, 4.2f}, {2}, {2}), 1) << "a token in prompt and output is punished once";
  p = greedy();
  p.frequency_penalty = 0.6;
  EXPECT_EQ(pick(p, {1, 2, 3}, {2}), 2);
  EXPECT_EQ(pick(p, {1, 2, 3}, {2, 2}), 1);
  EXPECT_EQ(pick(p, {1, 2, 3}, {}, {2, 2}), 2);  // the prompt does not count
  p = greedy();
  p.presence_penalty = 1.1;
  EXPECT_EQ(pick(p, {1, 2, 3}, {2}), 1);
  p = greedy();
  p.bad_words = {{2}, {7, 1}};
  EXPECT_EQ(pick(p, {1, 2, 3}), 1);
  EXPECT_EQ(pick(p, {1, 2, 3}, {7}), 0);
  p = greedy();
  p.allowed_token_ids = {0, 1};
  EXPECT_EQ(pick(p, {1, 2, 3}), 1);
  p = greedy();
  p.min_tokens = 2;
  EXPECT_EQ(pick(p, {1, 2, 3}, {0}, {}, {2}), 1);
  EXPECT_EQ(pick(p, {1, 2, 3}, {0, 0}, {}, {2}), 2);
}

struct Mask : TokenConstraint {
  std::vector<std::uint32_t> bits;
  std::span<const std::uint32_t> allowed() override { return bits; }
  bool accept(std::int32_t) override { return true; }
};

TEST(Sampler, AConstraintLeavesOnlyItsTokens) {
  SamplingParams p = greedy();
  auto mask = std::make_shared<Mask>();
  p.constraint = mask;
  const auto logits = random_logits(100, 3);
  EXPECT_EQ(pick(p, logits), std::max_element(logits.begin(), logits.end()) - logits.begin());
  mask->bits = {0, 1u << 5 | 1u << 9};  // shorter than the vocabulary: the rest is forbidden
  EXPECT_EQ(pick(p, logits), logits[37] >= logits[41] ? 37 : 41);
  mask->bits = {0};
  EXPECT_EQ(Sampler(p, 100, {}, {}, 0).sample(logits).status, SampleResult::Status::kNothingAllowed);
}

// Frequencies of many draws against the distribution computed the plain way.
struct Shape {
  double temperature, top_p, min_p;
  std::int64_t top_k;
};
class Draws : public ::testing::TestWithParam<Shape> {};

TEST_P(Draws, FollowTheFilteredDistribution) {
  const Shape c = GetParam();
  SamplingParams p;
  p.temperature = c.temperature;
  p.top_p = c.top_p;
  p.min_p = c.min_p;
  p.top_k = c.top_k;
  const auto logits = random_logits(400, 5);
  std::vector<std::pair<double, std::int32_t>> sorted;
  for (std::int32_t i = 0; i < 400; ++i) sorted.push_back({std::exp(logits[i] / c.temperature), i});
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::erase_if(sorted, [&, best = sorted[0].first](const auto& s) { return s.first < c.min_p * best; });
  if (c.top_k > 0 && std::ssize(sorted) > c.top_k) sorted.resize(static_cast<std::size_t>(c.top_k));
  double total = 0, cum = 0;
  for (const auto& s : sorted) total += s.first;
  std::size_t keep = 0;
  while (keep < sorted.size() && (keep == 0 || cum < c.top_p * total)) cum += sorted[keep++].first;
  sorted.resize(keep);
  std::vector<double> want(400, 0);
  for (const auto& s : sorted) want[s.second] = s.first / cum;

  constexpr int kDraws = 40000;
  std::vector<int> count(400, 0);
  for (int i = 0; i < kDraws; ++i) ++count[Sampler(p, 400, {}, {}, static_cast<std::uint64_t>(i) * 7919).sample(logits).token];
  double chi2 = 0;
  int cells = 0;
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(want[i] > 0 || count[i] == 0) << "token " << i << " is filtered out";
    if (want[i] * kDraws < 5) continue;
    chi2 += std::pow(count[i] - want[i] * kDraws, 2) / (want[i] * kDraws);
    ++cells;
  }
  // chi-square with cells - 1 degrees: mean cells, deviation sqrt(2 cells); five deviations either way.
  EXPECT_LT(chi2, cells + 5 * std::sqrt(2.0 * cells));
  EXPECT_GE(chi2, cells - 1 - 5 * std::sqrt(2.0 * cells)) << "too even to be random";
}

INSTANTIATE_TEST_SUITE_P(Filters, Draws,
                         ::testing::Values(Shape{1, 1, 0, 0}, Shape{0.7, 1, 0, 10}, Shape{1, 0.8, 0, 0}, Shape{1.5, 0.95, 0, 50}, Shape{1, 1, 0.05, 0},
                                           Shape{1, 0.9, 0.02, 0}, Shape{0.2, 0.5, 0, 3}, Shape{1, 0.0001, 0, 0}, Shape{2, 0.999, 0, -1}));

TEST(Sampler, TheDrawDependsOnSeedAndCountAlone) {
  SamplingParams p;
  const auto logits = random_logits(1000, 6, 0.5);
  Sampler a(p, 1000, {}, {}, 42), b(p, 1000, std::vector<std::int32_t>{1, 2}, {}, 42), other(p, 1000, {}, {}, 43);
  std::vector<std::int32_t> xs, ys, zs;
  for (int i = 0; i < 20; ++i) {
    xs.push_back(a.sample(logits).token);
    b.sample(random_logits(1000, static_cast<unsigned>(i)));  // a draw that was not accepted changes nothing
    ys.push_back(b.sample(logits).token);
    zs.push_back(other.sample(logits).token);
    a.accept(xs.back());
    b.accept(ys.back());
    other.accept(zs.back());
  }
  EXPECT_EQ(xs, ys);
  EXPECT_NE(xs, zs);
  EXPECT_GT(std::set<std::int32_t>(xs.begin(), xs.end()).size(), 10u);
}

TEST(Logprobs, AreTheLogSoftmaxOfTheRawRowAndPrintEqualBits) {
  SamplingParams p = greedy();
  p.logprobs = 3;
  p.logit_bias = {{17, 50.0f}};
  const auto logits = random_logits(500, 8);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  Sampler s(p, 490, {}, {}, 0);
  SampleResult r = s.sample(logits);
  EXPECT_EQ(r.token, 17);
  EXPECT_NEAR(r.logprob.logprob, logits[17] - std::log(sum), 2e-6);
  std::vector<std::int32_t> order(490);
  for (std::int32_t i = 0; i < 490; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  ASSERT_EQ(r.top.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(r.top[i].id, order[i]);
    EXPECT_EQ(r.top[i].rank, i + 1);
    EXPECT_NEAR(r.top[i].logprob, logits[order[i]] - std::log(sum), 2e-6);
  }
  EXPECT_EQ(r.logprob.rank, std::find(order.begin(), order.end(), 17) - order.begin() + 1);
  p.logit_bias.clear();
  r = Sampler(p, 490, {}, {}, 0).sample(logits);
  EXPECT_EQ(r.logprob.logprob, r.top[0].logprob);  // compared as floats by clients
}

TEST(SamplingParams, EachBadFieldIsNamedWithItsValueAndTheAllowedOnes) {
  const auto refused = [](auto change, const char* message) {
    SamplingParams p;
    change(p);
    try {
      check(p, 100);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), "E107");
      EXPECT_EQ(e.message(), message);
      EXPECT_NE(e.find("hint"), "");
    }
  };
  refused([](auto& p) { p.temperature = -1; }, "temperature is -1");
  refused([](auto& p) { p.temperature = NAN; }, "temperature is nan");
  refused([](auto& p) { p.top_p = 0; }, "top_p is 0");
  refused([](auto& p) { p.top_k = -2; }, "top_k is -2");
  refused([](auto& p) { p.min_tokens = 17; }, "min_tokens is 17");
  refused([](auto& p) { p.frequency_penalty = 2.5; }, "frequency_penalty is 2.5");
  refused([](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty is 0");
  refused([](auto& p) { p.logit_bias[100] = 1; }, "logit_bias is 100");
  refused([](auto& p) { p.stop = {""}; }, "stop is an empty string");
  refused([](auto& p) { p.stop_token_ids = {-1}; }, "stop_token_ids is -1");
  SamplingParams fine;
  EXPECT_NO_THROW(check(fine, 100));
}

}  // namespace
}  // namespace qengine
