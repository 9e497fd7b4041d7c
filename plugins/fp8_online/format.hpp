// Formats made at load from a 16- or 32-bit P.weight [N, K]; nothing is read but that tensor, one at a time.
//
//   scheme                        codes   scale                               rule
//   fp8_per_tensor                E4M3    one a matrix (each part its own)    amax / 448, 1 when amax is 0
//   fp8_per_channel               E4M3    one a row                           max(amax / 448, 1 / (448 * 512))
//   fp8_per_block                 E4M3    one a 128 x 128 block               max(amax, 1e-4) / 448
//   mxfp8, mxfp4                  E4M3, E2M1   E8M0 per 32 inputs             floor(log2 amax) - emax; amax >= 1.75 * 2^n counts as 2^(n+1)
//   int8_per_channel_weight_only  int8    one a row                           amax / 127, round half to even
//   lm_head_fp8, lm_head_int8     as fp8_per_channel and int8, for the head alone (--quantize-lm-head)
//
// Sources: arXiv:2209.05433 (FP8), arXiv:2310.10537 (MX); scale rules: formats as vLLM's online quantization and
// compressed-tensors' mxfp_utils.py compute them.
#pragma once

#include <qe/activation.hpp>
#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <cmath>
#include <memory>
#include <vector>

#include "shared/scales.hpp"

namespace qengine::online {

inline constexpr std::int64_t kBlock = 128;

struct Source {
  qe::Floats w;
  std::int64_t n = 0, k = 0;
  bool act = false;  // 8-bit activations were asked for: the checkpoint says nothing about them
  std::shared_ptr<std::vector<float>> scale = std::make_shared<std::vector<float>>();  // as the scheme lays them out

  float at(std::int64_t r, std::int64_t c) const { return w[r * k + c]; }
};

inline Source bind_plain(qe::Io& io, const qe::Part& p) { return {io.floats(p, "weight", {p.n(), p.k()}), p.n(), p.k(), (p.layer().flags & QE_LAYER_ACT_TOKEN) != 0}; }

// Largest magnitude of inputs [k0, k1) of a row. Throws when one is not finite.
float amax(const Source& s, const qe::Part& p, std::int64_t row, std::int64_t k0, std::int64_t k1);
// Fills s.scale.
void scale_tensor(const Source& s, const qe::Part& p);                // [1]
void scale_rows(const Source& s, const qe::Part& p, float largest);   // [n], amax / largest
void scale_blocks(const Source& s, const qe::Part& p);                // [ceil(n/128), ceil(k/128)]
void scale_mx(const Source& s, const qe::Part& p, int emax);          // [n, ceil(k/32)]

inline qe::Activation activation_of(const Source& s, qe::Activation::Kind kind) {
  qe::Activation a;
  if (s.act) a.kind = kind;
  return a;
}

// ---- a byte a weight, one scale a row or a matrix ----------------------------------------------------------
template <bool kOneScale, bool kInt8>
struct Row {
  using Planes = qe::Planes<8>;
  using Meta = qe::meta::None;
  using Source = online::Source;
  static constexpr int kGroups[] = {0};
  static Source bind(qe::Io& io, const qe::Part& p) { return bind_plain(io, p); }
  static void prepare(const Source& s, const qe::Part& p) {
    if constexpr (kOneScale) scale_tensor(s, p);
    else scale_rows(s, p, kInt8 ? 127.0f : 448.0f);
  }
  static float row_scale(const Source& s, std::int64_t n) { return (*s.scale)[kOneScale ? 0 : static_cast<std::size_t>(n)]; }
  static qe::meta::None::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static constexpr float value(std::uint32_t c) { return kInt8 ? float(c) - 128.0f : qe::e4m3_to_f32(std::uint8_t(c)); }
  static std::uint8_t quantize(float x, float scale) {
    if constexpr (kInt8) return static_cast<std::uint8_t>(static_cast<int>(std::fmin(std::fmax(std::nearbyint(x / scale), -127.0f), 127.0f)) + 128);
    else return qe::f32_to_e4m3(x / scale);
  }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return quantize(s.at(n, k), row_scale(s, n)); }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const float scale = row_scale(s, n);
    for (int i = 0; i < count; ++i) out[i] = quantize(s.at(n, k0 + i), scale);
  }
  static std::int64_t rows_per_scale(const Source&) { return kOneScale ? 0 : 1; }
  static qe::Activation activation(const Source& s) { return activation_of(s, kInt8 ? qe::Activation::none : qe::Activation::e4m3_token); }
};
using PerTensor = Row<true, false>;
using PerChannel = Row<false, false>;
using Int8 = Row<false, true>;

struct PerBlock {
  using Planes = qe::Planes<8>;
  using Meta = qe::meta::Shared<qe::meta::ScaleF32>;
  using Source = online::Source;
  static constexpr int kGroups[] = {kBlock};
  static Source bind(qe::Io& io, const qe::Part& p) { return bind_plain(io, p); }
  static void prepare(const Source& s, const qe::Part& p) { scale_blocks(s, p); }
  static float meta(const Source& s, std::int64_t n, std::int64_t k) { return (*s.scale)[static_cast<std::size_t>(n / kBlock * ((s.k + kBlock - 1) / kBlock) + k / kBlock)]; }
  static constexpr float value(std::uint32_t c) { return qe::e4m3_to_f32(std::uint8_t(c)); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return qe::f32_to_e4m3(s.at(n, k) / meta(s, n, k)); }
  static std::int64_t rows_per_scale(const Source&) { return kBlock; }
  static qe::Activation activation(const Source& s) { return activation_of(s, qe::Activation::e4m3_group); }
};

template <int kBits>
struct Mx {
  using Planes = qe::Planes<kBits>;
  using Meta = qe::meta::E8M0;
  using Source = online::Source;
  static constexpr int kGroups[] = {32};
  static Source bind(qe::Io& io, const qe::Part& p) { return bind_plain(io, p); }
  static void prepare(const Source& s, const qe::Part& p) { scale_mx(s, p, kBits == 4 ? 2 : 8); }
  static float scale(const Source& s, std::int64_t n, std::int64_t k) { return (*s.scale)[static_cast<std::size_t>(n * ((s.k + 31) / 32) + k / 32)]; }
  static qe::e8m0 meta(const Source& s, std::int64_t n, std::int64_t k) { return {static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(scale(s, n, k)) >> 23 & 255)}; }
  static constexpr float value(std::uint32_t c) { return kBits == 4 ? qe::e2m1_to_f32(std::uint8_t(c)) : qe::e4m3_to_f32(std::uint8_t(c)); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    const float x = s.at(n, k) / scale(s, n, k);
    return kBits == 4 ? qe::f32_to_e2m1(x) : qe::f32_to_e4m3(x);
  }
  static qe::Activation activation(const Source& s) { return activation_of(s, kBits == 4 ? qe::Activation::mx_e2m1 : qe::Activation::mx_e4m3); }
};
using MxFp8 = Mx<8>;
using MxFp4 = Mx<4>;

}  // namespace qengine::online
