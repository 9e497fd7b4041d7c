// What configurations mean: scores, rules for single modules, and what is refused with which words.
#include <gtest/gtest.h>

#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path library() { return binary_dir() / "bin/plugins/gptq_marlin.so"; }
Json gptq() { return {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}, {"desc_act", false}}; }
Json ct(Json weights = Json::object(), Json more = Json::object()) {
  Json args = {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", 128}, {"dynamic", false}};
  if (weights.is_object()) args.update(weights);
  Json c = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}, {"ignore", {"lm_head"}},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", args}, {"input_activations", nullptr}}}}}};
  if (more.is_object()) c.update(more);
  return c;
}

struct Verdict {
  Json config;
  int score;
  const char* words;  // in the reason
};

TEST(GptqDetect, ScoresEachDialectAndNamesWhatItCannotRead) {
  const auto with = [](Json base, Json change) {
    base.update(change);
    return base;
  };
  Json mixed = ct();
  mixed["config_groups"]["group_1"] = {{"targets", {"re:.*down_proj"}}, {"format", "float-quantized"}, {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}};
  const Verdict cases[] = {
      {gptq(), 1000, "4 bit, group 128"},
      {with(gptq(), {{"group_size", -1}}), 1000, "one group a row"},
      {{{"quant_method", "gptq"}, {"wbits", 3}, {"q_group_size", 64}}, 1000, "3 bit"},
      {with(gptq(), {{"checkpoint_format", "gptq_p"}, {"bits", 5}}), 1000, "5 bit"},
      {{{"quant_method", "marlin"}, {"group_size", 128}}, 1000, "marlin"},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 128}, {"sym", true}, {"data_type", "int"}, {"packing_format", "auto_round:auto_gptq"}}, 900, "auto-round"},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 128}, {"packing_format", "auto_round:auto_awq"}}, 0, "auto_round:auto_awq"},
      {{{"quant_method", "auto-round"}, {"bits", 8}, {"group_size", 128}, {"packing_format", "auto_round:fp8_static"}}, 0, "auto_round:fp8_static"},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 32}, {"data_type", "mx_fp4"}}, 0, "data_type is mx_fp4"},
      {with(gptq(), {{"bits", 0}}), 0, "bits is 0; supported: 2 to 8"},
      {with(gptq(), {{"bits", nullptr}}), 0, "bits is absent"},
      {with(gptq(), {{"bits", 9}}), 0, "bits is 9"},
      {with(gptq(), {{"bits", "4"}}), 0, "bits is '4'"},
      {with(gptq(), {{"group_size", 0}}), 0, "group_size is 0"},
      {with(gptq(), {{"group_size", -2}}), 0, "group_size is -2"},
      {with(gptq(), {{"group_size", nullptr}}), 0, "group_size is absent"},
      {with(gptq(), {{"checkpoint_format", "marlin_24"}}), 0, "checkpoint_format is marlin_24; supported: gptq, gptq_v2, gptq_p, marlin"},
      {with(gptq(), {{"pack_dtype", "int16"}}), 0, "pack_dtype is int16"},
      {with(gptq(), {{"rotation", "hadamard"}}), 0, "rotation is hadamard"},
      {with(gptq(), {{"adapter", {{"name", "lora"}}}}), 0, "adapter"},
      {ct(), 900, "1 of 1 config_groups"},
      {ct({{"num_bits", 8}}), 900, "pack-quantized"},
      {ct({{"symmetric", false}}), 600, "awq_marlin owns"},
      {ct({{"symmetric", false}, {"num_bits", 8}}), 900, "pack-quantized"},
      {mixed, 600, "1 of 2 config_groups"},
      {ct({}, {{"format", "int-quantized"}}), 0, "format is int-quantized"},
      {ct({}, {{"format", "origami"}}), 0, "'origami'"},
      {ct({{"num_bits", 40}}), 0, "config_groups.group_0.weights.num_bits is 40"},
      {ct({{"strategy", "spiral"}}), 0, "config_groups.group_0.weights.strategy is spiral"},
      {ct({{"actorder", "sideways"}}), 0, "actorder is sideways"},
      {ct({}, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}), 0, "sparsity_config.format is sparse-24-bitmask"},
      {ct({}, {{"transform_config", {{"config_groups", {{"R1", {{"type", "hadamard"}, {"apply", {{{"targets", {"Linear"}}, {"location", "input"}}}}}}}}}}}), 0, "transform_config"},
      {ct({}, {{"transform_config", {{"config_groups", {{"R1", {{"type", "hadamard"}, {"apply", {{{"targets", {"Linear"}}, {"location", "weight_input"}}}}}}}}}}}), 900, "pack-quantized"},
      {ct({}, {{"config_groups", {{"W4A16", {"Linear"}}}}}), 900, "pack-quantized"},
      {ct({}, {{"config_groups", {{"W4A17", {"Linear"}}}}}), 0, "W4A17"},
      {{{"quant_method", "awq"}, {"bits", 4}}, 0, "quant_method is awq"},
      {Json::object(), 0, "quant_method is absent"},
  };
  for (const Verdict& v : cases) {
    MockHost host;
    host.config = v.config;
    LoadedPlugin plugin(library(), host);
    std::string why;
    EXPECT_EQ(plugin.detect(&why), v.score) << v.config << "\n" << why;
    EXPECT_NE(why.find(v.words), std::string::npos) << v.config << "\n" << why;
    // Asked for by name all the same, a layer is refused too.
    const qe_plan plan = plugin.plan(TestLayer(host, {{"model.layers.0.mlp.up_proj", QE_ROLE_UP, 64}}, 128, 0, false));
    EXPECT_EQ(plan.claim != 0, v.score != 0) << v.config << "\n" << plan.reason;
  }
}

class Rules : public ::testing::Test {
 protected:
  // The scheme without files, or the reason for a refusal.
  std::string plan(const std::string& module, int role = QE_ROLE_OTHER) {
    LoadedPlugin plugin(library(), host);
    const qe_plan p = plugin.plan(TestLayer(host, {{module, role, 64}}, 256, 0, false));
    return p.claim ? p.scheme : p.reason;
  }
  MockHost host;
};

TEST_F(Rules, OfDynamicAreAnchoredAndNegativeOnesComeFirst) {
  host.config = gptq();
  host.config["dynamic"] = {{"+:model\\.layers\\.1\\.mlp\\.down_proj", {{"bits", 8}, {"group_size", 64}}},
                            {"model\\.layers\\.0\\.mlp\\.(gate|up)_proj", {{"group_size", 32}}},
                            {"mlp", {{"bits", 2}}},  // matches nothing: the name begins with model
                            {".*\\.mlp\\..*", {{"bits", 3}}},
                            {"-:model\\.layers\\.1\\..*", Json::object()}};
  EXPECT_EQ(plan("model.layers.0.mlp.up_proj"), "w4g32");
  EXPECT_EQ(plan("model.layers.0.mlp.down_proj"), "w3g128");
  EXPECT_EQ(plan("model.layers.0.self_attn.q_proj"), "w4g128");
  EXPECT_NE(plan("model.layers.1.mlp.down_proj").find("listed in dynamic as -:model"), std::string::npos);
}

TEST_F(Rules, OfDynamicWithBadValuesAreRefusedByTheirName) {
  host.config = gptq();
  host.config["dynamic"] = {{".*down_proj", {{"bits", 11}}}};
  const std::string why = plan("model.layers.0.mlp.down_proj");
  EXPECT_NE(why.find("bits is 11"), std::string::npos) << why;
  EXPECT_NE(why.find("rule .*down_proj"), std::string::npos) << why;
}

TEST_F(Rules, ListedModulesAreTheOnlyOnes) {
  host.config = gptq();
  host.config["modules_in_block_to_quantize"] = {{"self_attn.k_proj", "self_attn.q_proj"}, {"mlp.up_proj"}};
  EXPECT_EQ(plan("model.layers.0.self_attn.q_proj"), "w4g128");
  EXPECT_EQ(plan("model.layers.0.mlp.up_proj"), "w4g128");
  EXPECT_NE(plan("model.layers.0.mlp.down_proj").find("modules_in_block_to_quantize"), std::string::npos);
}

TEST_F(Rules, AutoRoundTakesNamesExactlyAndPatternsAnywhere) {
  host.config = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 128}, {"sym", true}};
  host.config["extra_config"] = {{"layers\\.[0-3]\\.mlp", {{"bits", 8}}}, {"model.layers.1.mlp.up_proj", {{"bits", 16}}}, {"model.layers.1", {{"bits", 2}}}};
  EXPECT_EQ(plan("model.layers.0.mlp.up_proj"), "w8g128");
  EXPECT_NE(plan("model.layers.1.mlp.up_proj").find("16 bits"), std::string::npos);
  EXPECT_EQ(plan("model.layers.1.self_attn.q_proj"), "w4g128");
}

TEST_F(Rules, LmHeadIsQuantizedWhereTheConfigurationSaysSo) {
  host.config = gptq();
  EXPECT_NE(plan("lm_head", QE_ROLE_LM_HEAD).find("lm_head is false"), std::string::npos);
  host.config["lm_head"] = true;
  EXPECT_EQ(plan("lm_head", QE_ROLE_LM_HEAD), "w4g128");
  EXPECT_NE(plan("model.embed_tokens", QE_ROLE_EMBED).find("embedding"), std::string::npos);
}

TEST_F(Rules, OfCompressedTensorsPutNamesBeforeClasses) {
  host.config = ct({}, {{"ignore", {"lm_head", "re:.*layers\\.2\\..*", "layers.3.mlp.up_proj"}}});
  host.config["config_groups"]["group_1"] = {{"targets", {"re:.*down_proj"}}, {"weights", {{"num_bits", 8}, {"strategy", "channel"}}}};
  EXPECT_EQ(plan("model.layers.0.mlp.up_proj"), "w4g128");
  EXPECT_EQ(plan("model.layers.0.mlp.down_proj"), "w8");
  EXPECT_NE(plan("model.layers.2.mlp.down_proj").find("listed in ignore"), std::string::npos);
  EXPECT_NE(plan("model.layers.3.mlp.up_proj").find("listed in ignore"), std::string::npos);
  EXPECT_NE(plan("lm_head", QE_ROLE_LM_HEAD).find("listed in ignore"), std::string::npos);
  EXPECT_NE(plan("model.embed_tokens", QE_ROLE_EMBED).find("no target"), std::string::npos);
}

TEST_F(Rules, InputActivationsOfCompressedTensorsAreHonouredOrSaid) {
  host.config = ct();
  auto& group = host.config["config_groups"]["group_0"];
  LoadedPlugin plugin(library(), host);
  const auto claim = [&] { return plugin.plan(TestLayer(host, {{"model.layers.0.mlp.up_proj", QE_ROLE_UP, 64}}, 256, 0, false)); };
  group["input_activations"] = {{"num_bits", 8}, {"type", "int"}, {"strategy", "token"}, {"dynamic", true}, {"symmetric", true}};
  EXPECT_EQ(claim().claim, 2);
  group["input_activations"]["strategy"] = "tensor";
  group["input_activations"]["dynamic"] = false;
  const qe_plan p = claim();
  EXPECT_EQ(p.claim, 1);
  EXPECT_NE(std::string(p.reason).find("weight-only"), std::string::npos) << p.reason;
}

TEST(GptqTensors, BeatTheConfiguration) {
  MockHost host;
  host.config = gptq();
  host.add("a.weight", QE_BF16, {64, 128}, std::vector<std::uint16_t>(64 * 128));
  host.add("both.weight", QE_BF16, {64, 128}, std::vector<std::uint16_t>(64 * 128));
  host.add("both.qweight", QE_I32, {16, 64}, std::vector<std::uint32_t>(16 * 64));
  LoadedPlugin plugin(library(), host);
  const auto plan = [&](const char* name) { return plugin.plan(TestLayer(host, {{name, QE_ROLE_UP, 64}}, 128)); };
  const qe_plan plain = plan("a");
  EXPECT_EQ(plain.claim, 0);
  EXPECT_STREQ(plain.reason, "not quantized: weight is BF16 and there is no qweight");
  EXPECT_EQ(plan("both").claim, 2);     // `weight` is left over, which the host reports by name
  EXPECT_EQ(plan("nothing").claim, 2);  // and here it reports qweight as missing
}

}  // namespace
}  // namespace qengine::test
