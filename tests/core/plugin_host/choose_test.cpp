// What --plugin and --quantization mean: all of it data of the installed plugins.
#include <gtest/gtest.h>

#include "core/base/thread_pool.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

std::shared_ptr<const Checkpoint> checkpoint(const char* quant) {
  return Checkpoint::from_config(Json{{"torch_dtype", "bfloat16"}}, quant ? Json::parse(quant) : Json(nullptr));
}

struct Chosen : ::testing::Test {
  Folder folder;
  std::unique_ptr<PluginHost> host = toy_host(folder);
  std::shared_ptr<const Checkpoint> toy = checkpoint(R"({"quant_method": "toy", "bits": 8, "group_size": 128})"), plain = checkpoint(nullptr),
                                    foreign = checkpoint(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})");

  std::string becomes(const char* value, const std::shared_ptr<const Checkpoint>& c) {
    const PluginChoice p = host->choose_quantization(value, *c);
    return p.plugin ? p.plugin->name + (p.scheme.empty() ? "" : ":" + p.scheme) : "by score";
  }
};

TEST_F(Chosen, OneWordMayMeanDifferentThingsOnDifferentCheckpoints) {
  EXPECT_EQ(becomes("plaything", toy), "toy");
  EXPECT_EQ(becomes("plaything", plain), "toy:online");
  EXPECT_EQ(becomes("auto_toy", toy), "toy");
  EXPECT_EQ(becomes("toy", toy), "toy");
  EXPECT_EQ(becomes("toy", plain), "toy");  // it has a scheme for unquantized checkpoints
  EXPECT_EQ(becomes("online", plain), "toy:online");
  EXPECT_EQ(becomes("i8", toy), "toy:i8");
  EXPECT_EQ(becomes("bf16_ref", plain), "bf16_ref");
  EXPECT_EQ(host->choose_quantization("plaything", *plain).how, "--quantization plaything -> toy:online (the checkpoint is not quantized)");
  EXPECT_TRUE(has_text(host->choose_quantization("auto_toy", *toy).how, "--quantization auto_toy -> toy (quant_method toy in "));
}

TEST_F(Chosen, WhatDoesNotFitSaysWhatTheCheckpointIs) {
  Error e = error_of([&] { becomes("auto_toy", foreign); });
  EXPECT_EQ(e.code(), "E104");
  EXPECT_EQ(e.message(), "--quantization auto_toy does not match the checkpoint, which is gptq (4-bit, group 128)");
  EXPECT_TRUE(has_text(e.what(), "quant_method\n")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "hint  leave the flag out")) << e.what();

  e = error_of([&] { becomes("auto_toy", plain); });
  EXPECT_EQ(e.code(), "E105");
  EXPECT_EQ(e.message(), "--quantization auto_toy needs a TOY checkpoint; this one is not quantized (bfloat16)");
  EXPECT_TRUE(has_text(e.what(), "from  looked in config.json (also text_config)\n")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "point --model at the TOY folder, or quantize at load: --plugin ")) << e.what();

  e = error_of([&] { becomes("online", toy); });
  EXPECT_EQ(e.code(), "E104") << "quantizing what is quantized";

  e = error_of([&] { becomes("hqq", toy); });
  EXPECT_EQ(std::string(e.what()),
            "E103 no installed plugin is called or aliased \"hqq\"\n  from  --quantization; installed: bf16_ref toy\n"
            "  hint  add its folder with --plugin-path; known names: qengine plugin list --aliases");
}

TEST_F(Chosen, PluginTakesNamesIdsSchemesAndUnconditionalAliases) {
  EXPECT_EQ(host->choose("toy").plugin->id, "test.toy");
  EXPECT_EQ(host->choose("test.toy:i8").scheme, "i8");
  Error e = error_of([&] { host->choose("toy:onlin"); });
  EXPECT_EQ(e.code(), "E103");
  EXPECT_TRUE(has_text(e.what(), "toy has no scheme \"onlin\"")) << e.what();
  EXPECT_TRUE(has_text(e.what(), "did you mean toy:online?")) << e.what();
  e = error_of([&] { host->choose("toyy"); });
  EXPECT_TRUE(has_text(e.what(), "E103 no installed plugin is called or aliased \"toyy\"\n  from  --plugin; installed: bf16_ref toy")) << e.what();
}

TEST_F(Chosen, ADeprecatedNameWarnsOnceOrIsDenied) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) becomes("plaything", toy);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string expected =
      "W901 --quantization plaything is deprecated for toy checkpoints; using toy\n"
      "  hint  write --plugin toy, or toy:i8; the old name goes away in 2.0.0; --deny-deprecated makes this an error";
  ASSERT_TRUE(has_text(log, expected)) << log;
  EXPECT_EQ(log.find("W901"), log.rfind("W901"));

  PluginHostOptions o;
  o.deny_deprecated = true;
  const auto strict = host_of(folder.path(), o);
  const Error e = error_of([&] { strict->choose_quantization("plaything", *toy); });
  EXPECT_EQ(e.code(), "E107");
  EXPECT_EQ(e.exit_code(), 2);
  EXPECT_EQ(strict->choose_quantization("auto_toy", *toy).plugin->name, "toy") << "a synonym is not deprecated";
}

TEST_F(Chosen, ValuesOfCoreFlagsAreAliasesToo) {
  EXPECT_EQ(host->choose_value("quantize-lm-head", "toy8").scheme, "online");
  const Error e = error_of([&] { host->choose_value("quantize-lm-head", "fp3"); });
  EXPECT_EQ(e.code(), "E103");
  EXPECT_TRUE(has_text(e.what(), "no installed plugin offers --quantize-lm-head fp3\n  from  offered: toy8")) << e.what();
}

// A new name for old arithmetic ships as one text file.
TEST_F(Chosen, AManifestWithoutALibraryBringsNamesThatWork) {
  spit(folder.path() / "zoo.qeplugin.toml",
       "schema = 1\nid = \"test.zoo\"\nname = \"zoo\"\nversion = \"1.0.0\"\n"
       "method = [{ name = \"zoo8\", quant_method = \"zootool\", replacement = \"toy:i8\" }]\n"
       "alias = [{ kind = \"name\", alias = \"lion\", condition = \"zootool,toy\", replacement = \"toy\" },\n"
       "         { kind = \"name\", alias = \"toy\", replacement = \"bf16_ref\" },\n"
       "         { kind = \"name\", alias = \"auto_toy\", condition = \"toy\", replacement = \"bf16_ref\" }]\n");
  host = host_of(folder.path());
  const Plugin* zoo = host->find("zoo");
  ASSERT_NE(zoo, nullptr);
  EXPECT_TRUE(zoo->data_only());
  EXPECT_EQ(zoo->sha256, sha256_of(slurp(folder.path() / "zoo.qeplugin.toml")));
  const auto zootool = checkpoint(R"({"quant_method": "zootool"})");
  EXPECT_EQ(becomes("lion", zootool), "toy");
  EXPECT_EQ(becomes("lion", toy), "toy");
  EXPECT_EQ(becomes("zootool", zootool), "toy:i8");
  EXPECT_EQ(becomes("zoo8", zootool), "toy:i8");
  EXPECT_EQ(host->choose("zoo").plugin->name, "toy");
  EXPECT_EQ(becomes("toy", toy), "toy") << "an alias never shadows a plugin's name";
  EXPECT_EQ(becomes("auto_toy", toy), "toy") << "nor another alias";

  // And a checkpoint of that other tool loads, by detection alone.
  const ModelConfig config = toy_config();
  auto model = toy_model(config);
  model->quant_json["quant_method"] = "zootool";
  const auto plan = FormatPlan::make(*host, model, config, {});
  EXPECT_EQ(plan->report()[0].plugin, "toy");
  EXPECT_EQ(plan->scores()[0].score, 1000);
  ThreadPool pool(1);
  EXPECT_NO_THROW(plan->load(0, pool));
}

TEST_F(Chosen, ADataManifestNeedsTrustAsCodeDoes) {
  const Folder other;
  const std::string text = "schema = 1\nid = \"test.zoo\"\nname = \"zoo\"\nversion = \"1.0.0\"\nalias = [{ kind = \"name\", alias = \"lion\", replacement = \"toy\" }]\n";
  spit(other.path() / "zoo.qeplugin.toml", text);
  PluginHostOptions o;
  o.paths = {other.path()};
  EXPECT_EQ(error_of([&] { host_of(folder.path(), o)->choose_quantization("lion", *toy); }).code(), "E103");
  o.allow = {{"test.zoo", sha256_of(text)}};
  EXPECT_EQ(host_of(folder.path(), o)->choose_quantization("lion", *toy).plugin->name, "toy");
}

}  // namespace
}  // namespace qengine::test
