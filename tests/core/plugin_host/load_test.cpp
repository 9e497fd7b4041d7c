// Loading and running through the toy plugin: right numbers, right bytes, and faults that are named.
#include <gtest/gtest.h>

#include "core/base/thread_pool.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/host_table.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

struct Loads : ::testing::Test {
  Folder folder;
  std::unique_ptr<PluginHost> host = toy_host(folder);
  ModelConfig config = toy_config();
  std::shared_ptr<MemoryCheckpoint> model = toy_model(config);
  FormatOptions options;
  ThreadPool pool{3};

  std::unique_ptr<FormatPlan> plan() { return FormatPlan::make(*host, model, config, options); }
  Error load_fails(const char* fault, std::size_t layer = 3) {
    model->quant_json["fault"] = fault;
    return error_of([&] { plan()->load(layer, pool); });
  }
  std::vector<float> matrix(const LayerSpec& spec) const {
    std::vector<float> w;
    for (const PartSpec& p : spec.parts)
      for (std::size_t n = 0; n < static_cast<std::size_t>(p.n); ++n)
        for (std::size_t k = 0; k < static_cast<std::size_t>(spec.k); ++k) w.push_back(toy_scale(n) * static_cast<float>(toy_code(p.name, n * spec.k + k)));
    return w;
  }
};

// The same numbers, whether the parts are one product or three.
TEST_F(Loads, PartsLandInTheirSlicesFusedOrNot) {
  for (const bool apart : {false, true}) {
    SCOPED_TRACE(apart);
    if (apart) model->quant_json["no_fuse"] = true;
    options.m_max = 4;  // longer inputs go in slices
    const auto p = plan();
    for (std::size_t i = 0; i < 8; ++i) {
      const LayerSpec& spec = p->layers()[i];
      const auto linear = p->load(i, pool);
      const std::vector<float> w = matrix(spec);
      const std::int64_t n = linear->n(), k = linear->k(), m = 11;
      ASSERT_EQ(static_cast<std::size_t>(n * k), w.size());
      std::vector<float> got(w.size());
      linear->dequant(0, n, got.data());
      ASSERT_EQ(got, w);
      std::vector<float> some(5 * k);
      linear->dequant(n - 7, n - 2, some.data());
      ASSERT_TRUE(std::equal(some.begin(), some.end(), w.begin() + (n - 7) * k));

      std::vector<float> in(m * (k + 3)), out(m * (n + 2), -7.0f);
      for (std::size_t j = 0; j < in.size(); ++j) in[j] = static_cast<float>(static_cast<int>(j % 13) - 6);
      linear->run(in.data(), k + 3, out.data(), n + 2, m);
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t c = 0; c < n; ++c) {
          float sum = 0;  // small integers times quarters: exact
          for (std::int64_t j = 0; j < k; ++j) sum += in[r * (k + 3) + j] * w[c * k + j];
          ASSERT_EQ(out[r * (n + 2) + c], sum) << spec.name << " " << r << " " << c;
        }
        ASSERT_EQ(out[r * (n + 2) + n], -7.0f) << "beyond the row";
      }
      linear->run(in.data(), k + 3, out.data(), n + 2, 0);
    }
  }
}

TEST_F(Loads, BytesAreThePlansAndComeBack) {
  PluginServices& toy = *host->find("toy")->services;
  const std::uint64_t before = toy.held(QE_MEM_WEIGHT);
  std::uint64_t sum = 0;
  {
    std::vector<std::unique_ptr<Linear>> linears;
    auto p = plan();
    for (std::size_t i = 0; i < p->layers().size(); ++i) linears.push_back(p->load(i, pool));
    for (const auto& l : linears) sum += l->bytes(QE_MEM_WEIGHT);
    EXPECT_EQ(sum, p->weight_bytes());
    EXPECT_GT(toy.held(QE_MEM_WEIGHT), before);
    p.reset();  // what was loaded outlives the plan
    std::vector<float> in(16, 1.0f), out(32);
    linears[0]->run(in.data(), 16, out.data(), 32, 1);
  }
  EXPECT_EQ(toy.held(QE_MEM_WEIGHT), before);
}

TEST_F(Loads, PagesAreGivenBackAfterEachLayer) {
  const auto p = plan();
  model->released.clear();
  p->load(3, pool);
  EXPECT_EQ(model->released, (std::vector<std::string>{"model.layers.0.mlp.down_proj.codes", "model.layers.0.mlp.down_proj.scale"}));
}

TEST_F(Loads, BrokenContractsNameThePluginAndTheRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"bytes", "toy 1.2.3 broke its contract: model.layers.0.mlp.down_proj took 448 bytes, planned 447 bytes\n  in    load\n  hint  report it to Toymakers"},
      {"temp", "model.layers.0.mlp.down_proj took 4096 bytes while loading, planned 0 bytes"},
      {"leak", "kept memory that it took only for loading"},
      {"no result", "succeeded without a result"},
      {"silent", "toy 1.2.3 failed in load of model.layers.0.mlp.down_proj without saying why (status -7)"},
  };
  for (const auto& [fault, text] : cases) {
    const Error e = load_fails(fault);
    EXPECT_EQ(e.code(), "E309") << fault;
    EXPECT_TRUE(has_text(e.what(), text)) << e.what();
  }
}

TEST_F(Loads, ABadValueNamesItsTensorAndFile) {
  EXPECT_EQ(std::string(load_fails("value").what()),
            "E206 model.layers.0.mlp.down_proj.scale has 3 NaN values (first at row 512)\n  in    model.safetensors\n"
            "  from  toy, load of model.layers.0.mlp.down_proj\n  hint  the file is damaged");
  const Error e = load_fails("coded");
  EXPECT_EQ(e.code(), "E204");
  EXPECT_EQ(e.message(), "everything is upside down");
}

TEST_F(Loads, AFailedRunIsAnError) {
  model->quant_json["fault"] = "run";
  const auto linear = plan()->load(3, pool);
  std::vector<float> in(24), out(16);
  const Error e = error_of([&] { linear->run(in.data(), 24, out.data(), 16, 1); });
  EXPECT_EQ(e.code(), "E309");
  EXPECT_TRUE(has_text(e.what(), "failed in run of model.layers.0.mlp.down_proj: in is not to my taste")) << e.what();
}

TEST_F(Loads, CancellingStopsBetweenLayers) {
  std::atomic<bool> stop{false};
  options.cancel = &stop;
  const auto p = plan();
  EXPECT_NO_THROW(p->load(0, pool));
  stop = true;
  EXPECT_TRUE(has_text(error_of([&] { p->load(1, pool); }).what(), "cancelled"));
}

TEST_F(Loads, DenseTensorsComeAsFloatsInTheModelsOrder) {
  const std::int64_t three[] = {3}, four[] = {4};
  model->add("model.a", QE_BF16, {3}, std::vector<std::uint16_t>{0x3f80, 0xc000, 0x0001});
  model->add("model.b", QE_F16, {4}, std::vector<std::uint16_t>{0x3c00, 0xc000, 0x0001, 0x7bff});
  model->add("model.c", QE_GGML + 0, {3}, std::vector<float>{1, 2, 3}, true);
  model->add("model.nan", QE_F32, {3}, std::vector<float>{1, NAN, 3});
  model->add("model.int", QE_I32, {3}, std::vector<std::int32_t>{1, 2, 3});
  const auto p = plan();
  EXPECT_EQ(p->dense("model.a", three), (std::vector<float>{1, -2, std::ldexp(1.0f, -133)}));
  EXPECT_EQ(p->dense("model.b", four), (std::vector<float>{1, -2, std::ldexp(1.0f, -24), 65504}));
  EXPECT_EQ(p->dense("model.c", three), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(error_of([&] { p->dense("model.a", four); }).code(), "E204");
  EXPECT_EQ(error_of([&] { p->dense("model.nan", three); }).code(), "E206");
  EXPECT_EQ(error_of([&] { p->dense("model.int", three); }).message(), "model.int has dtype I32, expected F32, F16 or BF16");
  EXPECT_EQ(error_of([&] { p->dense("model.gone", three); }).code(), "E202");
}

TEST_F(Loads, BiasesOfRotatedRowsAreTurnedLikeTheirMatrices) {
  config.q_bias = config.k_bias = config.v_bias = true;
  model = toy_model(config);
  for (const char* part : {"q", "v"}) model->remove("model.layers.0.self_attn." + std::string(part) + "_proj.bias");
  std::vector<float> rising(16);
  for (int i = 0; i < 16; ++i) rising[i] = static_cast<float>(i);
  model->add("model.layers.0.self_attn.q_proj.bias", QE_F32, {16}, rising);
  model->add("model.layers.0.self_attn.v_proj.bias", QE_F32, {8}, std::vector<float>(rising.begin(), rising.begin() + 8));
  const std::int64_t q[] = {16}, v[] = {8};
  EXPECT_EQ(plan()->dense("model.layers.0.self_attn.q_proj.bias", q), rising);
  model->interleaved = true;
  const auto p = plan();
  EXPECT_EQ(p->dense("model.layers.0.self_attn.q_proj.bias", q), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15}));
  EXPECT_EQ(p->dense("model.layers.0.self_attn.v_proj.bias", v), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Loads, EmbeddingRowsComeFromTheHandle) {
  const auto p = plan();
  const auto embed = p->load(8, pool);
  ASSERT_TRUE(embed->has_rows());
  const std::int32_t ids[] = {19, 0, 19};
  std::vector<float> rows(3 * 16), all(20 * 16);
  embed->rows(ids, 3, rows.data());
  embed->dequant(0, 20, all.data());
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < 16; ++k) EXPECT_EQ(rows[r * 16 + k], all[ids[r] * 16 + k]);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_F(Loads, ACrashNamesThePluginTheLayerAndTheCall) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto crash = [&](const char* fault) {
    install_crash_handler();
    ThreadPool threads(3);
    model->quant_json["fault"] = fault;
    const auto linear = plan()->load(3, threads);
    std::vector<float> in(24 * 40), out(16 * 40);
    linear->run(in.data(), 24, out.data(), 16, 40);
  };
  EXPECT_EXIT(crash("crash"), ::testing::KilledBySignal(SIGABRT), "killed by SIGABRT inside plugin toy, call run, layer model.layers.0.mlp.down_proj");
  EXPECT_EXIT(crash("crash in a worker"), ::testing::KilledBySignal(SIGABRT), "killed by SIGABRT inside plugin toy, call run, layer model.layers.0.mlp.down_proj");
}
#endif

}  // namespace
}  // namespace qengine::test
