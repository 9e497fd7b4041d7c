// Spellings of one matrix in the files of different writers, and values that no writer means.
#include <gtest/gtest.h>

#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

constexpr std::int64_t kSize = 32;
const nlohmann::ordered_json kStatic = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};

// A matrix of E4M3 codes named m, without its scales.
struct Matrix : MockHost {
  explicit Matrix(const nlohmann::ordered_json& quant_config) {
    std::vector<std::uint8_t> codes;
    for (int i = 0; i < kSize * kSize; ++i) codes.push_back(static_cast<std::uint8_t>(i * 7919 % 256 & 0xf7));
    add("m.weight", QE_E4M3, {kSize, kSize}, codes);
    config = quant_config;
  }
  void number(const std::string& name, float value, std::vector<std::int64_t> shape = {}) { add(name, QE_F32, std::move(shape), std::vector<float>{value}); }
};

std::vector<float> inputs() {
  std::vector<float> x;
  for (int i = 0; i < kSize; ++i) x.push_back(3.7f * static_cast<float>(i % 7 - 3));
  return x;
}

// What the layer gives with activations as the file says.
std::vector<float> product(MockHost& host) {
  LoadedPlugin plugin(binary_dir() / "bin/plugins/fp8_checkpoint.so", host);
  TestLayer layer(host, {{"m", QE_ROLE_O, kSize}}, kSize, QE_LAYER_ACT_QUANT);
  EXPECT_NE(plugin.plan(layer).claim, 0) << plugin.plan(layer).reason;
  return plugin.load(layer).run(inputs(), 1);
}

// The tensor that a refusal names, and its words.
std::pair<std::string, std::string> refusal(MockHost& host) {
  try {
    product(host);
  } catch (const PluginFailure& e) {
    return {e.subject, e.message};
  }
  return {"loaded", ""};
}

TEST(Fp8Names, OfScalesAreThoseOfTheWriter) {
  std::vector<std::vector<float>> all;
  for (const auto& [weight, input] : {std::pair{"m.weight_scale", "m.input_scale"}, {"m.weight_scale_inv", "m.activation_scale"}, {"m.weight_scale_inv", "m.input_scale"}}) {
    Matrix host(kStatic);
    host.number(weight, 0.25f);
    host.number(input, 0.125f, {1});
    all.push_back(product(host));
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
  Matrix host(kStatic);
  host.number("m.weight_scale_inv", 0.25f);
  host.number("m.activation_scale", 0.3f);
  EXPECT_NE(product(host), all[0]);  // it counts
}

TEST(Fp8Names, TheBoundOfActivationsMayBeATensor) {
  const auto bounded = [](bool tensor, float in_config) {
    Matrix host({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", in_config}});
    host.add("m.weight_scale", QE_F32, {kSize, 1}, std::vector<float>(kSize, 0.5f));
    if (tensor) host.number("m.input_scale_ub", 2.0f, {1});
    return product(host);
  };
  EXPECT_EQ(bounded(true, 1200.0f), bounded(false, 2.0f));
  EXPECT_NE(bounded(true, 1200.0f), bounded(false, 1200.0f));
}

TEST(Fp8Values, AScaleOfZeroBelongsToZeros) {
  Matrix host({{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}});
  host.number("m.weight_scale", 0.0f);
  const auto [tensor, message] = refusal(host);
  EXPECT_EQ(tensor, "m.weight_scale");
  EXPECT_NE(message.find("is 0, and the weights are not"), std::string::npos) << message;
  Matrix zeros(host.config);
  zeros.add("z.weight", QE_E4M3, {kSize, kSize}, std::vector<std::uint8_t>(kSize * kSize, 0x80));
  zeros.number("z.weight_scale", 0.0f);
  LoadedPlugin plugin(binary_dir() / "bin/plugins/fp8_checkpoint.so", zeros);
  TestLayer layer(zeros, {{"z", QE_ROLE_O, kSize}}, kSize);
  EXPECT_EQ(plugin.load(layer).run(inputs(), 1), std::vector<float>(kSize, 0.0f));
}

TEST(Fp8Values, ZeroPointsMustBeZero) {
  for (const std::uint8_t stored : {0, 1}) {
    Matrix host(kStatic);
    host.number("m.weight_scale", 0.25f);
    host.number("m.input_scale", 0.125f);
    host.add("m.weight_zero_point", QE_E4M3, {1}, std::vector<std::uint8_t>{stored});
    const auto [tensor, message] = refusal(host);
    EXPECT_EQ(tensor, stored ? "m.weight_zero_point" : "loaded") << message;
  }
}

}  // namespace
}  // namespace qengine::test
