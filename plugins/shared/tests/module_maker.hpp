// Modules with random codes, packed the way the tools pack them, and their weights by the definition.
#pragma once

#include <bit>

#include "shared/tests/packers.hpp"
#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {

inline std::uint16_t to_bf16(float f) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16); }

// Scales as a dtype stores them: `stored` bytes and the float that each is.
struct Scales {
  std::int32_t dtype;
  std::vector<std::uint16_t> half;
  std::vector<float> value;

  Scales(std::int32_t dtype, std::size_t count, std::uint32_t seed, bool may_be_negative = true) : dtype(dtype) {
    std::mt19937 rng(seed);
    for (std::size_t i = 0; i < count; ++i) {
      const float f = std::uniform_real_distribution<float>(0.001f, 0.1f)(rng) * (may_be_negative && rng() % 8 == 0 ? -1.0f : 1.0f);
      if (dtype == QE_F32) {
        value.push_back(f);
      } else if (dtype == QE_BF16) {
        half.push_back(to_bf16(f));
        value.push_back(std::bit_cast<float>(std::uint32_t{half.back()} << 16));
      } else {
        // A half by hand: 10 mantissa bits of a normal number of these sizes.
        const std::uint32_t u = std::bit_cast<std::uint32_t>(f) & ~0x1fffu;
        half.push_back(static_cast<std::uint16_t>((u >> 16 & 0x8000) | ((u >> 23 & 255) - 112) << 10 | (u >> 13 & 1023)));
        value.push_back(std::bit_cast<float>(u));
      }
    }
  }
  void add(MockHost& host, const std::string& name, std::vector<std::int64_t> shape) const {
    if (dtype == QE_F32) {
      host.add(name, dtype, std::move(shape), value);
    } else {
      host.add(name, dtype, std::move(shape), half);
    }
  }
};

struct WeightCheck {
  std::vector<float> expected;  // [n, k]
  std::int64_t n, k;
};

// The product and the exact weights of one module against `expected`, bit for bit.
inline void expect_weights(LoadedPlugin& plugin, MockHost& host, const std::string& name, int role, const WeightCheck& w) {
  TestLayer layer(host, {{name, role, w.n}}, w.k);
  const qe_plan plan = plugin.plan(layer);
  ASSERT_NE(plan.claim, 0) << plan.reason;
  auto h = plugin.load(layer);
  const std::vector<float> got = h.dequant(0, w.n);
  for (std::int64_t i = 0; i < w.n; ++i)
    for (std::int64_t j = 0; j < w.k; ++j)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i * w.k + j]), std::bit_cast<std::uint32_t>(w.expected[i * w.k + j]))
          << name << " row " << i << " input " << j << ": " << got[i * w.k + j] << ", expected " << w.expected[i * w.k + j];
  const std::vector<float> x = [&] {
    std::mt19937 rng(9);
    std::normal_distribution<float> normal;
    std::vector<float> v(3 * w.k);
    for (auto& f : v) f = normal(rng);
    return v;
  }();
  TestLayer exact(host, {{name, role, w.n}}, w.k, QE_LAYER_EXACT);
  EXPECT_LT(nmse(w.expected, x, plugin.load(exact).run(x, 3), 3, w.n, w.k), 1e-10) << name;
  EXPECT_LT(nmse(w.expected, x, h.run(x, 3), 3, w.n, w.k), 4e-9) << name;  // int16 activations; few outputs, so the 6e-10 scatters
}

}  // namespace qengine::test
