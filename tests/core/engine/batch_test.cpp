// One request gives the same tokens alone, in company, cut up, and after it had to start again.
#include <thread>

#include "tests/core/engine/open_model.hpp"
#include "tests/support/golden.hpp"

namespace qengine {
namespace {

class Company : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = test::fixture("tiny-qwen3");
    if (folder.empty()) GTEST_SKIP() << "fixture tiny-qwen3 is not there";
    const auto golden = test::Golden::read(folder);
    eval = golden.json["eval_ids"].get<std::vector<std::int32_t>>();
    prompt = golden.json["prompt_ids"]["p200"].get<std::vector<std::int32_t>>();
    want = run(options(), {request()})[0];
    ASSERT_EQ(want.size(), 40u);
  }
  EngineOptions options() const { return test::exact_options(folder); }
  Request request() const { return test::greedy_request(prompt, 40); }
  // `n` others of different lengths, some longer than a step.
  std::vector<Request> others(int n) const {
    std::vector<Request> r;
    for (int i = 0; i < n; ++i)
      r.push_back(test::greedy_request({eval.begin() + i * 7, eval.begin() + i * 7 + 3 + (i * 37) % 150}, 10 + (i * 13) % 50));
    return r;
  }
  std::vector<std::vector<std::int32_t>> run(const EngineOptions& o, std::vector<Request> requests, EngineStats* stats = nullptr) {
    const auto engine = Engine::load(o);
    std::vector<std::vector<std::int32_t>> tokens;
    for (const auto& out : engine->generate(std::move(requests))) tokens.push_back(test::tokens_of(out));
    if (stats) *stats = engine->stats();
    return tokens;
  }
  std::filesystem::path folder;
  std::vector<std::int32_t> eval, prompt, want;
};

TEST_F(Company, SixteenOthersChangeNothing) {
  auto requests = others(16);
  requests.insert(requests.begin() + 9, request());
  EXPECT_EQ(run(options(), requests)[9], want);
}

TEST_F(Company, ChunksOfAnySizeChangeNothing) {
  for (const std::int64_t budget : {1, 7, 64, 150, 4096}) {
    EngineOptions o = options();
    o.max_num_batched_tokens = budget;
    o.prefix_caching = false;
    EXPECT_EQ(run(o, {request()})[0], want) << "budget " << budget;
  }
  EngineOptions o = options();
  o.chunked_prefill = false;
  EXPECT_EQ(run(o, {request()})[0], want) << "whole";
}

TEST_F(Company, StartingAgainChangesNothing) {
  EngineOptions o = options();
  o.max_model_len = 320;
  o.num_gpu_blocks_override = 24;  // 384 tokens for much more than that
  for (const bool prefix : {false, true}) {
    o.prefix_caching = prefix;
    auto requests = others(6);
    requests.push_back(request());  // the youngest: the one that yields
    EngineStats stats;
    const auto got = run(o, requests, &stats);
    EXPECT_GT(stats.preemptions, 0);
    EXPECT_EQ(got[6], want) << "prefix cache " << prefix;
    EXPECT_EQ(stats.kv_blocks_used, 0);
  }
}

TEST_F(Company, ThreadsAndBlockSizesChangeNothing) {
  for (const auto& [threads, block] : {std::pair{1, 16}, {3, 32}, {2, 128}}) {
    EngineOptions o = options();
    o.threads = threads;
    o.block_size = block;
    EXPECT_EQ(run(o, {request()})[0], want) << threads << " threads, blocks of " << block;
  }
}

TEST_F(Company, AWarmPrefixCacheChangesNothing) {
  for (const char* dtype : {"auto", "bfloat16"}) {
    EngineOptions o = options();
    o.kv_cache_dtype = dtype;
    const auto engine = Engine::load(o);
    const auto cold = engine->generate({request()})[0], warm = engine->generate({request()})[0];
    EXPECT_EQ(cold[0].cached_tokens, 0);
    EXPECT_EQ(warm[0].cached_tokens, 192) << "twelve full blocks of 200 tokens";
    EXPECT_EQ(test::tokens_of(cold), test::tokens_of(warm)) << dtype;
    Request salted = request();
    salted.cache_salt = "other";
    EXPECT_EQ(engine->generate({salted})[0][0].cached_tokens, 0);
    Request scored = request();
    scored.sampling.prompt_logprobs = 1;
    const auto out = engine->generate({scored})[0];
    EXPECT_EQ(out[0].cached_tokens, 0);
    for (std::size_t i = 1; i < 200; ++i) ASSERT_EQ(out[0].prompt_logprobs[i].size(), 2u) << i;
  }
}

}  // namespace
}  // namespace qengine
