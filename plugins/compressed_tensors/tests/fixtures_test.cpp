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

}  // namespace
}  // namespace qengine::test
