#include "core/tokenizer/tokenize_jsonl.hpp"

#include <gtest/gtest.h>

#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

class Lines : public testing::Test {
 protected:
  Json ask(const std::string& line) const { return Json::parse(tokenize_jsonl(tokenizer_, line)); }
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::load(test::fixture("tiny-qwen3"));
};

TEST_F(Lines, TextBecomesTokens) {
  EXPECT_EQ(ask(R"({"text":"a<|im_end|>"})"), Json::parse(R"({"tokens":[64,1023]})"));
  EXPECT_EQ(ask(R"({"text":"","add_special_tokens":false})"), Json::parse(R"({"tokens":[]})"));
}

TEST_F(Lines, IdsBecomeTextAndChunks) {
  EXPECT_EQ(ask(R"({"ids":[64,172,253,246,222,65]})"), Json::parse(R"({"text":"a😀b","chunks":["a","","","","😀","b"],"flush":""})"));
  EXPECT_EQ(ask(R"({"ids":[162,120]})"), Json::parse(R"({"text":"\ufffd","chunks":["",""],"flush":"\ufffd"})"));
  EXPECT_EQ(ask(R"({"ids":[1023]})")["text"], "<|im_end|>");
}

TEST_F(Lines, ChatsTakeTemplateAndTokensFromTheLineOrTheModel) {
  EXPECT_EQ(ask(R"({"chat":{"messages":[{"role":"user","content":"a"}]},"template":"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}","bos_token":"b"})"),
            Json::parse(R"({"text":"ba<|im_end|>","tokens":[65,64,1023]})"));
  EXPECT_EQ(ask(R"({"chat":{"messages":[{"role":"user","content":"a"}]},"template":"{{ eos_token }}","eos_token":null})")["text"], "");
  EXPECT_EQ(ask(R"({"chat":{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":true}})")["text"],
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Lines, WhatFailsSaysSoAndNothingElse) {
  for (const char* line : {"", "nonsense", "[]", "{}", R"({"text":3})", R"({"ids":3})", R"({"ids":["a"]})", R"({"ids":[-1]})", R"({"ids":[1024]})", R"({"ids":[1e30]})", R"({"chat":3})",
                           R"({"chat":{}})", R"({"chat":{"messages":[]}})", R"({"chat":{"messages":[{}]},"template":"{{"})", R"({"chat":{"messages":[{}]},"template":4})",
                           R"({"text":"a","add_special_tokens":3})", "{\"text\":\"\xff\"}"}) {
    const Json answer = ask(line);
    EXPECT_TRUE(answer.size() == 1 && answer.contains("error")) << line << " -> " << answer;
  }
}

}  // namespace
}  // namespace qengine
