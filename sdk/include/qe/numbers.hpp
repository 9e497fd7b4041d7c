// qe/numbers.hpp: the small number formats of checkpoints, converted exactly.
//
// Decoding is exact (every value of these formats is a float). Encoding rounds to nearest, ties to
// even, and saturates where the target has no infinity. All constexpr, so that a format's `value`
// can be checked over all its codes while compiling.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef __CUDACC__
#define QE_HD __host__ __device__
#else
#define QE_HD
#endif

namespace qe {

QE_HD constexpr float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16, exp = h >> 10 & 31, man = h & 1023;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | man << 13);
  if (exp) return std::bit_cast<float>(sign | (exp + 112) << 23 | man << 13);
  const float tiny = float(man) * 0x1p-24f;  // subnormal or zero
  return sign ? -tiny : tiny;
}

QE_HD constexpr float bf16_to_f32(std::uint16_t h) { return std::bit_cast<float>(std::uint32_t(h) << 16); }

QE_HD constexpr std::uint16_t f32_to_bf16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return std::uint16_t(u >> 16 | 64);  // NaN stays NaN
  return std::uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

QE_HD constexpr std::uint16_t f32_to_f16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);  // 65520 and more
  if (a < 0x38800000u) {                                       // below 2^-14: adding 0.5 leaves the bits rounded
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return std::uint16_t(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7ffu));
  }
  return std::uint16_t(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13));
}

// E4M3 "fn": bias 7, no infinities, NaN is 0x7f and 0xff, largest 448.
QE_HD constexpr float e4m3_to_f32(std::uint8_t b) {
  const std::uint32_t sign = std::uint32_t(b & 0x80) << 24, mag = b & 0x7f;
  if (mag == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (mag >= 8) return std::bit_cast<float>(sign | ((mag << 20) + (120u << 23)));
  const float tiny = float(mag) * 0x1p-9f;
  return sign ? -tiny : tiny;
}

// E5M2: the high byte of a half.
QE_HD constexpr float e5m2_to_f32(std::uint8_t b) { return f16_to_f32(std::uint16_t(b << 8)); }

// 2^(e - 127); 0xff is NaN; e = 0 is a subnormal float.
QE_HD constexpr float e8m0_to_f32(std::uint8_t e) {
  return e == 255 ? std::bit_cast<float>(0x7fc00000u) : std::bit_cast<float>(e ? std::uint32_t(e) << 23 : 0x00400000u);
}

// E2M1: bit 3 is the sign; 0 0.5 1 1.5 2 3 4 6.
QE_HD constexpr float e2m1_to_f32(std::uint8_t c) {
  constexpr float t[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return c & 8 ? -t[c & 7] : t[c & 7];
}

// Rounds to nearest even on the E4M3 grid; beyond 448 saturates; NaN stays NaN.
QE_HD constexpr std::uint8_t f32_to_e4m3(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return std::uint8_t(sign | 0x7f);
  if (a >= 0x43e00000u) return std::uint8_t(sign | 0x7e);  // 448 and more
  if (a < 0x3c800000u) {                                   // below 2^-6: steps of 2^-9; 2^14 has that step
    const float shifted = std::bit_cast<float>(a) + 16384.0f;
    return std::uint8_t(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xfu));
  }
  return std::uint8_t(sign | ((a - (120u << 23) + 0x7ffffu + (a >> 20 & 1)) >> 20));
}

// Rounds to nearest even on the E5M2 grid; beyond 57344 saturates; NaN stays NaN.
QE_HD constexpr std::uint8_t f32_to_e5m2(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return std::uint8_t(sign | 0x7f);
  if (a >= 0x47600000u) return std::uint8_t(sign | 0x7b);  // 57344 and more
  if (a < 0x38800000u) {                                   // below 2^-14: steps of 2^-16
    const float shifted = std::bit_cast<float>(a) + 128.0f;
    return std::uint8_t(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7u));
  }
  return std::uint8_t(sign | ((a - (112u << 23) + 0xfffffu + (a >> 21 & 1)) >> 21));
}

// Rounds to nearest even on the E2M1 grid; beyond 6 saturates.
QE_HD constexpr std::uint8_t f32_to_e2m1(float f) {
  const std::uint8_t sign = std::bit_cast<std::uint32_t>(f) >> 31 ? 8 : 0;
  const float a = sign ? -f : f;
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return std::uint8_t(sign | code);
}

// As they lie in a checkpoint.
struct f16 {
  std::uint16_t bits;
  QE_HD constexpr operator float() const { return f16_to_f32(bits); }
  QE_HD static constexpr f16 from(float f) { return {f32_to_f16(f)}; }
};
struct bf16 {
  std::uint16_t bits;
  QE_HD constexpr operator float() const { return bf16_to_f32(bits); }
  QE_HD static constexpr bf16 from(float f) { return {f32_to_bf16(f)}; }
};
struct e4m3 {
  std::uint8_t bits;
  QE_HD constexpr operator float() const { return e4m3_to_f32(bits); }
  QE_HD static constexpr e4m3 from(float f) { return {f32_to_e4m3(f)}; }
};
struct e5m2 {
  std::uint8_t bits;
  QE_HD constexpr operator float() const { return e5m2_to_f32(bits); }
  QE_HD static constexpr e5m2 from(float f) { return {f32_to_e5m2(f)}; }
};
struct e8m0 {
  std::uint8_t bits;
  QE_HD constexpr operator float() const { return e8m0_to_f32(bits); }
};

// A borrowed run of numbers in whichever of the three wide formats the checkpoint chose.
struct Floats {
  const void* data = nullptr;
  std::int32_t dtype = 0;  // QE_F32, QE_F16 or QE_BF16
  explicit operator bool() const { return data != nullptr; }
  float operator[](std::int64_t i) const {
    if (dtype == 1) return static_cast<const float*>(data)[i];
    const std::uint16_t h = static_cast<const std::uint16_t*>(data)[i];
    return dtype == 2 ? f16_to_f32(h) : bf16_to_f32(h);
  }
};

}  // namespace qe
