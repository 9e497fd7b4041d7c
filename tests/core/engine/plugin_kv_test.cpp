// A cache whose bytes are a plugin's: what attention reads is what the plugin decodes.
#include "core/engine/plugin_kv.hpp"

#include <random>

#include "tests/core/engine/open_model.hpp"
#include "tests/core/plugin_host/toys.hpp"
#include "tests/support/golden.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

TEST(PluginKv, EveryStoredPositionComesBackThroughTheBlockTables) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "fixture tiny-qwen3 is not there";
  set_log_level("error");
  test::Folder folder;
  test::install(folder.path(), "toy_kv", {.id = "test.toy_kv", .name = "toy_kv"});
  const auto host = test::host_of(folder.path());
  const auto checkpoint = Checkpoint::open(model);
  const ModelConfig config = read_model_config(*checkpoint);
  ThreadPool pool(2);
  auto format = KvFormat::make(*host, checkpoint, config, {.plugin = "toy_kv"}, pool);
  ASSERT_NE(format, nullptr);
  const KvShape shape{config.num_layers, config.num_kv_heads, config.head_dim, 16, KvDtype::kF32};
  PluginKv kv(std::move(format), shape, 64, 700, pool);
  EXPECT_EQ(kv.bytes(), static_cast<std::uint64_t>(2 * 64 * 16 * 2 * config.kv_size() * 2));

  // Multiples of 1/8: the toy keeps those exactly. Two sequences in shuffled blocks, both layers.
  std::mt19937 rng(3);
  std::vector<BlockId> ids(64);
  for (int i = 0; i < 64; ++i) ids[static_cast<std::size_t>(i)] = i;
  std::shuffle(ids.begin(), ids.end(), rng);
  const std::int64_t lengths[] = {333, 41}, width = config.kv_size(), stride = 2 * width + 7;
  std::vector<float> data[2][2];
  for (int layer = 0; layer < 2; ++layer)
    for (int s = 0; s < 2; ++s) {
      auto& d = data[layer][s];
      for (std::int64_t i = 0; i < lengths[s] * stride; ++i) d.push_back(static_cast<float>(static_cast<int>(rng() % 4001) - 2000) / 8);
      std::vector<std::int64_t> slots;
      for (std::int64_t t = 0; t < lengths[s]; ++t) slots.push_back(std::int64_t{ids[static_cast<std::size_t>(s * 32 + t / 16)]} * 16 + t % 16);
      kv.store(layer, d.data(), d.data() + width, stride, slots);
    }
  std::vector<AttnSeq> seqs, fetched;
  for (int s = 0; s < 2; ++s) seqs.push_back({ids.data() + s * 32, lengths[s] - 1, 1, s});
  ASSERT_EQ(kv.groups(seqs).size(), 1u);
  for (int layer = 0; layer < 2; ++layer) {
    kv.fetch(layer, seqs, fetched);
    for (int s = 0; s < 2; ++s)
      for (std::int64_t t = 0; t < lengths[s]; ++t)
        for (int h = 0; h < config.num_kv_heads; ++h)
          for (int i = 0; i < config.head_dim; ++i) {
            const BlockId block = fetched[static_cast<std::size_t>(s)].blocks[t / 16];
            const auto* k = reinterpret_cast<const float*>(kv.scratch().k_at(0, block, h, static_cast<int>(t % 16))) + i * 16;
            const auto* v = reinterpret_cast<const float*>(kv.scratch().v_at(0, block, h, static_cast<int>(t % 16))) + i;
            const float* want = data[layer][s].data() + t * stride + h * config.head_dim + i;
            ASSERT_EQ(*k, want[0]) << "layer " << layer << " sequence " << s << " token " << t;
            ASSERT_EQ(*v, want[width]);
          }
  }
}

TEST(PluginKv, CutsCompanyAndPrefixHitsChangeNothing) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "fixture tiny-qwen3 is not there";
  test::Folder folder;
  const std::string sha = test::install(folder.path(), "toy_kv", {.id = "test.toy_kv", .name = "toy_kv"});
  const auto golden = test::Golden::read(model);
  const auto request = [&](const char* prompt) { return test::greedy_request(golden.json["prompt_ids"][prompt], 12); };
  EngineOptions o = test::exact_options(model);
  o.plugins.paths = {folder.path()};
  o.plugins.allow = {{"test.toy_kv", sha}};
  o.kv_cache_dtype = "toy16";
  const auto whole = Engine::load(o);
  EXPECT_EQ(whole->kv_report()["plugin"], "toy_kv");
  EXPECT_EQ(whole->kv_report()["dtype"], "i16");
  EXPECT_EQ(whole->kv_report()["scale_source"], "default_one");
  const auto want = test::tokens_of(whole->generate({request("p200")})[0]);
  EXPECT_EQ(test::tokens_of(whole->generate({request("p200")})[0]), want) << "from the prefix cache";
  EXPECT_EQ(test::tokens_of(whole->generate({request("p64"), request("p200"), request("p5")})[1]), want);
  o.max_num_batched_tokens = 37;
  EXPECT_EQ(test::tokens_of(Engine::load(o)->generate({request("p200")})[0]), want);
}

}  // namespace
}  // namespace qengine
