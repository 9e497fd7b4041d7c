// The evaluations against values computed elsewhere: perplexity, KL divergence, layers, tasks, canary.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "core/model/checkpoint.hpp"
#include "tests/apps/json_run.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using test::json_of;
using Json = test::Json;

std::vector<float> tensor_of(const fs::path& file, const std::string& name) {
  std::ifstream in(file, std::ios::binary);
  std::uint64_t n = 0;
  in.read(reinterpret_cast<char*>(&n), 8);
  std::string header(n, 0);
  in.read(header.data(), static_cast<std::streamsize>(n));
  const auto at = nlohmann::json::parse(header)[name]["data_offsets"];
  std::vector<float> x((at[1].get<std::size_t>() - at[0].get<std::size_t>()) / 4);
  in.seekg(static_cast<std::streamoff>(8 + n + at[0].get<std::size_t>()));
  in.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(4 * x.size()));
  return x;
}

class Perplexity : public ::testing::TestWithParam<const char*> {};

TEST_P(Perplexity, IsTheReferencesWithinATenthOfAPercent) {
  const auto model = test::fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "no fixture " << GetParam();
  const auto golden = test::Golden::read(model).json;
  const Json got = json_of({"eval", "ppl", model.string(), "--prompt-ids", test::ids_text(golden["eval_ids"]), "--exact", "--activation-quant", "off", "--kv-cache-dtype", "float32"});
  const double want = golden["modes"]["weights"]["eval"]["ppl"];
  EXPECT_NEAR(got["ppl"].get<double>() / want, 1, 1e-3) << want;
  EXPECT_EQ(got["tokens"], golden["eval_ids"].size() - 1);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Perplexity,
                         ::testing::Values("tiny-qwen3", "tiny-llama", "tiny-qwen2", "awq-gemm-g128", "gptq-w3-g128", "gptq-w4-g128-desc_act", "gptq-w8-g128", "ct-w4a16-asym", "ct-nvfp4a16", "ct-w8a8-int8", "ct-fp8-static-kv", "fp8-block", "bnb-nf4-dq",
                                           "bnb-int8", "gguf/tiny-llama-q4_1.gguf", "gguf/tiny-qwen2-f32-q8_0.gguf", "gguf/tiny-qwen3-q2_k.gguf", "gguf/tiny-qwen3-q4_k_m.gguf"),
                         [](const auto& t) {
                           std::string name = t.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

// The same divergence by another way: logits of both models to files, then plain sums in float64.
TEST(KlDivergence, IsTheOneThatTheLogitsGive) {
  const auto base = test::fixture("tiny-qwen3"), model = test::fixture("awq-gemm-g128");
  if (base.empty() || model.empty()) GTEST_SKIP() << "no fixtures";
  const auto golden = test::Golden::read(model).json;
  const std::string ids = test::ids_text(golden["eval_ids"], 400);
  const test::TemporaryFolder folder;
  json_of({"eval", "logits", model.string(), "--prompt-ids", ids, "--output", folder / "q.safetensors"});
  json_of({"eval", "logits", base.string(), "--prompt-ids", ids, "--output", folder / "b.safetensors"});
  const Json kl = json_of({"eval", "kl", model.string(), "--reference", base.string(), "--prompt-ids", ids});
  const auto q = tensor_of(folder / "q.safetensors", "logits_0"), b = tensor_of(folder / "b.safetensors", "logits_0");
  const std::size_t v = q.size() / 400;
  ASSERT_EQ(b.size(), q.size());
  const auto log_sum = [&](const std::vector<float>& x, std::size_t row) {
    double most = -INFINITY, sum = 0;
    for (std::size_t i = 0; i < v; ++i) most = std::max(most, static_cast<double>(x[row * v + i]));
    for (std::size_t i = 0; i < v; ++i) sum += std::exp(static_cast<double>(x[row * v + i]) - most);
    return most + std::log(sum);
  };
  double sum = 0, nll = 0, same = 0;
  for (std::size_t row = 0; row + 1 < 400; ++row) {
    const double lq = log_sum(q, row), lb = log_sum(b, row);
    std::size_t top_q = 0, top_b = 0;
    for (std::size_t i = 0; i < v; ++i) {
      const double ln_b = b[row * v + i] - lb;
      sum += std::exp(ln_b) * (ln_b - (q[row * v + i] - lq));
      if (q[row * v + i] > q[row * v + top_q]) top_q = i;
      if (b[row * v + i] > b[row * v + top_b]) top_b = i;
    }
    same += top_q == top_b;
    nll += lq - q[row * v + golden["eval_ids"][row + 1].get<std::size_t>()];
  }
  EXPECT_NEAR(kl["kld"]["mean"].get<double>() / (sum / 399), 1, 1e-3);
  EXPECT_NEAR(kl["ppl_q"].get<double>() / std::exp(nll / 399), 1, 1e-5);
  EXPECT_NEAR(kl["same_top_p"].get<double>(), same / 399, 1e-9);
  EXPECT_GT(sum / 399, 1e-5);  // the two do differ
}

TEST(KlDivergence, OfAModelToItselfIsNothing) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const std::string ids = test::ids_text(test::Golden::read(model).json["eval_ids"], 300);
  const Json kl = json_of({"eval", "kl", model.string(), "--reference", model.string(), "--prompt-ids", ids, "--layers"});
  EXPECT_LT(std::fabs(kl["kld"]["mean"].get<double>()), 1e-9);
  EXPECT_LT(kl["kld"]["max"].get<double>(), 1e-9);
  EXPECT_EQ(kl["same_top_p"], 1.0);
  EXPECT_EQ(kl["verdict"], "pass");
  for (const Json& l : kl["layers"]) EXPECT_EQ(l["relative_error"], 0.0);
}

// One bit of one scale: the exponent's highest, which makes 128 weights of one row 65,536 times as large.
class OneBit : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = test::fixture("tiny-qwen3");
    const auto model = test::fixture("awq-gemm-g128");
    if (base_.empty() || model.empty()) GTEST_SKIP() << "no fixtures";
    ids_ = test::ids_text(test::Golden::read(model).json["eval_ids"], 300);
    fs::copy(model, folder_ / "m", fs::copy_options::recursive);
    const auto checkpoint = Checkpoint::open(folder_ / "m");
    const Tensor* t = checkpoint->find("model.layers.1.mlp.down_proj.scales");
    ASSERT_NE(t, nullptr);
    const fs::path file = checkpoint->files()[static_cast<std::size_t>(t->file)].path;
    fs::permissions(file, fs::perms::owner_all, fs::perm_options::add);
    std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(t->offset + 2 * 17);
    std::uint16_t half = 0;
    io.seekg(at);
    io.read(reinterpret_cast<char*>(&half), 2);
    ASSERT_EQ(half & 0x4000, 0) << "the scale is above 2";
    half |= 0x4000;
    io.seekp(at);
    io.write(reinterpret_cast<const char*>(&half), 2);
  }
  test::TemporaryFolder folder_;
  fs::path base_;
  std::string ids_;
};

TEST_F(OneBit, IsCondemnedAndItsLayerStandsOut) {
  const Json kl = json_of({"eval", "kl", folder_ / "m", "--reference", base_.string(), "--prompt-ids", ids_, "--layers"}, 6);
  EXPECT_EQ(kl["verdict"], "fail");
  EXPECT_FALSE(kl["reasons"].empty());
  ASSERT_EQ(kl["layers"].size(), 2u);
  EXPECT_LT(kl["layers"][0]["relative_error"].get<double>(), 0.2);
  EXPECT_GT(kl["layers"][1]["relative_error"].get<double>(), 1.0);
}

TEST_F(OneBit, IsFoundByReplayingRequests) {
  const std::string log = folder_ / "log.jsonl";
  {
    std::ofstream out(log);
    for (const char* ids : {"[5,6,7,8]", "[9,8,7]", "[100,200,300,400,500]"}) out << "{\"prompt\":" << ids << ",\"max_tokens\":24,\"temperature\":0}\n";
    out << "not json\n{\"request\":{\"prompt\":[1,2,3],\"max_tokens\":8,\"temperature\":0.8,\"seed\":4},\"status\":200}\n";
  }
  const Json same = json_of({"eval", "canary", log, "--model", base_.string(), "--arm", "path=" + base_.string(), "--ttft-p95-ratio", "1000", "--itl-p95-ratio", "1000"});
  EXPECT_EQ(same["replayed"], 4);
  EXPECT_EQ(same["skipped"].size(), 1u);
  EXPECT_EQ(same["equal"], 4);  // the seeded one, too
  EXPECT_LT(std::fabs(same["kl_mean"].get<double>()), 1e-9);
  EXPECT_EQ(same["verdict"], "pass");
  const Json bad = json_of({"eval", "canary", log, "--model", base_.string(), "--arm", "path=" + (folder_ / "m"), "--ttft-p95-ratio", "1000", "--itl-p95-ratio", "1000"}, 6);
  EXPECT_EQ(bad["verdict"], "fail");
  EXPECT_EQ(bad["reasons"][0]["gate"], "kl_mean_fail");
  EXPECT_LT(bad["equal"].get<int>(), 4);
}

TEST(Tasks, EveryCaseIsJudgedAndThresholdsDecideTheExitCode) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const Json all = json_of({"eval", "tasks", model.string(), "--max-tokens", "8", "--constrain", "off"});
  EXPECT_EQ(all["suites"]["structured"]["cases"], 18);
  EXPECT_EQ(all["suites"]["tools"]["cases"], 36);
  std::int64_t ok = 0, silent = 0;
  for (const Json& c : all["cases"]) {
    ok += c["ok"].get<bool>();
    EXPECT_TRUE(c["ok"].get<bool>() || !c["why"].get<std::string>().empty());
    silent += c["suite"] == "tools" && c["ok"].get<bool>();
  }
  EXPECT_EQ(ok, all["suites"]["structured"]["ok"].get<int>() + all["suites"]["tools"]["ok"].get<int>());
  EXPECT_GE(silent, 1);  // a model that can do nothing at least calls nothing where it should not
  const Json failed = json_of({"eval", "tasks", model.string(), "--max-tokens", "4", "--suite", "structured", "--structured-success-min", "0.5"}, 6);
  EXPECT_EQ(failed["reasons"][0]["gate"], "structured_success_min");
  const test::TemporaryFolder folder;
  std::ofstream(folder / "c.jsonl") << "{\"id\":\"mine\",\"text\":\"x\",\"schema\":{\"type\":\"object\",\"required\":[\"a\"]}}\n";
  std::ofstream(folder / "p.toml") << "schema = 1\n[gates]\nstructured_success_min = 0.9\n";
  const Json mine = json_of({"eval", "tasks", model.string(), "--max-tokens", "4", "--suite", "structured", "--cases", folder / "c.jsonl", "--reference", model.string(), "--config", folder / "p.toml"}, 6);
  EXPECT_EQ(mine["cases"][0]["id"], "mine");
  EXPECT_EQ(mine["suites"]["structured"]["mcnemar_p"], 1.0);
}

// Noise writes no JSON; held to the schema it writes nothing else.
TEST(Tasks, ConstrainedAnswersFollowTheSchema) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const test::TemporaryFolder folder;
  std::ofstream(folder / "c.jsonl") << R"({"id":"a","text":"x","schema":{"type":"object","required":["n"],"properties":{"n":{"enum":[1,2]}},"additionalProperties":false}})" << '\n'
                                    << R"({"id":"b","text":"x","schema":{"type":"array","uniqueItems":true,"items":{"type":"number"}}})" << '\n';
  const Json doc = json_of({"eval", "tasks", model.string(), "--max-tokens", "24", "--suite", "structured", "--cases", folder / "c.jsonl"});
  const Json& s = doc["suites"]["structured"];
  EXPECT_EQ(s["cases"], 2);
  EXPECT_EQ(s["schema_valid"], 0);
  EXPECT_EQ(s["constrained"]["cases"], 1);
  EXPECT_EQ(s["constrained"]["bare"], 1);
  EXPECT_EQ(s["constrained"]["schema_valid"], 1);
  EXPECT_TRUE(doc["cases"][0]["constrained"]["ok"]);
  ASSERT_EQ(doc["unenforced"].size(), 1u);  // no grammar holds uniqueItems: said, not passed over
  EXPECT_EQ(doc["unenforced"][0].get<std::string>().rfind("b: ", 0), 0u);
  const Json tools = json_of({"eval", "tasks", model.string(), "--max-tokens", "4", "--suite", "tools", "--constrain", "on"});
  EXPECT_EQ(tools["suites"]["tools"]["constrained"]["cases"], 36);
  EXPECT_FALSE(tools["suites"]["tools"].contains("ok"));
}

}  // namespace
}  // namespace qengine
