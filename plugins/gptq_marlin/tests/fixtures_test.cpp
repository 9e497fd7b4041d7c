// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

using Case = FixtureCase;
class GptqFixture : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Folders, GptqFixture, ::testing::Values(
    Case{"gptq-w3-g128", 1000, 14}, Case{"gptq-w4-g128", 1000, 14}, Case{"gptq-w4-g128-asym", 1000, 14}, Case{"gptq-w4-g128-desc_act", 1000, 14},
    Case{"gptq-w4-g32", 1000, 14}, Case{"gptq-w4-gm1", 1000, 14}, Case{"gptq-w8-g128", 1000, 14}, Case{"ct-w4a16", 900, 14}, Case{"ct-w8a16", 900, 14},
    Case{"ct-w4a16-asym", 600, 14}, Case{"reports/mixed-qkv-w4-bf16", 1000, 12}, Case{"reports/gptq-desc-act-qkv-576", 1000, 7},
    Case{"reports/gptq-lm-head", 1000, 15}, Case{"reports/gptq-scales-f32", 1000, 7}, Case{"reports/quant-config-in-text-config", 1000, 7},
    Case{"reports/ignore-dialects", 900, 10}, Case{"reports/st-unaligned", 1000, 7}),
    fixture_name);

TEST_P(GptqFixture, GivesTheGoldenWeights) { check("gptq_marlin"); }

}  // namespace
}  // namespace qengine::test
