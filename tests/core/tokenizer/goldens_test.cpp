// Ids, texts, chunks and prompts as other people's tokenizers make them (fixtures tokens/*.json).
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/tokenizer/chat_template.hpp"
#include "core/tokenizer/tokenizer.hpp"
#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

using test::Golden;

class Goldens : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = test::load_golden(GetParam());
    if (golden_.tokenizer == nullptr) GTEST_SKIP() << golden_.missing;
  }
  Golden golden_;
};

std::string shown(const Json& c) { return c.value("text", c.value("name", "")).substr(0, 60); }

TEST_P(Goldens, EncodeGivesTheSameIds) {
  ASSERT_GT(golden_.encode["cases"].size(), 40u);
  for (const Json& c : golden_.encode["cases"])
    EXPECT_EQ(golden_.tokenizer->encode(c["text"].get<std::string>(), false), c["ids"].get<std::vector<std::int32_t>>()) << shown(c);
}

TEST_P(Goldens, EncodeWithSpecialTokensAddsWhatThePostProcessorAdds) {
  if (golden_.from_gguf) GTEST_SKIP() << "the golden post-processor is tokenizer.json's";
  for (const Json& c : golden_.encode["cases"])
    EXPECT_EQ(golden_.tokenizer->encode(c["text"].get<std::string>(), true), c.value("ids_with_special", c["ids"]).get<std::vector<std::int32_t>>()) << shown(c);
}

TEST_P(Goldens, DecodeGivesTheSameText) {
  for (const Json& c : golden_.encode["cases"]) {
    const auto ids = c["ids"].get<std::vector<std::int32_t>>();
    if (!c.contains("decoded")) continue;
    EXPECT_EQ(golden_.tokenizer->decode(ids, false), c["decoded"].get<std::string>()) << shown(c);
    if (golden_.skip_special_known) {
      EXPECT_EQ(golden_.tokenizer->decode(ids, true), c.value("decoded_skip_special", c["decoded"].get<std::string>())) << shown(c);
    }
  }
}

// Two things bind: the chunks joined are the whole text, and nothing complete is held back.
TEST_P(Goldens, StreamHoldsBackOnlyIncompleteCharacters) {
  for (const Json& c : golden_.stream.value("cases", Json::array())) {
    const auto ids = c["ids"].get<std::vector<std::int32_t>>();
    StreamDecoder stream(golden_.tokenizer, false);
    std::string ours, theirs;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ours += stream.push(ids[i]);
      theirs += c["chunks"][i].get<std::string>();
      std::string complete = theirs;
      while (complete.ends_with("\uFFFD")) complete.resize(complete.size() - 3);
      EXPECT_GE(ours.size(), complete.size()) << shown(c) << " after id " << i;
    }
    EXPECT_EQ(ours + stream.flush(), c["whole"].get<std::string>()) << shown(c);
  }
}

TEST_P(Goldens, ChatsRenderTheSame) {
  const auto text = [&](const char* key) { return golden_.chat[key].is_string() ? golden_.chat[key].get<std::string>() : std::string(); };
  if (golden_.chat.empty()) GTEST_SKIP() << "no chat beside these encodings";
  const ChatTemplate chat(text("template"), text("bos_token"), text("eos_token"));
  for (const Json& c : golden_.chat["cases"]) {
    if (c.contains("error")) {
      EXPECT_THROW(chat.render(c["request"]), Error) << shown(c);
      continue;
    }
    std::string rendered;
    ASSERT_NO_THROW(rendered = chat.render(c["request"])) << shown(c);
    EXPECT_EQ(rendered, c["text"].get<std::string>()) << shown(c);
    EXPECT_EQ(golden_.tokenizer->encode(rendered, false), c["ids"].get<std::vector<std::int32_t>>()) << shown(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Goldens, testing::ValuesIn(test::kGoldenNames));

}  // namespace
}  // namespace qengine
