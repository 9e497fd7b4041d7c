// qe/format.hpp: what a weight format is, in the author's words. Everything else is derived from it.
//
//   struct Int4 {                                        // 4 bits, symmetric, half scales per group
//     using Planes = qe::Planes<4>;                      // how many bits a code has
//     using Meta = qe::meta::ScaleF16;                   // what one row and one group carry
//     struct Source { const uint8_t* q; const qe::f16* scale; int64_t k, group; };
//     static Source bind(qe::Io&, const qe::Part&);      // ask for the tensors; plans, lists and loads
//     static int64_t group(const Source&);               // inputs that share a record; 0 = the whole row
//     static uint32_t code(const Source&, int64_t n, int64_t k);       // checkpoint -> code of W[n,k]
//     static qe::f16 meta(const Source&, int64_t n, int64_t k);        // record of the group holding k
//     static constexpr float value(uint32_t code);       // what a code means before its record
//   };
//
// n and k are always those of the checkpoint's matrix W[n,k] (rows are outputs). The container, its
// padding, cuts and orders are the SDK's and private to it.
//
// Optional members, used when present:
//   kGroups[]                  if there is no group(s): the one size (0 = row)
//   super(s, n, k)             two-level records: the Super of the 256 inputs holding k
//   row_scale(s, n)            a factor per row; the default weight multiplies by it last
//   weight(v, t, row)          the definition when it is not meta.hpp's: NVFP4 is v * t.scale / row
//   row_factor(row)            what the fast path multiplies a finished sum with (default: row)
//   ordered(s), input(s, c)    act order: column c of the group order reads input input(s, c); groups
//                              are then runs of group(s) columns. ordered must answer without data.
//   columns(s)                 with input(): how many columns there are; input may answer -1 (padding)
//   unpack(s, n, k0, count, Code* out)   bulk form of code for one row, for loading fast
//   unpack_rows(s, n, rows, k0, count, Code* out, ld)   the same for up to 8 rows, `ld` codes apart: for
//                              layouts whose words hold several rows; preferred to unpack
//   prepare(s, part)           once after bind at load: online formats compute their scales here
//                              (qe::parallel_for may be used); check the data and throw qe::Error
//   done(s, part)              once after the part is packed
//   activation(s)              how the scheme quantizes activations (activation.hpp)
//   rows_per_scale(s)          rows under one scale: 0 all of them; 128 with blocks of 128 x 128. E4M3 on a GPU needs it to
//                              multiply many tokens in FP8 where that is not 1 (cuda/codes.hpp)
//
// Codes wider than 8 bits are numbers themselves: Planes<16> holds BF16 or F16 bits, Planes<32> F32;
// say which with `static constexpr qe::Wide kWide`.
#pragma once

#include <qe/meta.hpp>
#include <qe/numbers.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace qe {

// A code's bits in planes of 1, 2, 4, 8, 16 or 32, widest first; the first holds the low bits.
template <int... Bits>
struct Planes {
  static constexpr int kCount = sizeof...(Bits);
  static constexpr std::array<int, kCount> kBits{Bits...};
  static constexpr int bits = (Bits + ...);
  static constexpr int words = 4 * bits / kBits[0];  // 32-bit words beside 16 bytes of the widest plane
  static_assert(((Bits == 1 || Bits == 2 || Bits == 4 || Bits == 8 || Bits == 16 || Bits == 32) && ...));
};

enum class Wide { bf16, f16, f32 };

// The unsigned type that holds one code.
template <class F>
using Code = std::conditional_t<(F::Planes::bits <= 8), std::uint8_t, std::conditional_t<(F::Planes::bits <= 16), std::uint16_t, std::uint32_t>>;

template <class F>
concept Format = Meta<typename F::Meta> && requires { typename F::Planes; typename F::Source; } &&
    requires(const typename F::Source& s, std::int64_t n, std::int64_t k, std::uint32_t c) {
      { F::value(c) } -> std::same_as<float>;
      { F::code(s, n, k) } -> std::convertible_to<std::uint32_t>;
      { F::meta(s, n, k) } -> std::same_as<typename F::Meta::Value>;
    };

template <class F> concept HasGroup = requires(const typename F::Source& s) { { F::group(s) } -> std::convertible_to<std::int64_t>; };
template <class F> concept HasRowScale = requires(const typename F::Source& s, std::int64_t n) { { F::row_scale(s, n) } -> std::convertible_to<float>; };
template <class F> concept HasRowFactor = requires(float row) { { F::row_factor(row) } -> std::same_as<float>; };
template <class F> concept HasWeight = requires(float v, Terms t, float row) { { F::weight(v, t, row) } -> std::same_as<float>; };
template <class F> concept HasInputOrder = requires(const typename F::Source& s, std::int64_t c) { { F::input(s, c) } -> std::convertible_to<std::int64_t>; };
template <class F> concept HasColumns = requires(const typename F::Source& s) { { F::columns(s) } -> std::convertible_to<std::int64_t>; };
template <class F> concept HasUnpackRows = requires(const typename F::Source& s, Code<F>* out) { F::unpack_rows(s, std::int64_t{}, int{}, std::int64_t{}, std::int64_t{}, out, std::int64_t{}); };
template <class F> concept HasUnpack = requires(const typename F::Source& s, Code<F>* out) { F::unpack(s, std::int64_t{}, std::int64_t{}, int{}, out); };

// W[n,k] from its code's value, exactly: each operation rounded once.
template <class F>
QE_HD inline float weight(float value, const Terms& t, float row) {
  if constexpr (HasWeight<F>) {
    return F::weight(value, t, row);
  } else {
    using M = typename F::Meta;
    float w = value;
    if constexpr (meta_has_zero<M>) w = w - t.zero;
    if constexpr (meta_has_scale<M>) w = t.scale * w;
    if constexpr (meta_has_offset<M>) w = w + t.offset;
    if constexpr (HasRowScale<F>) w = w * row;
    return w;
  }
}

template <class F>
QE_HD inline float row_factor(float row) {
  if constexpr (HasRowFactor<F>) return F::row_factor(row);
  else return row;
}

// ---- what the kernels read off `value` -------------------------------------------------------------
enum class Kind {
  ramp,    // value(c) = c + base, base an integer: integer dot product
  steps,   // at most 16 codes, integer multiples of one step: a byte table, then the same
  e4m3,    // the 8-bit float itself
  e5m2,
  table,   // anything else of at most 8 bits: float table
  wide     // 16 or 32 bits: numbers
};

namespace detail {
constexpr bool is_int(float v) { return v >= -32768.0f && v <= 32767.0f && float(int(v)) == v; }

template <class F>
constexpr Kind kind_of() {
  constexpr int bits = F::Planes::bits;
  if constexpr (bits > 8) {
    return Kind::wide;
  } else {
    constexpr int count = 1 << bits;
    bool ramp = is_int(F::value(0)), is_e4m3 = bits == 8, is_e5m2 = bits == 8, steps = bits <= 4;
    for (int c = 0; c < count; ++c) {
      const float v = F::value(std::uint32_t(c));
      // codes may be NaN, with which a constant expression does not compute
      if (ramp && v != F::value(0) + float(c)) ramp = false;
      if (bits == 8 && (c & 0x7f) != 0x7f && v != e4m3_to_f32(std::uint8_t(c))) is_e4m3 = false;
      if (bits == 8 && (c & 0x7f) < 0x7c && v != e5m2_to_f32(std::uint8_t(c))) is_e5m2 = false;
      // a step is 1, 1/2 or 1/4: what known formats need
      if (!(v >= -128.0f && v <= 127.0f) || !is_int(v * 4.0f)) steps = false;
    }
    if (ramp && F::value(0) >= -256.0f && F::value(0) <= 256.0f) return Kind::ramp;
    if (is_e4m3) return Kind::e4m3;
    if (is_e5m2) return Kind::e5m2;
    if (steps) {
      // as integers of the smallest step that makes them so, they must fit a signed byte
      for (int shift = 0; shift <= 2; ++shift) {
        bool ints = true, fit = true;
        for (int c = 0; c < count; ++c) {
          const float v = F::value(std::uint32_t(c)) * float(1 << shift);
          if (!is_int(v)) ints = false;
          if (v > 127.0f || v < -127.0f) fit = false;
        }
        if (ints) return fit ? Kind::steps : Kind::table;
      }
    }
    return Kind::table;
  }
}

// Codes of `steps` as integers: value(c) = ints[c] / (1 << shift).
struct StepTable {
  std::array<std::int8_t, 16> ints{};
  int shift = 0, min = 0, max = 0;
};
template <class F>
constexpr StepTable step_table() {
  StepTable t;
  constexpr int count = 1 << F::Planes::bits;
  for (t.shift = 0; t.shift <= 2; ++t.shift) {
    bool ints = true;
    for (int c = 0; c < count; ++c) ints = ints && is_int(F::value(std::uint32_t(c)) * float(1 << t.shift));
    if (ints) break;
  }
  for (int c = 0; c < count && c < 16; ++c) {
    const int v = int(F::value(std::uint32_t(c)) * float(1 << t.shift));
    t.ints[std::size_t(c)] = std::int8_t(v);
    if (v < t.min) t.min = v;
    if (v > t.max) t.max = v;
  }
  return t;
}
}  // namespace detail

template <class F>
inline constexpr Kind kKind = detail::kind_of<F>();

// Formats that the integer dot product serves.
template <class F>
inline constexpr bool kInteger = kKind<F> == Kind::ramp || kKind<F> == Kind::steps;

// The integer form of a code that the dot product multiplies with:
//
//   value(c) = (operand(c) + kBase) * kStep        operand unsigned of kBits bits, or signed (kSigned)
//
// Unsigned where it fits 7 bits, else signed. Kernels raise signed ones by 128 to unsigned bytes and take the
// difference off the sum.
template <class F>
struct Operand {
  static constexpr detail::StepTable table = [] { if constexpr (kKind<F> == Kind::steps) return detail::step_table<F>(); else return detail::StepTable{}; }();
  static constexpr bool kSteps = kKind<F> == Kind::steps;
  static constexpr bool kSigned = kSteps ? table.max - table.min > 127 : F::Planes::bits == 8;
  static constexpr float kBase = kSteps ? (kSigned ? 0.0f : float(table.min)) : F::value(0) + (kSigned ? 128.0f : 0.0f);
  static constexpr float kStep = kSteps ? 1.0f / float(1 << table.shift) : 1.0f;
  static constexpr int of(std::uint32_t c) {
    if constexpr (kSteps) return kSigned ? table.ints[c] : table.ints[c] - table.min;
    else return kSigned ? int(c) - 128 : int(c);
  }
};

}  // namespace qe
