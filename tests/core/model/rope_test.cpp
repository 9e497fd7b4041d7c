// Rotary frequencies against the vectors of the format notes (formats.md 2.3), made elsewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "core/model/config.hpp"

namespace qengine {
namespace {

ModelConfig model(double theta, int d, std::int64_t max_position) {
  ModelConfig m;
  m.max_position = max_position;
  m.head_dim = d;
  m.rope.rot_dim = d;
  m.rope.theta = theta;
  return m;
}
// After scaling, relative to the plain frequencies.
std::vector<double> ratios(const ModelConfig& m, float* attention = nullptr) {
  const auto f = rope_inv_freq(m, attention);
  std::vector<double> out;
  for (std::size_t i = 0; i < f.size(); ++i) out.push_back(f[i] / std::pow(m.rope.theta, -2.0 * static_cast<double>(i) / m.rope.rot_dim));
  return out;
}

TEST(Rope, PlainFrequencies) {
  float attention = 0;
  const auto f = rope_inv_freq(model(10000, 4, 128), &attention);
  ASSERT_EQ(f.size(), 2u);
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[1], 0.01f);
  EXPECT_EQ(attention, 1.0f);
}

TEST(Rope, LinearDivides) {
  ModelConfig m = model(10000, 64, 128);
  m.rope.kind = "linear";
  m.rope.factor = 8;
  for (const double r : ratios(m)) EXPECT_NEAR(r, 0.125, 1e-7);
}

TEST(Rope, DynamicRaisesTheBaseBeyondTheModelsLength) {
  ModelConfig m = model(1e4, 128, 4096);
  m.rope.kind = "dynamic";
  m.rope.factor = 2;
  const auto f = rope_inv_freq(m, nullptr, 8192);
  EXPECT_NEAR(f[1], std::pow(30527.7367, -2.0 / 128), 1e-7);
  EXPECT_NEAR(f[63] / std::pow(30527.7367, -126.0 / 128), 1, 1e-6);
  m.rope.original_max_position = 1024;  // says nothing about it
  for (const std::int64_t length : {0, 1, 2000, 4096}) EXPECT_EQ(rope_inv_freq(m, nullptr, length), rope_inv_freq(model(1e4, 128, 4096), nullptr)) << length;
}

TEST(Rope, Llama3KeepsHighAndDividesLowFrequencies) {
  ModelConfig m = model(5e5, 128, 131072);
  m.rope.kind = "llama3";
  m.rope.factor = 8;
  m.rope.low_freq_factor = 1;
  m.rope.high_freq_factor = 4;
  m.rope.original_max_position = 8192;
  const auto r = ratios(m);
  for (std::size_t i = 0; i <= 28; ++i) EXPECT_NEAR(r[i], 1, 1e-6) << i;
  EXPECT_NEAR(r[29], 0.828168, 1e-6);
  EXPECT_NEAR(r[30], 0.643743, 1e-6);
  EXPECT_NEAR(r[32], 0.371122, 1e-6);
  EXPECT_NEAR(r[34], 0.190211, 1e-6);
  for (std::size_t i = 35; i < 64; ++i) EXPECT_NEAR(r[i], 0.125, 1e-6) << i;
}

TEST(Rope, YarnRampsBetweenTheTwo) {
  ModelConfig m = model(1e6, 128, 131072);
  m.rope.kind = "yarn";
  m.rope.factor = 4;
  m.rope.original_max_position = 32768;
  float attention = 0;
  const auto r = ratios(m, &attention);
  EXPECT_NEAR(attention, 1.1386294, 1e-6);
  EXPECT_NEAR(r[23], 1, 1e-6);
  EXPECT_NEAR(r[24], 0.955882, 1e-6);
  EXPECT_NEAR(r[30], 0.691176, 1e-6);
  for (std::size_t i = 40; i < 64; ++i) EXPECT_NEAR(r[i], 0.25, 1e-6) << i;

  m.rope.truncate = false;  // the ramp then runs from 23.596 to 39.651
  EXPECT_NEAR(ratios(m)[24], 1 - 0.75 * (24 - 23.596) / (39.651 - 23.596), 1e-4);
}

TEST(Rope, YarnAttentionFactorByPrecedence) {
  ModelConfig m = model(1e6, 128, 131072);
  m.rope.kind = "yarn";
  m.rope.factor = 4;
  m.rope.original_max_position = 32768;
  m.rope.mscale = 1;
  m.rope.mscale_all_dim = 0.5;
  float attention = 0;
  rope_inv_freq(m, &attention);
  EXPECT_NEAR(attention, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-6);
  m.rope.mscale_all_dim = 0;  // one alone counts for nothing
  rope_inv_freq(m, &attention);
  EXPECT_NEAR(attention, 0.1 * std::log(4.0) + 1, 1e-6);
  m.rope.attention_factor = 1.5;
  rope_inv_freq(m, &attention);
  EXPECT_EQ(attention, 1.5f);
}

TEST(Rope, DivisorsOfTheFileApply) {
  ModelConfig m = model(10000, 4, 128);
  m.rope.freq_divisors = {1, 8};
  const auto f = rope_inv_freq(m, nullptr);
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[1], 0.00125f);
}

}  // namespace
}  // namespace qengine
