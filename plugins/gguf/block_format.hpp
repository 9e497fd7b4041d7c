// BlockFormat: a GGUF block type as a Format of the SDK. One file a type in types/, so that each
// instantiation compiles by itself; plugin.cpp sees only the tables that come out (qe/format_ops.hpp).
//
// The record of a group is what the block stores: d (and m) as half, or, in two levels, d (and dmin)
// for 256 inputs and a small integer for every 16 or 32. Nothing is rounded at load.
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "format.hpp"

namespace qe_gguf {

// P.weight of one part, as the file holds it.
struct Source {
  const std::byte* data = nullptr;
  std::int64_t k = 0, row_bytes = 0;
  RowOrder order;
  std::shared_ptr<std::atomic<std::int64_t>> bad;  // a row of the model with a scale or number that is not finite; -1
  const std::byte* row(std::int64_t n) const { return data + order.file_row(n) * row_bytes; }
};

// The file order of this part's rows: by role, in files of architecture llama.
RowOrder row_order(const qe::Part& part);
Source bind_blocks(qe::Io& io, const qe::Part& part, Type type);
// Throws when packing met something not finite: names the tensor and says where, in the file's rows.
// `what`: "scale" in a block, or "weight" of plain numbers.
void refuse_if_bad(const Source& s, const qe::Part& part, Type type, const char* what);

namespace detail {

template <int kBits>
struct PlanesOf;
template <> struct PlanesOf<2> { using Type = qe::Planes<2>; };
template <> struct PlanesOf<3> { using Type = qe::Planes<2, 1>; };
template <> struct PlanesOf<4> { using Type = qe::Planes<4>; };
template <> struct PlanesOf<5> { using Type = qe::Planes<4, 1>; };
template <> struct PlanesOf<6> { using Type = qe::Planes<4, 2>; };
template <> struct PlanesOf<8> { using Type = qe::Planes<8>; };

template <class T>
inline constexpr bool kSuper = T::kValues == 256;

template <class T>
auto meta_of() {
  if constexpr (T::kId == kQ2_K) return qe::meta::TwoLevelScaleMin4{};
  else if constexpr (kSuper<T> && T::kOffset) return qe::meta::TwoLevelScaleMin{};
  else if constexpr (kSuper<T>) return qe::meta::TwoLevelScale{};
  else if constexpr (T::kId == kMXFP4) return qe::meta::E8M0{};
  else if constexpr (T::kOffset) return qe::meta::ScaleOffsetF16{};
  else return qe::meta::ScaleF16{};
}

}  // namespace detail

template <class T>
struct BlockFormat {
  using Block = typename T::Block;
  using Planes = typename detail::PlanesOf<T::kBits>::Type;
  using Meta = decltype(detail::meta_of<T>());
  using Source = qe_gguf::Source;
  static constexpr int kGroups[] = {T::kSub};

  static Source bind(qe::Io& io, const qe::Part& part) { return bind_blocks(io, part, T::kId); }

  static constexpr float value(std::uint32_t c) { return T::value(c); }

  static const Block& block(const Source& s, std::int64_t n, std::int64_t k) {
    return reinterpret_cast<const Block*>(s.row(n))[std::uint64_t(k) / T::kValues];
  }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return T::code(block(s, n, k), int(k % T::kValues)); }

  static typename Meta::Value meta(const Source& s, std::int64_t n, std::int64_t k) {
    const Block& b = block(s, n, k);
    const unsigned j = unsigned(k) % T::kValues / T::kSub;
    if constexpr (T::kId == kQ2_K) return b.scales[j];
    else if constexpr (detail::kSuper<T> && T::kOffset) return {std::uint8_t(T::sub_scale(b, j)), std::uint8_t(T::sub_min(b, j))};
    else if constexpr (detail::kSuper<T>) return std::int8_t(T::sub_scale(b, j));
    else if constexpr (T::kId == kMXFP4) return {b.e};
    else if constexpr (T::kOffset) return {b.d, b.m};
    else return b.d;
  }
  static auto super(const Source& s, std::int64_t n, std::int64_t k)
    requires(detail::kSuper<T>)
  {
    const Block& b = block(s, n, k);
    if constexpr (T::kOffset) return qe::meta::SuperF16x2{b.d, b.dmin};
    else return qe::meta::SuperF16{b.d};
  }

  // Inputs [k0, k0 + count) of row n. Whole blocks, but where a cut ends inside of one. All scales pass
  // by here, so this is where they are looked at.
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const auto* b = reinterpret_cast<const Block*>(s.row(n)) + k0 / T::kValues;
    bool finite = true;
    for (std::int64_t k = k0, end = k0 + count; k < end; ++b) {
      finite &= T::finite(*b);
      const int from = int(k % T::kValues), to = int(std::min<std::int64_t>(T::kValues, from + end - k));
      if (from == 0 && to == T::kValues) {
        T::codes(*b, out);
      } else {
        std::uint8_t codes[T::kValues];
        T::codes(*b, codes);
        std::memcpy(out, codes + from, std::size_t(to - from));
      }
      out += to - from;
      k += to - from;
    }
    if (!finite) s.bad->store(n, std::memory_order_relaxed);
  }
  static void done(const Source& s, const qe::Part& part) { refuse_if_bad(s, part, T::kId, "scale"); }
};

// F32, F16 and BF16: the codes are the numbers.
template <Type kId, qe::Wide kKindOf, class NumberT>
struct PlainFormat {
  using Planes = qe::Planes<8 * sizeof(NumberT)>;
  using Meta = qe::meta::None;
  using Source = qe_gguf::Source;
  static constexpr qe::Wide kWide = kKindOf;
  static constexpr int kGroups[] = {0};

  static Source bind(qe::Io& io, const qe::Part& part) { return bind_blocks(io, part, kId); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    NumberT v;
    std::memcpy(&v, s.row(n) + k * std::int64_t{sizeof v}, sizeof v);
    return v;
  }
  static Meta::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static float value(std::uint32_t c) {
    if constexpr (kWide == qe::Wide::f32) return std::bit_cast<float>(c);
    else if constexpr (kWide == qe::Wide::f16) return qe::f16_to_f32(std::uint16_t(c));
    else return qe::bf16_to_f32(std::uint16_t(c));
  }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, NumberT* out) {
    constexpr NumberT exponent = kWide == qe::Wide::f32 ? NumberT(0x7f800000) : kWide == qe::Wide::f16 ? NumberT(0x7c00) : NumberT(0x7f80);
    std::memcpy(out, s.row(n) + k0 * std::int64_t{sizeof(NumberT)}, std::size_t(count) * sizeof(NumberT));
    NumberT bad = 0;
    for (int i = 0; i < count; ++i) bad |= NumberT((out[i] & exponent) == exponent);
    if (bad) s.bad->store(n, std::memory_order_relaxed);
  }
  static void done(const Source& s, const qe::Part& part) { refuse_if_bad(s, part, kId, "weight"); }
};

using F32 = PlainFormat<kF32, qe::Wide::f32, std::uint32_t>;
using F16 = PlainFormat<kF16, qe::Wide::f16, std::uint16_t>;
using BF16 = PlainFormat<kBF16, qe::Wide::bf16, std::uint16_t>;

}  // namespace qe_gguf
