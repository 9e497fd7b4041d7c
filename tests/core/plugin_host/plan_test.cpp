// Who gets which layer, and what is said when something does not add up.
#include <gtest/gtest.h>

#include "core/base/thread_pool.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

struct Plans : ::testing::Test {
  Folder folder;
  std::unique_ptr<PluginHost> host = toy_host(folder);
  ModelConfig config = toy_config();
  std::shared_ptr<MemoryCheckpoint> model = toy_model(config);
  FormatOptions options;

  std::unique_ptr<FormatPlan> plan() { return FormatPlan::make(*host, model, config, options); }
  Error refused() { return error_of([&] { plan(); }); }

  static const LayerReport& row(const FormatPlan& p, const std::string& name) {
    for (const LayerReport& r : p.report())
      if (r.name == name) return r;
    ADD_FAILURE() << "no row " << name;
    return p.report()[0];
  }
  static std::string all(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& l : lines) out += l + "\n";
    return out;
  }
};

TEST_F(Plans, TheBestScoreWinsAndTheRestGoesToWhoReadsUnquantizedWeights) {
  const auto p = plan();
  ASSERT_EQ(p->report().size(), 10u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(p->report()[i].plugin, "toy") << p->report()[i].name;
  EXPECT_EQ(p->report()[0].name, "model.layers.0.self_attn.qkv_proj");
  EXPECT_EQ(p->report()[0].scheme, "i8");
  EXPECT_EQ(p->report()[0].kernel, "toy_loop");
  EXPECT_EQ(p->report()[0].tier, "native");
  EXPECT_EQ(p->report()[0].bytes, (16u + 8 + 8) * (16 + 4));
  EXPECT_EQ(row(*p, "lm_head").plugin, "bf16_ref");
  EXPECT_EQ(row(*p, "lm_head").reason, "toy: no codes");
  EXPECT_EQ(row(*p, "model.embed_tokens").plugin, "bf16_ref");
  EXPECT_EQ(p->scores()[0].plugin->name, "toy");
  EXPECT_EQ(p->choice(), "toy: quant_method is toy; this plugin reads toy");
  EXPECT_TRUE(p->warnings().empty()) << all(p->warnings());
  EXPECT_TRUE(p->ignored_tensors().empty());
}

TEST_F(Plans, AScoreOf300NeverWinsByItself) {
  model = toy_model(config, false);
  EXPECT_EQ(plan()->report()[0].plugin, "bf16_ref");
  options.plugin = "toy:online";
  const auto p = plan();
  EXPECT_EQ(p->report()[0].plugin, "toy");
  EXPECT_EQ(p->report()[0].scheme, "online");
  EXPECT_EQ(row(*p, "lm_head").plugin, "bf16_ref");
  EXPECT_EQ(row(*p, "lm_head").reason, "toy: a head or an embedding");
}

TEST_F(Plans, ATieStopsTheLoadAndListsBoth) {
  install(folder.path(), "toy_twin", {.id = "test.twin", .name = "twin"});
  host = host_of(folder.path());
  EXPECT_EQ(std::string(refused().what()), "E303 two plugins claim this checkpoint with score 1000: toy 1.2.3, twin 1.2.3\n  hint  choose with --plugin");
  options.plugin = "twin";
  EXPECT_EQ(plan()->report()[0].plugin, "twin");
}

TEST_F(Plans, NobodyForTheCheckpointIsSaidWithEveryReason) {
  model->quant_json = Json{{"quant_method", "frobnicate"}, {"bits", 3}};
  const Error e = refused();
  EXPECT_EQ(e.code(), "E304");
  EXPECT_TRUE(has_text(e.what(), "it is frobnicate (3-bit)\n  in    config.json quantization_config, quant_method frobnicate")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "\n  toy   quant_method is frobnicate; this plugin reads toy")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "\n  bf16_ref  ")) << e.what();
}

TEST_F(Plans, ANamedPluginIsUsedOrRefusedNeverReplaced) {
  options.plugin = "bf16_ref";
  Error e = refused();
  EXPECT_EQ(e.code(), "E104");
  EXPECT_TRUE(has_text(e.what(), "bf16_ref does not match the checkpoint, which is toy")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "or use --plugin toy")) << e.what();
  options.plugin = "toy";
  options.quantization = "bf16_ref";
  EXPECT_EQ(refused().code(), "E104");
  options.quantization = "auto_toy";
  EXPECT_EQ(plan()->report()[0].plugin, "toy") << "both given and agreeing";
}

TEST_F(Plans, PartsThatDoNotFuseStandAlone) {
  model->quant_json["no_fuse"] = true;
  const auto p = plan();
  EXPECT_EQ(p->report().size(), 2u * (3 + 1 + 2 + 1) + 2);
  EXPECT_EQ(p->report()[1].name, "model.layers.0.self_attn.k_proj");
}

// A checkpoint that left single matrices in 16 or 32 bits: tensors beat config.
TEST_F(Plans, AMatrixThatIsNotQuantizedLeavesItsGroup) {
  const std::string v = "model.layers.1.self_attn.v_proj";
  model->remove(v + ".codes");
  model->remove(v + ".scale");
  add_plain(*model, v, 8, 16);
  const auto p = plan();
  EXPECT_EQ(row(*p, "model.layers.0.self_attn.qkv_proj").plugin, "toy");
  EXPECT_EQ(row(*p, "model.layers.1.self_attn.q_proj").plugin, "toy");
  EXPECT_EQ(row(*p, v).plugin, "bf16_ref");
  EXPECT_EQ(row(*p, v).reason, "toy: no codes or scale of " + v + " in the checkpoint");
}

TEST_F(Plans, IgnoreListsAreTheOneMatchersAndIdleRulesAreReported) {
  model->quant_json["ignore"] = Json::array({"lm_head", "re:.*layers\\.1\\.mlp\\.(gate|up)_proj$", "layers.0.self_attn.v_proj", "re:.*lm_haed", "*.o_prj", "Linear"});
  for (const char* name : {"model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"}) {
    model->remove(std::string(name) + ".codes"), model->remove(std::string(name) + ".scale");
    add_plain(*model, name, 24, 16);
  }
  model->remove("model.layers.0.self_attn.v_proj.codes"), model->remove("model.layers.0.self_attn.v_proj.scale");
  add_plain(*model, "model.layers.0.self_attn.v_proj", 8, 16);
  const auto p = plan();
  EXPECT_EQ(row(*p, "model.layers.1.mlp.gate_up_proj").reason, "toy: listed in ignore") << "the two go together";
  EXPECT_EQ(row(*p, "model.layers.0.self_attn.v_proj").plugin, "bf16_ref");
  EXPECT_EQ(p->unused_rules(), (std::vector<std::string>{"*.o_prj", "re:.*lm_haed"}));
  EXPECT_TRUE(has_text(all(p->warnings()), "W205 rule \"re:.*lm_haed\" in config.json quantization_config matches no layer\n  hint  closest name: lm_head")) << all(p->warnings());
  EXPECT_TRUE(has_text(all(p->warnings()), "closest name: o_proj")) << all(p->warnings());
}

TEST_F(Plans, ABadPatternInACheckpointIsNamed) {
  model->quant_json["ignore"] = Json::array({"re:(["});
  const Error e = refused();
  EXPECT_EQ(e.code(), "E211");
  EXPECT_TRUE(has_text(e.what(), "\"re:([\" is no valid pattern: missing terminating ]")) << e.what();
}

TEST_F(Plans, ConfigThatClaimsWhatTheTensorsAreNotLoadsWithAWarning) {
  model = toy_model(config, false);
  model->quant_json = Json{{"quant_method", "toy"}};
  const auto p = plan();
  for (const LayerReport& r : p->report()) EXPECT_EQ(r.plugin, "bf16_ref");
  EXPECT_TRUE(has_text(all(p->warnings()), "W201 config.json quantization_config says toy, but no layer has quantized tensors")) << all(p->warnings());
}

// ---- tensors --------------------------------------------------------------------------------------------

TEST_F(Plans, AMissingTensorIsNamedWithWhatIsThere) {
  model->remove("model.layers.1.mlp.down_proj.scale");
  EXPECT_EQ(std::string(refused().what()),
            "E202 missing tensor model.layers.1.mlp.down_proj.scale\n  from  toy needs codes, scale; present: codes\n"
            "  hint  the download may be incomplete, or config.json belongs to another model");
}

TEST_F(Plans, AModuleOfWhichNothingIsThereIsMissingNotUnquantized) {
  for (const char* t : {".codes", ".scale"}) model->remove(std::string("model.layers.1.self_attn.v_proj") + t);
  const Error e = refused();
  EXPECT_EQ(e.code(), "E202");
  EXPECT_EQ(e.message(), "missing tensor model.layers.1.self_attn.v_proj.codes");
  EXPECT_TRUE(has_text(e.what(), "beside it model.layers.1.self_attn.k_proj")) << e.what();

  model = toy_model(config, false);
  model->remove("lm_head.weight");
  EXPECT_EQ(refused().message(), "missing tensor lm_head.weight");
}

TEST_F(Plans, WrongTypesAndShapesAreNamedWithWhatWasExpected) {
  model->at("model.layers.0.mlp.up_proj.codes").shape = {16, 24};
  Error e = refused();
  EXPECT_EQ(e.code(), "E204");
  EXPECT_EQ(e.message(), "model.layers.0.mlp.up_proj.codes has shape [16, 24], expected [24, 16]");
  EXPECT_EQ(e.find("in"), "model.safetensors");
  EXPECT_EQ(e.find("also"), "");
  model->at("model.layers.0.mlp.gate_proj.scale").shape = {23};
  EXPECT_EQ(refused().message(), "model.layers.0.mlp.gate_proj.scale has shape [23], expected [24]");
  EXPECT_EQ(refused().find("also"), "model.layers.0.mlp.up_proj.codes has shape [16, 24], expected [24, 16]");
  model->at("model.layers.0.mlp.gate_proj.scale").shape = {24};
  model->at("model.layers.0.mlp.up_proj.codes").shape = {24, 16};
  model->at("model.layers.0.mlp.up_proj.codes").dtype = QE_F16;
  EXPECT_EQ(refused().message(), "model.layers.0.mlp.up_proj.codes has dtype F16, expected I8");
  model->at("model.layers.0.mlp.up_proj.codes").dtype = kDtypeF64;
  EXPECT_EQ(refused().message(), "model.layers.0.mlp.up_proj.codes has dtype F64, expected I8");
}

TEST_F(Plans, NormsAndBiasesAreCheckedToo) {
  model->at("model.norm.weight").shape = {8};
  EXPECT_EQ(refused().message(), "model.norm.weight has shape [8], expected [16]");
  model->remove("model.norm.weight");
  EXPECT_EQ(refused().message(), "missing tensor model.norm.weight");
  config.o_bias = true;
  model = toy_model(config);
  model->remove("model.layers.1.self_attn.o_proj.bias");
  EXPECT_EQ(refused().message(), "missing tensor model.layers.1.self_attn.o_proj.bias");
}

TEST_F(Plans, ABiasThatTheArchitectureDoesNotHaveIsAdded) {
  model->add("model.layers.0.self_attn.k_proj.bias", QE_F32, {8}, std::vector<float>(8));
  const auto p = plan();
  EXPECT_TRUE(p->layers()[0].parts[1].bias);
  EXPECT_FALSE(p->layers()[0].parts[0].bias);
  EXPECT_TRUE(p->warnings().empty()) << all(p->warnings());
}

TEST_F(Plans, ALeftOverScaleStopsTheLoadAndOtherLeftOversAreNamed) {
  model->add("model.layers.0.self_attn.secret.weight", QE_F32, {1}, std::vector<float>{1});
  model->add("model.layers.7.mlp.norm.weight", QE_F32, {1}, std::vector<float>{1});
  model->add("model.layers.0.self_attn.rotary_emb.inv_freq", QE_F32, {1}, std::vector<float>{1});
  model->add("vision_tower.encoder.weight", QE_F32, {1}, std::vector<float>{1});
  const auto p = plan();
  EXPECT_TRUE(has_text(all(p->warnings()), "W203 2 tensors are used by nothing: model.layers.0.self_attn.secret.weight, model.layers.7.mlp.norm.weight")) << all(p->warnings());
  EXPECT_EQ(p->ignored_tensors().size(), 2u);
  EXPECT_TRUE(has_text(p->ignored_tensors()[0], "inv_freq (rotary table"));

  model->add("model.layers.0.mlp.dwn_proj.kscale", QE_F32, {1}, std::vector<float>{1});
  EXPECT_EQ(std::string(refused().what()),
            "E203 tensor model.layers.0.mlp.dwn_proj.kscale is used by nothing\n  in    model.safetensors\n"
            "  from  scale-like name; closest expected: model.layers.0.mlp.down_proj.scale\n"
            "  hint  a misread scale gives wrong text; if it is meant to be unused: --ignore-tensor 're:.*kscale'");
  options.ignore_tensors = {"re:.*kscale$", "*.nothing"};
  const auto q = plan();
  EXPECT_TRUE(has_text(all(q->ignored_tensors()), "dwn_proj.kscale (--ignore-tensor re:.*kscale$)"));
  EXPECT_EQ(q->unused_rules(), std::vector<std::string>{"*.nothing"});
  options.ignore_tensors = {"re:(["};
  EXPECT_EQ(refused().code(), "E101");
}

TEST_F(Plans, WhateverElseLiesInAQuantizedMatrixIsSuspicious) {
  model->add("model.layers.0.mlp.down_proj.order", QE_F32, {1}, std::vector<float>{1});
  EXPECT_TRUE(has_text(refused().what(), "E203 tensor model.layers.0.mlp.down_proj.order is used by nothing\n  in    model.safetensors\n  from  it lies beside the tensors of a quantized matrix;"));
  model->remove("model.layers.0.mlp.down_proj.order");
  add_plain(*model, "model.layers.0.mlp.down_proj", 16, 24);
  EXPECT_TRUE(has_text(all(plan()->warnings()), "W203 1 tensor is used by nothing: model.layers.0.mlp.down_proj.weight"));
}

// ---- tied heads -----------------------------------------------------------------------------------------

TEST_F(Plans, TiedHeadsInEveryFormAreOneTableOrNamed) {
  config.tied = true;
  model = toy_model(config, false);  // holds embed_tokens alone
  auto p = plan();
  EXPECT_EQ(p->layers().back().parts[0].name, "model.embed_tokens");
  EXPECT_TRUE(p->report().back().tied);
  EXPECT_TRUE(p->warnings().empty());

  add_plain(*model, "lm_head", 20, 16);  // other values, as add_plain goes by the name
  p = plan();
  EXPECT_TRUE(has_text(all(p->warnings()), "W204 lm_head.weight differs from model.embed_tokens.weight and is not used")) << all(p->warnings());
  EXPECT_TRUE(has_text(all(p->ignored_tensors()), "lm_head.weight (tied"));

  model->remove("lm_head.weight");
  std::vector<float> same(20 * 16);
  std::memcpy(same.data(), model->data(model->at("model.embed_tokens.weight")).data(), same.size() * 4);
  model->add("lm_head.weight", QE_F32, {20, 16}, same);
  p = plan();
  EXPECT_TRUE(p->warnings().empty()) << all(p->warnings());
  EXPECT_TRUE(has_text(all(p->ignored_tensors()), "lm_head.weight (equal to model.embed_tokens.weight, tied)"));

  model->remove("model.embed_tokens.weight");  // only the head is stored
  p = plan();
  EXPECT_EQ(p->layers().back().parts[0].name, "lm_head");
  EXPECT_TRUE(p->warnings().empty()) << all(p->warnings());

  model = toy_model(config);  // the head has codes of its own, the embedding stays as it is
  add_toy(*model, "lm_head", 20, 16);
  p = plan();
  ASSERT_EQ(p->layers().size(), 10u);
  EXPECT_EQ(p->layers()[8].parts[0].role, QE_ROLE_EMBED);
  EXPECT_EQ(row(*p, "model.embed_tokens").plugin, "bf16_ref");
  EXPECT_EQ(row(*p, "lm_head").plugin, "toy");
  EXPECT_FALSE(p->report().back().tied);
}

TEST_F(Plans, AnEightBitHeadIsMadeWhenAskedFor) {
  model = toy_model(config, false);
  options.quantize_lm_head = "toy8";
  const auto p = plan();
  EXPECT_EQ(row(*p, "lm_head").plugin, "toy");
  EXPECT_EQ(row(*p, "lm_head").scheme, "online");
  EXPECT_EQ(row(*p, "model.embed_tokens").plugin, "bf16_ref");
  EXPECT_EQ(p->report()[0].plugin, "bf16_ref");
}

// ---- rules and policies -----------------------------------------------------------------------------------

TEST_F(Plans, RulesChooseByNameAndTheLastOneWins) {
  model = toy_model(config, false);
  options.overrides = {{"re:.*down_proj", "toy:online", "qengine.toml:14"}, {"*.layers.1.mlp.down_proj", "bf16_ref", "qengine.toml:17"}, {"*.up_proj", "toy:online", "qengine.toml:20"},
                       {"*.dwon_proj", "toy:online", "qengine.toml:23"}};
  const auto p = plan();
  EXPECT_EQ(row(*p, "model.layers.0.mlp.down_proj").plugin, "toy");
  EXPECT_EQ(row(*p, "model.layers.1.mlp.down_proj").plugin, "bf16_ref");
  EXPECT_EQ(row(*p, "model.layers.0.mlp.up_proj").plugin, "toy") << "a rule for one part takes the group apart";
  EXPECT_EQ(row(*p, "model.layers.0.mlp.gate_proj").plugin, "bf16_ref");
  EXPECT_EQ(p->unused_rules(), std::vector<std::string>{"*.dwon_proj"});
  EXPECT_TRUE(has_text(all(p->warnings()), "W205 rule \"*.dwon_proj\" in [[quant.override]] (qengine.toml:23) matches no layer\n  hint  closest name: down_proj")) << all(p->warnings());
}

TEST_F(Plans, ARuleThatCannotBeKeptStops) {
  options.overrides = {{"*down_proj", "bf16_ref", "qengine.toml:14"}};
  const Error e = refused();
  EXPECT_EQ(e.code(), "E304");
  EXPECT_TRUE(has_text(e.what(), "E304 no plugin accepts model.layers.0.mlp.down_proj (toy)\n  from  qengine.toml:14 names bf16_ref for it\n  bf16_ref  ")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "tensors  model.layers.0.mlp.down_proj.codes I8 [16, 24]")) << e.what();
  options.overrides = {{"re:([", "bf16_ref", "qengine.toml:14"}};
  EXPECT_EQ(refused().code(), "E102");
  options.overrides = {{"*", "nobody", "qengine.toml:14"}};
  EXPECT_TRUE(has_text(refused().what(), "E103 no installed plugin is called or aliased \"nobody\"\n  from  qengine.toml:14"));
}

TEST_F(Plans, FallbacksAreOfferedAndAnnouncedNeverSilent) {
  model->quant_json["tier"] = "fallback";
  auto p = plan();
  EXPECT_EQ(p->report()[0].tier, "weight-only");
  ASSERT_EQ(p->warnings().size(), 1u) << all(p->warnings());
  EXPECT_EQ(p->warnings()[0], "W302 8 layers are weight-only: toys are slow here\n  from  toy:i8\n  hint  --fallback error stops here, allow hides this line");
  options.fallback = Fallback::kAllow;
  EXPECT_TRUE(plan()->warnings().empty());
  options.fallback = Fallback::kError;
  EXPECT_EQ(std::string(refused().what()),
            "E401 8 layers have no native kernel on this CPU and --fallback is error\n  from  toy: toys are slow here (8 layers)\n"
            "  hint  --fallback warn runs them on the weight-only path");
}

TEST_F(Plans, ARequiredFormatIsHeldAgainstEveryLayer) {
  for (const char* scheme : {"toy", "toy:i8", "i8", "test.toy", "test.toy:i8"}) {
    options.require_format = {{"linear", scheme}};
    EXPECT_NO_THROW(plan()) << scheme;
  }
  options.require_format = {{"", "toy:i8"}};
  EXPECT_NO_THROW(plan());
  options.require_format = {{"lm_head", "toy"}};
  const Error e = refused();
  EXPECT_EQ(e.code(), "E401");
  EXPECT_TRUE(has_text(e.what(), "lm_head is bf16_ref:f32, and --require-format lm_head=toy asks for toy\n  from  toy: no codes")) << e.what();
  options.require_format = {{"*.nothing", "toy"}};
  EXPECT_EQ(plan()->unused_rules(), std::vector<std::string>{"*.nothing"});
}

TEST_F(Plans, WhatAPluginSaysInPlanIsPassedOn) {
  model->quant_json["fault"] = "plan";
  Error e = refused();
  EXPECT_EQ(e.code(), "E309");
  EXPECT_TRUE(has_text(e.what(), "toy 1.2.3 failed in plan of model.layers.0.self_attn.qkv_proj: the wheels came off")) << e.what();
  model->quant_json["fault"] = "regimes";
  e = refused();
  EXPECT_EQ(e.code(), "E309");
  EXPECT_TRUE(has_text(e.what(), "has 5 regimes")) << e.what();
}

TEST_F(Plans, ConfigAloneIsEnoughToPlan) {
  Json c{{"torch_dtype", "bfloat16"}};
  const auto p = FormatPlan::make(*host, Checkpoint::from_config(c), config, options);
  EXPECT_EQ(p->report()[0].plugin, "bf16_ref");
  EXPECT_EQ(p->report()[0].scheme, "bf16");
  EXPECT_GE(p->report()[0].bytes, 32u * 16 * 2);
  const auto q = FormatPlan::make(*host, Checkpoint::from_config(c, Json{{"quant_method", "toy"}}), config, options);
  EXPECT_EQ(q->report()[0].plugin, "toy");
}

// A cut that is not legal names the layer and the sizes that are, before weights are read.
TEST_F(Plans, CutsForSeveralDevicesAreCheckedFirst) {
  config.num_heads = config.num_kv_heads = 6, config.hidden_size = 24, config.intermediate_size = 48;
  model = toy_model(config);
  const auto with = [&](int size) {
    options.tensor_parallel = size;
    return refused();
  };
  EXPECT_EQ(std::string(with(5).what()), "E205 --tensor-parallel-size 5 does not divide the 6 heads of model.layers.0.self_attn.q_proj\n  hint  legal sizes for this checkpoint: 1, 2, 3, 6");
  EXPECT_EQ(with(3).code(), "E101") << "legal, and not offered yet";
  model->quant_json["group"] = 8;  // o_proj has 24 inputs, down_proj 48
  EXPECT_EQ(std::string(with(2).what()),
            "E205 --tensor-parallel-size 2 cuts model.layers.0.self_attn.o_proj (K 24, group 8) inside a group\n  hint  legal sizes for this checkpoint: 1, 3");
  EXPECT_EQ(with(3).code(), "E101");
  config.num_kv_heads = 2;
  model = toy_model(config);
  EXPECT_EQ(with(6).code(), "E101") << "ranks may share kv heads";
  EXPECT_EQ(with(3).code(), "E205");
}

TEST_F(Plans, ManyLayersAreLimited) {
  config.num_layers = 1 << 30;
  EXPECT_EQ(refused().code(), "E208");
}

}  // namespace
}  // namespace qengine::test
