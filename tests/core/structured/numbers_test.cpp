#include "core/structured/numbers.hpp"

#include <gtest/gtest.h>

#include <random>

namespace qengine::structured {
namespace {

Dfa range(const char* least, const char* most, bool integer, bool xmin = false, bool xmax = false, std::int64_t multiple = 0) {
  NumberBounds n;
  if (least) n.at_least(Json::parse(least), xmin);
  if (most) n.at_most(Json::parse(most), xmax);
  n.integer = integer;
  n.multiple_of = multiple;
  Budget b;
  return number_dfa(n, b);
}

// Every integer around the bounds, against the comparison itself.
TEST(Numbers, IntegersWithinBounds) {
  for (const auto& [lo, hi] : {std::pair{-12, 7}, {0, 0}, {3, 1024}, {-99, -10}, {-1, 1}, {95, 105}, {0, 9}}) {
    const Dfa d = range(std::to_string(lo).c_str(), std::to_string(hi).c_str(), true);
    const Dfa x = range(std::to_string(lo).c_str(), std::to_string(hi).c_str(), true, true, true);
    for (int i = -1200; i <= 1200; ++i) {
      ASSERT_EQ(d.matches(std::to_string(i)), i >= lo && i <= hi) << i << " in " << lo << ".." << hi;
      ASSERT_EQ(x.matches(std::to_string(i)), i > lo && i < hi) << i << " in " << lo << "<..<" << hi;
    }
  }
  EXPECT_FALSE(range("1", "9", true).matches("01"));
  EXPECT_FALSE(range("1", "9", true).matches("1.0"));
  EXPECT_FALSE(range("1", "9", true).matches("+1"));
  EXPECT_FALSE(range("1", "9", true).matches(""));
}

TEST(Numbers, HalfOpenAndHuge) {
  const Dfa up = range("1e3", nullptr, true);
  EXPECT_TRUE(up.matches("1000"));
  EXPECT_FALSE(up.matches("999"));
  EXPECT_TRUE(up.matches("999999999999999999"));
  EXPECT_FALSE(up.matches("9999999999999999999"));  // one digit more than is written
  EXPECT_TRUE(range(nullptr, "-5", true).matches("-123456"));
  EXPECT_FALSE(range(nullptr, "-5", true).matches("-4"));
  EXPECT_TRUE(range("1e300", nullptr, false).empty());
  EXPECT_TRUE(range(nullptr, "1e300", false).matches("123.5"));
}

TEST(Numbers, MultiplesAndZero) {
  const Dfa d = range("-20", "100", true, false, false, 7);
  for (int i = -30; i <= 120; ++i) ASSERT_EQ(d.matches(std::to_string(i)), i >= -20 && i <= 100 && i % 7 == 0) << i;
  EXPECT_TRUE(range("0", nullptr, false).matches("0"));
  EXPECT_FALSE(range("0", nullptr, false, true).matches("0"));
  EXPECT_FALSE(range("0", nullptr, false, true).matches("0.000"));
  EXPECT_TRUE(range("0", nullptr, false, true).matches("0.001"));
  EXPECT_FALSE(range(nullptr, "0", false, false, true).matches("-0"));
  EXPECT_FALSE(range(nullptr, "0", false, false, true).matches("-0.0"));
  EXPECT_TRUE(range(nullptr, "0", false, false, true).matches("-0.1"));
  EXPECT_TRUE(range("5", "4", true).empty());
}

// Random decimals against exact comparison of their texts.
TEST(Numbers, DecimalsWithinBounds) {
  std::mt19937 rng(3);
  const auto decimal = [&] {
    std::string s = rng() % 2 ? "-" : "";
    s += std::to_string(rng() % 25);
    if (rng() % 2) s += "." + std::to_string(rng() % 10) + (rng() % 2 ? std::to_string(rng() % 100) : "");
    return s;
  };
  for (int round = 0; round < 150; ++round) {
    std::string lo = decimal(), hi = decimal();
    if (compare_decimal(lo, hi) > 0) std::swap(lo, hi);
    const bool xl = rng() % 2, xh = rng() % 2;
    const Dfa d = range(lo.c_str(), hi.c_str(), false, xl, xh);
    for (int i = 0; i < 200; ++i) {
      const std::string v = decimal();
      if (v[0] == '-' && compare_decimal(v, "0") == 0) continue;  // -0 is written only among negative numbers
      const int a = compare_decimal(v, lo), b = compare_decimal(v, hi);
      ASSERT_EQ(d.matches(v), (xl ? a > 0 : a >= 0) && (xh ? b < 0 : b <= 0)) << v << " in " << lo << ".." << hi << " " << xl << xh;
    }
  }
}

TEST(Numbers, WhatIsUnboundedIsJson) {
  const Dfa d = range(nullptr, nullptr, false);
  for (const char* s : {"0", "-0", "12", "-1.5", "1e5", "2.5E-07", "1e+99"}) EXPECT_TRUE(d.matches(s)) << s;
  for (const char* s : {"", "-", "01", "1.", ".5", "1e", "1e+", "1e100", "NaN", "+1", "1.e5"}) EXPECT_FALSE(d.matches(s)) << s;
  const Dfa i = range(nullptr, nullptr, true);
  EXPECT_TRUE(i.matches("-120"));
  EXPECT_FALSE(i.matches("1.0"));
  EXPECT_FALSE(i.matches("1e5"));
}

TEST(Numbers, Comparison) {
  EXPECT_EQ(compare_decimal("1.50", "1.5"), 0);
  EXPECT_EQ(compare_decimal("-0", "0"), 0);
  EXPECT_LT(compare_decimal("-2", "1"), 0);
  EXPECT_GT(compare_decimal("10", "9.999"), 0);
  EXPECT_GT(compare_decimal("-1.25", "-1.3"), 0);
  EXPECT_EQ(decimal_text(Json::parse("1e3")), "1000");
  EXPECT_EQ(decimal_text(Json::parse("0.1")), "0.1");
}

}  // namespace
}  // namespace qengine::structured
