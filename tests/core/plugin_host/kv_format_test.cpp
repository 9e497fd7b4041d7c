// Who stores the cache, and that what is stored comes back.
#include "core/plugin_host/kv_format.hpp"

#include <gtest/gtest.h>

#include "core/base/thread_pool.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

struct Kv : ::testing::Test {
  Folder folder;
  std::unique_ptr<PluginHost> host = [&] {
    install(folder.path(), "toy_kv", {.id = "test.toy_kv", .name = "toy_kv"});
    return toy_host(folder);
  }();
  ModelConfig config = toy_config();
  std::shared_ptr<MemoryCheckpoint> model = toy_model(config);
  KvFormatOptions options;
  ThreadPool pool{1};

  std::unique_ptr<KvFormat> make() { return KvFormat::make(*host, model, config, options, pool); }
  void add_scales() {
    for (int l = 0; l < config.num_layers; ++l) {
      model->add("model.layers." + std::to_string(l) + ".self_attn.k_scale", QE_F32, {1}, std::vector<float>{2.0f});
      model->add("model.layers." + std::to_string(l) + ".self_attn.v_scale", QE_F32, {1}, std::vector<float>{0.5f});
    }
  }
};

TEST_F(Kv, CoreKeepsItsOwnCacheUnlessSomebodyAsksOtherwise) {
  ASSERT_NE(host->find("toy_kv"), nullptr) << host->refused()[0].reason;
  for (const char* own : {"auto", "bfloat16", "float16", "half", "float32", "float"}) {
    options.dtype = own;
    EXPECT_EQ(make(), nullptr) << own;
  }
  options.dtype = "toy16";
  const auto kv = make();
  ASSERT_NE(kv, nullptr);
  EXPECT_EQ(kv->plugin().name, "toy_kv");
  EXPECT_EQ(kv->scheme(), "i16");
  EXPECT_EQ(kv->why(), "scheme i16") << "the plugin is told which";
  EXPECT_STREQ(kv->scale_source(), "default_one");
  EXPECT_EQ(kv->bytes_per_token(), 2u * 2 * (2 * 4) * 2);  // layers, k and v, kv heads x head_dim, bytes

  options.dtype = "auto";
  options.plugin = "toy_kv";
  EXPECT_NE(make(), nullptr);
}

TEST_F(Kv, AutoFollowsTheCheckpoint) {
  model->quant_json["kv_cache_scheme"] = Json{{"num_bits", 8}};
  add_scales();
  const auto kv = make();
  ASSERT_NE(kv, nullptr);
  EXPECT_STREQ(kv->scale_source(), "checkpoint");
  options.dtype = "bfloat16";
  EXPECT_EQ(make(), nullptr) << "the user's word comes first";
}

TEST_F(Kv, WhatCannotBeIsRefused) {
  options.dtype = "int3";
  Error e = error_of([&] { make(); });
  EXPECT_EQ(e.code(), "E103");
  EXPECT_TRUE(has_text(e.what(), "no installed plugin offers --kv-cache-dtype int3\n  from  offered: toy16")) << e.what();
  options = {};
  options.plugin = "toy";
  EXPECT_EQ(error_of([&] { make(); }).code(), "E104");
  options.plugin = "toy_kv";
  options.dtype = "bfloat16";
  EXPECT_EQ(error_of([&] { make(); }).code(), "E104");
  options.dtype = "toy16";
  config.head_dim = 512;
  e = error_of([&] { make(); });
  EXPECT_EQ(e.code(), "E304");
  EXPECT_TRUE(has_text(e.what(), "toy_kv cannot store the cache of this model: head_dim 512; supported: up to 256")) << e.what();
}

TEST_F(Kv, StoredTokensComeBackByTheirBlocks) {
  add_scales();
  options.dtype = "toy16";
  options.block_tokens = 4;
  const auto kv = make();
  const std::int64_t width = 8;
  std::vector<std::byte> pool_k(kv->plan().block_bytes_k * 5), pool_v(kv->plan().block_bytes_v * 5);
  std::vector<float> k(7 * width), v(7 * width);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i % 31) * 0.25f, v[i] = static_cast<float>(i % 17) * -0.0625f;
  // Sequence 0: tokens 0..4 in blocks 3, 1; sequence 1: token 5 in block 0; token 6 is skipped.
  const std::int64_t slot[] = {12, 13, 14, 15, 4, 0, -1};
  qe_kv_args a{};
  a.layer = 1;
  a.n_tokens = 7;
  a.k = {QE_F32, 2, {7, width, 0, 0}, {width, 1, 0, 0}, k.data()};
  a.v = {QE_F32, 2, {7, width, 0, 0}, {width, 1, 0, 0}, v.data()};
  a.pool_k = pool_k.data();
  a.pool_v = pool_v.data();
  a.slot = slot;
  kv->store(a);

  const std::int32_t tables[] = {3, 1, 0, 0}, lengths[] = {5, 1};
  std::vector<float> k2(6 * width), v2(6 * width);
  qe_kv_args g{};
  g.layer = 1;
  g.n_seqs = 2;
  g.max_blocks = 2;
  g.block_table = tables;
  g.seq_len = lengths;
  g.k = {QE_F32, 2, {6, width, 0, 0}, {width, 1, 0, 0}, k2.data()};
  g.v = {QE_F32, 2, {6, width, 0, 0}, {width, 1, 0, 0}, v2.data()};
  g.pool_k = pool_k.data();
  g.pool_v = pool_v.data();
  kv->gather(g);
  EXPECT_TRUE(std::equal(k2.begin(), k2.end(), k.begin()));
  EXPECT_TRUE(std::equal(v2.begin(), v2.end(), v.begin()));
  EXPECT_FALSE(kv->has_decode());
  a.layer = 2;
  EXPECT_TRUE(has_text(error_of([&] { kv->store(a); }).what(), "toy_kv 1.2.3 failed in store of kv cache: layer 2 of 2"));
}

// Scales of the cache are nobody's left-overs, and one under a strange name is named with the right one.
TEST_F(Kv, ScalesOfTheCacheAreAccountedFor) {
  add_scales();
  EXPECT_TRUE(FormatPlan::make(*host, model, config, {})->warnings().empty());
  model->remove("model.layers.1.self_attn.k_scale");
  model->add("model.layers.1.attn.kscale", QE_F32, {1}, std::vector<float>{2.0f});
  const Error e = error_of([&] { FormatPlan::make(*host, model, config, {}); });
  EXPECT_TRUE(has_text(e.what(), "E203 tensor model.layers.1.attn.kscale is used by nothing")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "closest expected: model.layers.1.self_attn.k_scale")) << e.what();
}

}  // namespace
}  // namespace qengine::test
