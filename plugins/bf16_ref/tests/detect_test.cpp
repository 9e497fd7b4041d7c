// Which checkpoints hold unquantized weights.
#include <gtest/gtest.h>

#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

using Json = nlohmann::ordered_json;

TEST(Bf16Ref, TakesModelsOfWhichOnlyTheCacheIsQuantized) {
  const auto score = [](const Json& config) {
    MockHost host;
    host.config = config;
    return LoadedPlugin(binary_dir() / "bin/plugins/bf16_ref.so", host).detect();
  };
  const Json cache = {{"num_bits", 8}, {"type", "float"}}, linear = Json::array({"Linear"});
  EXPECT_EQ(score(Json::object()), 1000);
  const auto ct = [&](const Json& groups) { return score({{"quant_method", "compressed-tensors"}, {"kv_cache_scheme", cache}, {"config_groups", groups}}); };
  EXPECT_EQ(ct(Json::object()), 900);
  EXPECT_EQ(ct({{"group_0", {{"targets", Json::array()}}}}), 900);
  EXPECT_EQ(ct({{"group_0", {{"targets", Json::array()}, {"weights", nullptr}}}}), 900);
  EXPECT_EQ(ct({{"group_0", {{"targets", linear}, {"weights", {{"num_bits", 8}}}}}}), 0);
  EXPECT_EQ(ct({{"W4A16", linear}}), 0);
  EXPECT_EQ(score({{"quant_method", "modelopt"}, {"quant_algo", nullptr}, {"kv_cache_quant_algo", "FP8"}}), 900);
  EXPECT_EQ(score({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}}), 0);
  EXPECT_EQ(score({{"quant_method", "gptq"}, {"bits", 4}}), 0);
}

}  // namespace
}  // namespace qengine::test
