// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

using Case = FixtureCase;
class CompressedFixture : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Folders, CompressedFixture, ::testing::Values(
    Case{"ct-w8a8-int8", 1000, 14}, Case{"ct-mxfp8", 1000, 14}, Case{"ct-mxfp4a16", 1000, 14}, Case{"ct-nvfp4a16", 1000, 14}),
    fixture_name);

TEST_P(CompressedFixture, GivesTheGoldenWeights) { check("compressed_tensors"); }

// Some writers store zero points of symmetric weights, all zero.
TEST(Int8ZeroPoints, OfSymmetricWeightsMustBeZero) {
  constexpr std::int64_t kSize = 32;
  for (const std::int8_t stored : {0, 5}) {
    MockHost host;
    host.config = {{"quant_method", "compressed-tensors"}, {"format", "int-quantized"},
                   {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}}}}}}}};
    host.add("m.weight", QE_I8, {kSize, kSize}, std::vector<std::int8_t>(kSize * kSize, 3));
    host.add("m.weight_scale", QE_F32, {kSize, 1}, std::vector<float>(kSize, 0.5f));
    host.add("m.weight_zero_point", QE_I8, {kSize, 1}, std::vector<std::int8_t>(kSize, stored));
    LoadedPlugin plugin(binary_dir() / "bin/plugins/compressed_tensors.so", host);
    TestLayer layer(host, {{"m", QE_ROLE_O, kSize}}, kSize);
    std::string subject;
    try {
      plugin.load(layer);
    } catch (const PluginFailure& e) {
      subject = e.subject;
    }
    EXPECT_EQ(subject, stored ? "m.weight_zero_point" : "");
  }
}

// W4A8: codes of four bits, one in each byte.
TEST(CodesInBytes, MayHaveFewerBits) {
  constexpr std::int64_t kRows = 3, kInputs = 64, kGroup = 32;
  MockHost host;
  host.config = {{"quant_method", "compressed-tensors"}, {"format", "naive-quantized"},
                 {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", kGroup}}}}}}}};
  std::vector<std::int8_t> codes;
  std::vector<float> scales, expected;
  for (std::int64_t i = 0; i < kRows * kInputs / kGroup; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
  for (std::int64_t i = 0; i < kRows * kInputs; ++i) {
    codes.push_back(static_cast<std::int8_t>(i % 16 - 8));
    expected.push_back(static_cast<float>(codes.back()) * scales[i / kGroup]);
  }
  host.add("m.weight", QE_I8, {kRows, kInputs}, codes);
  host.add("m.weight_scale", QE_F32, {kRows, kInputs / kGroup}, scales);
  LoadedPlugin plugin(binary_dir() / "bin/plugins/compressed_tensors.so", host);
  TestLayer layer(host, {{"m", QE_ROLE_O, kRows}}, kInputs);
  EXPECT_EQ(plugin.load(layer).dequant(0, kRows), expected);
}

// The head of a tied model is computed from the embedding's tensors, which are packed as those of its group.
TEST(Groups, ATiedHeadIsOfTheGroupOfItsEmbedding) {
  constexpr std::int64_t kRows = 4, kInputs = 32;
  const nlohmann::ordered_json eight = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}, fp4 = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}};
  MockHost host;
  host.config = {{"quant_method", "compressed-tensors"}, {"format", "mixed-precision"}, {"version", "0.19.0"},
                 {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"format", "mxfp4-pack-quantized"}, {"weights", fp4}}},
                                    {"group_1", {{"targets", {"Embedding"}}, {"format", "int-quantized"}, {"weights", eight}}}}}};
  host.add("model.embed_tokens.weight", QE_I8, {kRows, kInputs}, std::vector<std::int8_t>(kRows * kInputs, 7));
  host.add("model.embed_tokens.weight_scale", QE_F32, {kRows, 1}, std::vector<float>(kRows, 0.5f));
  LoadedPlugin plugin(binary_dir() / "bin/plugins/compressed_tensors.so", host);
  TestLayer layer(host, {{"model.embed_tokens", QE_ROLE_LM_HEAD, kRows}}, kInputs);
  const qe_plan plan = plugin.plan(layer);
  ASSERT_NE(plan.claim, 0) << plan.reason;
  EXPECT_EQ(plugin.load(layer).dequant(0, kRows), std::vector<float>(kRows * kInputs, 3.5f));
}

}  // namespace
}  // namespace qengine::test
