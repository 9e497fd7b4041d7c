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

}  // namespace
}  // namespace qengine::test
