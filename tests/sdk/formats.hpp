// Formats for tests: codes and records made from a seed, so that no checkpoint layout is in the way.
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <cstdint>
#include <cmath>
#include <vector>

namespace qe_test {

inline std::uint32_t hash(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 12345;
  x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du, x ^= x >> 33;
  return std::uint32_t(x);
}
inline float unit(std::uint32_t h) { return float(h >> 8) * 0x1p-24f; }
inline int& group_size() { static int g = 32; return g; }

struct Source {
  std::int64_t group = 0;
};

// A record value of each Meta from a hash.
template <class M> typename M::Value record(std::uint32_t h);
inline float positive(std::uint32_t h) { return 0.001f * (0.25f + unit(h) * 3.0f); }
template <> inline qe::meta::None::Value record<qe::meta::None>(std::uint32_t) { return {}; }
template <> inline qe::f16 record<qe::meta::ScaleF16>(std::uint32_t h) { return qe::f16::from(positive(h)); }
template <> inline qe::bf16 record<qe::meta::ScaleBF16>(std::uint32_t h) { return qe::bf16::from(positive(h)); }
template <> inline float record<qe::meta::ScaleF32>(std::uint32_t h) { return positive(h); }
template <> inline qe::e8m0 record<qe::meta::E8M0>(std::uint32_t h) { return {std::uint8_t(110 + h % 12)}; }
template <> inline qe::e4m3 record<qe::meta::E4M3>(std::uint32_t h) { return {std::uint8_t(20 + h % 60)}; }
template <> inline qe::meta::ScaleF16ZeroU8::Value record<qe::meta::ScaleF16ZeroU8>(std::uint32_t h) { return {qe::f16::from(positive(h)), std::uint8_t(h % 16)}; }
template <> inline qe::meta::ScaleBF16ZeroU8::Value record<qe::meta::ScaleBF16ZeroU8>(std::uint32_t h) { return {qe::bf16::from(positive(h)), std::uint8_t(h % 256)}; }
template <> inline qe::meta::ScaleF32ZeroU8::Value record<qe::meta::ScaleF32ZeroU8>(std::uint32_t h) { return {positive(h), std::uint8_t(h % 8)}; }
template <> inline qe::meta::ScaleZero24::Value record<qe::meta::ScaleZero24>(std::uint32_t h) { return {qe::f16::from(h % 16 ? positive(h) : 3e-7f), std::uint8_t(h % 256)}; }
template <> inline qe::meta::ScaleOffsetF16::Value record<qe::meta::ScaleOffsetF16>(std::uint32_t h) { return {qe::f16::from(positive(h)), qe::f16::from(unit(h * 7) * 0.02f - 0.01f)}; }
template <> inline qe::meta::ScaleOffsetF32::Value record<qe::meta::ScaleOffsetF32>(std::uint32_t h) { return {positive(h), unit(h * 7) * 0.02f - 0.01f}; }
template <> inline std::int8_t record<qe::meta::TwoLevelScale>(std::uint32_t h) { return std::int8_t(h % 64) - 32; }
template <> inline qe::meta::TwoLevelScaleMin::Value record<qe::meta::TwoLevelScaleMin>(std::uint32_t h) { return {std::uint8_t(h % 64), std::uint8_t(h / 64 % 64)}; }
template <> inline std::uint8_t record<qe::meta::TwoLevelScaleMin4>(std::uint32_t h) { return std::uint8_t(h); }
template <> inline float record<qe::meta::Shared<qe::meta::ScaleF32>>(std::uint32_t h) { return positive(h); }

// V names what a code means; P, M are the planes and the record; kSuper gives two-level ones.
template <class P, class M, class V>
struct Made {
  using Planes = P;
  using Meta = M;
  using Source = qe_test::Source;
  static Source bind(qe::Io&, const qe::Part&) { return {group_size()}; }
  static std::int64_t group(const Source& s) { return s.group; }
  static std::uint32_t code(const Source&, std::int64_t n, std::int64_t k) {
    const std::uint32_t c = hash(std::uint64_t(n), std::uint64_t(k)) & ((1u << P::bits) - 1);
    if constexpr (requires { V::legal(c); }) return V::legal(c);
    else return c;
  }
  static typename M::Value meta(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t row = qe::meta_shared<M> ? n / 8 : n;
    return record<M>(hash(std::uint64_t(row), std::uint64_t(s.group ? k / s.group : 0), 77));
  }
  static auto super(const Source&, std::int64_t n, std::int64_t k) {
    const std::uint32_t h = hash(std::uint64_t(n), std::uint64_t(k / 256), 99);
    if constexpr (requires { typename M::Super; }) {
      if constexpr (sizeof(typename M::Super) == 2) return qe::meta::SuperF16{qe::f16::from(1e-4f * (1 + unit(h)))};
      else return qe::meta::SuperF16x2{qe::f16::from(1e-4f * (1 + unit(h))), qe::f16::from(1e-4f * (1 + unit(h * 3)))};
    }
  }
  static constexpr float value(std::uint32_t c) { return V::value(c); }
};

template <int Base>
struct Ramp { static constexpr float value(std::uint32_t c) { return float(c) + float(Base); } };
struct E2M1 { static constexpr float value(std::uint32_t c) { return qe::e2m1_to_f32(std::uint8_t(c)); } };
struct Iq4 {
  static constexpr float value(std::uint32_t c) {
    constexpr int t[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return float(t[c & 15]);
  }
};
struct Nf4 {
  static constexpr float value(std::uint32_t c) {
    constexpr float t[16] = {-1.0f, -0.6961928f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
                             0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f};
    return t[c & 15];
  }
};
struct E4M3 {
  static constexpr float value(std::uint32_t c) { return qe::e4m3_to_f32(std::uint8_t(c)); }
  static std::uint32_t legal(std::uint32_t c) { return (c & 0x7f) == 0x7f ? c & 0x80 : c; }
};
struct E5M2 {
  static constexpr float value(std::uint32_t c) { return qe::e5m2_to_f32(std::uint8_t(c)); }
  static std::uint32_t legal(std::uint32_t c) { return (c & 0x7f) >= 0x7c ? c & 0x80 : c; }
};
struct Cube {  // neither ramp nor step: the general table
  static constexpr float value(std::uint32_t c) { return (float(c) - 31.0f) * (float(c) - 31.0f) * (float(c) - 31.0f) * 1e-4f; }
};

}  // namespace qe_test
