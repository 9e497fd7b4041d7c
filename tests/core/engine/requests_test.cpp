// The life of requests: ends, errors, cancellation, threads.
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <thread>

#include "core/base/error.hpp"
#include "core/sampling/constraint.hpp"
#include "tests/core/engine/open_model.hpp"
#include "tests/support/golden.hpp"

namespace qengine {
namespace {

class Requests : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = test::fixture("tiny-qwen3");
    if (folder.empty()) GTEST_SKIP() << "fixture tiny-qwen3 is not there";
    golden = test::Golden::read(folder);
    prompt = golden.json["prompt_ids"]["p64"].get<std::vector<std::int32_t>>();
    EngineOptions o = test::exact_options(folder);
    o.need_tokenizer = true;
    engine = Engine::load(o);
  }
  Request request(std::int64_t n) const { return test::greedy_request(prompt, n); }
  std::vector<Output> run(Request r) { return std::move(engine->generate({std::move(r)})[0]); }
  std::string text(std::span<const std::int32_t> ids) const { return engine->tokenizer()->decode({ids.begin(), ids.end()}, true); }
  template <class F>
  bool soon(F&& condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }

  std::filesystem::path folder;
  test::Golden golden;
  std::vector<std::int32_t> prompt;
  std::unique_ptr<Engine> engine;
};

// What is submitted together shares its first step, however long the submitting takes.
TEST_F(Requests, SubmittedTogetherTheyBeginTogether) {
  std::atomic<int> ended{0};
  std::vector<Request> eight;
  for (int i = 0; i < 8; ++i) {
    eight.push_back(request(1));
    eight.back().prompt.resize(static_cast<std::size_t>(4 + i));
    eight.back().on_output = [&](const Output& o) { ended += o.finish != FinishReason::kNone; };
  }
  EXPECT_EQ(engine->submit(std::move(eight)).size(), 8u);
  ASSERT_TRUE(soon([&] { return ended == 8; }));
  EXPECT_EQ(engine->stats().steps, 1);

  std::vector<Request> with_a_bad_one;
  for (int i = 0; i < 3; ++i) with_a_bad_one.push_back(request(1));
  with_a_bad_one[2].prompt.clear();
  EXPECT_THROW(engine->submit(std::move(with_a_bad_one)), Error);
  EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);
}

TEST_F(Requests, TextIsWhatTheTokensDecodeTo) {
  const auto out = run(request(30));
  const auto ids = test::tokens_of(out);
  ASSERT_EQ(ids.size(), 30u);
  EXPECT_EQ(out.back().finish, FinishReason::kLength);
  EXPECT_EQ(test::text_of(out), text(ids));
}

TEST_F(Requests, AStopStringSplitOverTokensEndsTheTextBeforeIt) {
  const auto ids = test::tokens_of(run(request(30)));
  const std::string whole = text(ids);
  // From the middle of one token's text to the middle of another's.
  const std::string stop = whole.substr(whole.size() / 2, 7);
  Request r = request(30);
  r.sampling.stop = {"never appears", stop};
  auto out = run(r);
  EXPECT_EQ(test::text_of(out), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(out.back().finish, FinishReason::kStop);
  EXPECT_EQ(out.back().stop_reason, stop);
  r.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(test::text_of(run(r)), whole.substr(0, whole.find(stop) + stop.size()));
}

TEST_F(Requests, AStopTokenEndsWithoutItsText) {
  const auto ids = test::tokens_of(run(request(30)));
  Request r = request(30);
  r.sampling.stop_token_ids = {ids[12]};
  const auto at = std::ranges::find(ids, ids[12]) - ids.begin();
  auto out = run(r);
  EXPECT_EQ(std::ssize(out), at + 1);
  EXPECT_TRUE(out.back().stop_token);
  EXPECT_EQ(out.back().stop_reason, std::to_string(ids[12]));
  EXPECT_EQ(test::text_of(out), text(std::span(ids).first(static_cast<std::size_t>(at))));
  r.sampling.min_tokens = 20;
  out = run(r);
  EXPECT_GE(out.size(), 21u);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NE(out[i].token, ids[12]) << "an end before min_tokens";
}

TEST_F(Requests, LogprobsOfChosenAndBestTokens) {
  Request r = request(5);
  r.sampling.logprobs = 4;
  const auto out = run(r);
  const auto& gaps = golden.json["modes"]["weights"]["p64"]["greedy_gaps"];
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(out[i].top.size(), 4u);
    EXPECT_EQ(out[i].top[0].id, out[i].token);
    EXPECT_EQ(out[i].top[0].logprob, out[i].logprob);
    EXPECT_EQ(out[i].rank, 1);
    EXPECT_NEAR(out[i].top[0].logprob - out[i].top[1].logprob, gaps[i].get<double>(), 3e-4);
  }
}

TEST_F(Requests, TheSeedAndNotTheCompanyDecidesWhatIsDrawn) {
  Request r = request(20);
  r.sampling.temperature = 1;
  r.sampling.seed = 7;
  const auto alone = test::tokens_of(run(r));
  std::vector<Request> many(5, r);
  many[1].sampling.seed = 8;
  many[2].sampling.seed.reset();
  const auto out = engine->generate(many);
  EXPECT_EQ(test::tokens_of(out[0]), alone);
  EXPECT_EQ(test::tokens_of(out[4]), alone);
  EXPECT_NE(test::tokens_of(out[1]), alone);
  EXPECT_NE(test::tokens_of(out[2]), test::tokens_of(out[3]));
}

TEST_F(Requests, NoTokensAskedForMeansOneEventAndNoText) {
  const auto out = run(request(0));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].token, -1);
  EXPECT_EQ(out[0].finish, FinishReason::kLength);
}

TEST_F(Requests, BadOnesAreRefusedAtTheDoor) {
  const auto code = [&](Request r) {
    try {
      engine->submit(std::move(r));
    } catch (const Error& e) {
      return e.code() + " " + e.message() + " | " + std::string(e.find("hint"));
    }
    return std::string("accepted");
  };
  EXPECT_EQ(code(test::greedy_request({}, 1)).substr(0, 4), "E107");
  EXPECT_EQ(code(test::greedy_request({1, 1024}, 1)).substr(0, 4), "E107");
  Request r = request(3);
  r.sampling.top_p = 0;
  EXPECT_EQ(code(r).substr(0, 4), "E107");
  const std::string limit = std::to_string(engine->max_model_len()), left = std::to_string(engine->max_model_len() - 64);
  EXPECT_EQ(code(request(engine->max_model_len())), "E502 maximum context length is " + limit + " tokens; the prompt has 64 and max_tokens asks for " + limit +
                                                        ", together " + std::to_string(engine->max_model_len() + 64) +
                                                        " | shorten the prompt or set max_tokens to at most " + left);
}

TEST_F(Requests, CancellingFreesTheBlocksAndAnswersOnce) {
  std::atomic<int> ends{0}, tokens{0};
  Request r = request(engine->max_model_len() - 64);
  r.on_output = [&](const Output& o) {
    if (o.finish == FinishReason::kNone) ++tokens;
    else if (o.finish == FinishReason::kAborted) ++ends;
  };
  const RequestId id = engine->submit(r);
  ASSERT_TRUE(soon([&] { return tokens > 2; }));
  EXPECT_GT(engine->stats().kv_blocks_used, 0);
  engine->cancel(id);
  engine->cancel(id);
  engine->cancel(id + 99);
  ASSERT_TRUE(soon([&] { return ends > 0; }));
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine->stats().running, 0);
  const int after = tokens;
  run(request(2));
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(tokens, after);
}

TEST_F(Requests, APausedOneWaitsWhileOthersRun) {
  std::atomic<int> tokens{0};
  std::atomic<bool> done{false};
  Request r = request(200);
  r.on_output = [&](const Output& o) {
    ++tokens;
    if (o.finish != FinishReason::kNone) done = true;
  };
  const RequestId id = engine->submit(r);
  ASSERT_TRUE(soon([&] { return tokens > 0; }));
  engine->pause(id, true);
  run(request(1));  // once this is answered, the pause has been seen
  const int before = tokens;
  run(request(5));
  EXPECT_EQ(tokens, before);
  engine->pause(id, false);
  EXPECT_TRUE(soon([&] { return done.load(); }));
}

TEST_F(Requests, ManyThreadsMaySubmitAndEachGetsItsOwn) {
  const auto want = test::tokens_of(run(request(10)));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) right += test::tokens_of(engine->generate({request(10)})[0]) == want;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(right, 32);
  EXPECT_EQ(engine->stats().generated_tokens, 33 * 10);
}

TEST_F(Requests, AnEngineThatGoesAwayEndsWhatRuns) {
  std::atomic<int> ends{0};
  for (int i = 0; i < 3; ++i) {
    Request r = request(engine->max_model_len() - 64);
    r.on_output = [&](const Output& o) { ends += o.finish == FinishReason::kAborted; };
    engine->submit(r);
  }
  engine.reset();
  EXPECT_EQ(ends, 3);
}

struct OnlyEven : TokenConstraint {
  std::vector<std::uint32_t> bits = std::vector<std::uint32_t>(32, 0x55555555u);
  int accepted = 0;
  std::span<const std::uint32_t> allowed() override { return bits; }
  bool accept(std::int32_t t) override { return ++accepted, t % 2 == 0; }
};

TEST_F(Requests, AConstraintSeesEveryTokenItAllowed) {
  Request r = request(12);
  auto even = std::make_shared<OnlyEven>();
  r.sampling.constraint = even;
  for (const std::int32_t t : test::tokens_of(run(r))) EXPECT_EQ(t % 2, 0);
  EXPECT_EQ(even->accepted, 12);
  even->bits.assign(32, 0);
  const auto out = run(r);
  EXPECT_EQ(out.back().finish, FinishReason::kError);
  EXPECT_EQ(out.back().error.substr(0, 4), "E107");
  EXPECT_EQ(test::tokens_of(run(request(3))).size(), 3u) << "the next request works";
}

TEST(Overflow, Float16EndsWithE406AndWiderTypesDoNot) {
  const auto folder = test::fixture("reports/overflow-fp16");
  if (folder.empty()) GTEST_SKIP() << "fixture reports/overflow-fp16 is not there";
  const auto golden = test::Golden::read(folder);
  const std::vector<std::int32_t> prompt = golden.json["prompt_ids"]["p64"];
  for (const char* dtype : {"float16", "bfloat16", "float32", "auto"}) {
    EngineOptions o = test::exact_options(folder);
    o.dtype = dtype;
    o.exact = false;
    const auto engine = Engine::load(o);
    const auto out = engine->generate({test::greedy_request(prompt, 4)})[0];
    if (std::string(dtype) == "float16") {
      EXPECT_EQ(out.back().finish, FinishReason::kError);
      EXPECT_EQ(out.back().error.substr(0, 38), "E406 logits became non-finite in layer");
      const std::string type = "(float16, largest activation ";
      ASSERT_NE(out.back().error.find(type), std::string::npos) << out.back().error;
      EXPECT_GT(std::stod(out.back().error.substr(out.back().error.find(type) + type.size())), 65504);
      EXPECT_NE(out.back().error.find("use --dtype bfloat16"), std::string::npos);
      EXPECT_EQ(test::text_of(out), "");
      EXPECT_EQ(engine->stats().nonfinite, 1);
      EXPECT_THROW(engine->all_logits(prompt, [](std::int64_t, std::span<const float>) {}), Error);
    } else {
      EXPECT_EQ(test::tokens_of(out).size(), 4u) << dtype;
    }
  }
}

TEST(Eos, AnyIdOfTheListEndsTheText) {
  const auto folder = test::fixture("reports/eos-several");
  if (folder.empty()) GTEST_SKIP() << "fixture reports/eos-several is not there";
  nlohmann::json want;
  std::ifstream(folder / "request.json") >> want;
  const auto engine = Engine::load(test::exact_options(folder));
  Request r = test::greedy_request(want["prompt_ids"], want["max_tokens"]);
  r.sampling.ignore_eos = false;
  const auto out = engine->generate({r})[0];
  auto ids = test::tokens_of(out);
  EXPECT_EQ(ids.back(), want["expect"]["stop_token"]);
  ids.pop_back();
  EXPECT_EQ(ids, want["expect"]["token_ids"]);
  EXPECT_EQ(out.back().finish, FinishReason::kStop);
  EXPECT_TRUE(out.back().stop_token);
}

}  // namespace
}  // namespace qengine
