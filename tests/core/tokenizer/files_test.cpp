// Malformed tokenizer files end in an Error that names what is wrong; side files say what they may.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "core/base/error.hpp"
#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

std::string failure(const fs::path& path) {
  try {
    Tokenizer::load(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code()[1], '2');
    return e.what();
  }
  return "loaded";
}

struct Broken {
  const char* name;
  const char* must_name;
};
class BrokenFiles : public testing::TestWithParam<Broken> {};

TEST_P(BrokenFiles, AreRefusedByName) {
  const fs::path path = test::fixture(fs::path("broken") / GetParam().name);
  ASSERT_FALSE(path.empty());
  EXPECT_NE(failure(path).find(GetParam().must_name), std::string::npos) << failure(path);
}
INSTANTIATE_TEST_SUITE_P(Inputs, BrokenFiles,
                         testing::Values(Broken{"tok-bad-json", "tokenizer.json is not valid JSON"}, Broken{"tok-missing-merge", "merges[0]"},
                                         Broken{"tok-merge-result", "\"th\""}, Broken{"tok-merge-parts", "\"a b c\""}, Broken{"tok-unknown-pre", "Slicer"},
                                         Broken{"tok-bad-regex", "(["}, Broken{"tok-model-type", "Unigram"}, Broken{"tok-negative-id", "zzz"},
                                         Broken{"tok-missing", "no tokenizer.json"}, Broken{"gguf/tokens-type.gguf", "tokenizer.ggml.tokens"},
                                         Broken{"gguf/pre-unknown.gguf", "'zzz'"}));

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("qengine-tokenizer-" + std::to_string(std::rand()))) { fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  fs::path path_;
};

// Two letters, one merge; `more` goes beside the model, `model` into it.
std::string small(const std::string& more = "", const std::string& model = "") {
  return R"({"version":"1.0","added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"</s>","special":true}],)" + more +
         R"("model":{"type":"BPE",)" + model + R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";
}

std::string small_failure(const std::string& text) {
  const Folder folder;
  folder.write("tokenizer.json", text);
  return failure(folder.path());
}

TEST(TokenizerJson, WrongTypesAndKindsAreNamed) {
  const auto names = [](const std::string& text, const char* what) { EXPECT_NE(small_failure(text).find(what), std::string::npos) << small_failure(text); };
  names(small(R"("normalizer":{"type":"Frob"},)"), "normalizer.type is \"Frob\"");
  names(small(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend"}]},)"), "normalizer.normalizers[0].prepend");
  names(small(R"("normalizer":7,)"), "normalizer is 7");
  names(small(R"("decoder":{"type":"Frob"},)"), "decoder.type");
  names(small(R"("decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"ab"},"content":""}]},)"), "decoder.decoders[1]");
  names(small(R"("post_processor":{"type":"Frob"},)"), "post_processor.type");
  names(small(R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<q>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}},)"), "post_processor.special_tokens.<q>");
  names(small(R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<q>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<q>":{"ids":[99]}}},)"), "99");
  names(small(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways"},)"), "Sideways");
  names(small(R"("pre_tokenizer":{"type":"ByteLevel","use_regex":3},)"), "pre_tokenizer.use_regex is 3");
  names(small("", R"("unk_token":"<q>",)"), "model.unk_token");
  names(R"({"model":{"type":"BPE","vocab":{"a":"x"},"merges":[]}})", "model.vocab[\"a\"]");
  names(R"({"model":{"type":"BPE","vocab":{"a":1.5},"merges":[]}})", "model.vocab[\"a\"]");
  names(R"({"model":{"type":"BPE","vocab":{"a":99999999999},"merges":[]}})", "model.vocab[\"a\"]");
  names(R"({"model":{"type":"BPE","vocab":{"a":{}},"merges":[]}})", "model.vocab[\"a\"]");
  names(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "model.merges[0]");
  names(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[7]}})", "model.merges[0]");
  names(R"({"model":{"type":"BPE","vocab":{"a":0}}})", "model.merges is missing");
  names(R"({"model":{"type":"BPE","merges":[]}})", "model.vocab is missing");
  names(R"({"version":"2.0","model":{"type":"BPE","vocab":{},"merges":[]}})", "version");
  names(R"({"added_tokens":[{"content":"x"}],"model":{"vocab":{},"merges":[]}})", "added_tokens[0].id");
  names(R"({"added_tokens":[{"content":"x","id":-4}],"model":{"vocab":{},"merges":[]}})", "-4");
  names("[]", "tokenizer.json is not a JSON object");
  names("{}", "no model");
  names(std::string(100000, '['), "tokenizer.json");
  EXPECT_EQ(small_failure(small()), "loaded");
}

TEST(TokenizerJson, MergesMayBePairsAndSkipTheVersionLine) {
  const Folder folder;
  folder.write("tokenizer.json", R"({"model":{"vocab":{"a":0," ":1,"a ":2},"merges":[["a"," "]]}})");
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("a ", false), (std::vector<std::int32_t>{2}));
  folder.write("tokenizer.json", R"({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["#version: 0.2","a b"]}})");
  EXPECT_EQ(Tokenizer::load(folder.path() / "tokenizer.json")->encode("ab", false), (std::vector<std::int32_t>{2}));
}

TEST(TokenizerConfig, AddBosTokenCountsOnlyWithoutAPostProcessor) {
  const Folder folder;
  folder.write("tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","add_bos_token":true,"add_eos_token":true,"tokenizer_class":"Anything"})");
  folder.write("tokenizer.json", small());
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("ab", true), (std::vector<std::int32_t>{3, 2, 4}));
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("ab", false), (std::vector<std::int32_t>{2}));
  folder.write("tokenizer.json", small(R"("post_processor":{"type":"ByteLevel"},)"));
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("ab", true), (std::vector<std::int32_t>{2}));
}

TEST(TokenizerConfig, SpecialTokensMapFillsInAndAddedTokensDecoderAdds) {
  const Folder folder;
  folder.write("tokenizer.json", small());
  folder.write("special_tokens_map.json", R"({"eos_token":"</s>","bos_token":{"content":"<s>"}})");
  EXPECT_EQ(Tokenizer::load(folder.path())->eos_text(), "</s>");
  EXPECT_EQ(Tokenizer::load(folder.path())->bos(), 3);
  folder.write("tokenizer_config.json", R"({"eos_token":null,"added_tokens_decoder":{"3":{"content":"<s>","special":true},"9":{"content":"<x>","special":true}}})");
  EXPECT_EQ(Tokenizer::load(folder.path())->eos_text(), "");
  EXPECT_EQ(Tokenizer::load(folder.path())->encode("a<x>", false), (std::vector<std::int32_t>{0, 9}));
  folder.write("tokenizer_config.json", "{nonsense");
  EXPECT_NE(failure(folder.path()).find("tokenizer_config.json is not valid JSON"), std::string::npos);
}

// Folders of before tokenizer_config.json listed them.
TEST(TokenizerFiles, AddedTokensJsonAddsWhatIsMissing) {
  const Folder folder;
  folder.write("tokenizer.json", small());
  folder.write("added_tokens.json", R"({"<s>":9,"<|im_end|>":5,"<tool>":6,"<call>":7})");
  folder.write("special_tokens_map.json", R"({"eos_token":"<|im_end|>","additional_special_tokens":["<call>"]})");
  const auto t = Tokenizer::load(folder.path());
  EXPECT_EQ(t->encode("ab<|im_end|>a<tool><s>", false), (std::vector<std::int32_t>{2, 5, 0, 6, 3}));
  EXPECT_EQ(t->eos(), std::vector<std::int32_t>{5});
  EXPECT_TRUE(t->is_special(5) && t->is_special(7));
  EXPECT_FALSE(t->is_special(6));
  folder.write("added_tokens.json", R"({"<x>":-4})");
  EXPECT_NE(failure(folder.path()).find("added_tokens[0].id is -4"), std::string::npos) << failure(folder.path());
}

// The golden tokenizer taken apart into the files of its class gives the same ids.
TEST(TokenizerFiles, VocabAndMergesAreEnoughForAClassThatFixesThePipeline) {
  const fs::path golden = test::fixture("tiny-qwen3");
  ASSERT_FALSE(golden.empty());
  std::ifstream in(golden / "tokenizer.json");
  const Json whole = Json::parse(in);
  std::string merges = "#version: 0.2\n";
  for (const Json& m : whole["model"]["merges"]) merges += m[0].get<std::string>() + " " + m[1].get<std::string>() + "\r\n";
  Json config = {{"tokenizer_class", "Qwen2Tokenizer"}, {"eos_token", "<|im_end|>"}, {"added_tokens_decoder", Json::object()}};
  for (const Json& t : whole["added_tokens"]) config["added_tokens_decoder"][std::to_string(t["id"].get<int>())] = t;
  const Folder folder;
  folder.write("vocab.json", whole["model"]["vocab"].dump());
  folder.write("merges.txt", merges);
  folder.write("tokenizer_config.json", config.dump());
  const auto one = Tokenizer::load(golden), other = Tokenizer::load(folder.path());
  for (const char* text : {"Hello world, it's 12345!\n\n  x", "na\u0069\u0308ve <|im_start|>user\n\u65e5\u672c", ""}) {
    EXPECT_EQ(one->encode(text, true), other->encode(text, true)) << text;
    EXPECT_EQ(other->decode(other->encode(text, false), false), one->decode(one->encode(text, false), false));
  }
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"GPT2Tokenizer"})");
  EXPECT_NE(failure(folder.path()).find("it is GPT2Tokenizer"), std::string::npos) << failure(folder.path());
}

TEST(TokenizerFiles, WhatIsNoTokenizerIsSaidToBeWhatItIs) {
  const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 11\n";
  EXPECT_NE(small_failure(pointer).find("pointer of Git LFS"), std::string::npos) << small_failure(pointer);
  const Folder folder;
  folder.write("tokenizer.json", small());
  folder.write("tokenizer_config.json", pointer);
  EXPECT_NE(failure(folder.path()).find("pointer of Git LFS"), std::string::npos) << failure(folder.path());
}

TEST(ChatTemplates, TheFirstPlaceWinsAndNamesAreKept) {
  const Folder folder;
  folder.write("tokenizer.json", small());
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template(), "");
  folder.write("chat_template.json", R"({"chat_template":"old"})");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template(), "old");
  folder.write("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"config"},{"name":"tool_use","template":"tools"}]})");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template(), "config");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template("tool_use"), "tools");
  folder.write("chat_template.jinja", "file");
  folder.write("additional_chat_templates/rag.jinja", "rag");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template(), "file");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template("rag"), "rag");
  EXPECT_EQ(Tokenizer::load(folder.path())->chat_template("none such"), "");
}

}  // namespace
}  // namespace qengine
