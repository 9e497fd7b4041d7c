// Whole models on a GPU against the CPU's float32 path on the same dequantized weights: the difference is
// bf16 arithmetic and nothing else. And every way of launching the same step against each other, bit for bit.
#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/core/engine/open_model.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/gpu.hpp"

namespace qengine {
namespace {

EngineOptions gpu_options(const std::filesystem::path& model) {
  EngineOptions o = test::exact_options(model);
  o.exact = false;
  o.device = "cuda:0";
  o.kv_cache_memory_bytes = 64 << 20;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 512;
  return o;
}

struct Distance {
  double kl = 0;       // mean over positions
  double same_top = 0; // share
};

Distance distance(Engine& reference, Engine& other, const std::vector<std::vector<std::int32_t>>& texts) {
  Distance d;
  std::int64_t positions = 0, same = 0;
  for (const auto& ids : texts) {
    std::vector<std::vector<float>> want;
    reference.all_logits(ids, [&](std::int64_t, std::span<const float> row) { want.emplace_back(row.begin(), row.end()); });
    other.all_logits(ids, [&](std::int64_t at, std::span<const float> row) {
      const std::vector<float>& w = want[static_cast<std::size_t>(at)];
      const auto log_sum = [](std::span<const float> x) {
        const float most = *std::ranges::max_element(x);
        double s = 0;
        for (const float v : x) s += std::exp(double{v} - most);
        return most + std::log(s);
      };
      const double lw = log_sum(w), lr = log_sum(row);
      for (std::size_t i = 0; i < w.size(); ++i) d.kl += std::exp(w[i] - lw) * ((w[i] - lw) - (row[i] - lr));
      same += std::ranges::max_element(w) - w.begin() == std::ranges::max_element(row) - row.begin();
      ++positions;
    });
  }
  d.kl /= static_cast<double>(positions);
  d.same_top = static_cast<double>(same) / static_cast<double>(positions);
  return d;
}

std::vector<std::int32_t> random_ids(std::int64_t vocab, std::size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(vocab)));
  return ids;
}

class CudaModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    QE_NEEDS_GPU();
    folder = test::fixture(GetParam());
    if (folder.empty()) GTEST_SKIP() << "fixture " << GetParam() << " is not there";
  }
  std::filesystem::path folder;
};

TEST_P(CudaModel, LogitsAreThoseOfTheCpuWithinBf16) {
  const auto cpu = Engine::load(test::exact_options(folder));
  const auto gpu = Engine::load(gpu_options(folder));
  EXPECT_EQ(gpu->options().device, "cuda:0");
  const Distance d = distance(*cpu, *gpu, {random_ids(cpu->config().vocab_size, 300, 1), random_ids(cpu->config().vocab_size, 7, 2)});
  std::cout << GetParam() << ": mean KL " << d.kl << ", same top " << d.same_top << "\n";
  EXPECT_LT(d.kl, 1e-3);
  EXPECT_GT(d.kl, 1e-9) << "nothing was rounded to bf16";
  EXPECT_GT(d.same_top, 0.95);
}

// Prompts of many lengths at once, decoded together: joins, leaves, chunks, buckets with padding.
std::vector<std::vector<std::int32_t>> run_mixed(Engine& engine) {
  std::vector<Request> many;
  for (unsigned i = 0; i < 11; ++i) many.push_back(test::greedy_request(random_ids(engine.config().vocab_size, 3 + i * 17, 40 + i), 8 + i % 5));
  std::vector<std::vector<std::int32_t>> out;
  for (const auto& outputs : engine.generate(many)) out.push_back(test::tokens_of(outputs));
  return out;
}

TEST_P(CudaModel, GraphsAndProgrammaticLaunchesChangeNoToken) {
  EngineOptions o = gpu_options(folder);
  const auto graphs = run_mixed(*Engine::load(o));
  o.programmatic_launch = false;
  EXPECT_EQ(run_mixed(*Engine::load(o)), graphs) << "graphs with plain edges";
  o.enforce_eager = true;
  EXPECT_EQ(run_mixed(*Engine::load(o)), graphs) << "launched one by one";
  o.programmatic_launch = true;
  EXPECT_EQ(run_mixed(*Engine::load(o)), graphs) << "launched one by one, programmatic";
}

TEST_P(CudaModel, AStepIsTheSameBitsByGraphAndEager) {
  EngineOptions o = gpu_options(folder);
  o.prefix_caching = false;  // a prompt that is partly there is computed by kernels for fewer tokens: close, but other bits
  const auto by_graph = Engine::load(o);
  o.enforce_eager = true;
  const auto eager = Engine::load(o);
  const auto ids = random_ids(by_graph->config().vocab_size, 40, 9);
  // Log-probabilities come from host logits: every one of 24 decode steps is compared to the bit.
  const auto logprobs = [&](Engine& e) {
    Request r = test::greedy_request(ids, 24);
    r.sampling.logprobs = 5;
    std::vector<float> out;
    const auto outputs = e.generate({r});
    for (const Output& x : outputs[0]) {
      out.push_back(x.logprob);
      for (const TokenLogprob& t : x.top) out.push_back(t.logprob);
    }
    return out;
  };
  const auto want = logprobs(*eager);
  EXPECT_EQ(want.size(), 24u * 6);
  EXPECT_EQ(logprobs(*by_graph), want);
  EXPECT_EQ(logprobs(*by_graph), want) << "the second time";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaModel,
                         ::testing::Values("tiny-qwen3", "tiny-qwen2", "gptq-w4-g128-desc_act", "awq-gemm-g128", "fp8-block", "ct-w4a16-asym", "bnb-nf4-dq", "reports/sliding-window-disabled",
                                           "reports/llama-attention-bias", "reports/rope-yarn", "reports/tp3-smollm2-shape"));

TEST(CudaKv, AnFp8CacheStaysClose) {
  QE_NEEDS_GPU();
  const auto folder = test::fixture("ct-fp8-static-kv");
  if (folder.empty()) GTEST_SKIP() << "fixture ct-fp8-static-kv is not there";
  EngineOptions o = test::exact_options(folder);
  o.exact = false;
  o.device = "cpu";
  o.kv_cache_dtype = "fp8_e4m3";
  const auto cpu = Engine::load(o);
  o = gpu_options(folder);
  o.kv_cache_dtype = "fp8_e4m3";
  const auto gpu = Engine::load(o);
  EXPECT_EQ(gpu->kv_report()["plugin"], "kv_fp8");
  EXPECT_EQ(gpu->kv_report()["scale_source"], "checkpoint");
  const Distance d = distance(*cpu, *gpu, {random_ids(cpu->config().vocab_size, 200, 5)});
  std::cout << "FP8 cache, GPU against CPU: mean KL " << d.kl << ", same top " << d.same_top << "\n";
  EXPECT_LT(d.kl, 1e-3);
}

std::filesystem::path smollm2() {
  if (const char* env = std::getenv("QENGINE_SMOLLM2")) return env;
  return test::source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

TEST(CudaSmolLm2, GreedyTextAndDistanceToFloat32) {
  QE_NEEDS_GPU();
  if (!std::filesystem::exists(smollm2()) || test::fixture("smollm2-135m").empty()) GTEST_SKIP() << "the model is not there: make run fetches it, or QENGINE_SMOLLM2 names it";
  const auto golden = test::Golden::read(test::fixture("smollm2-135m"));
  EngineOptions o = gpu_options(smollm2());
  o.kv_cache_memory_bytes = 512 << 20;
  const auto gpu = Engine::load(o);
  int equal = 0, all = 0;
  for (const auto& [name, p] : golden.json["prompts"].items()) {
    const auto got = test::tokens_of(gpu->generate({test::greedy_request(p["ids"], 48)})[0]);
    const auto want = p["greedy48"].get<std::vector<std::int32_t>>();
    std::size_t same = 0;
    while (same < want.size() && got[same] == want[same]) ++same;
    std::cout << name << ": " << same << " of " << want.size() << " tokens equal\n";
    equal += same == want.size();
    ++all;
  }
  std::cout << equal << " of " << all << " greedy answers are those of float32\n";
  EXPECT_EQ(equal, all);
  const auto cpu = Engine::load(test::exact_options(smollm2()));
  std::vector<std::vector<std::int32_t>> texts;
  for (const auto& [name, t] : golden.json["texts"].items()) {
    std::vector<std::int32_t> ids = t["ids"];
    ids.resize(std::min<std::size_t>(ids.size(), 256));
    texts.push_back(ids);
  }
  const Distance d = distance(*cpu, *gpu, texts);
  std::cout << "mean KL to float32 " << d.kl << ", same top " << d.same_top << "\n";
  EXPECT_LT(d.kl, 1e-3);
  EXPECT_GT(d.kl, 1e-7);
}

}  // namespace
}  // namespace qengine
