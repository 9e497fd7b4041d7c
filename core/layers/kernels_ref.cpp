// Kernels in plain C++: eight floats are an array. Runs anywhere; the AVX2 build must agree bit for bit.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/layers/kernels.hpp"

namespace qengine {
namespace {

inline std::uint32_t bits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float value(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline std::uint16_t to_half(float f) {  // to nearest, ties to even; overflow becomes Inf
  const std::uint32_t u = bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (a >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal or zero: add a constant whose last bit is 2^-24
    const float r = value(a) + 0.5f;
    return static_cast<std::uint16_t>(sign | (bits(r) - bits(0.5f)));
  }
  const std::uint32_t odd = a >> 13 & 1;
  return static_cast<std::uint16_t>(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}

inline float from_half(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 31) return value(sign | 0x7f800000 | m << 13);
  if (e == 0) return value(sign | bits(static_cast<float>(m) * 5.9604644775390625e-8f));
  return value(sign | (e + 112) << 23 | m << 13);
}

struct V {
  float v[8];

  template <class F>
  static V make(F f) {
    V r;
    for (int i = 0; i < 8; ++i) r.v[i] = f(i);
    return r;
  }
  static V zero() { return set1(0); }
  static V set1(float x) { return make([=](int) { return x; }); }
  static V load(const float* p) { return make([=](int i) { return p[i]; }); }
  static V load_n(const float* p, std::int64_t n) { return make([=](int i) { return i < n ? p[i] : 0.0f; }); }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
  void store_n(float* p, std::int64_t n) const {
    for (int i = 0; i < 8 && i < n; ++i) p[i] = v[i];
  }
  static V add(V a, V b) { return make([&](int i) { return a.v[i] + b.v[i]; }); }
  static V sub(V a, V b) { return make([&](int i) { return a.v[i] - b.v[i]; }); }
  static V mul(V a, V b) { return make([&](int i) { return a.v[i] * b.v[i]; }); }
  static V div(V a, V b) { return make([&](int i) { return a.v[i] / b.v[i]; }); }
  static V fma(V a, V b, V c) { return make([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
  static V max(V a, V b) { return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
  static V min(V a, V b) { return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
  static V abs(V a) { return make([&](int i) { return std::fabs(a.v[i]); }); }
  static V round(V a) { return make([&](int i) { return std::nearbyint(a.v[i]); }); }
  static V pow2(V n) {
    return make([&](int i) { return n.v[i] == n.v[i] ? value(static_cast<std::uint32_t>(static_cast<std::int32_t>(n.v[i]) + 127) << 23) : n.v[i]; });
  }
  static V zero_where_less(V x, V limit, V y) { return make([&](int i) { return x.v[i] < limit.v[i] ? 0.0f : y.v[i]; }); }
  static float sqrt1(float x) { return std::sqrt(x); }
  static unsigned equal_mask(V a, V b) {
    unsigned m = 0;
    for (int i = 0; i < 8; ++i) m |= static_cast<unsigned>(a.v[i] == b.v[i]) << i;
    return m;
  }
  float lane0() const { return v[0]; }
  float sum() const { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
  float max_lane() const {
    float m = v[0];
    for (int i = 1; i < 8; ++i) m = v[i] > m ? v[i] : m;
    return m;
  }

  struct Half {
    std::uint16_t v[8];
  };
  static Half to_f16(V a) {
    Half h;
    for (int i = 0; i < 8; ++i) h.v[i] = to_half(a.v[i]);
    return h;
  }
  static V from_f16(Half h) { return make([&](int i) { return from_half(h.v[i]); }); }
  static V load_f16(const std::uint16_t* p) { return make([=](int i) { return from_half(p[i]); }); }
  void store_f16(std::uint16_t* p) const {
    for (int i = 0; i < 8; ++i) p[i] = to_half(v[i]);
  }
  static V load_bf16(const std::uint16_t* p) { return make([=](int i) { return value(static_cast<std::uint32_t>(p[i]) << 16); }); }
  static void load_bf16_even_odd(const std::uint16_t* p, V& even, V& odd) {
    even = make([=](int i) { return value(static_cast<std::uint32_t>(p[2 * i]) << 16); });
    odd = make([=](int i) { return value(static_cast<std::uint32_t>(p[2 * i + 1]) << 16); });
  }
  static void zip(V& a, V& b) {
    const V x = a, y = b;
    a = make([&](int i) { return i % 2 ? y.v[i / 2] : x.v[i / 2]; });
    b = make([&](int i) { return i % 2 ? y.v[4 + i / 2] : x.v[4 + i / 2]; });
  }
  void store_bf16(std::uint16_t* p) const {
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t u = bits(v[i]);
      p[i] = v[i] != v[i] ? 0x7fc0 : static_cast<std::uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
  }
};

#include "core/layers/kernels_impl.hpp"

constexpr Kernels kTable = table("reference");

}  // namespace

const Kernels& kernels_ref() { return kTable; }

}  // namespace qengine
