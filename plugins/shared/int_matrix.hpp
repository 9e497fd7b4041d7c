// IntMatrix: a weight matrix of small integers as a checkpoint holds it, whichever tool wrote it.
//
//   W[n,k] = scale[n,g] * (code[n,k] - zero[n,g])          g = group_of(k)
//   W[n,k] = scale[n,g] * code[n,k] + offset[n,g]          where `offsets` are stored instead of zero points
//
// in float32, each operation rounded once. Codes and zero points are unsigned: a layout with signed ones is
// read with both shifted by 2^(bits-1), which cancels. Scales are used as stored: F16, BF16 or F32.
//
// A borrowed view: the tensors belong to the checkpoint. Nothing here checks bounds or values; whoever fills
// it in has compared shapes, and calls the checks below once.
#pragma once

#include <qe/activation.hpp>
#include <qe/plugin.hpp>

#include <bit>
#include <string>
#include <vector>

#include "shared/packed_fields.hpp"

namespace qengine::packed {

// Numbers of 16 or 32 bits with two strides.
struct FloatTable {
  const std::byte* data = nullptr;
  std::int32_t dtype = QE_F16;
  std::int64_t row_stride = 0, group_stride = 0;  // elements
  enum class Order : std::uint8_t { kPlain, kMarlinGrouped, kMarlinSingle } order = Order::kPlain;

  float get(std::int64_t n, std::int64_t g) const {
    if (order != Order::kPlain) n = marlin_scale_place(n, order == Order::kMarlinGrouped);
    const std::int64_t i = n * row_stride + g * group_stride;
    if (dtype == QE_F32) return std::bit_cast<float>(load_word(data + 4 * i));
    std::uint16_t h;
    std::memcpy(&h, data + 2 * i, 2);
    return dtype == QE_BF16 ? qe::bf16_to_f32(h) : qe::f16_to_f32(h);
  }
};

struct IntMatrix {
  enum class Codes : std::uint8_t { kRows /* a line is a row n */, kColumns /* a line is a column k */, kMarlin, kGemvFast };
  enum class Zeros : std::uint8_t { kConstant, kByGroup /* a line is a group */, kByRow /* a line is a row */, kSigned /* I8 [N, groups] */ };

  int bits = 4;
  std::int64_t n = 0, k = 0, groups = 1;
  std::int64_t group_size = 0;  // inputs of a group as the checkpoint counts them; the last may be short

  Codes codes = Codes::kRows;
  PackedFields q;  // kMarlin, kGemvFast: data only

  Zeros zeros = Zeros::kConstant;
  PackedFields z;
  std::uint32_t zero_constant = 0;
  std::uint32_t zero_add = 0;  // 1 where a stored zero point is one less, modulo 2^bits

  FloatTable scales;
  FloatTable offsets;  // data == nullptr: zero points are used

  // Act order. Column k belongs to group g_idx[k]; `order` lists the columns group by group, with -1 where a
  // group is padded because groups are unequal. Both empty: plain. `order` may be empty beside g_idx.
  std::vector<std::int32_t> g_idx, order;
  // Columns of that order, or inputs of a plain matrix, that share a record; the last ones may be fewer.
  std::int64_t run = 0;

  qe::Activation activation;  // what the scheme does to the inputs, when it is asked to

  std::int64_t group_of(std::int64_t kk) const { return g_idx.empty() ? kk / group_size : g_idx[kk]; }

  template <int Bits>
  std::uint32_t code(std::int64_t row, std::int64_t kk) const {
    switch (codes) {
      case Codes::kRows: return q.get<Bits>(row, kk);
      case Codes::kColumns: return q.get<Bits>(kk, row);
      case Codes::kMarlin: {
        const MarlinPlace p = marlin_place(kk, row);
        return load_word(q.data + 4 * (kk / 16 * 2 * n + p.word)) >> 4 * p.nibble & 15;
      }
      case Codes::kGemvFast: {
        const GemvFastPlace p = gemv_fast_place(row, kk);
        std::uint16_t w;
        std::memcpy(&w, q.data + 2 * (p.row * k + p.word), 2);
        return w >> 4 * p.nibble & 15u;
      }
    }
    return 0;
  }

  // Codes [k0, k0 + count) of a row. The layout is asked once, not for each code.
  template <int Bits>
  void unpack(std::int64_t row, std::int64_t k0, int count, std::uint8_t* out) const {
    if (codes == Codes::kRows && q.packing == Packing::kStream) return unpack_stream<Bits>(row, k0, count, out);
    if constexpr (Bits == 4) {
      if (codes == Codes::kColumns && q.packing == Packing::kAwq) {
        const std::byte* word = q.data + k0 * q.line_stride + row / 8 * q.word_stride;
        const int shift = 4 * kAwqNibble[row % 8];
        for (int i = 0; i < count; ++i, word += q.line_stride) out[i] = load_word(word) >> shift & 15;
        return;
      }
    }
    for (int i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(code<Bits>(row, k0 + i));
  }

  std::uint32_t zero(std::int64_t row, std::int64_t g) const {
    std::uint32_t stored = zero_constant;
    if (zeros == Zeros::kByGroup) {
      stored = get_field(z, bits, g, row);
    } else if (zeros == Zeros::kByRow) {
      stored = get_field(z, bits, row, g);
    } else if (zeros == Zeros::kSigned) {
      const auto v = std::to_integer<std::int8_t>(z.data[row * groups + g]);
      stored = static_cast<std::uint32_t>(v + (1 << (bits - 1)));
    }
    return (stored + zero_add) & ((1u << bits) - 1);
  }

 private:
  // A window of up to 64 bits slides over the words of one line.
  template <int Bits>
  void unpack_stream(std::int64_t row, std::int64_t k0, int count, std::uint8_t* out) const {
    const std::byte* word = q.data + row * q.line_stride + k0 * Bits / 32 * q.word_stride;
    int have = 0;
    std::uint64_t window = 0;
    if (const int skip = static_cast<int>(k0 * Bits % 32)) {
      window = load_word(word) >> skip;
      have = 32 - skip;
      word += q.word_stride;
    }
    for (int i = 0; i < count; ++i) {
      if (have < Bits) {
        window |= std::uint64_t{load_word(word)} << have;
        have += 32;
        word += q.word_stride;
      }
      out[i] = static_cast<std::uint8_t>(window & ((1u << Bits) - 1));
      window >>= Bits;
      have -= Bits;
    }
  }
};

// What is wrong with values, for an error text: "" when nothing is.
struct ValueFault {
  std::string message, hint;
  explicit operator bool() const { return !message.empty(); }
};

// Scales (or offsets) that are NaN or infinite.
ValueFault check_finite(const IntMatrix& m, const FloatTable& table);

// Sets g_idx, order and run from a g_idx tensor. REQUIRES: k, groups and group_size are set.
// A g_idx that is the plain order leaves both empty.
ValueFault set_group_index(IntMatrix& m, const std::int32_t* index);

// group_size and run of plain groups. REQUIRES: k is set. group_size -1 is one group.
void set_plain_groups(IntMatrix& m, std::int64_t group_size);

}  // namespace qengine::packed
