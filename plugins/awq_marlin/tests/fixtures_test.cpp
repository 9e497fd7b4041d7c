// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

using Case = FixtureCase;
class AwqFixture : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Folders, AwqFixture, ::testing::Values(
    Case{"awq-gemm-g128", 1000, 14}, Case{"awq-gptqmodel-w4-g128", 1000, 14}, Case{"ct-w4a16-asym", 900, 14}, Case{"reports/awq-n40", 1000, 14},
    Case{"reports/awq-skip-substring", 1000, 9}, Case{"reports/awq-version-marlin-label", 1000, 7}),
    fixture_name);

TEST_P(AwqFixture, GivesTheGoldenWeights) { check("awq_marlin"); }

}  // namespace
}  // namespace qengine::test
