// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include <qe/activation.hpp>

#include <cmath>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

using Case = FixtureCase;
class Fp8Fixture : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Folders, Fp8Fixture, ::testing::Values(
    Case{"fp8-block", 1000, 14}, Case{"fp8-tensor-static", 1000, 14}, Case{"ct-fp8-block", 1000, 14}, Case{"ct-fp8-dynamic", 1000, 14},
    Case{"ct-fp8-static-kv", 1000, 14}),
    fixture_name);

TEST_P(Fp8Fixture, GivesTheGoldenWeights) { check("fp8_checkpoint"); }

// Weights that were stored without a rule for activations.
TEST(Fp8Checkpoint, ActivationsThatNobodyMentionsAreRoundedWhenAsked) {
  MockHost host;
  std::vector<std::uint8_t> codes;
  for (int i = 0; i < 256 * 256; ++i) codes.push_back(static_cast<std::uint8_t>(i * 7919 % 256 & 0xf7));
  host.add("m.weight", QE_E4M3, {256, 256}, codes);
  host.add("m.weight_scale", QE_F32, {2, 1, 2, 1}, std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f});
  host.config = {{"quant_method", "modelopt"}, {"quant_algo", "FP8_PB_WO"}};
  LoadedPlugin plugin(binary_dir() / "bin/plugins/fp8_checkpoint.so", host);
  std::vector<float> x;
  for (int i = 0; i < 512; ++i) x.push_back(std::sin(static_cast<float>(i)));
  const auto run = [&](int flags, const char* scheme) {
    TestLayer layer(host, {{"m", QE_ROLE_O, 256}}, 256, flags);
    EXPECT_STREQ(plugin.plan(layer).scheme, scheme);
    return plugin.load(layer).run(x, 2);
  };
  const auto whole = run(0, "fp8_block128x128");
  EXPECT_EQ(run(QE_LAYER_ACT_QUANT, "fp8_block128x128"), whole);
  const auto rounded = run(QE_LAYER_ACT_QUANT | QE_LAYER_ACT_TOKEN, "fp8_block128x128+group");
  EXPECT_NE(rounded, whole);
  for (int t : {0, 1}) qe::act::quantize_dequantize({.kind = qe::Activation::e4m3_group}, x.data() + 256 * t, x.data() + 256 * t, 256);
  const auto expected = run(0, "fp8_block128x128");
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rounded[i], expected[i], 1e-4 * (1 + std::fabs(expected[i])));
}

}  // namespace
}  // namespace qengine::test
