// The small number formats, against their definitions by exponent and mantissa.
#include <gtest/gtest.h>
#include <qe/activation.hpp>
#include <qe/numbers.hpp>

#include <cmath>
#include <random>

namespace {

// sign, exponent field, mantissa field -> value, the textbook way
double textbook(int sign, int e, int m, int bias, int man_bits) {
  const double frac = double(m) / (1 << man_bits);
  const double v = e == 0 ? std::ldexp(frac, 1 - bias) : std::ldexp(1 + frac, e - bias);
  return sign ? -v : v;
}

TEST(Numbers, DecodeIsTheDefinition) {
  for (int c = 0; c < 256; ++c) {
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(qe::e4m3_to_f32(std::uint8_t(c))));
    } else {
      EXPECT_EQ(qe::e4m3_to_f32(std::uint8_t(c)), textbook(c >> 7, c >> 3 & 15, c & 7, 7, 3)) << c;
    }
    if ((c >> 2 & 31) != 31) {
      EXPECT_EQ(qe::e5m2_to_f32(std::uint8_t(c)), textbook(c >> 7, c >> 2 & 31, c & 3, 15, 2)) << c;
    }
    if (c != 255) {
      EXPECT_EQ(qe::e8m0_to_f32(std::uint8_t(c)), std::ldexp(1.0, c - 127)) << c;
    }
  }
  for (int c = 0; c < 16; ++c) EXPECT_EQ(qe::e2m1_to_f32(std::uint8_t(c)), textbook(c >> 3, c >> 1 & 3, c & 1, 1, 1)) << c;
  for (int c = 0; c < 65536; ++c)
    if ((c >> 10 & 31) != 31) {
      ASSERT_EQ(qe::f16_to_f32(std::uint16_t(c)), textbook(c >> 15, c >> 10 & 31, c & 1023, 15, 10)) << c;
    }
  EXPECT_TRUE(std::signbit(qe::f16_to_f32(0x8000)));
  EXPECT_TRUE(std::signbit(qe::e4m3_to_f32(0x80)));
}

// The nearest value of a decoder's grid, ties to the even code.
template <class Decode>
int nearest(float x, int codes, int largest, Decode decode) {
  int best = 0;
  for (int c = 1; c <= largest; ++c) {
    const double d = std::fabs(double(decode(c)) - std::fabs(double(x))), e = std::fabs(double(decode(best)) - std::fabs(double(x)));
    if (d < e || (d == e && c % 2 == 0)) best = c;
  }
  return std::signbit(x) ? best + codes / 2 : best;
}

TEST(Numbers, EncodeRoundsToNearestEven) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> exponent(-20, 11);
  const auto check = [&](float x) {
    ASSERT_EQ(qe::f32_to_e4m3(x), nearest(x, 256, 0x7e, [](int c) { return qe::e4m3_to_f32(std::uint8_t(c)); })) << x;
    ASSERT_EQ(qe::f32_to_e5m2(x), nearest(x, 256, 0x7b, [](int c) { return qe::e5m2_to_f32(std::uint8_t(c)); })) << x;
    ASSERT_EQ(qe::f32_to_e2m1(x), nearest(x, 16, 7, [](int c) { return qe::e2m1_to_f32(std::uint8_t(c)); })) << x;
    ASSERT_EQ(qe::act::round_e4m3(x), qe::e4m3_to_f32(qe::f32_to_e4m3(x))) << x;
  };
  for (int i = 0; i < 3000; ++i) check(std::exp2(exponent(rng)) * (i & 1 ? 1.0f : -1.0f));
  for (int c = 0; c < 0x7e; ++c)  // every tie
    check((qe::e4m3_to_f32(std::uint8_t(c)) + qe::e4m3_to_f32(std::uint8_t(c + 1))) / 2);
  for (int c = 0; c < 7; ++c) check((qe::e2m1_to_f32(std::uint8_t(c)) + qe::e2m1_to_f32(std::uint8_t(c + 1))) / 2);
  for (float x : {0.0f, -0.0f, 448.0f, 464.0f, 500.0f, 1e6f}) check(x);
  EXPECT_EQ(qe::f32_to_e4m3(std::nanf("")) & 0x7f, 0x7f);
  for (int c = 0; c < 65536; ++c) {
    if ((c >> 10 & 31) != 31) {
      ASSERT_EQ(qe::f32_to_f16(qe::f16_to_f32(std::uint16_t(c))), c);
    }
    if ((c >> 7 & 255) != 255) {
      ASSERT_EQ(qe::f32_to_bf16(qe::bf16_to_f32(std::uint16_t(c))), c);
    }
  }
  for (int c = 0; c < 0x7bff; ++c) {  // ties of halves
    const float a = qe::f16_to_f32(std::uint16_t(c)), b = qe::f16_to_f32(std::uint16_t(c + 1)), mid = float((double(a) + b) / 2);
    ASSERT_EQ(qe::f32_to_f16(mid), c + (c & 1)) << c;
  }
}

}  // namespace
