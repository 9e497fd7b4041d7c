// What a load test sends when, and the figures made of it.
#include "core/load_test/load_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "core/base/error.hpp"
#include "core/load_test/prompts.hpp"
#include "core/load_test/serving_metrics.hpp"

namespace qengine {
namespace {

// Answers from threads of its own, and counts how many it holds at once.
class Slow final : public LoadTarget {
 public:
  ~Slow() override {
    for (auto& t : threads_) t.join();
  }
  void send(const LoadRequest& r, std::shared_ptr<LoadSink> sink) override {
    const std::lock_guard lock(mutex_);
    most = std::max(most, ++running_);
    threads_.emplace_back([this, n = r.output_tokens, sink, in = std::ssize(r.ids)] {
      for (std::int64_t i = 0; i < n && !cancelled; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        sink->event();
      }
      {
        const std::lock_guard lock(mutex_);
        --running_;
      }
      sink->done(in, n, -1, cancelled ? "cancelled" : n == 3 ? "broken" : "");
    });
  }
  void cancel_all() override { cancelled = true; }
  int most = 0;
  std::atomic<bool> cancelled{false};

 private:
  std::mutex mutex_;
  int running_ = 0;
  std::vector<std::thread> threads_;
};

std::vector<LoadRequest> requests(int n, std::int64_t tokens) {
  std::vector<LoadRequest> out(static_cast<std::size_t>(n));
  for (auto& r : out) r.ids = {1, 2, 3}, r.output_tokens = tokens;
  return out;
}

TEST(LoadRun, NeverMoreAtOnceThanAllowedAndEveryRequestIsAnsweredOnce) {
  Slow target;
  std::int64_t last = 0;
  const LoadResult r = run_load(target, requests(25, 4), {.max_concurrency = 4, .progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 25);
    EXPECT_GE(done, last);
    last = done;
  }});
  EXPECT_EQ(target.most, 4);
  ASSERT_EQ(r.records.size(), 25u);
  for (const RequestRecord& one : r.records) {
    EXPECT_TRUE(one.ok()) << one.error;
    EXPECT_EQ(one.output_tokens, 4);
    EXPECT_EQ(one.prompt_tokens, 3);
    EXPECT_EQ(one.gaps.size(), 3u);
    EXPECT_GE(one.first, one.start);
    EXPECT_LE(one.last, r.duration);
  }
}

TEST(LoadRun, AFailureIsOneOfTheRecordsAndAStopLeavesOutWhatHadNotEnded) {
  Slow target;
  auto some = requests(3, 2);
  some[1].output_tokens = 3;
  const LoadResult r = run_load(target, some, {});
  EXPECT_EQ(std::count_if(r.records.begin(), r.records.end(), [](const auto& x) { return !x.ok(); }), 1);
  EXPECT_EQ(r.records[1].error, "broken");

  Slow endless;
  std::atomic<bool> stop{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(80));
    stop = true;
  });
  const LoadResult cut = run_load(endless, requests(4, 1'000'000), {.max_concurrency = 2, .stop = &stop});
  later.join();
  EXPECT_TRUE(cut.interrupted);
  EXPECT_TRUE(cut.records.empty());
  EXPECT_LT(cut.duration, 60);
}

TEST(LoadRun, ArrivalsKeepTheRateAndTheShapeOfTheirProcess) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto at = arrival_times(20'001, 50, burstiness, 7);
    EXPECT_EQ(at, arrival_times(20'001, 50, burstiness, 7)) << "the same seed";
    EXPECT_NE(at, arrival_times(20'001, 50, burstiness, 8));
    std::vector<double> gaps(20'000);
    for (std::size_t i = 0; i < gaps.size(); ++i) gaps[i] = at[i + 1] - at[i];
    const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / 20'000;
    double variance = 0;
    for (const double g : gaps) variance += (g - mean) * (g - mean) / 20'000;
    // A gamma process: mean 1/rate, variance mean^2 / burstiness. Standard error of the mean: sd / sqrt(n).
    EXPECT_NEAR(mean, 0.02, 5 * 0.02 / std::sqrt(burstiness * 20'000));
    EXPECT_NEAR(variance * burstiness / (mean * mean), 1, 0.12);
  }
  for (const double t : arrival_times(5, std::numeric_limits<double>::infinity(), 1, 0)) EXPECT_EQ(t, 0);
}

TEST(RandomPrompts, AreDistinctInRangeAndOfTheLengthsAskedFor) {
  const auto fixed = random_prompts({.count = 50, .input_len = 17, .output_len = 5, .vocab_size = 1000, .seed = 3});
  std::set<std::vector<std::int32_t>> all;
  for (const auto& r : fixed) {
    EXPECT_EQ(r.ids.size(), 17u);
    EXPECT_EQ(r.output_tokens, 5);
    for (const auto id : r.ids) EXPECT_TRUE(id >= 0 && id < 1000);
    all.insert(r.ids);
  }
  EXPECT_EQ(all.size(), 50u);
  std::set<std::size_t> lengths;
  for (const auto& r : random_prompts({.count = 300, .input_len = 20, .range_ratio = 0.5, .vocab_size = 50, .seed = 1})) lengths.insert(r.ids.size());
  EXPECT_EQ(*lengths.begin(), 10u);
  EXPECT_EQ(*lengths.rbegin(), 30u);
  for (const auto& r : random_prompts({.count = 3, .input_len = 4, .seed = 1})) EXPECT_EQ(std::count(r.text.begin(), r.text.end(), ' '), 3);
}

TEST(CustomPrompts, AreReadLineByLineAndMistakesNameTheirs) {
  const auto r = prompts_of_jsonl("{\"prompt\":\"a b\"}\n\n{\"prompt\":[1,2],\"output_tokens\":7}\n", "p.jsonl", 9);
  ASSERT_EQ(r.size(), 2u);
  EXPECT_EQ(r[0].text, "a b");
  EXPECT_EQ(r[0].output_tokens, 9);
  EXPECT_EQ(r[1].ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(r[1].output_tokens, 7);
  for (const char* text : {"{\"prompt\":\"a\"}\n{\"text\":1}", "{\"prompt\":\"a\"}\n{\"prompt\":\"\"}", "{\"prompt\":\"a\"}\nnot json", "{\"prompt\":\"a\"}\n{\"prompt\":[-1]}", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"output_tokens\":0}"}) {
    try {
      prompts_of_jsonl(text, "p.jsonl", 9);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("p.jsonl:2"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(prompts_of_jsonl("\n", "p.jsonl", 9), Error);
}

// Two requests by hand: every figure can be checked on paper.
TEST(ServingMetrics, AreWhatTheirDefinitionsSay) {
  LoadResult r;
  r.duration = 4;
  r.records.push_back({.start = 0, .first = 0.5, .last = 1.5, .gaps = {0.25, 0.75}, .prompt_tokens = 10, .output_tokens = 3});
  r.records.push_back({.start = 1, .first = 2, .last = 4, .gaps = {2}, .prompt_tokens = 20, .output_tokens = 5});
  r.records.push_back({.start = 1, .error = "no"});
  r.records.push_back({.start = 2, .first = 3, .last = 3, .prompt_tokens = 1, .output_tokens = 1});
  const MetricsOptions o{.percentiles = {50, 99}, .shown = {"ttft", "tpot", "itl", "e2el"}, .goodput = {{"ttft", 900}, {"e2el", 1500}}};
  const ServingMetrics m = serving_metrics(r, o);
  EXPECT_EQ(m.completed, 3);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.input_tokens, 31);
  EXPECT_EQ(m.output_tokens, 9);
  EXPECT_DOUBLE_EQ(m.request_throughput, 0.75);
  EXPECT_DOUBLE_EQ(m.request_goodput, 0.25);  // only the first keeps both limits
  EXPECT_DOUBLE_EQ(m.output_throughput, 2.25);
  EXPECT_DOUBLE_EQ(m.total_throughput, 10);
  EXPECT_DOUBLE_EQ(m.latency.at("ttft").mean, 1e3 * (0.5 + 1 + 1) / 3);
  EXPECT_DOUBLE_EQ(m.latency.at("ttft").median, 1000);
  EXPECT_DOUBLE_EQ(m.latency.at("tpot").mean, 1e3 * (1.0 / 2 + 2.0 / 4) / 2);  // the answer of one token is left out
  EXPECT_DOUBLE_EQ(m.latency.at("itl").median, 750);
  EXPECT_DOUBLE_EQ(m.latency.at("e2el").percentiles[0], 1500);
  EXPECT_DOUBLE_EQ(m.latency.at("itl").percentiles[1], 1e3 * (0.75 + 0.98 * (2 - 0.75)));
  // Events at 0.5, 0.75, 1.5, 2, 4, 3: no second has more than two. Under way: two from 1 to 1.5, and from 2 to 3.
  EXPECT_DOUBLE_EQ(m.peak_output_throughput, 2);
  EXPECT_DOUBLE_EQ(m.peak_concurrency, 2);
  const std::string text = serving_text(m, o);
  EXPECT_EQ(text.substr(0, 51), "============ Serving Benchmark Result ============\n");
  EXPECT_NE(text.find("Successful requests:                     3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("---------------Time to First Token----------------\nMean TTFT (ms):                          833.33\n"), std::string::npos) << text;
  EXPECT_NE(text.find("-----Time per Output Token (excl. 1st token)------\n"), std::string::npos) << text;
  EXPECT_NE(text.find("P99 E2EL (ms):"), std::string::npos);
  const auto json = serving_json(m, o, r, true);
  EXPECT_EQ(json["errors"][2], "no");
  EXPECT_EQ(json["ttfts"][1], 1.0);
  EXPECT_EQ(json["p99_itl_ms"], m.latency.at("itl").percentiles[1]);
}

}  // namespace
}  // namespace qengine
