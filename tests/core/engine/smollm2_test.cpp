// SmolLM2-135M from its Q4_1 file, where `make run` puts it, against float32 values of another
// implementation on the same file (fixtures/smollm2-135m).
#include <cmath>
#include <cstdlib>

#include "tests/core/engine/open_model.hpp"
#include "tests/support/golden.hpp"

namespace qengine {
namespace {

std::filesystem::path file() {
  if (const char* env = std::getenv("QENGINE_SMOLLM2")) return env;
  return test::source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

class SmolLm2 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!std::filesystem::exists(file()) || test::fixture("smollm2-135m").empty()) return;
    golden = test::Golden::read(test::fixture("smollm2-135m"));
    exact = Engine::load(test::exact_options(file()));
  }
  static void TearDownTestSuite() { exact.reset(); }
  void SetUp() override {
    if (!exact) GTEST_SKIP() << "the model is not there: make run fetches it, or QENGINE_SMOLLM2 names it";
  }
  static double logprob(Engine& engine, const std::vector<std::int32_t>& ids) {
    Request r = test::greedy_request(ids, 0);
    r.sampling.prompt_logprobs = 0;
    const auto out = engine.generate({r})[0];
    double sum = 0;
    for (std::size_t i = 1; i < ids.size(); ++i) sum += out[0].prompt_logprobs[i][0].logprob;
    return sum;
  }
  static inline test::Golden golden;
  static inline std::unique_ptr<Engine> exact;
};

// On the default path too: 16-bit activations and a bf16 cache move no near tie of these texts.
TEST_F(SmolLm2, GreedyTextIsThatOfTheReference) {
  EngineOptions o = test::exact_options(file());
  o.exact = false;
  const auto fast = Engine::load(o);
  for (const auto& [name, p] : golden.json["prompts"].items())
    for (Engine* engine : {exact.get(), fast.get()}) {
      const auto got = test::tokens_of(engine->generate({test::greedy_request(p["ids"], 48)})[0]);
      EXPECT_EQ(got, p["greedy48"].get<std::vector<std::int32_t>>()) << name << (engine == exact.get() ? ", exact" : ", default");
    }
}

TEST_F(SmolLm2, PerplexityOfFourTexts) {
  double sum = 0, scored = 0;
  for (const auto& [name, t] : golden.json["texts"].items()) {
    const std::vector<std::int32_t> ids = t["ids"];
    const double got = logprob(*exact, ids);
    EXPECT_NEAR(got, t["logprob_sum"].get<double>(), 2e-4 * static_cast<double>(ids.size() - 1)) << name;
    sum += got;
    scored += static_cast<double>(ids.size() - 1);
  }
  EXPECT_EQ(scored, golden.json["all_texts"]["scored"]);
  EXPECT_NEAR(std::exp(-sum / scored) / golden.json["all_texts"]["ppl"].get<double>(), 1, 3e-5);
}

// int16 activations (one scale for 32 of them: NMSE 6e-10 a product) and a bf16 cache against the exact
// path: mean KL divergence per position, nearly all of it from the cache. Activations of 8 bits would give
// 3.5e-3; a wrong block or scale gives 0.1 and more.
TEST_F(SmolLm2, TheFastPathStaysClose) {
  EngineOptions o = test::exact_options(file());
  o.exact = false;
  const auto fast = Engine::load(o);
  double kl = 0;
  std::int64_t positions = 0, same_top = 0;
  for (const auto& [name, t] : golden.json["texts"].items()) {
    const std::vector<std::int32_t> ids = t["ids"];
    std::vector<std::vector<float>> want;
    exact->all_logits(ids, [&](std::int64_t, std::span<const float> row) { want.emplace_back(row.begin(), row.end()); });
    fast->all_logits(ids, [&](std::int64_t at, std::span<const float> row) {
      const std::vector<float>& w = want[static_cast<std::size_t>(at)];
      const auto log_sum = [](std::span<const float> x) {
        double s = 0;
        for (const float v : x) s += std::exp(double{v});
        return std::log(s);
      };
      const double lw = log_sum(w), lr = log_sum(row);
      for (std::size_t i = 0; i < w.size(); ++i) kl += std::exp(w[i] - lw) * ((w[i] - lw) - (row[i] - lr));
      same_top += std::ranges::max_element(w) - w.begin() == std::ranges::max_element(row) - row.begin();
      ++positions;
    });
  }
  std::cout << "mean KL " << kl / static_cast<double>(positions) << ", same top " << same_top << " of " << positions << "\n";
  EXPECT_LT(kl / static_cast<double>(positions), 1e-4);
  EXPECT_GT(kl / static_cast<double>(positions), 1e-6) << "this was the exact path";
  EXPECT_GT(same_top * 1000, positions * 985);
}

TEST_F(SmolLm2, CompanyAndCutsChangeNothing) {
  const std::vector<std::int32_t> prompt = golden.json["prompts"]["chat_haiku"]["ids"];
  for (const bool exact_path : {true, false}) {
    EngineOptions o = test::exact_options(file());
    o.exact = exact_path;
    const auto whole = Engine::load(o);
    const auto want = test::tokens_of(whole->generate({test::greedy_request(prompt, 24)})[0]);
    std::vector<Request> many(17, test::greedy_request(prompt, 24));
    for (std::size_t i = 0; i < 16; ++i) many[i].prompt.resize(3 + i * 2);
    EXPECT_EQ(test::tokens_of(whole->generate(many)[16]), want) << "exact " << exact_path;
    o.max_num_batched_tokens = 5;
    EXPECT_EQ(test::tokens_of(Engine::load(o)->generate({test::greedy_request(prompt, 24)})[0]), want) << "exact " << exact_path;
  }
}

TEST_F(SmolLm2, NothingIsHeldTwice) {
  // Weights as they lie in the file, norms in float32, the embedding packed once for both its uses.
  const auto size = std::filesystem::file_size(file());
  EXPECT_LT(exact->memory().weights_bytes, size * 102 / 100);
  EXPECT_GT(exact->memory().weights_bytes, size * 90 / 100);
}

}  // namespace
}  // namespace qengine
