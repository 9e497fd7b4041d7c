// Folders made here: which files count, where the quantization config is found, what is left out.
#include "core/model/checkpoint.hpp"

#include <gtest/gtest.h>
#include <qe/plugin.h>
#include <sys/stat.h>

#include "core/base/error.hpp"
#include "core/model/config.hpp"
#include "tests/support/files.hpp"

namespace qengine {
namespace {

using test::safetensors;
using test::safetensors_of;
using test::TempDir;

std::string complaint(const std::filesystem::path& model, bool config_only = false) {
  try {
    Checkpoint::open(model, config_only);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 3);
    return e.what();
  }
  return "accepted";
}
#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Folder, ModelSafetensorsIsTheModelWhateverElseLiesThere) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors", safetensors_of({"a", "b"}));
  dir.write("consolidated.safetensors", safetensors_of({"x"}));
  dir.write("pytorch_model.bin", "\x80");
  const auto c = Checkpoint::open(dir.path());
  EXPECT_EQ(c->kind(), Checkpoint::Kind::kSafetensors);
  ASSERT_EQ(c->tensors().size(), 2u);
  EXPECT_EQ(c->files().size(), 1u);
  EXPECT_EQ(c->folder(), dir.path());
  const Tensor* b = c->find("b");
  ASSERT_NE(b, nullptr);
  float value[2];
  std::memcpy(value, c->data(*b).data(), sizeof value);
  EXPECT_EQ(value[1], 1.0f);
  c->release(*b);
  std::memcpy(value, c->data(*b).data(), sizeof value);
  EXPECT_EQ(value[1], 1.0f);  // read again after its pages were given back
  EXPECT_EQ(c->find("x"), nullptr);
  EXPECT_TRUE(c->quant_config().is_null());
  EXPECT_TRUE(c->generation_config().is_null());
  EXPECT_TRUE(c->gguf_metadata().is_null());
}

TEST(Folder, OneOtherNameWillDoSeveralWillNot) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("weights.safetensors", safetensors_of({"a"}));
  EXPECT_NE(Checkpoint::open(dir.path())->find("a"), nullptr);
  dir.write("more.safetensors", safetensors_of({"b"}));
  EXPECT_SAYS(complaint(dir.path()), "several .safetensors files and no model.safetensors.index.json");
}

TEST(Folder, NumberedFilesWithoutAnIndexMustBeAllThere) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model-00001-of-00003.safetensors", safetensors_of({"a"}));
  dir.write("model-00003-of-00003.safetensors", safetensors_of({"c"}));
  EXPECT_SAYS(complaint(dir.path()), "missing file model-00002-of-00003.safetensors");
  dir.write("model-00002-of-00003.safetensors", safetensors_of({"b"}));
  EXPECT_EQ(Checkpoint::open(dir.path())->tensors().size(), 3u);
  dir.write("model-00002-of-00003.safetensors", safetensors_of({"a"}));
  EXPECT_SAYS(complaint(dir.path()), "a occurs twice");
  const TempDir one;  // of which a single one came
  one.write("config.json", "{}");
  one.write("model-00001-of-00002.safetensors", safetensors_of({"a"}));
  EXPECT_SAYS(complaint(one.path()), "missing file model-00002-of-00002.safetensors");
}

TEST(Folder, OnlyTheIndexDecides) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("one.safetensors", safetensors_of({"a", "unlisted"}));
  dir.write("two.safetensors", safetensors_of({"b"}));
  dir.write("other.safetensors", safetensors_of({"a", "b"}));
  dir.write("model.safetensors.index.json", R"({"metadata":{"total_size":99999999999,"x":[1]},"weight_map":{"b":"two.safetensors","a":"one.safetensors"}})");
  const auto c = Checkpoint::open(dir.path());
  EXPECT_EQ(c->tensors().size(), 2u);
  EXPECT_EQ(c->files().size(), 2u);
  EXPECT_EQ(c->files()[static_cast<std::size_t>(c->find("a")->file)].path.filename(), "one.safetensors");
  ASSERT_EQ(c->warnings().size(), 1u);
  EXPECT_SAYS(c->warnings()[0], "unlisted");
}

TEST(Folder, FaultsOfAnIndex) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("one.safetensors", safetensors_of({"a"}));
  dir.write("two.safetensors", safetensors_of({"a", "b"}));
  const auto with = [&](const std::string& map) {
    dir.write("model.safetensors.index.json", map);
    return complaint(dir.path());
  };
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"), "a occurs in two files");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})"), "E202 missing tensor c in one.safetensors");
  EXPECT_SAYS(with(R"({"weight_map":{"b":"one.safetensors","a":"two.safetensors"}})"), "E202 missing tensor");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"three.safetensors"}})"), "E201 missing file three.safetensors");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"), "names a twice");
  EXPECT_SAYS(with(R"({"weight_map":{"a":1}})"), "a number in weight_map, at a");
  EXPECT_SAYS(with(R"({"weight_map":["a"]})"), "an array in weight_map");
  EXPECT_SAYS(with(R"({"weight_map":{}})"), "empty weight_map");
  EXPECT_SAYS(with(R"({"metadata":{}})"), "has no weight_map");
  EXPECT_SAYS(with(R"([])"), "not a JSON object");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.safetensors"})"), "not valid JSON");
  EXPECT_SAYS(with(std::string(100000, '[')), "not a JSON object");
  EXPECT_SAYS(with(R"({"x":)" + std::string(100000, '[')), "nested");
  for (const char* file : {"../one.safetensors", "/etc/passwd", "a\\\\one.safetensors", "..safetensors"})
    EXPECT_SAYS(with(std::string(R"({"weight_map":{"a":")") + file + "\"}}"), "no plain file name");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.txt"}})"), "only .safetensors files are read");
  EXPECT_SAYS(with(R"({"weight_map":{"a":"one.pt"}})"), "pickle");
}

TEST(Folder, WrappersArePeeledOff) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors", safetensors_of({"language_model.model.norm.weight", "model.language_model.embed_tokens.weight",
      "language_model.lm_head.weight", "vision_tower.x", "multi_modal_projector.y", "model.layers.0.self_attn.rotary_emb.inv_freq"}));
  const auto c = Checkpoint::open(dir.path());
  EXPECT_EQ(c->tensors().size(), 3u);
  ASSERT_NE(c->find("model.norm.weight"), nullptr);
  EXPECT_EQ(c->find("model.norm.weight")->file_name, "language_model.model.norm.weight");
  EXPECT_NE(c->find("model.embed_tokens.weight"), nullptr);
  EXPECT_EQ(c->name_in_file("lm_head.weight"), "language_model.lm_head.weight");
  dir.write("model.safetensors", safetensors_of({"language_model.model.norm.weight", "model.norm.weight"}));
  EXPECT_SAYS(complaint(dir.path()), "model.norm.weight occurs twice");
}

// Saved from inside the model, from a trainer, from a compiled module, or with an adapter merged since.
TEST(Folder, NamesAreThoseOfTheModelWhateverWasAroundIt) {
  for (const std::string around : {"", "model.", "model.model.", "module.model.", "_orig_mod.model.", "base_model.model.model.", "language_model.model."}) {
    const TempDir dir;
    dir.write("config.json", "{}");
    dir.write("model.safetensors", safetensors_of({around + "embed_tokens.weight", around + "norm.weight", around + "layers.3.mlp.up_proj.qweight", "module.lm_head.weight"}));
    const auto c = Checkpoint::open(dir.path());
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "model.layers.3.mlp.up_proj.qweight", "lm_head.weight"})
      EXPECT_NE(c->find(name), nullptr) << around << " " << name;
    EXPECT_EQ(c->name_in_file("model.norm.weight"), around + "norm.weight");
  }
  const TempDir dir;  // of other parts and other models: as they stand
  dir.write("config.json", "{}");
  dir.write("model.safetensors", safetensors_of({"model.mtp.layers.0.weight", "transformer.layers.0.weight", "model.visual.blocks.0.weight"}));
  const auto c = Checkpoint::open(dir.path());
  EXPECT_EQ(c->tensors().size(), 2u);
  EXPECT_NE(c->find("model.mtp.layers.0.weight"), nullptr);
  EXPECT_NE(c->find("transformer.layers.0.weight"), nullptr);
}

// What nothing asks for may be in the index and in no file.
TEST(Folder, AnIndexMayNameMoreThanIsNeeded) {
  const TempDir dir;
  dir.write("one.safetensors", safetensors_of({"model.embed_tokens.weight"}));
  dir.write("model.safetensors.index.json", R"({"weight_map":{"model.embed_tokens.weight":"one.safetensors","lm_head.weight":"one.safetensors",
      "model.layers.0.self_attn.rotary_emb.inv_freq":"one.safetensors","vision_tower.x.weight":"absent.safetensors"}})");
  for (const char* tied : {R"({"tie_word_embeddings":true})", R"({"tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true}})"}) {
    dir.write("config.json", tied);
    EXPECT_EQ(Checkpoint::open(dir.path())->tensors().size(), 1u);
  }
  dir.write("config.json", "{}");
  EXPECT_SAYS(complaint(dir.path()), "E202 missing tensor lm_head.weight in one.safetensors");
}

TEST(Folder, AnIndexOfAnotherCopyIsNotUsed) {
  const std::string index = R"({"weight_map":{"a":"model-00001-of-00005.safetensors"}})";
  for (const bool numbered : {false, true}) {
    const TempDir dir;
    dir.write("config.json", "{}");
    dir.write("model.safetensors.index.json", index);
    dir.write(numbered ? "model-00001-of-00001.safetensors" : "model.safetensors", safetensors_of({"a", "b"}));
    const auto c = Checkpoint::open(dir.path());
    EXPECT_EQ(c->tensors().size(), 2u);
    ASSERT_EQ(c->warnings().size(), 1u);
    EXPECT_SAYS(c->warnings()[0], "model.safetensors.index.json is not used: it names model-00001-of-00005.safetensors");
  }
  const TempDir dir;  // half a download
  dir.write("config.json", "{}");
  dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  dir.write("model-00001-of-00002.safetensors", safetensors_of({"a"}));
  dir.write("model.safetensors", safetensors_of({"a", "b"}));
  EXPECT_SAYS(complaint(dir.path()), "missing file model-00002-of-00002.safetensors");
}

// A download that brought something else than the file is said to have.
TEST(Folder, AnotherFileUnderTheNameIsSaidToBeWhatItIs) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 3564318976\n";
  const std::string gguf("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24), zip("PK\3\4\0\0\0\0\0\0", 10);
  const std::pair<std::string, const char*> weights[] = {
      {pointer, "pointer of Git LFS"}, {"<!DOCTYPE html><html>", "web page"}, {"Entry not found", "begins with \"Entry not found\""},
      {gguf, "it is a GGUF file"}, {zip, "looks like a pickle"}, {std::string(64, '\x7f'), "the file is damaged"}};
  for (const auto& [bytes, says] : weights) {
    const TempDir dir;
    dir.write("config.json", "{}");
    dir.write("model.safetensors", bytes);
    EXPECT_SAYS(complaint(dir.path()), says);
  }
  const std::pair<std::string, const char*> texts[] = {{pointer, "pointer of Git LFS"}, {"{\"a\":", "the file is damaged"}};
  for (const auto& [bytes, says] : texts) {
    const TempDir config, index;
    config.write("config.json", bytes);
    config.write("model.safetensors", safetensors_of({"a"}));
    EXPECT_SAYS(complaint(config.path()), says);
    index.write("config.json", "{}");
    index.write("model.safetensors.index.json", bytes);
    EXPECT_SAYS(complaint(index.path()), says);
  }
  const TempDir dir;
  EXPECT_SAYS(complaint(dir.write("a.gguf", pointer)), "pointer of Git LFS");
  EXPECT_SAYS(complaint(dir.write("b.gguf", safetensors_of({"a"}))), "it is a .safetensors file");
}

TEST(Folder, ADownloadCacheSaysWhereItsModelIs) {
  const TempDir dir;
  dir.write("refs", "abc");
  std::filesystem::create_directories(dir.path() / "snapshots" / "abc");
  EXPECT_SAYS(complaint(dir.path()), "snapshots/abc");
}

TEST(Folder, WhatIsNoModelIsRefusedByName) {
  const TempDir dir;
  EXPECT_SAYS(complaint(dir.path()), "E201");
  EXPECT_SAYS(complaint(dir.path() / "absent"), "there is no file or folder");
  EXPECT_SAYS(complaint(dir.write("x.bin", "\x80")), "pickle");
  EXPECT_SAYS(complaint(dir.path()), "holds x.bin and no .safetensors or .gguf");
  EXPECT_SAYS(complaint(dir.write("notes.txt", "hello")), "neither a folder nor a .gguf file");
  dir.write("adapter_config.json", "{}");
  dir.write("adapter_model.safetensors", safetensors_of({"a"}));
  EXPECT_SAYS(complaint(dir.path()), "is an adapter");
  const TempDir mlx;
  mlx.write("config.json", R"({"quantization":{"bits":4}})");
  mlx.write("model.safetensors", safetensors(R"({"__metadata__":{"format":"mlx"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_SAYS(complaint(mlx.path()), "quantized for MLX");
}

TEST(Folder, APipeDoesNotHangUs) {
  const TempDir dir;
  dir.write("config.json", "{}");
  ASSERT_EQ(::mkfifo((dir.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_SAYS(complaint(dir.path()), "not a regular file");
}

TEST(ConfigOnly, NeedsNoWeights) {
  const TempDir dir;
  dir.write("config.json", R"({"quantization_config":{"quant_method":"X"},"a":1})");
  dir.write("generation_config.json", R"({"eos_token_id":7})");
  for (const auto& path : {dir.path(), dir.path() / "config.json"}) {
    const auto c = Checkpoint::open(path, true);
    EXPECT_EQ(c->kind(), Checkpoint::Kind::kConfigOnly);
    EXPECT_EQ(c->folder(), dir.path());
    EXPECT_TRUE(c->tensors().empty());
    EXPECT_EQ(c->config().at("a"), 1);
    EXPECT_EQ(c->quant_config().at("quant_method"), "x");
    EXPECT_EQ(c->generation_config().at("eos_token_id"), 7);
  }
  EXPECT_SAYS(complaint(dir.path() / "config.json"), "one file of a model");
}

TEST(ConfigOnly, StopTokensOfBothFilesCount) {
  const TempDir dir;
  dir.write("config.json", R"({"architectures":["LlamaForCausalLM"],"vocab_size":9,"hidden_size":8,"intermediate_size":8,
      "num_hidden_layers":1,"num_attention_heads":1,"eos_token_id":3})");
  dir.write("generation_config.json", R"({"eos_token_id":[5,3,7]})");
  EXPECT_EQ(read_model_config(*Checkpoint::open(dir.path(), true)).eos_ids, (std::vector<std::int32_t>{3, 5, 7}));
}

// Dialects of invented tools; those of the shipped plugins: plugin_host/dialects_test.cpp.
const std::vector<QuantDialect> kTools = {
    {.file = "squeeze.json", .owner = "a"},
    {.quant_method = "squeezed", .key = "squeeze_bits", .owner = "a"},
    {.file = "pressed.json", .at = "inner", .owner = "b"},
    {.quant_method = "pressed", .file = "config.json", .at = "press_config", .owner = "b"},
    {.quant_method = "pressed", .key = "press_bits", .owner = "b"},
    {.quant_method = "squeezed", .tensors = {".sq", ".sc"}, .owner = "a"},
};

struct Found {
  const char* config;
  const char* file;
  const char* content;
  const char* method;
  const char* source;
};
TEST(QuantConfig, IsFoundInOrderAndNamed) {
  const Found all[] = {
      {R"({"quantization_config":{"quant_method":"AWQ","bits":4}})", "squeeze.json", R"({"squeeze_bits":3})", "awq", "config.json quantization_config"},
      {R"({"text_config":{"quantization_config":{"quant_method":"gptq"}}})", "", "", "gptq", "config.json text_config.quantization_config"},
      {R"({"llm_config":{"quantization_config":{"quant_method":"awq"}}})", "", "", "awq", "config.json text_config.quantization_config"},
      {R"({"press_config":{"format":"x"}})", "", "", "pressed", "config.json press_config"},
      {R"({"press_config":{"quant_method":"other"}})", "", "", "other", "config.json press_config"},
      {R"({"quantization_config":{"squeeze_bits":{}}})", "", "", "squeezed", "config.json quantization_config"},
      {R"({"quantization_config":null})", "squeeze.json", R"({"bits":4,"squeeze_bits":true})", "squeezed", "squeeze.json"},
      {"{}", "squeeze.json", R"({"bits":4,"method":"awq","squeeze_bits":false})", "awq", "squeeze.json"},
      {"{}", "pressed.json", R"({"producer":{},"inner":{"press_bits":4}})", "pressed", "pressed.json"},
      {"{}", "pressed.json", R"({"press_bits":4})", "pressed", "pressed.json"},
  };
  for (const Found& f : all) {
    const TempDir dir;
    dir.write("config.json", f.config);
    dir.write("model.safetensors", safetensors_of({"a"}));
    if (*f.file) dir.write(f.file, f.content);
    const auto c = Checkpoint::open(dir.path(), false, kTools);
    ASSERT_TRUE(c->quant_config().is_object()) << f.config << f.content;
    EXPECT_EQ(c->quant_config().at("quant_method"), f.method) << f.config << f.content;
    EXPECT_EQ(c->quant_config_source(), f.source);
  }
}

TEST(QuantConfig, AnObjectInsideOneOfItsOwnNameIsTheConfig) {
  const auto c = Checkpoint::from_config(Json::object(), Json::parse(R"({"quant_method":"press","quantization_config":{"bits":4},"sparse":{"x":1},"bits":7})"));
  EXPECT_EQ(c->quant_config(), Json::parse(R"({"quant_method":"press","sparse":{"x":1},"bits":4})"));
}

// Without the numbers of a config the tensors cannot be read.
TEST(QuantConfig, QuantizedTensorsWithoutAnyConfigAreRefused) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors", safetensors_of({"m.sq", "m.sc"}));
  try {
    Checkpoint::open(dir.path(), false, kTools);
    FAIL();
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "E211 quantization_config is missing");
    EXPECT_SAYS(std::string(e.what()), "tensors that end in .sq, .sc are of squeezed (");
  }
}

TEST(QuantConfig, TensorsDecideWhenNoKeyDoes) {
  const TempDir dir;
  dir.write("config.json", R"({"quantization_config":{"bits":4}})");
  dir.write("model.safetensors", safetensors_of({"m.sq", "m.sc"}));
  EXPECT_EQ(Checkpoint::open(dir.path(), false, kTools)->quant_config().at("quant_method"), "squeezed");
  EXPECT_SAYS(complaint(dir.path()), "E211 quant_method is missing");  // nobody there who knows
  dir.write("config.json", R"({"quantization_config":{"press_bits":4}})");
  EXPECT_EQ(Checkpoint::open(dir.path(), false, kTools)->quant_config().at("quant_method"), "pressed");
  dir.write("config.json", R"({"quantization_config":{"bits":4}})");
  dir.write("model.safetensors", safetensors_of({"m.sq"}));
  EXPECT_THROW(Checkpoint::open(dir.path(), false, kTools), Error);
}

TEST(QuantConfig, TwoToolsThatBothFitAreNotChosenBetween) {
  const auto what = [](auto&& open) -> std::string {
    try {
      open();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_SAYS(what([] { Checkpoint::from_config(Json::object(), Json{{"squeeze_bits", 4}, {"press_bits", 4}}, kTools); }),
              "E211 quant_method is missing, and the object could be squeezed (a) or pressed (b)");
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors", safetensors_of({"a"}));
  dir.write("squeeze.json", R"({"squeeze_bits":3})");
  dir.write("pressed.json", R"({"press_bits":3})");
  EXPECT_SAYS(what([&] { Checkpoint::open(dir.path(), false, kTools); }), "E211 squeeze.json says squeezed, pressed.json says pressed");
}

TEST(QuantConfig, FaultsAreNamed) {
  EXPECT_THROW(Checkpoint::from_config(Json{{"quantization_config", "gptq"}}), Error);
  EXPECT_THROW(Checkpoint::from_config(Json{{"quantization_config", {{"quant_method", 3}}}}), Error);
  EXPECT_THROW(Checkpoint::from_config(Json::array()), Error);
  const auto c = Checkpoint::from_config(Json{{"a", 1}}, Json{{"quant_method", "Foo"}});
  EXPECT_EQ(c->quant_config().at("quant_method"), "foo");
  EXPECT_TRUE(Checkpoint::from_config(Json{{"a", 1}})->quant_config().is_null());
}

// ---- GGUF in folders -------------------------------------------------------------------------------

test::GgufBuilder part(int no, int count, int tensors, const char* tensor) {
  test::GgufBuilder b;
  if (no == 0) b.small_model("llama");
  b.value("split.no", 2, test::raw(static_cast<std::uint16_t>(no))).value("split.count", 2, test::raw(static_cast<std::uint16_t>(count)));
  b.value("split.tensors.count", 5, test::raw(static_cast<std::int32_t>(tensors)));
  b.tensor(tensor, {4}, 0, std::string(16, static_cast<char>('a' + no)));
  return b;
}

TEST(SplitGguf, AnyPartOpensAll) {
  const TempDir dir;
  const auto first = dir.write("m-00001-of-00002.gguf", part(0, 2, 2, "output_norm.weight").bytes());
  const auto second = dir.write("m-00002-of-00002.gguf", part(1, 2, 2, "blk.0.ffn_norm.weight").bytes());
  for (const auto& path : {first, second, dir.path()}) {
    const auto c = Checkpoint::open(path);
    ASSERT_EQ(c->tensors().size(), 2u);
    EXPECT_EQ(c->files().size(), 2u);
    const Tensor* t = c->find("model.layers.0.post_attention_layernorm.weight");
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->file, 1);
    EXPECT_EQ(static_cast<char>(c->data(*t)[0]), 'b');
    EXPECT_EQ(read_model_config(*c).num_layers, 1);
  }
}

TEST(SplitGguf, FaultsAreNamed) {
  const TempDir dir;
  const auto first = dir.write("m-00001-of-00002.gguf", part(0, 2, 2, "output_norm.weight").bytes());
  EXPECT_SAYS(complaint(first), "missing file m-00002-of-00002.gguf");
  const auto second = [&](const test::GgufBuilder& b) {
    dir.write("m-00002-of-00002.gguf", b.bytes());
    return complaint(first);
  };
  EXPECT_SAYS(second(part(0, 2, 2, "x")), "split.no is 0, expected 1");
  EXPECT_SAYS(second(part(1, 3, 2, "x")), "split.count is 3, expected 2");
  EXPECT_SAYS(second(part(1, 2, 3, "x")), "split.tensors.count is 3, expected 2");
  EXPECT_SAYS(second(part(1, 2, 2, "output_norm.weight")), "occurs in two files");
  dir.write("m-00001-of-00002.gguf", part(0, 2, 9, "output_norm.weight").bytes());
  EXPECT_SAYS(second(part(1, 2, 9, "x")), "split.tensors.count is 9, the files hold 2");
  EXPECT_SAYS(complaint(dir.write("renamed.gguf", part(0, 2, 2, "x").bytes())), "split.count is 2, expected 1");
}

TEST(GgufInAFolder, OneModelIsTakenSeveralAreListed) {
  const TempDir dir;
  dir.write("a.gguf", part(0, 1, 1, "x").bytes());
  EXPECT_EQ(Checkpoint::open(dir.path())->kind(), Checkpoint::Kind::kGguf);
  dir.write("b.gguf", part(0, 1, 1, "x").bytes());
  EXPECT_SAYS(complaint(dir.path()), "several models: a.gguf, b.gguf");
  dir.write("blob", part(0, 1, 1, "x").bytes());
  EXPECT_EQ(Checkpoint::open(dir.path() / "blob")->kind(), Checkpoint::Kind::kGguf);  // by its first bytes
}

}  // namespace
}  // namespace qengine
