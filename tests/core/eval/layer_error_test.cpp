#include "core/eval/layer_error.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace qengine {
namespace {

TEST(LayerErrors, OfAnExactCopyAndOfKnownNoise) {
  std::mt19937 rng(5);
  std::normal_distribution<float> value(0, 2), noise(0, 0.02f);
  LayerErrors e(3);
  std::vector<float> b(512), q(512), turned(512);
  for (int t = 0; t < 50; ++t) {
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = value(rng), q[i] = b[i] + noise(rng), turned[i] = -b[i];
    e.add(0, b, b);
    e.add(1, b, q);
    e.add(2, b, turned);
  }
  EXPECT_EQ(e.of(0).relative_error, 0);
  EXPECT_EQ(e.of(0).cosine, 1);
  EXPECT_EQ(e.of(0).sqnr_db, 999);
  // Noise of a hundredth: relative error 0.01, SQNR 40 dB, cosine 1 - 0.01^2 / 2; each mean over 25,600 draws.
  EXPECT_NEAR(e.of(1).relative_error, 0.01, 3e-4);
  EXPECT_NEAR(e.of(1).sqnr_db, 40, 0.3);
  EXPECT_NEAR(1 - e.of(1).cosine, 5e-5, 5e-6);
  EXPECT_EQ(e.of(1).tokens, 50);
  EXPECT_NEAR(e.of(2).relative_error, 2, 1e-6);
  EXPECT_NEAR(e.of(2).cosine, -1, 1e-6);
}

}  // namespace
}  // namespace qengine
