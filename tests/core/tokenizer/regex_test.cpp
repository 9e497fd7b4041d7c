#include "core/tokenizer/regex.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace qengine {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<std::string> out;
  Regex(pattern).each(text, [&](std::size_t b, std::size_t e) { out.push_back(text.substr(b, e - b)); });
  return out;
}
using Found = std::vector<std::string>;

TEST(Regex, WhitespaceIsUnicodesAndNotPerls) {
  EXPECT_EQ(matches(R"(\s+)", "a\u00A0\u2003b\u180Ec\u200Bd\u3000"), (Found{"\u00A0\u2003", "\u3000"}));  // U+180E and U+200B are none
  EXPECT_EQ(matches(R"([^\s]+)", "a b\u0085c"), (Found{"a", "b", "c"}));
  EXPECT_EQ(matches(R"([\S]+)", "a b\u3000c"), (Found{"a", "b", "c"}));
}

TEST(Regex, WordsHoldMarksAndConnectors) {
  EXPECT_EQ(matches(R"(\w+)", "cafe\u0301_x-1\u00B2"), (Found{"cafe\u0301_x", "1\u00B2"}));
  EXPECT_EQ(matches(R"(\w+\b)", "cafe\u0301 x"), (Found{"cafe\u0301", "x"}));
  EXPECT_EQ(matches(R"(\d+)", "1\u0661x\u00BD"), (Found{"1\u0661"}));
}

TEST(Regex, HIsAHexadecimalDigit) { EXPECT_EQ(matches(R"(\h+)", "xfF0g"), (Found{"fF0"})); }

TEST(Regex, LineAnchorsMatchAtEveryLine) { EXPECT_EQ(matches("^.", "ab\ncd"), (Found{"a", "c"})); }

TEST(Regex, ClassesNestAndIntersect) {
  EXPECT_EQ(matches("[a-f&&[^cd]]+", "abcdef"), (Found{"ab", "ef"}));
  EXPECT_EQ(matches("[a[xy]]+", "axbya"), (Found{"ax", "ya"}));
  EXPECT_EQ(matches("[^a[xy]]+", "axbya"), (Found{"b"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab漢c"), (Found{"ab", "c"}));
  EXPECT_EQ(matches("[]a]+", "x]a"), (Found{"]a"}));
  EXPECT_EQ(matches(R"([\u4E00-\u9FFF]+)", "a漢字b"), (Found{"漢字"}));
}

TEST(Regex, EmptyMatchesMoveOnByACharacter) { EXPECT_EQ(matches("x*", "é"), (Found{"", ""})); }

TEST(Regex, BadPatternsAreNamed) {
  for (const char* bad : {"([", "(", "a{2,1}", "[z-a]", "\\", "[a&&", "(?<n", "*"}) {
    try {
      Regex r{std::string(bad)};
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), "E220");
      EXPECT_NE(e.message().find(bad), std::string::npos) << e.what();
    }
  }
}

TEST(Regex, AnExplodingPatternIsGivenUp) {
  const Regex r("(a|aa)+$");
  std::size_t b = 0, e = 0;
  EXPECT_THROW(r.find(std::string(2000, 'a') + "b", 0, b, e), Error);
}

}  // namespace
}  // namespace qengine
