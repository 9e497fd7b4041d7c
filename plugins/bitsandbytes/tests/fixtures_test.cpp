// Checkpoints of real packers and of public bug reports through the plugin's own ABI.
#include <gtest/gtest.h>

#include "shared/tests/fixture_model.hpp"

namespace qengine::test {
namespace {

struct Case {
  const char* folder;
  int score;
  std::size_t modules;  // quantized ones, of those the architecture has
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.folder; }

class BnbFixture : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Folders, BnbFixture, ::testing::Values(
    Case{"bnb-nf4", 1000, 14}, Case{"bnb-nf4-dq", 1000, 14}, Case{"bnb-fp4", 1000, 14}, Case{"bnb-int8", 1000, 14}),
    [](const auto& info) {
      std::string name = info.param.folder;
      for (char& c : name) if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

TEST_P(BnbFixture, GivesTheGoldenWeights) {
  const auto folder = fixture(GetParam().folder);
  if (folder.empty()) GTEST_SKIP() << "no fixture " << GetParam().folder;
  FixtureModel model(folder);
  LoadedPlugin plugin(binary_dir() / "bin/plugins/bitsandbytes.so", model.host);
  EXPECT_EQ(plugin.detect(), GetParam().score);
  EXPECT_EQ(check_fixture(model, plugin).size(), GetParam().modules);
}

}  // namespace
}  // namespace qengine::test
