// What must hold for any text: nothing is lost, nothing takes long.
#include "core/tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "core/tokenizer/unicode.hpp"
#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

// Processor time of this test alone, so that a busy machine does not matter.
double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string random_text(std::mt19937& rng, std::size_t characters) {
  std::string s;
  for (std::size_t i = 0; i < characters; ++i) {
    char32_t c = 0;
    switch (rng() % 6) {
      case 0: c = rng() % 0x80; break;
      case 1: c = U" \n\t.,'0aA"[rng() % 9]; break;
      case 2: c = 0x80 + rng() % 0x780; break;
      case 3: c = 0x1F300 + rng() % 0x300; break;
      case 4: c = 0x4E00 + rng() % 0x5000; break;
      default: c = rng() % 0x110000;
    }
    if (c >= 0xD800 && c < 0xE000) c = 'x';
    unicode::append(s, c);
  }
  return s;
}

class ByteLevelText : public testing::TestWithParam<unsigned> {};

// Without a normalizer a byte-level tokenizer gives back what it was given, whatever that is.
TEST_P(ByteLevelText, SurvivesTheRoundTrip) {
  const auto tokenizer = Tokenizer::load(test::golden() / "broken/valid-micro");
  std::mt19937 rng(GetParam());
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_text(rng, rng() % 60);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false), false), text);
  }
}

TEST_P(ByteLevelText, StreamsAsItDecodesWhateverTheIdsAre) {
  const auto tokenizer = Tokenizer::load(test::fixture("tiny-qwen3"));
  std::mt19937 rng(GetParam());
  for (int i = 0; i < 200; ++i) {
    std::vector<std::int32_t> ids;
    std::string bytes;
    for (unsigned n = rng() % 20; n > 0; --n) {
      ids.push_back(static_cast<std::int32_t>(rng() % (rng() % 2 ? 256u : 1030u)));  // a few beyond the end
      bytes += tokenizer->token_bytes(ids.back());
    }
    StreamDecoder stream(tokenizer, false);
    std::string text;
    for (const std::int32_t id : ids) {
      const std::string chunk = stream.push(id);
      EXPECT_TRUE(unicode::is_valid(chunk));
      text += chunk;
    }
    text += stream.flush();
    EXPECT_EQ(text, tokenizer->decode(ids, false));
    EXPECT_EQ(text, unicode::sanitize(bytes));
  }
}
INSTANTIATE_TEST_SUITE_P(Seed, ByteLevelText, testing::Range(0u, 5u));

TEST(Tokenizer, IllFormedBytesBecomeReplacementCharacters) {
  const auto tokenizer = Tokenizer::load(test::golden() / "broken/valid-micro");
  EXPECT_EQ(tokenizer->encode("a\xFF\xC3z", false), tokenizer->encode("a\uFFFD\uFFFDz", false));
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto tokenizer = Tokenizer::load(test::fixture("tiny-qwen3"));
  EXPECT_EQ(tokenizer->size(), 1024);
  EXPECT_EQ(tokenizer->id("<|im_end|>"), 1023);
  EXPECT_EQ(tokenizer->id("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(1023));
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(1024));
  EXPECT_EQ(tokenizer->eos(), (std::vector<std::int32_t>{1023}));
  EXPECT_EQ(tokenizer->eos_text(), "<|im_end|>");
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->piece(220), "\u0120");
  EXPECT_EQ(tokenizer->token_bytes(220), " ");
  EXPECT_EQ(tokenizer->token_bytes(5000), "");
  EXPECT_EQ(tokenizer->decode({1023, 64, 5000, -1}, true), "a");
}

TEST(Tokenizer, GgufAndJsonOfOneModelAgree) {
  const auto json = Tokenizer::load(test::fixture("tiny-qwen3")), gguf = Tokenizer::load(test::fixture("gguf/tiny-qwen3-q4_k_m.gguf"));
  EXPECT_EQ(json->size(), gguf->size());
  EXPECT_EQ(json->eos(), gguf->eos());
  EXPECT_EQ(json->chat_template(), gguf->chat_template());
  for (std::int32_t id = 0; id < json->size(); ++id) {
    EXPECT_EQ(json->piece(id), gguf->piece(id));
    EXPECT_EQ(json->token_bytes(id), gguf->token_bytes(id));
    EXPECT_EQ(json->is_special(id), gguf->is_special(id));
  }
}

// Rows of the matrix that only pad it ([PADn]) are no tokens.
TEST(Tokenizer, PaddingOfAGgufIsLeftOut) {
  const auto gguf = Tokenizer::load(test::fixture("gguf/tiny-qwen2-f32-q8_0.gguf"));
  EXPECT_EQ(gguf->size(), 1024);
  EXPECT_EQ(gguf->id("[PAD1030]"), std::nullopt);
}

// A megabyte of anything takes well under a second; what is quadratic takes minutes.
TEST(Tokenizer, AMegabyteTakesLessThanASecond) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "timings mean nothing under a sanitizer";
#endif
  const std::size_t kSize = 1'000'000;
  std::mt19937 rng(1);
  std::string words, letters;
  while (words.size() < kSize) words += "The quick brown fox, 1234 times over; don't ask why.\n";
  while (letters.size() < kSize) letters += static_cast<char>('a' + rng() % 26);
  const auto llama = test::golden() / "pipelines/llama2", byte_level = test::golden() / "pipelines/tekken";
  for (const auto& folder : {llama, byte_level}) {
    const auto tokenizer = Tokenizer::load(folder);
    for (const std::string& text : {words, letters, std::string(kSize, ' '), std::string(kSize, 'a'), std::string(kSize, '\n'), std::string(kSize, '<'), random_text(rng, kSize / 3)}) {
      const double before = seconds();
      const auto ids = tokenizer->encode(text, false);
      EXPECT_LT(seconds() - before, 1.0) << folder << " '" << text.substr(0, 8) << "' " << ids.size() << " ids";
      EXPECT_FALSE(ids.empty());
    }
  }
}

TEST(SmolLm2, LoadsInMilliseconds) {
  const auto file = test::smollm2();
  if (file.empty()) GTEST_SKIP() << "no SmolLM2 file here";
  std::shared_ptr<const Tokenizer> tokenizer;
  double taken = 1;  // the best of some: a machine that is busy slows every one of them
  for (int i = 0; i < 8; ++i) {
    const double before = seconds();
    tokenizer = Tokenizer::load(file);
    taken = std::min(taken, seconds() - before);
  }
  EXPECT_EQ(tokenizer->size(), 49152);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(taken, 0.04);
#endif
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->encode("Hi", true), tokenizer->encode("Hi", false));  // add_bos_token is false
}

}  // namespace
}  // namespace qengine
