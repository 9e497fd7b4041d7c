// Formats of matrices that hold one byte a weight, E4M3 or a signed integer, with the scales of whichever dialect.
// A plugin derives from one and adds `bind`.
//
//   ByteRow<V>     one scale a row (or one for all): W = value * scale[n]
//   ByteBlock<V>   one scale a block of `rows` x `inputs`, rows a multiple of 8: W = scale * value
//   ByteGroup<V>   the same, any number of rows
#pragma once

#include <qe/activation.hpp>
#include <qe/format.hpp>

#include "shared/scales.hpp"

namespace qengine::packed {

struct ByteMatrix {
  const std::uint8_t* q = nullptr;  // [N, K]
  std::int64_t n = 0, k = 0;
  ScaleGrid scale;
  qe::Activation activation;
  BadCodes bad = std::make_shared<std::atomic<std::int64_t>>(0);
};

// What a byte means.
struct E4M3Value {
  static constexpr float value(std::uint32_t c) { return qe::e4m3_to_f32(std::uint8_t(c)); }
  static constexpr std::uint8_t code(std::uint8_t byte) { return byte; }
  static constexpr bool is_nan(std::uint8_t byte) { return (byte & 0x7f) == 0x7f; }
};
struct Int8Value {  // offset by 128, so that values rise with codes
  static constexpr float value(std::uint32_t c) { return float(c) - 128.0f; }
  static constexpr std::uint8_t code(std::uint8_t byte) { return byte ^ 0x80; }
  static constexpr bool is_nan(std::uint8_t) { return false; }
};

template <class V, class M>
struct ByteFormat {
  using Planes = qe::Planes<8>;
  using Meta = M;
  using Source = ByteMatrix;
  static constexpr float value(std::uint32_t c) { return V::value(c); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return V::code(s.q[n * s.k + k]); }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const std::uint8_t* from = s.q + n * s.k + k0;
    int bad = 0;
    for (int i = 0; i < count; ++i) {
      out[i] = V::code(from[i]);
      bad += V::is_nan(from[i]);
    }
    if (bad) s.bad->fetch_add(bad, std::memory_order_relaxed);
  }
  static qe::Activation activation(const Source& s) { return s.activation; }
  static void done(const Source& s, const qe::Part& p) { require_no_nan_codes(s.bad, qe::Io::join(p, "weight")); }
};

template <class V>
struct ByteRow : ByteFormat<V, qe::meta::None> {
  static std::int64_t group(const ByteMatrix&) { return 0; }
  static qe::meta::None::Value meta(const ByteMatrix&, std::int64_t, std::int64_t) { return {}; }
  static float row_scale(const ByteMatrix& s, std::int64_t n) { return s.scale.get(n, 0); }
  static std::int64_t rows_per_scale(const ByteMatrix& s) { return s.scale.row_stride ? s.scale.rows : 0; }
};

template <class V>
struct ByteGroup : ByteFormat<V, qe::meta::ScaleF32> {
  static std::int64_t group(const ByteMatrix& s) { return s.scale.inputs; }
  static float meta(const ByteMatrix& s, std::int64_t n, std::int64_t k) { return s.scale.get(n, k); }
};

template <class V>
struct ByteBlock : ByteFormat<V, qe::meta::Shared<qe::meta::ScaleF32>> {
  static std::int64_t group(const ByteMatrix& s) { return s.scale.inputs; }
  static std::int64_t rows_per_scale(const ByteMatrix& s) { return s.scale.rows; }
  static float meta(const ByteMatrix& s, std::int64_t n, std::int64_t k) { return s.scale.get(n, k); }
};

}  // namespace qengine::packed
