// Checkpoints that hold several matrices as one module, or an embedding with rows to spare.
#include "core/base/thread_pool.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine {
namespace {

using namespace test;

class StoredTogether : public ::testing::Test {
 protected:
  Folder folder;
  std::unique_ptr<PluginHost> host = toy_host(folder);
  ModelConfig config = toy_config();
  ThreadPool pool{2};
  FormatOptions options;

  void SetUp() override { config.q_bias = config.mlp_bias = true; }
  std::shared_ptr<MemoryCheckpoint> apart() { return toy_model(config, false); }

  // Moves the parts of `layer` into one module under the layer's own name, one after the other.
  void join(MemoryCheckpoint& c, const LayerSpec& layer) {
    std::vector<float> rows, bias;
    std::int64_t n = 0;
    for (const PartSpec& p : layer.parts) {
      n += p.n;
      append(rows, c, p.name + ".weight");
      if (p.bias) append(bias, c, p.name + ".bias");
      else bias.resize(bias.size() + static_cast<std::size_t>(p.n));
    }
    for (const PartSpec& p : layer.parts) c.remove(p.name + ".weight"), c.remove(p.name + ".bias");
    c.add(layer.name + ".weight", QE_F32, {n, layer.k}, rows);
    c.add(layer.name + ".bias", QE_F32, {n}, bias);
  }
  static void append(std::vector<float>& to, const MemoryCheckpoint& c, const std::string& name) {
    const auto bytes = c.data(*c.find(name));
    const std::size_t at = to.size();
    to.resize(at + bytes.size() / 4);
    std::memcpy(to.data() + at, bytes.data(), bytes.size());
  }
  std::unique_ptr<FormatPlan> plan(std::shared_ptr<const Checkpoint> c) { return FormatPlan::make(*host, std::move(c), config, options); }
  std::vector<float> matrix(const FormatPlan& p, std::size_t i) {
    const auto linear = p.load(i, pool);
    std::vector<float> out(static_cast<std::size_t>(linear->n() * linear->k()));
    linear->dequant(0, linear->n(), out.data());
    return out;
  }
};

TEST_F(StoredTogether, LoadsAsItsParts) {
  auto together = apart();
  for (const LayerSpec& layer : layer_specs(config))
    if (layer.parts.size() > 1) join(*together, layer);
  const auto a = plan(apart()), b = plan(together);
  EXPECT_TRUE(b->warnings().empty()) << b->warnings()[0];
  ASSERT_EQ(a->layers().size(), b->layers().size());
  for (std::size_t i = 0; i < a->layers().size(); ++i) {
    EXPECT_EQ(matrix(*a, i), matrix(*b, i)) << a->layers()[i].name;
    for (const PartSpec& p : b->layers()[i].parts)
      if (p.bias) EXPECT_EQ(b->dense(p.name + ".bias", std::array{p.n}), std::vector<float>(static_cast<std::size_t>(p.n), p.role == QE_ROLE_K || p.role == QE_ROLE_V ? 0.0f : 0.5f)) << p.name;
  }
  EXPECT_EQ(a->report()[0].name, b->report()[0].name);
  EXPECT_EQ(a->weight_bytes(), b->weight_bytes());
}

TEST_F(StoredTogether, RulesMayNameThePartsOrTheWhole) {
  for (const char* rule : {"model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.up_proj"}) {
    auto c = apart();
    for (const LayerSpec& layer : layer_specs(config))
      if (layer.name == "model.layers.0.mlp.gate_up_proj") join(*c, layer);
    options.overrides = {{rule, "bf16_ref:f32", "--test"}};
    EXPECT_TRUE(plan(c)->unused_rules().empty()) << rule;
  }
}

TEST_F(StoredTogether, OnePartLeftOutIsMissingAndBothFormsAreTooMany) {
  auto c = apart();
  c->remove("model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(error_of([&] { plan(c); }).code(), "E202");

  c = apart();
  auto joined = apart();
  for (const LayerSpec& layer : layer_specs(config))
    if (layer.name == "model.layers.1.mlp.gate_up_proj") join(*joined, layer);
  std::vector<float> rows;
  append(rows, *joined, "model.layers.1.mlp.gate_up_proj.weight");
  c->add("model.layers.1.mlp.gate_up_proj.weight", QE_F32, {2 * config.intermediate_size, config.hidden_size}, rows);
  const auto p = plan(c);
  ASSERT_EQ(p->warnings().size(), 1u);
  EXPECT_TRUE(has_text(p->warnings()[0], "W203")) << p->warnings()[0];
  EXPECT_TRUE(has_text(p->warnings()[0], "gate_up_proj")) << p->warnings()[0];
}

TEST_F(StoredTogether, RowsBeyondTheVocabularyAreLeftAlone) {
  const auto a = plan(apart());
  ModelConfig small = config;
  small.vocab_size = config.vocab_size - 5;
  auto c = apart();
  const auto p = FormatPlan::make(*host, c, small, options);
  ASSERT_EQ(p->warnings().size(), 2u);
  EXPECT_TRUE(has_text(p->warnings()[0], "W206 model.embed_tokens.weight has 20 rows and vocab_size is 15")) << p->warnings()[0];
  for (std::size_t i = p->layers().size() - 2; i < p->layers().size(); ++i) {
    std::vector<float> all = matrix(*a, i);
    all.resize(static_cast<std::size_t>(small.vocab_size * small.hidden_size));
    EXPECT_EQ(matrix(*p, i), all) << p->layers()[i].name;
  }
  const auto embed = p->load(p->layers().size() - 2, pool);
  const std::int32_t last[] = {14};
  std::vector<float> row(16);
  embed->rows(last, 1, row.data());
  const std::vector<float> all = matrix(*a, p->layers().size() - 2);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + 14 * 16));
  const std::int32_t beyond[] = {15};
  EXPECT_THROW(embed->rows(beyond, 1, row.data()), Error);

  small.vocab_size = config.vocab_size + 1;  // and too few are refused
  EXPECT_EQ(error_of([&] { FormatPlan::make(*host, apart(), small, options); }).code(), "E204");
}

}  // namespace
}  // namespace qengine
