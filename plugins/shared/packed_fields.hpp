// packed_fields: unsigned fields of b bits in 32-bit words, as the integer formats lay them out.
//
//   stream   fields follow each other, lowest bit first, across word borders (GPTQ, compressed-tensors)
//   padded   floor(32/b) fields a word, the rest of it unused (one short-lived compressed-tensors writer)
//   planar   per 32 fields the bits lie in planes of 4, 2, 1 (8 when b = 8), low plane first, each plane
//            in whole words (GPTQ's gptq_p); equal to stream for 2, 4, 8 bits
//   awq      8 nibbles a word, field 8c+j in nibble 0,4,1,5,2,6,3,7 of word c (AWQ GEMM)
//
// A tensor is `lines` of fields: `line` counts along the dimension that is not packed, `i` along the
// packed one. Two strides say which of them is the fast one in memory. Nothing here checks bounds:
// whoever makes a PackedFields has compared the tensor's shape with words(). Tensors may lie at any
// address, so words are copied out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace qengine::packed {

enum class Packing : std::uint8_t { kStream, kPadded, kPlanar, kAwq };

inline std::uint32_t load_word(const std::byte* p) {
  std::uint32_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

// 32-bit words that hold `count` fields.
constexpr std::int64_t words(Packing packing, int bits, std::int64_t count) {
  return packing == Packing::kPadded ? (count + 32 / bits - 1) / (32 / bits) : (count * bits + 31) / 32;
}

// Nibble of AWQ's word that holds field j of its eight.
inline constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

struct PackedFields {
  const std::byte* data = nullptr;
  std::int64_t line_stride = 0;  // bytes from one line to the next
  std::int64_t word_stride = 0;  // bytes from one word of a line to the next
  Packing packing = Packing::kStream;

  std::uint32_t word(std::int64_t line, std::int64_t w) const {
    return load_word(data + line * line_stride + w * word_stride);
  }

  // Field i of a line. `Bits` is a template argument because this runs once a weight at load.
  template <int Bits>
  std::uint32_t get(std::int64_t line, std::int64_t i) const {
    constexpr std::uint32_t mask = (1u << Bits) - 1;
    switch (packing) {
      case Packing::kAwq:
        return word(line, i / 8) >> (4 * kAwqNibble[i % 8]) & mask;
      case Packing::kPadded:
        return word(line, i / (32 / Bits)) >> (Bits * (i % (32 / Bits))) & mask;
      case Packing::kPlanar:
        if constexpr (32 % Bits != 0) return planar<Bits>(line, i);
        [[fallthrough]];
      case Packing::kStream:
        break;
    }
    if constexpr (32 % Bits == 0) {
      return word(line, i / (32 / Bits)) >> (Bits * (i % (32 / Bits))) & mask;
    } else {
      const std::int64_t bit = i * Bits;
      const int shift = static_cast<int>(bit % 32);
      std::uint64_t both = word(line, bit / 32);
      if (shift + Bits > 32) both |= std::uint64_t{word(line, bit / 32 + 1)} << 32;
      return static_cast<std::uint32_t>(both >> shift) & mask;
    }
  }

 private:
  // Planes of 4, 2 and 1 bits; 3 = 2+1, 5 = 4+1, 6 = 4+2, 7 = 4+2+1.
  template <int Bits>
  std::uint32_t planar(std::int64_t line, std::int64_t i) const {
    std::int64_t w = i / 32 * Bits;
    const int j = static_cast<int>(i % 32);
    std::uint32_t field = 0;
    int offset = 0;
    for (int width : {4, 2, 1}) {
      if (!(Bits & width)) continue;
      const int per_word = 32 / width;
      field |= (word(line, w + j / per_word) >> (width * (j % per_word)) & ((1u << width) - 1)) << offset;
      offset += width;
      w += width;  // 32 fields of `width` bits are `width` words
    }
    return field;
  }
};

// The same for a number of bits known at run time: zero points, which are few.
inline std::uint32_t get_field(const PackedFields& f, int bits, std::int64_t line, std::int64_t i) {
  switch (bits) {
    case 2: return f.get<2>(line, i);
    case 3: return f.get<3>(line, i);
    case 4: return f.get<4>(line, i);
    case 5: return f.get<5>(line, i);
    case 6: return f.get<6>(line, i);
    case 7: return f.get<7>(line, i);
    default: return f.get<8>(line, i);
  }
}

// Marlin's order on disk (4 bits): word and nibble of W[k,n] in a tensor of [K/16, 2N] words.
struct MarlinPlace {
  std::int64_t word;  // of the K-tile's row of 2N words
  int nibble;
};
constexpr MarlinPlace marlin_place(std::int64_t k, std::int64_t n) {
  const int row = static_cast<int>(k % 16), col = static_cast<int>(n % 16);
  const int lane = (col % 8) * 4 + (row % 8) / 2;
  const int nibble = (row / 8) + 2 * (col / 8) + 4 * (row % 2);
  return {n / 64 * 128 + lane * 4 + n % 64 / 16, nibble};
}
// Stored position of column n's scale: in blocks of 64 when there are several groups, of 32 when there is one.
constexpr std::int64_t marlin_scale_place(std::int64_t n, bool grouped) {
  if (grouped) return n / 64 * 64 + 8 * (n % 8) + n % 64 / 8;
  const int c = static_cast<int>(n % 32), i = c % 8 / 2;  // column 2i + (0,1,8,9,16,17,24,25)[t]
  return n / 32 * 32 + 8 * i + 2 * (c / 8) + c % 2;
}

// AWQ GEMV_FAST: 16-bit word and nibble of W[n,k] in a tensor of [N/4, K] words.
struct GemvFastPlace {
  std::int64_t row, word;
  int nibble;
};
constexpr GemvFastPlace gemv_fast_place(std::int64_t n, std::int64_t k) {
  // Index 64m + t of row block B: row 4B + t/16, and with h = t%16/8, u = t%8 its nibble s is k = 64m + 32h + 8s + u.
  const int kk = static_cast<int>(k % 64);
  const int h = kk / 32, s = kk % 32 / 8, u = kk % 8;
  return {n / 4, k / 64 * 64 + (n % 4) * 16 + h * 8 + u, s};
}

}  // namespace qengine::packed
