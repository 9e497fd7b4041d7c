// qe/activation.hpp: how a scheme quantizes activations, emulated exactly in float32.
//
// A layer planned with QE_LAYER_ACT_QUANT sees x' = dequantize(quantize(x)) instead of x, token by
// token, before the product; the rules are those of the writers (fixtures: "Activation rules").
// A format names its rule with `static qe::Activation activation(const Source&)`.
#pragma once

#include <qe/numbers.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace qe {

struct Activation {
  enum Kind : std::int32_t {
    none = 0,
    e4m3_static,  // one scale from the checkpoint
    e4m3_token,   // amax / 448, at least 1 / (448 * 512); `bound` caps amax when positive
    e4m3_group,   // amax of `group` inputs / 448
    i8_static,    // scale and zero point from the checkpoint
    i8_token,     // amax / 127
    mx_e4m3,      // 32 inputs, E8M0 scale
    mx_e2m1,
    nvfp4         // 16 inputs, E4M3 scale under the divisor `scale`
  };
  Kind kind = none;
  float scale = 1.0f;
  std::int32_t zero = 0;
  std::int32_t group = 128;
  float bound = 0.0f;
  bool operator==(const Activation&) const = default;
};

namespace act {

inline float amax(const float* x, std::int64_t n) {
  float m = 0;
  for (std::int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

// x rounded to the E4M3 grid, saturating; the grid step follows the exponent.
inline float round_e4m3(float x) {
  if (!(x == x)) return x;
  const float a = std::min(std::fabs(x), 448.0f);
  float r;
  if (a < 0x1p-6f) {
    r = (a + 16384.0f) - 16384.0f;  // steps of 2^-9
  } else {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(a);
    r = std::bit_cast<float>((u + 0x7ffffu + (u >> 20 & 1)) & ~0xfffffu);
  }
  return std::copysign(r, x);
}

inline void qdq_e4m3(const float* x, float* y, std::int64_t n, float s) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = round_e4m3(x[i] / s) * s;
}

// compressed-tensors' exponent: an amax of at least 1.75 * 2^n counts as 2^(n + 1).
inline float mx_scale(float amax, int emax) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(amax) + (1u << 21);
  const int e = std::clamp(int(b >> 23 & 255) - emax, 0, 254);
  return e8m0_to_f32(std::uint8_t(e));
}

// One token: y[k] = x[k] through the grid. x and y may be the same.
inline void quantize_dequantize(const Activation& a, const float* x, float* y, std::int64_t k) {
  switch (a.kind) {
    case Activation::none:
      if (x != y) std::copy(x, x + k, y);
      return;
    case Activation::e4m3_static: return qdq_e4m3(x, y, k, a.scale);
    case Activation::e4m3_token: {
      float m = amax(x, k);
      if (a.bound > 0) m = std::min(m, a.bound);
      return qdq_e4m3(x, y, k, std::max(m / 448.0f, 1.0f / (448.0f * 512.0f)));
    }
    case Activation::e4m3_group:
      for (std::int64_t i = 0; i < k; i += a.group) {
        const std::int64_t n = std::min<std::int64_t>(a.group, k - i);
        qdq_e4m3(x + i, y + i, n, std::max(amax(x + i, n), 1e-10f) / 448.0f);
      }
      return;
    case Activation::i8_static:
      for (std::int64_t i = 0; i < k; ++i)
        y[i] = (std::clamp(std::nearbyint(x[i] / a.scale) + float(a.zero), -128.0f, 127.0f) - float(a.zero)) * a.scale;
      return;
    case Activation::i8_token: {
      const float s = std::max(amax(x, k), 1e-10f) / 127.0f;
      for (std::int64_t i = 0; i < k; ++i) y[i] = std::clamp(std::nearbyint(x[i] / s), -128.0f, 127.0f) * s;
      return;
    }
    case Activation::mx_e4m3:
    case Activation::mx_e2m1: {
      const bool four = a.kind == Activation::mx_e2m1;
      for (std::int64_t i = 0; i < k; i += 32) {
        const std::int64_t n = std::min<std::int64_t>(32, k - i);
        const float s = mx_scale(amax(x + i, n), four ? 2 : 8);
        for (std::int64_t j = i; j < i + n; ++j)
          y[j] = (four ? e2m1_to_f32(f32_to_e2m1(x[j] / s)) : round_e4m3(x[j] / s)) * s;
      }
      return;
    }
    case Activation::nvfp4:
      for (std::int64_t i = 0; i < k; i += 16) {
        const std::int64_t n = std::min<std::int64_t>(16, k - i);
        float s = round_e4m3(std::min(amax(x + i, n) / 6.0f * a.scale, 448.0f));
        if (s == 0) s = 0.125f;
        for (std::int64_t j = i; j < i + n; ++j) y[j] = e2m1_to_f32(f32_to_e2m1(x[j] * a.scale / s)) * s / a.scale;
      }
      return;
  }
}

}  // namespace act
}  // namespace qe
