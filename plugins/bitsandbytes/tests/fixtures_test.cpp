// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

using Case = FixtureCase;
class BnbFixture : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Folders, BnbFixture, ::testing::Values(
    Case{"bnb-nf4", 1000, 14}, Case{"bnb-nf4-dq", 1000, 14}, Case{"bnb-fp4", 1000, 14}, Case{"bnb-int8", 1000, 14}),
    fixture_name);

TEST_P(BnbFixture, GivesTheGoldenWeights) { check("bitsandbytes"); }

}  // namespace
}  // namespace qengine::test
