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

  std::int64_t group_of(std::int64_t kk) const {  // 32-bit division: this runs once a record
    return g_idx.empty() ? static_cast<std::uint32_t>(kk) / static_cast<std::uint32_t>(group_size) : g_idx[kk];
  }

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

  // Codes [k0, k0 + count) of rows [row, row + rows), `ld` bytes apart in `out`. Rows of most layouts share cache
  // lines, so several at once are read in one pass.
  template <int Bits>
  void unpack(std::int64_t row, int rows, std::int64_t k0, std::int64_t count, std::uint8_t* out, std::int64_t ld) const {
    if (k0 % 32 == 0) {
      if (codes == Codes::kRows && q.packing == Packing::kStream) return unpack_streams<Bits>(row, rows, k0, count, out, ld);
      if constexpr (Bits == 4)
        if (codes == Codes::kColumns && q.packing == Packing::kAwq && row % 8 == 0 && rows == 8) return unpack_awq(row, k0, count, out, ld);
    }
    for (int r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < count; ++i) out[r * ld + i] = static_cast<std::uint8_t>(code<Bits>(row + r, k0 + i));
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
  // Eight codes of a stream are `Bits` bytes; spread to a byte each by halving thrice.
  template <int Bits>
  static std::uint64_t spread8(std::uint64_t x) {
    constexpr std::uint64_t four = (std::uint64_t{1} << 4 * Bits) - 1, two = (std::uint64_t{1} << 2 * Bits) - 1, one = (std::uint64_t{1} << Bits) - 1;
    x = (x & four) | (x << (32 - 4 * Bits) & four << 32);
    x = (x & (two | two << 32)) | (x << (16 - 2 * Bits) & (two << 16 | two << 48));
    return (x & one * 0x0001000100010001u) | (x << (8 - Bits) & one * 0x0100010001000100u);
  }

  template <int Bits>
  void unpack_streams(std::int64_t row, int rows, std::int64_t k0, std::int64_t count, std::uint8_t* out, std::int64_t ld) const {
    const std::byte* line = q.data + row * q.line_stride + k0 / 32 * Bits * q.word_stride;
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32, line += Bits * q.word_stride)
      for (int r = 0; r < rows; ++r) {
        std::byte words[4 * Bits + 8];  // 32 codes, and room for the last spread to read 8 bytes
        for (int w = 0; w < Bits; ++w) std::memcpy(words + 4 * w, line + r * q.line_stride + w * q.word_stride, 4);
        for (int j = 0; j < 4; ++j) {
          std::uint64_t x = 0;
          std::memcpy(&x, words + j * Bits, Bits);
          x = spread8<Bits>(x);
          std::memcpy(out + r * ld + i + 8 * j, &x, 8);
        }
      }
    for (; i < count; ++i)
      for (int r = 0; r < rows; ++r) out[r * ld + i] = static_cast<std::uint8_t>(q.get<Bits>(row + r, k0 + i));
  }

  // One word holds eight rows of a column: eight words are an 8x8 block to be turned.
  void unpack_awq(std::int64_t row, std::int64_t k0, std::int64_t count, std::uint8_t* out, std::int64_t ld) const {
    const std::byte* word = q.data + k0 * q.line_stride + row / 8 * q.word_stride;
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      std::uint64_t m[8];
      for (int j = 0; j < 8; ++j, word += q.line_stride) m[j] = spread8<4>(load_word(word));  // byte b of m[j]: nibble b
      turn(m, 4, 0x00000000ffffffffu);
      turn(m, 2, 0x0000ffff0000ffffu);
      turn(m, 1, 0x00ff00ff00ff00ffu);
      for (int r = 0; r < 8; ++r) std::memcpy(out + r * ld + i, &m[kAwqNibble[r]], 8);
    }
    for (; i < count; ++i)
      for (int r = 0; r < 8; ++r) out[r * ld + i] = static_cast<std::uint8_t>(q.get<4>(k0 + i, row + r));
  }
  // Swaps the off-diagonal quarters of blocks of 2 * step bytes squared.
  static void turn(std::uint64_t (&m)[8], int step, std::uint64_t low) {
    for (int j = 0; j < 8; ++j) {
      if (j & step) continue;
      const std::uint64_t a = m[j], b = m[j + step];
      m[j] = (a & low) | (b & low) << 8 * step;
      m[j + step] = (a >> 8 * step & low) | (b & ~low);
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

// The order of the inputs [begin, end) alone, for a rank that holds only those: `order` counts from `begin`.
// Their groups are what is left of them, each padded to whole runs. REQUIRES: g_idx is set.
void set_cut_order(IntMatrix& m, std::int64_t begin, std::int64_t end);

// group_size and run of plain groups. REQUIRES: k is set. group_size -1 is one group.
void set_plain_groups(IntMatrix& m, std::int64_t group_size);

}  // namespace qengine::packed
