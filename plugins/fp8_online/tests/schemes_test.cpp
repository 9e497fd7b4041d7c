// Every scheme against the plainest reading of its rule, on odd shapes, through the plugin's own ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

std::string library() { return (binary_dir() / "bin/plugins/fp8_online.so").string(); }

struct Matrix {
  std::int64_t n, k;
  std::vector<float> w;
};

Matrix random_matrix(std::int64_t n, std::int64_t k, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Matrix m{n, k, {}};
  for (std::int64_t i = 0; i < n * k; ++i) m.w.push_back(normal(rng) * std::exp2(static_cast<float>(rng() % 7) - 3));
  if (n > 2)
    for (std::int64_t i = 0; i < k; ++i) m.w[static_cast<std::size_t>(k + i)] = 0;  // a row of zeros
  return m;
}

std::vector<float> quantized(const Matrix& m, const char* method, int role = QE_ROLE_O, int flags = 0) {
  MockHost host;
  host.add("m.weight", QE_F32, {m.n, m.k}, m.w);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 300);
  TestLayer layer(host, {{"m", role, m.n}}, m.k, flags);
  layer.view.method = method;
  EXPECT_NE(plugin.plan(layer).claim, 0) << plugin.plan(layer).reason;
  auto h = plugin.load(layer);
  return h.dequant(0, m.n);
}

// The grids by search: the nearest of all values, ties to the even code.
float nearest(double x, const std::vector<float>& grid) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < grid.size(); ++i) {
    const double a = std::fabs(grid[i] - x), b = std::fabs(grid[best] - x);
    if (a < b || (a == b && i % 2 == 0)) best = i;
  }
  return grid[best];
}
std::vector<float> e4m3_grid() {
  std::vector<float> g;
  for (int c = 0; c < 127; ++c) {
    const int e = c >> 3, mantissa = c & 7;
    g.push_back(e ? std::ldexp(1.0f + static_cast<float>(mantissa) / 8, e - 7) : std::ldexp(static_cast<float>(mantissa), -9));
  }
  return g;
}
const std::vector<float> kE2M1 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float on_grid(float x, const std::vector<float>& grid) {
  const float y = nearest(std::fabs(x), grid);
  return std::signbit(x) ? -y : y;
}

float amax(const Matrix& m, std::int64_t n0, std::int64_t n1, std::int64_t k0, std::int64_t k1) {
  float a = 0;
  for (std::int64_t n = n0; n < std::min(n1, m.n); ++n)
    for (std::int64_t k = k0; k < std::min(k1, m.k); ++k) a = std::max(a, std::fabs(m.w[static_cast<std::size_t>(n * m.k + k)]));
  return a;
}

float definition(const Matrix& m, const std::string& method, std::int64_t n, std::int64_t k) {
  static const std::vector<float> e4m3 = e4m3_grid();
  const float x = m.w[static_cast<std::size_t>(n * m.k + k)];
  if (method == "fp8_per_tensor") {
    const float a = amax(m, 0, m.n, 0, m.k), s = a == 0 ? 1 : a / 448;
    return on_grid(x / s, e4m3) * s;
  }
  if (method == "fp8_per_channel") {
    const float s = std::max(amax(m, n, n + 1, 0, m.k) / 448, 1.0f / (448.0f * 512.0f));
    return on_grid(x / s, e4m3) * s;
  }
  if (method == "fp8_per_block") {
    const std::int64_t r = n / 128 * 128, c = k / 128 * 128;
    const float s = std::max(amax(m, r, r + 128, c, c + 128), 1e-4f) / 448;
    return on_grid(x / s, e4m3) * s;
  }
  if (method == "int8_per_channel_weight_only") {
    const float s = std::max(amax(m, n, n + 1, 0, m.k) / 127, 1e-10f);
    return std::nearbyint(x / s) * s;
  }
  const bool four = method == "mxfp4";
  const float a = amax(m, n, n + 1, k / 32 * 32, k / 32 * 32 + 32);
  int e = -126;
  if (a > 0) {
    const float f = std::frexp(a, &e);  // a = f * 2^e, f in [0.5, 1)
    e = std::max(e - 1 + (f >= 0.875f) - (four ? 2 : 8), -126);
  }
  const float s = std::ldexp(1.0f, e);
  return on_grid(x / s, four ? kE2M1 : e4m3) * s;
}

class Scheme : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Scheme, ::testing::Values("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "mxfp4", "int8_per_channel_weight_only"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Scheme, IsWhatItsRuleSays) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 32}, {3, 64}, {40, 96}, {130, 160}, {129, 257}};
  for (const auto& [n, k] : shapes) {
    const Matrix m = random_matrix(n, k, static_cast<std::uint32_t>(n + k));
    const auto got = quantized(m, GetParam());
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = 0; c < k; ++c) {
        const float want = definition(m, GetParam(), r, c);
        ASSERT_EQ(got[static_cast<std::size_t>(r * k + c)], want) << n << "x" << k << " [" << r << "," << c << "] of " << m.w[static_cast<std::size_t>(r * k + c)];
      }
  }
}

TEST(Fp8Online, TheWorkedVectorOfTheFormat) {
  Matrix m{1, 32, std::vector<float>(32)};
  m.w = {0.5f, -1.25f, 3.0f, -0.03f};
  m.w.resize(32);
  const auto w = quantized(m, "fp8_per_tensor");
  EXPECT_NEAR(w[0], 0.482143f, 1e-6);
  EXPECT_NEAR(w[1], -1.285714f, 1e-6);
  EXPECT_EQ(w[2], 3.0f);
  EXPECT_NEAR(w[3], -0.0301339f, 1e-6);
  m.w = {0.3f, -0.7f, 1.9f, 0.05f};
  m.w.resize(32);
  const auto x = quantized(m, "mxfp4");
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 4), (std::vector<float>{0.25f, -0.75f, 2.0f, 0.0f}));
}

TEST(Fp8Online, EmbeddingsAndHeadsStayUnlessAsked) {
  const Matrix m = random_matrix(8, 32, 1);
  MockHost host;
  host.add("m.weight", QE_F32, {8, 32}, m.w);
  LoadedPlugin plugin(library(), host);
  const auto claim = [&](int role, const char* method) {
    TestLayer layer(host, {{"m", role, 8}}, 32);
    layer.view.method = method;
    const qe_plan p = plugin.plan(layer);
    if (!p.claim) EXPECT_NE(p.reason[0], 0);
    return p.claim != 0;
  };
  EXPECT_FALSE(claim(QE_ROLE_EMBED, "fp8_per_channel"));
  EXPECT_FALSE(claim(QE_ROLE_LM_HEAD, "fp8_per_channel"));
  EXPECT_TRUE(claim(QE_ROLE_LM_HEAD, "lm_head_fp8"));
  EXPECT_TRUE(claim(QE_ROLE_LM_HEAD, "lm_head_int8"));
  EXPECT_FALSE(claim(QE_ROLE_Q, "lm_head_fp8"));
  EXPECT_FALSE(claim(QE_ROLE_Q, "fp3"));
}

TEST(Fp8Online, ActivationsStayWholeUnlessAsked) {
  const Matrix m = random_matrix(8, 256, 3);
  MockHost host;
  host.add("m.weight", QE_F32, {m.n, m.k}, m.w);
  LoadedPlugin plugin(library(), host);
  const std::vector<float> x = random_matrix(3, 256, 4).w;
  for (const char* method : {"fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "mxfp4"}) {
    const auto run = [&](int flags) {
      TestLayer layer(host, {{"m", QE_ROLE_O, m.n}}, m.k, flags);
      layer.view.method = method;
      return plugin.load(layer).run(x, 3);
    };
    const auto whole = run(0);
    EXPECT_EQ(run(QE_LAYER_ACT_QUANT), whole) << method << ": the checkpoint says nothing";
    EXPECT_NE(run(QE_LAYER_ACT_QUANT | QE_LAYER_ACT_TOKEN), whole) << method;
  }
}

TEST(Fp8Online, AValueThatIsNotFiniteIsRefusedByName) {
  Matrix m = random_matrix(8, 32, 2);
  m.w[70] = std::numeric_limits<float>::infinity();
  MockHost host;
  host.add("m.weight", QE_F32, {8, 32}, m.w);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"m", QE_ROLE_O, 8}}, 32);
  layer.view.method = "fp8_per_channel";
  try {
    plugin.load(layer);
    FAIL() << "loaded";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("m.weight"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace qengine::test
