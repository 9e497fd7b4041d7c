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

class Fp8Fixture : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Folders, Fp8Fixture, ::testing::Values(
    Case{"fp8-block", 1000, 14}, Case{"fp8-tensor-static", 1000, 14}, Case{"ct-fp8-block", 1000, 14}, Case{"ct-fp8-dynamic", 1000, 14},
    Case{"ct-fp8-static-kv", 1000, 14}),
    [](const auto& info) {
      std::string name = info.param.folder;
      for (char& c : name) if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

TEST_P(Fp8Fixture, GivesTheGoldenWeights) {
  const auto folder = fixture(GetParam().folder);
  if (folder.empty()) GTEST_SKIP() << "no fixture " << GetParam().folder;
  FixtureModel model(folder);
  LoadedPlugin plugin(binary_dir() / "bin/plugins/fp8_checkpoint.so", model.host);
  EXPECT_EQ(plugin.detect(), GetParam().score);
  EXPECT_EQ(check_fixture(model, plugin).size(), GetParam().modules);
}

}  // namespace
}  // namespace qengine::test
