// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace qengine::test
