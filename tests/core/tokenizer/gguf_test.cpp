// Tokenizers in GGUF metadata, from a checkpoint that is nothing but metadata.
#include <gtest/gtest.h>

#include <map>

#include "core/base/error.hpp"
#include "core/tokenizer/tokenizer.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

using Ids = std::vector<std::int32_t>;

class FakeGguf : public Checkpoint {
 public:
  Json metadata = Json::object();
  std::map<std::string, std::vector<std::string>, std::less<>> strings;
  std::map<std::string, std::vector<float>, std::less<>> floats;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> ints;

  Kind kind() const override { return Kind::kGguf; }
  const std::filesystem::path& path() const override { return path_; }
  const std::filesystem::path& folder() const override { return folder_; }
  std::span<const Tensor> tensors() const override { return {}; }
  const Tensor* find(std::string_view) const override { return nullptr; }
  std::span<const std::byte> data(const Tensor&) const override { return {}; }
  void release(const Tensor&) const override {}
  const Json& config() const override { return config_; }
  const Json& quant_config() const override { return null_; }
  const std::string& quant_config_source() const override { return source_; }
  const Json& gguf_metadata() const override { return metadata; }
  std::vector<std::string_view> gguf_strings(std::string_view key) const override {
    const auto it = strings.find(key);
    return it == strings.end() ? std::vector<std::string_view>() : std::vector<std::string_view>(it->second.begin(), it->second.end());
  }
  std::vector<float> gguf_floats(std::string_view key) const override {
    const auto it = floats.find(key);
    return it == floats.end() ? std::vector<float>() : it->second;
  }
  std::vector<std::int64_t> gguf_ints(std::string_view key) const override {
    const auto it = ints.find(key);
    return it == ints.end() ? std::vector<std::int64_t>() : it->second;
  }
  const Json& generation_config() const override { return null_; }
  std::span<const File> files() const override { return {}; }
  std::span<const std::string> warnings() const override { return {}; }

  // Adds a token; its id is its place.
  void token(const std::string& text, std::int64_t type = 1, float score = 0) {
    strings["tokenizer.ggml.tokens"].push_back(text);
    ints["tokenizer.ggml.token_type"].push_back(type);
    floats["tokenizer.ggml.scores"].push_back(score);
  }

 private:
  std::filesystem::path path_ = "model.gguf", folder_ = "no-such-folder";
  Json config_ = Json::object(), null_;
  std::string source_;
};

// <unk> <s> </s>, the 256 bytes, and a few pieces whose scores say in which order they join.
FakeGguf llama() {
  FakeGguf g;
  g.metadata["tokenizer.ggml.model"] = "llama";
  g.token("<unk>", 2);
  g.token("<s>", 3);
  g.token("</s>", 3);
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    g.token(name, 6);
  }
  for (const char* c : {"\u2581", "a", "b", "c"}) g.token(c, 1, -100);  // 259 ...
  g.token("\u2581a", 1, -3);   // 263
  g.token("ab", 1, -1);        // 264: before "bc" and before the space
  g.token("bc", 1, -2);        // 265
  g.token("abc", 1, -9);       // 266
  g.token("\u2581\u2581", 1, -4);  // 267
  g.token("<user>", 4);        // 268: plain text, not special
  return g;
}

TEST(GgufLlama, JoinsByScoreWithTheSpaceInFront) {
  const auto t = Tokenizer::load(llama());
  EXPECT_EQ(t->encode("abc", false), (Ids{259, 266}));  // ab, then abc; "_a" comes too late
  EXPECT_EQ(t->encode("bc", false), (Ids{259, 265}));
  EXPECT_EQ(t->encode("a", false), (Ids{263}));
  EXPECT_EQ(t->encode(" a", false), (Ids{259, 263}));  // "__a": "_a" scores higher than "__"
  EXPECT_EQ(t->encode("", false), Ids());
}

TEST(GgufLlama, AddsBosUnlessTheFileSaysNo) {
  FakeGguf g = llama();
  EXPECT_EQ(Tokenizer::load(g)->encode("a", true), (Ids{1, 263}));
  EXPECT_EQ(Tokenizer::load(g)->bos(), 1);
  EXPECT_EQ(Tokenizer::load(g)->eos(), (Ids{2}));
  g.metadata["tokenizer.ggml.add_eos_token"] = true;
  EXPECT_EQ(Tokenizer::load(g)->encode("a", true), (Ids{1, 263, 2}));
  g.metadata["tokenizer.ggml.add_bos_token"] = false;
  EXPECT_EQ(Tokenizer::load(g)->encode("a", true), (Ids{263, 2}));
}

TEST(GgufLlama, SpaceInFrontCanBeOff) {
  FakeGguf g = llama();
  g.metadata["tokenizer.ggml.add_space_prefix"] = false;
  const auto t = Tokenizer::load(g);
  EXPECT_EQ(t->encode("abc", false), (Ids{266}));
  EXPECT_EQ(t->decode({263, 266}, false), " aabc");
}

TEST(GgufLlama, UnknownCharactersAreBytesAndComeBackWhole) {
  const auto t = Tokenizer::load(llama());
  const Ids ids = t->encode("a\u00E9", false);
  EXPECT_EQ(ids, (Ids{263, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t->decode(ids, false), "a\u00E9");
  EXPECT_EQ(t->token_bytes(3 + 0xC3), "\xC3");
  std::shared_ptr<const Tokenizer> shared = t;
  StreamDecoder s(shared, false);
  EXPECT_EQ(s.push(263), "a");
  EXPECT_EQ(s.push(3 + 0xC3), "");
  EXPECT_EQ(s.push(3 + 0xA9), "\u00E9");
  EXPECT_EQ(s.push(3 + 0xE6), "");
  EXPECT_EQ(s.push(3 + 0xBC), "");
  EXPECT_EQ(s.flush(), "\uFFFD\uFFFD");  // one for each byte
}

TEST(GgufLlama, SpecialTokensInTextAreParsedAndTextBehindThemGetsItsSpace) {
  const auto t = Tokenizer::load(llama());
  EXPECT_EQ(t->encode("</s>a<user>", false), (Ids{2, 263, 268}));
  EXPECT_EQ(t->decode({1, 263, 268}, false), "<s> a<user>");
  EXPECT_EQ(t->decode({1, 263, 268}, true), "a<user>");
  EXPECT_TRUE(t->is_special(0) && t->is_special(1) && t->is_special(2));
  EXPECT_FALSE(t->is_special(268) || t->is_special(3));
}

TEST(GgufLlama, EverythingComesBack) {
  const auto t = Tokenizer::load(llama());
  for (const std::string& text : {std::string("a b  c"), std::string("  abc abc"), std::string("\n\tx\u00E9\U0001F600 \u2581"), std::string(" ")}) {
    const std::string expected = text.find("\u2581") == std::string::npos ? text : "\n\tx\u00E9\U0001F600  ";
    EXPECT_EQ(t->decode(t->encode(text, false), false), expected);
  }
}

FakeGguf gpt2(const char* pre) {
  FakeGguf g;
  g.metadata["tokenizer.ggml.model"] = "gpt2";
  if (pre) g.metadata["tokenizer.ggml.pre"] = pre;
  for (const char* t : {"a", "b", "1", "\u0120", "ab", "\u0120a", "11", "\u010A"}) g.token(t);
  g.token("<|bos|>", 3);  // 8
  g.token("caf\u00E9 x", 4);  // 9: plain text although \u00E9 is a letter of the byte alphabet
  g.strings["tokenizer.ggml.merges"] = {"a b", "\u0120 a", "1 1"};
  g.metadata["tokenizer.ggml.bos_token_id"] = 8;
  g.metadata["tokenizer.ggml.eos_token_id"] = 8;
  g.metadata["tokenizer.ggml.eot_token_id"] = 7u;
  return g;
}

TEST(GgufGpt2, ThePreTokenizerDecidesWhatMayJoin) {
  EXPECT_EQ(Tokenizer::load(gpt2("gpt-2"))->encode("ab 11", false), (Ids{4, 3, 6}));
  EXPECT_EQ(Tokenizer::load(gpt2("smollm"))->encode("ab 11", false), (Ids{4, 3, 2, 2}));
  EXPECT_EQ(Tokenizer::load(gpt2("qwen2"))->encode("ab a11", false), (Ids{4, 5, 2, 2}));
  EXPECT_EQ(Tokenizer::load(gpt2("llama-bpe"))->encode("ab a11", false), (Ids{4, 5, 6}));
  EXPECT_EQ(Tokenizer::load(gpt2(nullptr))->encode("ab", false), (Ids{4}));  // "default", with a warning
}

TEST(GgufGpt2, BosIsAddedWhereThePreTokenizerOrTheFileSaysSo) {
  EXPECT_EQ(Tokenizer::load(gpt2("gpt-2"))->encode("a", true), (Ids{0}));
  EXPECT_EQ(Tokenizer::load(gpt2("llama-bpe"))->encode("a", true), (Ids{8, 0}));
  EXPECT_EQ(Tokenizer::load(gpt2("tekken"))->encode("a", true), (Ids{8, 0}));
  FakeGguf g = gpt2("gpt-2");
  g.metadata["tokenizer.ggml.add_bos_token"] = true;
  EXPECT_EQ(Tokenizer::load(g)->encode("a", true), (Ids{8, 0}));
}

TEST(GgufGpt2, ControlAndUserTokensArePlainText) {
  const auto t = Tokenizer::load(gpt2("gpt-2"));
  EXPECT_EQ(t->encode("a<|bos|>caf\u00E9 x", false), (Ids{0, 8, 9}));
  EXPECT_EQ(t->decode({0, 8, 9, 5}, false), "a<|bos|>caf\u00E9 x a");
  EXPECT_EQ(t->decode({0, 8, 9, 5}, true), "acaf\u00E9 x a");
  EXPECT_EQ(t->token_bytes(9), "caf\u00E9 x");
  EXPECT_EQ(t->eos(), (Ids{8, 7}));  // eos and eot
}

TEST(Gguf, TemplatesHaveNames) {
  FakeGguf g = gpt2("gpt-2");
  g.metadata["tokenizer.chat_template"] = "plain";
  g.metadata["tokenizer.chat_template.tool_use"] = "tools";
  g.metadata["tokenizer.chat_templates"] = Json::array({"tool_use"});
  EXPECT_EQ(Tokenizer::load(g)->chat_template(), "plain");
  EXPECT_EQ(Tokenizer::load(g)->chat_template("tool_use"), "tools");
}

TEST(Gguf, AWholeTokenizerJsonInTheMetadataServesToo) {
  FakeGguf g;
  g.metadata["tokenizer.huggingface.json"] = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";
  EXPECT_EQ(Tokenizer::load(g)->encode("ab", false), (Ids{2}));
}

std::string failure(const FakeGguf& g) {
  try {
    Tokenizer::load(g);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E220");
    EXPECT_EQ(e.find("in"), "model.gguf");
    return e.message();
  }
  return "loaded";
}

TEST(Gguf, WhatIsWrongIsNamed) {
  const auto names = [](const FakeGguf& g, const char* what) { EXPECT_NE(failure(g).find(what), std::string::npos) << failure(g); };
  FakeGguf g;
  names(g, "tokenizer.ggml.model is missing");
  g.metadata["tokenizer.ggml.model"] = "bert";
  names(g, "\"bert\"");
  g.metadata["tokenizer.ggml.model"] = 7;
  names(g, "tokenizer.ggml.model is no string");
  g.metadata["tokenizer.ggml.model"] = "gpt2";
  names(g, "tokenizer.ggml.tokens is missing");
  names(gpt2("frob"), "'frob'");
  names(gpt2("gpt-2 phi-2"), "'gpt-2 phi-2'");
  g = gpt2("gpt-2");
  g.strings["tokenizer.ggml.merges"].push_back("a zz");
  names(g, "tokenizer.ggml.merges[3] is \"a zz\", but \"zz\" is not");
  g.strings["tokenizer.ggml.merges"].back() = "azz";
  names(g, "tokenizer.ggml.merges[3]");
  g.strings["tokenizer.ggml.merges"].clear();  // text would be cut into single characters
  names(g, "tokenizer.ggml.merges is missing or empty, and \"ab\" is a token that only merging makes");
  g = gpt2("gpt-2");
  g.ints["tokenizer.ggml.token_type"].pop_back();
  names(g, "tokenizer.ggml.token_type has 9 values for 10 tokens");
  g = gpt2("gpt-2");
  g.metadata["tokenizer.ggml.bos_token_id"] = 10;
  names(g, "tokenizer.ggml.bos_token_id is 10");
  g.metadata["tokenizer.ggml.bos_token_id"] = "x";
  names(g, "tokenizer.ggml.bos_token_id is no integer");
  g = llama();
  g.floats["tokenizer.ggml.scores"].pop_back();
  names(g, "tokenizer.ggml.scores has 268 values for 269 tokens");
  g = llama();
  g.floats["tokenizer.ggml.scores"][5] = std::numeric_limits<float>::quiet_NaN();
  names(g, "NaN");
  g = llama();
  g.metadata["tokenizer.ggml.add_bos_token"] = 1;
  names(g, "tokenizer.ggml.add_bos_token");
}

}  // namespace
}  // namespace qengine
