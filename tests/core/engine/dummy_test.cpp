// Made-up weights: what is asked of plugins is what they then read, in every format of the table that
// needs no file, and the same weights come out each time.
#include "core/engine/dummy.hpp"

#include <set>

#include "core/engine/batch_buckets.hpp"
#include <algorithm>
#include <cmath>

#include "tests/core/engine/open_model.hpp"

namespace qengine {
namespace {

Json tiny_config() {
  return Json::parse(R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":128,"vocab_size":1024,"max_position_embeddings":512,"rms_norm_eps":1e-6,"rope_theta":1000000,"tie_word_embeddings":true,"torch_dtype":"bfloat16","hidden_act":"silu"})");
}

EngineOptions options(Json quant = nullptr, const std::string& quantization = "", std::vector<Fill> fills = {}) {
  EngineOptions o = test::exact_options("");
  o.dummy = std::make_shared<DummyModel>(DummyModel{tiny_config(), std::move(quant), {}, std::move(fills)});
  o.format.quantization = quantization;
  o.device = "cpu";
  return o;
}

std::vector<float> logits_of(const EngineOptions& o) {
  std::vector<float> out;
  const auto engine = Engine::load(o);
  const std::vector<std::int32_t> ids = {5, 900, 77, 3};
  engine->all_logits(ids, [&](std::int64_t, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); });
  return out;
}

TEST(Dummy, UnquantizedIsFiniteAndTheSameEveryTime) {
  const auto a = logits_of(options()), b = logits_of(options());
  EXPECT_EQ(a, b);
  for (const float x : a) ASSERT_TRUE(std::isfinite(x));
  EXPECT_GT(std::set<float>(a.begin(), a.end()).size(), a.size() / 2) << "rows of different weights give different logits";
}

TEST(Dummy, QuantizedCheckpointsLoadWithTheirOwnPlugin) {
  const Json gptq = Json::parse(R"({"quant_method":"gptq","bits":4,"group_size":128,"sym":true,"desc_act":false})");
  const std::vector<Fill> zeros = {{"qzeros", 7, 4}};  // symmetric weights have one zero point
  const auto engine = Engine::load(options(gptq, "", zeros));
  EXPECT_EQ(engine->format().report().front().plugin, "gptq_marlin");
  const auto a = logits_of(options(gptq, "", zeros));
  EXPECT_EQ(a, logits_of(options(gptq, "", zeros)));
  EXPECT_NE(a, logits_of(options()));
}

TEST(Dummy, OnlineFormatsAreMadeFromTheSameWeights) {
  const auto engine = Engine::load(options(nullptr, "fp8_per_channel"));
  EXPECT_EQ(engine->format().report().front().plugin, "fp8_online");
}

TEST(BatchBuckets, CoverEverySizeWithLittlePadding) {
  EXPECT_EQ(batch_buckets(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(batch_buckets(64), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64}));
  EXPECT_EQ(batch_buckets(100).back(), 100);
  EXPECT_TRUE(batch_buckets(0).empty());
  for (const std::int64_t most : {1, 2, 3, 5, 17, 64, 100, 256, 1000}) {
    const auto buckets = batch_buckets(most);
    EXPECT_EQ(buckets.back(), most);
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end()));
    for (std::int64_t n = 1; n <= most; ++n) {
      const auto it = std::lower_bound(buckets.begin(), buckets.end(), n);
      ASSERT_NE(it, buckets.end());
      EXPECT_LE(*it, std::max<std::int64_t>(n + 1, 2 * n)) << n;
    }
  }
}

}  // namespace
}  // namespace qengine
