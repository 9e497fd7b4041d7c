// Whole models against another implementation's float32 values (fixtures/README.md, tolerances there).
#include <cmath>

#include "tests/core/engine/open_model.hpp"
#include "tests/support/golden.hpp"

namespace qengine {
namespace {

class Goldens : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto folder = test::fixture(GetParam());
    if (folder.empty()) GTEST_SKIP() << "fixture " << GetParam() << " is not there";
    golden = test::Golden::read(folder);
    engine = Engine::load(test::exact_options(folder));
  }
  test::Golden golden;
  std::unique_ptr<Engine> engine;
};

TEST_P(Goldens, LogitsOfThreePromptsAreThoseOfTheReference) {
  for (const auto& [prompt, ids] : golden.json["prompt_ids"].items()) {
    const auto& last = golden.tensors.at("weights." + prompt + ".last_logits");
    const auto& top = golden.tensors.at("weights." + prompt + ".top20_logits");
    const std::vector<std::int32_t> tokens = ids;
    std::int64_t seen = 0;
    engine->all_logits(tokens, [&](std::int64_t position, std::span<const float> row) {
      ASSERT_EQ(position, seen++);
      std::vector<float> sorted(row.begin(), row.end());
      std::ranges::sort(sorted, std::greater<>());
      for (int i = 0; i < 20; ++i) ASSERT_NEAR(sorted[static_cast<std::size_t>(i)], top[static_cast<std::size_t>(position * 20 + i)], 2e-4) << prompt << ' ' << position;
      if (position + 1 < std::ssize(tokens)) return;
      ASSERT_EQ(row.size(), last.size());
      for (std::size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], last[i], 2e-4) << prompt << " logit " << i;
    });
    EXPECT_EQ(seen, std::ssize(tokens));
  }
}

TEST_P(Goldens, GreedyTextIsThatOfTheReferenceUpToTheFirstNearTie) {
  for (const auto& [prompt, ids] : golden.json["prompt_ids"].items()) {
    const auto& want = golden.json["modes"]["weights"][prompt];
    const auto got = test::tokens_of(engine->generate({test::greedy_request(ids, 32)})[0]);
    ASSERT_EQ(got.size(), 32u);
    for (std::size_t i = 0; i < 32 && want["greedy_gaps"][i] >= 1e-3; ++i) ASSERT_EQ(got[i], want["greedy32"][i]) << prompt << " step " << i;
  }
}

TEST_P(Goldens, PromptLogprobsOfAThousandTokens) {
  const std::vector<std::int32_t> ids = golden.json["eval_ids"];
  const auto& want = golden.tensors.at("weights.eval.token_logprobs");
  std::int64_t limit = std::min<std::int64_t>(std::ssize(ids), engine->max_model_len());
  Request r = test::greedy_request({ids.begin(), ids.begin() + limit}, 0);
  r.sampling.prompt_logprobs = 0;
  const auto out = engine->generate({r})[0];
  ASSERT_EQ(out.size(), 1u);
  ASSERT_EQ(std::ssize(out[0].prompt_logprobs), limit);
  EXPECT_TRUE(out[0].prompt_logprobs[0].empty());
  double sum = 0, golden_sum = 0;
  for (std::int64_t i = 1; i < limit; ++i) {
    const TokenLogprob& t = out[0].prompt_logprobs[static_cast<std::size_t>(i)].at(0);
    ASSERT_EQ(t.id, ids[static_cast<std::size_t>(i)]);
    ASSERT_NEAR(t.logprob, want[static_cast<std::size_t>(i) - 1], 2e-4) << i;
    sum += t.logprob;
    golden_sum += want[static_cast<std::size_t>(i) - 1];
  }
  EXPECT_NEAR(sum, golden_sum, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Unquantized, Goldens, ::testing::Values("tiny-qwen3", "tiny-llama", "tiny-qwen2"));
// Faults of public reports that touch the forward pass: rope scaling, windows, biases, defaults, rows.
INSTANTIATE_TEST_SUITE_P(Reports, Goldens,
                         ::testing::Values("reports/tied-duplicate-different", "reports/llama-keys-absent", "reports/sliding-window-disabled", "reports/llama-attention-bias",
                                           "reports/rope-yarn", "reports/tp3-smollm2-shape", "reports/overflow-fp16", "reports/eos-several"));

}  // namespace
}  // namespace qengine
