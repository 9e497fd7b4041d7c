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

class GptqFixture : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Folders, GptqFixture, ::testing::Values(
    Case{"gptq-w3-g128", 1000, 14}, Case{"gptq-w4-g128", 1000, 14}, Case{"gptq-w4-g128-asym", 1000, 14}, Case{"gptq-w4-g128-desc_act", 1000, 14},
    Case{"gptq-w4-g32", 1000, 14}, Case{"gptq-w4-gm1", 1000, 14}, Case{"gptq-w8-g128", 1000, 14}, Case{"ct-w4a16", 900, 14}, Case{"ct-w8a16", 900, 14},
    Case{"ct-w4a16-asym", 600, 14}, Case{"reports/mixed-qkv-w4-bf16", 1000, 12}, Case{"reports/gptq-desc-act-qkv-576", 1000, 7},
    Case{"reports/gptq-lm-head", 1000, 15}, Case{"reports/gptq-scales-f32", 1000, 7}, Case{"reports/quant-config-in-text-config", 1000, 7},
    Case{"reports/ignore-dialects", 900, 10}, Case{"reports/st-unaligned", 1000, 7}),
    [](const auto& info) {
      std::string name = info.param.folder;
      for (char& c : name) if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

TEST_P(GptqFixture, GivesTheGoldenWeights) {
  const auto folder = fixture(GetParam().folder);
  if (folder.empty()) GTEST_SKIP() << "no fixture " << GetParam().folder;
  FixtureModel model(folder);
  LoadedPlugin plugin(binary_dir() / "bin/plugins/gptq_marlin.so", model.host);
  EXPECT_EQ(plugin.detect(), GetParam().score);
  EXPECT_EQ(check_fixture(model, plugin).size(), GetParam().modules);
}

}  // namespace
}  // namespace qengine::test
