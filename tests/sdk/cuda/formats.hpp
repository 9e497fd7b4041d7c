// The formats of tests/sdk/formats.hpp, and numbers of 16 and 32 bits, that run on a GPU here: one of each way to
// decode, one of each record.
#pragma once

#include <bit>

#include "tests/sdk/formats.hpp"

namespace qe_test {

template <qe::Wide W>
struct MadeWide {
  static constexpr qe::Wide kWide = W;
  using Planes = qe::Planes<W == qe::Wide::f32 ? 32 : 16>;
  using Meta = qe::meta::None;
  static constexpr int kGroups[] = {0};
  using Source = qe_test::Source;
  static Source bind(qe::Io&, const qe::Part&) { return {}; }
  static std::uint32_t code(const Source&, std::int64_t n, std::int64_t k) {
    const float v = (unit(hash(std::uint64_t(n), std::uint64_t(k))) - 0.5f) * 0.1f;
    return W == qe::Wide::f32 ? std::bit_cast<std::uint32_t>(v) : W == qe::Wide::f16 ? qe::f32_to_f16(v) : qe::f32_to_bf16(v);
  }
  static qe::meta::None::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static float value(std::uint32_t c) {
    return W == qe::Wide::f32 ? std::bit_cast<float>(c) : W == qe::Wide::f16 ? qe::f16_to_f32(std::uint16_t(c)) : qe::bf16_to_f32(std::uint16_t(c));
  }
};

// A factor a row, and a definition of its own.
template <class V, bool kDivide>
struct MadeRow : Made<qe::Planes<8>, qe::meta::None, V> {
  static float row_scale(const Source&, std::int64_t n) { return 0.01f * (1.0f + unit(hash(std::uint64_t(n), 5, 5))); }
  static constexpr float weight(float v, qe::Terms, float row) { return kDivide ? v * row / 127.0f : v * row; }
  static constexpr float row_factor(float row) { return kDivide ? row / 127.0f : row; }
};
// Act order: columns read the inputs backwards, group by group.
template <class Base>
struct Reversed : Base {
  static bool ordered(const Source&) { return true; }
  static std::int64_t columns(const Source&) { return width(); }
  static std::int64_t input(const Source&, std::int64_t c) { return width() - 1 - c; }
  static typename Base::Meta::Value meta(const Source& s, std::int64_t n, std::int64_t k) { return Base::meta(s, n, width() - 1 - k); }
  static std::int64_t& width() { static std::int64_t w = 0; return w; }
};

namespace meta = qe::meta;
using qe::Planes;
using W4 = Made<Planes<4>, meta::ScaleZero24, Ramp<0>>;

// name, format
#define QE_TEST_FORMATS(X)                                              \
  X(W4ZeroWord, W4)                                                     \
  X(W4Order, Reversed<W4>)                                              \
  X(W4Half, Made<Planes<4>, meta::ScaleF16, Ramp<-8>>)                  \
  X(W4Offset, Made<Planes<4>, meta::ScaleOffsetF16, Ramp<0>>)           \
  X(W4ZeroHalf, Made<Planes<4>, meta::ScaleF16ZeroU8, Ramp<0>>)         \
  X(W8Half, Made<Planes<8>, meta::ScaleF16, Ramp<-128>>)                \
  X(W8Zero, Made<Planes<8>, meta::ScaleBF16ZeroU8, Ramp<0>>)            \
  X(W8Offset, Made<Planes<8>, meta::ScaleOffsetF32, Ramp<-127>>)        \
  X(W3Zero, Made<Planes<2, 1>, meta::ScaleF32ZeroU8, Ramp<0>>)          \
  X(W5Half, Made<Planes<4, 1>, meta::ScaleF16, Ramp<-16>>)              \
  X(W7, Made<Planes<4, 2, 1>, meta::ScaleBF16, Ramp<-64>>)              \
  X(Q6K, Made<Planes<4, 2>, meta::TwoLevelScale, Ramp<-32>>)            \
  X(Q2K, Made<Planes<2>, meta::TwoLevelScaleMin4, Ramp<0>>)             \
  X(Q4K, Made<Planes<4>, meta::TwoLevelScaleMin, Ramp<0>>)              \
  X(MxFp4, Made<Planes<4>, meta::E8M0, E2M1>)                           \
  X(Iq4Nl, Made<Planes<4>, meta::ScaleF16, Iq4>)                        \
  X(Nf4Wide, Made<Planes<4>, meta::ScaleF32, Nf4>)                      \
  X(Fp8Group, Made<Planes<8>, meta::ScaleF32, E4M3>)                    \
  X(Fp8Block, Made<Planes<8>, meta::Shared<meta::ScaleF32>, E4M3>)      \
  X(MxFp8, Made<Planes<8>, meta::E8M0, E4M3>)                           \
  X(Fp8Row, MadeRow<E4M3, false>)                                       \
  X(Int8Row, MadeRow<Ramp<-128>, true>)                                 \
  X(E5M2Plain, Made<Planes<8>, meta::None, E5M2>)                       \
  X(Cube6, Made<Planes<4, 2>, meta::E4M3, Cube>)                        \
  X(BF16, MadeWide<qe::Wide::bf16>)                                     \
  X(F16, MadeWide<qe::Wide::f16>)                                       \
  X(F32, MadeWide<qe::Wide::f32>)

#define QE_TEST_ALIAS(name, ...) using Fmt##name = __VA_ARGS__;
QE_TEST_FORMATS(QE_TEST_ALIAS)
#undef QE_TEST_ALIAS

}  // namespace qe_test
