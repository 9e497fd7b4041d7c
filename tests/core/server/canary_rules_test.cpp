#include "core/server/canary_rules.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace qengine::server {
namespace {

std::string key(int i) { return "user-" + std::to_string(i); }

// Of 20,000 users 5 % are 1,000, give or take four standard deviations of 31.
TEST(CanarySplit, TakesItsShareAndNoMore) {
  for (const double percent : {1.0, 5.0, 25.0, 50.0}) {
    int in = 0;
    for (int i = 0; i < 20'000; ++i) in += in_canary(key(i), "a1", percent);
    const double p = percent / 100, sigma = std::sqrt(20'000 * p * (1 - p));
    EXPECT_NEAR(in, 20'000 * p, 4 * sigma) << percent;
    EXPECT_NE(in, 20'000 * p) << "too good";
  }
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(in_canary(key(i), "a1", 0));
    EXPECT_TRUE(in_canary(key(i), "a1", 100));
  }
}

// A user keeps the side that they had: now, after a restart, and when the share grows.
TEST(CanarySplit, IsStickyAndGrowsOnly) {
  for (int i = 0; i < 2000; ++i) {
    const bool at5 = in_canary(key(i), "a1", 5), at25 = in_canary(key(i), "a1", 25);
    EXPECT_EQ(at5, in_canary(key(i), "a1", 5));
    EXPECT_TRUE(!at5 || at25) << key(i);
  }
  // Written down once: a change of the hash would move everybody at the next release.
  EXPECT_TRUE(in_canary("user-17", "a1", 100));
  std::string first;
  for (int i = 0; i < 40; ++i) first += in_canary(key(i), "a1", 50) ? '1' : '0';
  EXPECT_EQ(first, "1110100000110110010010010010111101000011");
}

// Another canary draws other users: nobody is always the first to be tried on.
TEST(CanarySplit, AnotherCanaryTakesOthers) {
  int both = 0, one = 0;
  for (int i = 0; i < 20'000; ++i) {
    const bool a = in_canary(key(i), "a1", 10), b = in_canary(key(i), "b2", 10);
    both += a && b;
    one += a;
  }
  EXPECT_NEAR(both, one * 0.1, 4 * std::sqrt(one * 0.1));
}

CanaryWindow window(std::int64_t n) {
  CanaryWindow w;
  std::mt19937 rng(3);
  std::lognormal_distribution<double> latency(-3, 0.3);
  for (std::int64_t i = 0; i < n; ++i)
    for (const Arm a : {Arm::kStable, Arm::kCanary}) {
      CanaryOutcome o;
      o.arm = a;
      o.ttft = latency(rng);
      o.gap = latency(rng) / 10;
      w.of(a).add(o);
    }
  return w;
}

std::string gates(const Verdict& v) {
  std::string out;
  for (const VerdictReason& r : v.reasons) out += (out.empty() ? "" : " ") + r.gate;
  return out;
}

TEST(CanaryVerdict, TwoAlikePass) {
  const Verdict v = judge_canary(window(200), {});
  EXPECT_EQ(v.grade, Verdict::kPass) << gates(v);
}

// Ten failures of 200 against none are certainly more than 1 % more; three may be chance.
TEST(CanaryVerdict, FailsOnRatesBeyondChanceOnly) {
  for (const auto& [failures, fails] : {std::pair{3, false}, {10, true}}) {
    CanaryWindow w = window(200);
    w.of(Arm::kCanary).errors = failures;
    EXPECT_EQ(gates(judge_canary(w, {})), fails ? "error_rate_delta" : "") << failures;
    w = window(200);
    for (const Arm a : {Arm::kStable, Arm::kCanary}) w.of(a).structured = w.of(a).tools = 200, w.of(a).good = 200 - failures;
    w.of(Arm::kCanary).structured_failed = 2 * failures;
    w.of(Arm::kCanary).tools_failed = 2 * failures;
    w.of(Arm::kCanary).bad = 3 * failures;
    EXPECT_EQ(gates(judge_canary(w, {})), fails ? "structured_fail_delta tool_fail_delta feedback_negative_delta" : "") << failures;
  }
  CanaryWindow better = window(200);
  better.of(Arm::kStable).errors = 50;
  EXPECT_EQ(gates(judge_canary(better, {})), "");
}

TEST(CanaryVerdict, FailsOnLatency) {
  for (const auto& [factor, fails] : {std::pair{1.2, false}, {2.0, true}}) {
    CanaryWindow w = window(300);
    for (double& x : w.of(Arm::kCanary).ttft) x *= factor;
    EXPECT_EQ(gates(judge_canary(w, {})), fails ? "ttft_p95_ratio" : "") << factor;
    w = window(300);
    for (double& x : w.of(Arm::kCanary).gap) x *= factor;
    EXPECT_EQ(gates(judge_canary(w, {})), fails ? "itl_p95_ratio" : "") << factor;
  }
  CanaryWindow few = window(10);  // a percentile of ten says nothing
  for (double& x : few.of(Arm::kCanary).ttft) x *= 10;
  EXPECT_EQ(gates(judge_canary(few, {})), "");
}

TEST(CanaryVerdict, FailsOnDivergenceWhenItsIntervalLiesBeyond) {
  CanaryWindow w = window(50);
  w.shadow = {0.2, 0.3, 0.25, 0.22};
  EXPECT_EQ(gates(judge_canary(w, {})), "shadow_kl_mean");
  w.shadow = {0.0, 0.0, 0.0, 0.4};  // mean 0.1, and as well chance
  EXPECT_EQ(gates(judge_canary(w, {})), "");
  w.shadow = {0.2, 0.3};
  EXPECT_EQ(gates(judge_canary(w, {})), "");
}

// Of 400 canaries that are as good as the stable one, looked at as often as the rule says up to 2,000 requests, few are sent home:
// one look is wrong in 2.5 % on the bad side at a limit of zero, and less at the limits that are set.
TEST(CanaryVerdict, SeldomSendsAGoodOneHome) {
  std::mt19937 rng(11);
  int sent = 0, looks = 0;
  for (int run = 0; run < 400; ++run) {
    CanaryWindow w;
    std::bernoulli_distribution fails(0.01);
    std::int64_t look = next_look(0, 200);
    for (std::int64_t n = 1; n <= 2000; ++n) {
      for (const Arm a : {Arm::kStable, Arm::kCanary}) {
        CanaryOutcome o;
        o.arm = a;
        o.error = fails(rng);
        w.of(a).add(o);
      }
      if (n < look) continue;
      ++looks;
      look = next_look(n, 200);
      if (judge_canary(w, {}).grade == Verdict::kFail) {
        ++sent;
        break;
      }
    }
  }
  EXPECT_LE(sent, 8) << looks;  // 2 %
  EXPECT_GT(looks, 400 * 20);
}

TEST(CanaryVerdict, LooksComeLaterAndLater) {
  EXPECT_EQ(next_look(0, 200), 200);
  EXPECT_EQ(next_look(150, 200), 200);
  EXPECT_EQ(next_look(200, 200), 220);
  EXPECT_EQ(next_look(5, 1), 6);
}

TEST(CanaryWindow, SurvivesAsJson) {
  CanaryWindow w = window(30);
  w.of(Arm::kCanary).tools = 3, w.of(Arm::kCanary).tools_failed = 1, w.of(Arm::kCanary).good = 2;
  const Json j = w.of(Arm::kCanary).json();
  EXPECT_EQ(ArmWindow::from_json(Json::parse(j.dump())).json(), j);
  EXPECT_EQ(ArmWindow::from_json(Json::object()).requests, 0);
  ArmWindow many;
  for (int i = 0; i < 2000; ++i) {
    CanaryOutcome o;
    o.ttft = i;
    many.add(o);
  }
  EXPECT_EQ(many.ttft.size(), ArmWindow::kMost);
  EXPECT_EQ(many.ttft.back(), 1999);
}

}  // namespace
}  // namespace qengine::server
