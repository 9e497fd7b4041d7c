// Store, then gather, through the plugin's own ABI; scales under every spelling.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "tests/support/mock_host.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

constexpr int kHeads = 2, kDim = 24, kWidth = kHeads * kDim, kBlock = 16, kLayers = 2;

struct Cache {
  MockHost host;
  const qe_plugin* plugin = nullptr;
  const qe_kv_v1* kv = nullptr;
  qe_model model{};
  qe_kv_plan plan{};
  qe_kv handle = nullptr;
  qe_error error{};
  qe_status status = 0;

  void open(const char* method = nullptr) {
    if (method) host.options["method"] = method;
    void* library = dlopen((binary_dir() / "bin/plugins/kv_fp8.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    plugin = reinterpret_cast<qe_plugin_query_fn>(dlsym(library, "qe_plugin_query"))(QE_ABI_MAJOR, QE_ABI_MINOR);
    ASSERT_EQ(plugin->init(&host.table, &error), QE_OK);
    kv = static_cast<const qe_kv_v1*>(plugin->extension("qe.kv/1"));
    model = host.model();
    model.layers = kLayers;
    model.kv_heads = kHeads;
    model.head_dim = kDim;
    plan.struct_size = sizeof plan;
    status = kv->plan(&host.device, &model, kBlock, &plan, &error);
    if (status == QE_OK && plan.claim) status = kv->open(nullptr, &model, kBlock, &handle, &error);
  }
  ~Cache() {
    if (handle) kv->close(handle);
  }

  // One token after another into shuffled slots of `layer`, back through the block table.
  std::vector<float> round_trip(const std::vector<float>& x, bool value, int layer) {
    const int tokens = static_cast<int>(x.size()) / kWidth, blocks = (tokens + kBlock - 1) / kBlock;
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
    for (int b = 0; b < blocks; ++b) table[static_cast<std::size_t>(b)] = blocks - 1 - b;
    std::vector<std::uint8_t> pool_k(static_cast<std::size_t>(blocks) * plan.block_bytes_k, 0xee), pool_v(pool_k);
    std::vector<std::int64_t> slots;
    for (int t = 0; t < tokens; ++t) slots.push_back(std::int64_t{table[static_cast<std::size_t>(t / kBlock)]} * kBlock + t % kBlock);
    std::vector<float> rows = x, out(x.size()), other(x.size());
    const auto view = [&](std::vector<float>& d, std::int64_t n) { return qe_tensor{QE_F32, 2, {n, kWidth, 0, 0}, {kWidth, 1, 0, 0}, d.data()}; };
    qe_kv_args a{};
    a.struct_size = sizeof a;
    a.layer = layer;
    a.n_tokens = tokens;
    a.k = view(rows, tokens);
    a.v = view(rows, tokens);
    a.pool_k = pool_k.data();
    a.pool_v = pool_v.data();
    a.slot = slots.data();
    EXPECT_EQ(kv->store(handle, &a, &error), QE_OK) << error.message;
    const std::vector<std::uint8_t> before = pool_k;
    std::fill(slots.begin(), slots.end(), -1);  // written by nobody
    EXPECT_EQ(kv->store(handle, &a, &error), QE_OK);
    EXPECT_EQ(pool_k, before);
    qe_kv_args g{};
    g.struct_size = sizeof g;
    g.layer = layer;
    g.n_seqs = 1;
    g.max_blocks = blocks;
    const std::int32_t length = tokens;
    g.seq_len = &length;
    g.block_table = table.data();
    g.k = value ? view(other, tokens) : view(out, tokens);
    g.v = value ? view(out, tokens) : view(other, tokens);
    g.pool_k = pool_k.data();
    g.pool_v = pool_v.data();
    EXPECT_EQ(kv->gather(handle, &g, &error), QE_OK) << error.message;
    return out;
  }
};

std::vector<float> values(int tokens, float size) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int i = 0; i < tokens * kWidth; ++i) x.push_back(size * normal(rng));
  return x;
}

TEST(KvFp8, HalfTheBytesAndTheErrorOfTheFormat) {
  for (const char* method : {"e4m3", "e5m2"}) {
    Cache c;
    c.open(method);
    ASSERT_EQ(c.status, QE_OK) << c.error.message;
    EXPECT_EQ(c.plan.block_bytes_k, static_cast<std::uint64_t>(kBlock * kWidth));  // a byte a value
    const auto x = values(41, 1.0f);
    const float step = std::string(method) == "e4m3" ? 1.0f / 16 : 1.0f / 8;
    for (const bool value : {false, true}) {
      const auto y = c.round_trip(x, value, 1);
      double error = 0, power = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_LE(std::fabs(y[i] - x[i]), std::max(std::fabs(x[i]) * step, 0x1p-10f)) << method << " " << x[i];
        error += (y[i] - x[i]) * (y[i] - x[i]);
        power += x[i] * x[i];
      }
      EXPECT_GT(error / power, step * step / 16) << method << ": rounded less than the format rounds";
    }
  }
}

TEST(KvFp8, SaturatesInPlaceOfNaN) {
  Cache c;
  c.open();
  const auto y = c.round_trip(std::vector<float>(kWidth, 1e6f), false, 0);
  for (const float v : y) EXPECT_EQ(v, 448.0f);
}

struct Spelling {
  const char *k, *v;
};
class KvFp8Names : public ::testing::TestWithParam<Spelling> {};
INSTANTIATE_TEST_SUITE_P(Spellings, KvFp8Names, ::testing::Values(
    Spelling{"k_scale", "v_scale"}, Spelling{"k_proj.k_scale", "v_proj.v_scale"}, Spelling{"attn.k_scale", "attn.v_scale"},
    Spelling{"qkv_proj.k_scale", "qkv_proj.v_scale"}, Spelling{"k_proj.output_scale", "v_proj.output_scale"}),
    [](const auto& info) { return "s" + std::to_string(info.index); });

TEST_P(KvFp8Names, AreFoundForTheirLayer) {
  Cache c;
  for (int l = 0; l < kLayers; ++l) {
    const std::string base = "model.layers." + std::to_string(l) + ".self_attn.";
    c.host.add(base + GetParam().k, QE_F32, {1}, std::vector<float>{0.5f + static_cast<float>(l)});
    c.host.add(base + GetParam().v, QE_F32, {}, std::vector<float>{0.25f});
  }
  c.open();
  ASSERT_EQ(c.status, QE_OK) << c.error.message;
  EXPECT_EQ(c.plan.scale_kind, QE_KV_SCALE_CHECKPOINT);
  const std::vector<float> big(kWidth, 1e6f);
  EXPECT_EQ(c.round_trip(big, false, 0)[0], 448.0f * 0.5f);
  EXPECT_EQ(c.round_trip(big, false, 1)[0], 448.0f * 1.5f);
  EXPECT_EQ(c.round_trip(big, true, 1)[0], 448.0f * 0.25f);
}

TEST(KvFp8, OneScaleForBothOnePerHeadAndOneSideAlone) {
  {
    Cache c;
    for (int l = 0; l < kLayers; ++l) c.host.add("model.layers." + std::to_string(l) + ".self_attn.kv_scale", QE_F32, {1}, std::vector<float>{2.0f});
    c.open();
    EXPECT_EQ(c.round_trip(std::vector<float>(kWidth, 1e6f), true, 0)[0], 896.0f);
  }
  {
    Cache c;
    for (int l = 0; l < kLayers; ++l) c.host.add("model.layers." + std::to_string(l) + ".self_attn.v_scale", QE_F32, {kHeads, 1, 1}, std::vector<float>{1.0f, 4.0f});
    c.open();
    ASSERT_EQ(c.status, QE_OK) << c.error.message;
    EXPECT_EQ(c.plan.encoding, QE_KV_E4M3_HEAD);
    const auto y = c.round_trip(std::vector<float>(kWidth, 1e6f), false, 0);  // v's scales serve k too
    EXPECT_EQ(y[0], 448.0f);
    EXPECT_EQ(y[kDim], 4 * 448.0f);
  }
}

TEST(KvFp8, BadScalesAreRefusedByName) {
  const std::string name = "model.layers.1.self_attn.k_scale";
  const auto refused = [&](std::vector<float> values, const std::string& tensor) {
    Cache c;
    c.host.add(tensor, QE_F32, {static_cast<std::int64_t>(values.size())}, values);
    c.open();
    EXPECT_NE(c.status, QE_OK);
    EXPECT_STREQ(c.error.subject, tensor.c_str());
  };
  refused({NAN}, name);
  refused({-1}, name);
  refused({1, 1, 1}, name);
  refused({0}, "model.layers.0.self_attn.k_zero_point");
}

// The host takes what is looked at for the cache's: a scale that was passed over would be reported as nobody's.
TEST(KvFp8, AFaultDoesNotEndTheSearch) {
  Cache c;
  for (const char* which : {"k_scale", "v_scale"})
    for (int l = 0; l < kLayers; ++l) c.host.add("model.layers." + std::to_string(l) + ".self_attn." + which, QE_F32, {1}, std::vector<float>{l == 0 && *which == 'k' ? NAN : 1.0f});
  static std::set<std::string, std::less<>> seen;
  static auto* const look = c.host.table.tensor;
  c.host.table.tensor = [](void* host, qe_ckpt ckpt, qe_str name, qe_tensor* out) noexcept {
    seen.emplace(name.p, name.n);
    return look(host, ckpt, name, out);
  };
  c.open();
  EXPECT_STREQ(c.error.subject, "model.layers.0.self_attn.k_scale");
  for (const auto& t : c.host.tensors) EXPECT_TRUE(seen.contains(t.first)) << t.first;
}

TEST(KvFp8, WithoutScalesItSaysSo) {
  Cache c;
  c.open();
  EXPECT_EQ(c.plan.scale_kind, QE_KV_SCALE_ONE);
  qe_reason why{};
  EXPECT_EQ(c.plugin->detect(&c.model, why), 0);
  c.host.config["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_GE(c.plugin->detect(&c.model, why), 600);
  c.host.config["kv_cache_scheme"] = "FP8";
  EXPECT_GE(c.plugin->detect(&c.model, why), 600);
  c.host.config["kv_cache_scheme"] = "INT8";
  EXPECT_EQ(c.plugin->detect(&c.model, why), 0);
}

// Scales of some layers alone are likelier a damaged file than a wish.
TEST(KvFp8, ALayerWithoutScalesAmongOthersIsSaid) {
  Cache c;
  for (const char* which : {"k_scale", "v_scale"}) c.host.add(std::string("model.layers.0.self_attn.") + which, QE_F32, {1}, std::vector<float>{2.0f});
  c.open();
  ASSERT_EQ(c.status, QE_OK) << c.error.message;
  EXPECT_EQ(c.plan.scale_kind, QE_KV_SCALE_CHECKPOINT);
  ASSERT_EQ(c.host.logged.size(), 1u);
  EXPECT_NE(c.host.logged[0].find("model.layers.1.self_attn.k_scale and its v_scale are missing, as in " + std::to_string(kLayers - 1) + " of " + std::to_string(kLayers) + " layers; scale 1.0 is used there"), std::string::npos) << c.host.logged[0];
}

}  // namespace
}  // namespace qengine::test
