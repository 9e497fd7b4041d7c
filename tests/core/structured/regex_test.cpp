#include "core/structured/regex.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <regex>

namespace qengine::structured {
namespace {

bool whole(std::string_view pattern, std::string_view text) {
  Budget b;
  return compile_regex(pattern, RegexMode::kWhole, b).matches(text);
}
bool found(std::string_view pattern, std::string_view text) {
  Budget b;
  return compile_regex(pattern, RegexMode::kSearch, b).matches(text);
}
std::string refusal(std::string_view pattern) {
  try {
    Budget b;
    compile_regex(pattern, RegexMode::kWhole, b);
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

TEST(Regex, WholeTexts) {
  EXPECT_TRUE(whole("a(b|c)*d", "abcbd"));
  EXPECT_FALSE(whole("a(b|c)*d", "abcb"));
  EXPECT_TRUE(whole("[a-c]{2,3}", "abc"));
  EXPECT_FALSE(whole("[a-c]{2,3}", "a"));
  EXPECT_FALSE(whole("[a-c]{2,3}", "abca"));
  EXPECT_TRUE(whole("", ""));
  EXPECT_TRUE(whole("^(?:ab)+?$", "abab"));
  EXPECT_TRUE(whole("(?<year>\\d{4})-(?P<m>\\d\\d)", "2024-07"));
  EXPECT_TRUE(whole("a{,2}", "a{,2}"));  // a brace that is no quantifier is itself
}

TEST(Regex, CharactersAndNotBytes) {
  EXPECT_TRUE(whole(".", "é"));
  EXPECT_TRUE(whole("..", "😀€"));
  EXPECT_FALSE(whole(".", "\n"));
  EXPECT_TRUE(whole("[^a]", "😀"));
  EXPECT_TRUE(whole("[à-ü]+", "éèü"));
  EXPECT_FALSE(whole("[à-ü]+", "z"));
  EXPECT_TRUE(whole("\\u00e9\\u{1F600}\\ud83d\\ude00\\x41", "é😀😀A"));
  EXPECT_FALSE(whole("[^]", "\xC3"));          // half a character
  EXPECT_FALSE(whole("[^]*", "\xED\xA0\x80"));  // a surrogate
}

TEST(Regex, AnchorsMeanTheEndsOfTheText) {
  EXPECT_TRUE(found("b", "abc"));
  EXPECT_FALSE(found("^b", "abc"));
  EXPECT_TRUE(found("^a", "abc"));
  EXPECT_FALSE(found("b$", "abc"));
  EXPECT_TRUE(found("c$", "abc"));
  EXPECT_TRUE(found("^a|b$", "ax"));
  EXPECT_TRUE(found("^a|b$", "xb"));
  EXPECT_FALSE(found("^a|b$", "xax"));
  EXPECT_FALSE(found("a^b", "a^b"));  // an anchor inside can never hold
  EXPECT_TRUE(found("^$", ""));
  EXPECT_FALSE(found("^$", "x"));
  EXPECT_TRUE(found("é", "caféé!"));
}

TEST(Regex, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "lookahead"}, {"(?<!a)b", "lookbehind"}, {"(a)\\1", "back reference"}, {"\\bword", "word boundary"}, {"\\p{L}", "Unicode property"}, {"(?i)a", "flags"},
      {"a++", "possessive"},   {"[a", "without its ]"},   {"(a", "without its )"},      {"a)", "without its ("},       {"*a", "nothing to repeat"},       {"a{3,2}", "wrong way round"},
      {"[z-a]", "wrong way round"}, {"a\\", "backslash"}, {"\\xZ", "hexadecimal"}, {"(a{1000}){1000}", "too large"}, {"\\ud800", "surrogate"}, {"\xFF", "UTF-8"}, {"\\q", "not known"},
      {"a**", "behind a quantifier"}, {"a{2}{3}", "behind a quantifier"}};
  for (const auto& [pattern, word] : cases) EXPECT_NE(refusal(pattern).find(word), std::string::npos) << pattern << ": " << refusal(pattern);
}

// An explosive pattern ends in a refusal within its bounds, and not in a stuck thread.
TEST(Regex, ExplosionsAreRefusedInTime) {
  const std::clock_t begin = std::clock();  // processor time: other work on the machine does not count
  EXPECT_NE(refusal("(a|b)*a(a|b){200}"), "");
  EXPECT_NE(refusal("((a{50}){50}){50}"), "");
  EXPECT_NE(refusal("((){0,100000}){100000}"), "");                                           // of nothing, which still takes time and memory
  EXPECT_NE(refusal("a" + std::string(1 << 20, '*')).find("behind a quantifier"), std::string::npos);  // each would be a level of recursion
  EXPECT_LT(std::clock() - begin, 8 * CLOCKS_PER_SEC);
}

// Against std::regex on random small patterns and texts.
class RegexWalk : public ::testing::TestWithParam<unsigned> {};
std::string random_pattern(std::mt19937& rng, int depth) {
  switch (rng() % (depth > 3 ? 4 : 8)) {
    case 0: return "a";
    case 1: return "b";
    case 2: return "[ab]";
    case 3: return "[^a]";
    case 4: return random_pattern(rng, depth + 1) + random_pattern(rng, depth + 1);
    case 5: return "(" + random_pattern(rng, depth + 1) + "|" + random_pattern(rng, depth + 1) + ")";
    case 6: return "(?:" + random_pattern(rng, depth + 1) + ")" + (rng() % 2 ? "*" : "?");
    default: return "(?:" + random_pattern(rng, depth + 1) + "){1," + std::to_string(1 + rng() % 3) + "}";
  }
}
TEST_P(RegexWalk, AgreesWithTheStandardLibrary) {
  std::mt19937 rng(GetParam());
  for (int round = 0; round < 60; ++round) {
    const std::string pattern = random_pattern(rng, 0);
    Budget budget;
    const Dfa w = compile_regex(pattern, RegexMode::kWhole, budget), s = compile_regex(pattern, RegexMode::kSearch, budget);
    const std::regex other(pattern);
    for (int i = 0; i < 60; ++i) {
      std::string text;
      for (std::size_t n = rng() % 7; n > 0; --n) text += "abc"[rng() % 3];
      ASSERT_EQ(w.matches(text), std::regex_match(text, other)) << pattern << " on " << text;
      ASSERT_EQ(s.matches(text), std::regex_search(text, other)) << pattern << " in " << text;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seed, RegexWalk, ::testing::Range(0u, 8u));

TEST(Dfa, Operations) {
  Budget b;
  const Dfa x = compile_regex("a*b", RegexMode::kWhole, b), y = compile_regex("[ab]{2}", RegexMode::kWhole, b);
  EXPECT_TRUE(both(x, y, b).matches("ab"));
  EXPECT_FALSE(both(x, y, b).matches("aab"));
  EXPECT_TRUE(either(x, y, b).matches("ba"));
  EXPECT_TRUE(without(x, y, b).matches("aab"));
  EXPECT_FALSE(without(x, y, b).matches("ab"));
  EXPECT_TRUE(both(x, compile_regex("c", RegexMode::kWhole, b), b).empty());
  const Dfa two = with_length(any_text(b), 2, 3, b);
  EXPECT_FALSE(two.matches("é"));
  EXPECT_TRUE(two.matches("é€"));
  EXPECT_TRUE(two.matches("😀😀😀"));
  EXPECT_FALSE(two.matches("aaaa"));
  EXPECT_TRUE(up_to("</t>", b).matches("a<</t</t>"));
  EXPECT_FALSE(up_to("</t>", b).matches("</t>x</t>"));
  EXPECT_FALSE(never("</t>", b).matches("a<</t</t>"));
  EXPECT_TRUE(never("</t>", b).matches("a<</t</t"));
}

}  // namespace
}  // namespace qengine::structured
