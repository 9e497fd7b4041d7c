// qe/meta.hpp: records, the numbers that belong to one output row and one group of inputs.
//
// A Meta packs a Value from the checkpoint into kBytes bytes at load and yields Terms from them in
// the kernels. What a weight is, each operation rounded once, in this order:
//
//   w = ((value(code) - zero) * scale + offset) * row        absent terms are left out, not multiplied
//
// A format whose definition differs says so with its own `weight` (format.hpp).
//
// Two-level records (K-quants): a Super of kSuperBytes for every 256 inputs beside the small record
// of each group.
#pragma once

#include <qe/numbers.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace qe {

struct Terms {
  float scale = 1.0f, offset = 0.0f, zero = 0.0f;
};

template <class M>
concept Meta = requires(const typename M::Value& v, std::byte* out, const std::byte* in) {
  { M::kBytes } -> std::convertible_to<int>;  // of one output row and one group
  M::pack(v, out);                            // at load
};

template <class M> inline constexpr bool meta_has_scale = !requires { M::kNoScale; };
template <class M> inline constexpr bool meta_has_offset = requires { M::kOffset; };
template <class M> inline constexpr bool meta_has_zero = requires { M::kZero; };
template <class M> inline constexpr int meta_super_bytes = [] { if constexpr (requires { M::kSuperBytes; }) return int(M::kSuperBytes); else return 0; }();
// One record serves 8 neighbouring rows: two-dimensional blocks of weights.
template <class M> inline constexpr bool meta_shared = requires { M::kShared; };

inline constexpr int kSuperSpan = 256;

namespace meta {
namespace detail {
template <class T>
QE_HD inline void put(std::byte* to, const T& v) { std::memcpy(to, &v, sizeof v); }
template <class T>
QE_HD inline T get(const std::byte* from) { T v; std::memcpy(&v, from, sizeof v); return v; }
}  // namespace detail

// Nothing: the codes are the weights, up to a factor per row.
struct None {
  struct Value {};
  static constexpr int kBytes = 0;
  static constexpr bool kNoScale = true;
  static void pack(const Value&, std::byte*) {}
  QE_HD static Terms terms(const std::byte*) { return {}; }
};

// One number that multiplies, of type T.
template <class T>
struct Scale {
  using Value = T;
  static constexpr int kBytes = sizeof(T);
  static void pack(const Value& v, std::byte* out) { detail::put(out, v); }
  QE_HD static Terms terms(const std::byte* in) { return {float(detail::get<T>(in))}; }
};
using ScaleF16 = Scale<f16>;
using ScaleBF16 = Scale<bf16>;
using ScaleF32 = Scale<float>;
using E8M0 = Scale<e8m0>;
using E4M3 = Scale<e4m3>;

// scale * (value - zero), zero an integer of 0..255.
template <class T>
struct ScaleZero {
  struct Value { T scale; std::uint8_t zero; };
  static constexpr int kBytes = sizeof(T) + 1;
  static constexpr bool kZero = true;
  static void pack(const Value& v, std::byte* out) { detail::put(out, v.scale), out[sizeof(T)] = std::byte(v.zero); }
  QE_HD static Terms terms(const std::byte* in) { return {float(detail::get<T>(in)), 0.0f, float(std::uint8_t(in[sizeof(T)]))}; }
};
using ScaleF16ZeroU8 = ScaleZero<f16>;
using ScaleBF16ZeroU8 = ScaleZero<bf16>;
using ScaleF32ZeroU8 = ScaleZero<float>;

// The same in one word, for scales of 16 bits: the upper 24 bits of the scale as float32, which hold every F16
// and BF16 number exactly (F16 subnormals need 11 of the 15 mantissa bits), and the zero below them. Eight rows
// are one vector load.
struct ScaleZero24 {
  struct Value { float scale; std::uint8_t zero; };
  static constexpr int kBytes = 4;
  static constexpr bool kZero = true;
  static void pack(const Value& v, std::byte* out) { detail::put(out, std::bit_cast<std::uint32_t>(v.scale) | v.zero); }
  QE_HD static Terms terms(const std::byte* in) {
    const auto word = detail::get<std::uint32_t>(in);
    return {std::bit_cast<float>(word & 0xffffff00u), 0.0f, float(word & 0xffu)};
  }
};

// scale * value + offset.
template <class T>
struct ScaleOffset {
  struct Value { T scale, offset; };
  static constexpr int kBytes = 2 * sizeof(T);
  static constexpr bool kOffset = true;
  static void pack(const Value& v, std::byte* out) { detail::put(out, v.scale), detail::put(out + sizeof(T), v.offset); }
  QE_HD static Terms terms(const std::byte* in) { return {float(detail::get<T>(in)), float(detail::get<T>(in + sizeof(T)))}; }
};
using ScaleOffsetF16 = ScaleOffset<f16>;
using ScaleOffsetF32 = ScaleOffset<float>;

// One record for 8 rows (the format promises that the 8 rows of a panel, counted from the part's
// first, have equal records): FP8 in blocks of 128x128.
template <class M>
struct Shared : M {
  static constexpr bool kShared = true;
};

// ---- two levels: a half (or two) for 256 inputs, a small integer for each group --------------------
struct SuperF16 { f16 d; };
struct SuperF16x2 { f16 d, dmin; };

// d * scale, scale an i8: Q6_K, Q3_K, IQ4_XS.
struct TwoLevelScale {
  using Value = std::int8_t;
  using Super = SuperF16;
  static constexpr int kBytes = 1, kSuperBytes = 2;
  static void pack(const Value& v, std::byte* out) { detail::put(out, v); }
  static void pack_super(const Super& v, std::byte* out) { detail::put(out, v); }
  QE_HD static Terms terms(const std::byte* super, const std::byte* in) { return {float(detail::get<f16>(super)) * float(detail::get<std::int8_t>(in))}; }
};

// d * scale and -(dmin * min), both u8: Q4_K, Q5_K.
struct TwoLevelScaleMin {
  struct Value { std::uint8_t scale, min; };
  using Super = SuperF16x2;
  static constexpr int kBytes = 2, kSuperBytes = 4;
  static constexpr bool kOffset = true;
  static void pack(const Value& v, std::byte* out) { detail::put(out, v); }
  static void pack_super(const Super& v, std::byte* out) { detail::put(out, v); }
  QE_HD static Terms terms(const std::byte* super, const std::byte* in) {
    return {float(detail::get<f16>(super)) * float(std::uint8_t(in[0])), -(float(detail::get<f16>(super + 2)) * float(std::uint8_t(in[1])))};
  }
};

// The same in one byte, scale in the low nibble, min in the high one: Q2_K.
struct TwoLevelScaleMin4 {
  using Value = std::uint8_t;
  using Super = SuperF16x2;
  static constexpr int kBytes = 1, kSuperBytes = 4;
  static constexpr bool kOffset = true;
  static void pack(const Value& v, std::byte* out) { detail::put(out, v); }
  static void pack_super(const Super& v, std::byte* out) { detail::put(out, v); }
  QE_HD static Terms terms(const std::byte* super, const std::byte* in) {
    const unsigned v = std::uint8_t(in[0]);
    return {float(detail::get<f16>(super)) * float(v & 15), -(float(detail::get<f16>(super + 2)) * float(v >> 4))};
  }
};

}  // namespace meta

// The terms of one record, whichever kind it is.
template <class M>
QE_HD inline Terms terms_of(const std::byte* super, const std::byte* record) {
  if constexpr (meta_super_bytes<M> > 0) return M::terms(super, record);
  else return M::terms(record);
}

}  // namespace qe
