// IntFormat: the SDK's Format of an IntMatrix. A plugin derives from it and adds `bind`, which fills the matrix
// from the tensors of its dialect.
//
//   Bits   2..8: codes are kept as they are, in planes of powers of two (5 bits: 4 + 1).
//          kAnyBits: codes of any of these widths in bytes; for combinations too rare for a kernel of their own
//   M      the record: qe::meta::ScaleZero24 for 16-bit scales, qe::meta::ScaleF32ZeroU8 for 32-bit ones,
//          qe::meta::ScaleOffsetF32 where offsets are stored
#pragma once

#include <qe/format.hpp>

#include "shared/int_matrix.hpp"

namespace qengine::packed {

inline constexpr int kAnyBits = 0;

namespace detail {
template <int Bits> struct PlanesOf;
template <> struct PlanesOf<kAnyBits> { using type = qe::Planes<8>; };
template <> struct PlanesOf<2> { using type = qe::Planes<2>; };
template <> struct PlanesOf<3> { using type = qe::Planes<2, 1>; };
template <> struct PlanesOf<4> { using type = qe::Planes<4>; };
template <> struct PlanesOf<5> { using type = qe::Planes<4, 1>; };
template <> struct PlanesOf<6> { using type = qe::Planes<4, 2>; };
template <> struct PlanesOf<7> { using type = qe::Planes<4, 2, 1>; };
template <> struct PlanesOf<8> { using type = qe::Planes<8>; };
}  // namespace detail

template <int Bits, class M>
struct IntFormat {
  using Planes = typename detail::PlanesOf<Bits>::type;
  using Meta = M;
  using Source = IntMatrix;

  static constexpr float value(std::uint32_t code) { return static_cast<float>(code); }
  static std::int64_t group(const Source& s) { return s.run; }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    return with_bits(s, [&]<int B>() { return s.template code<B>(n, k); });
  }
  static typename M::Value meta(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t g = s.group_of(k);
    if constexpr (requires(typename M::Value v) { v.offset; }) {
      return {s.scales.get(n, g), s.offsets.get(n, g)};
    } else {
      return {s.scales.get(n, g), static_cast<std::uint8_t>(s.zero(n, g))};
    }
  }

  static qe::Activation activation(const Source& s) { return s.activation; }

  static bool ordered(const Source& s) { return !s.order.empty(); }
  static std::int64_t columns(const Source& s) { return s.order.empty() ? s.k : static_cast<std::int64_t>(s.order.size()); }
  static std::int64_t input(const Source& s, std::int64_t column) { return s.order[column]; }

  static void unpack_rows(const Source& s, std::int64_t n, int rows, std::int64_t k0, std::int64_t count, std::uint8_t* out, std::int64_t ld) {
    with_bits(s, [&]<int B>() { s.template unpack<B>(n, rows, k0, count, out, ld); });
  }

 private:
  template <class Body>
  static auto with_bits(const Source& s, Body body) {
    if constexpr (Bits != kAnyBits) {
      return body.template operator()<Bits>();
    } else {
      switch (s.bits) {
        case 2: return body.template operator()<2>();
        case 3: return body.template operator()<3>();
        case 4: return body.template operator()<4>();
        case 5: return body.template operator()<5>();
        case 6: return body.template operator()<6>();
        case 7: return body.template operator()<7>();
        default: return body.template operator()<8>();
      }
    }
  }
};

}  // namespace qengine::packed
