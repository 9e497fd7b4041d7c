// The packers of the tools, written the way the tools write them (reshape, permute, shift), so that the
// index formulas of packed_fields.hpp are checked against something that is not themselves.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace qengine::test {

using Codes = std::vector<std::uint32_t>;   // row-major
using Words = std::vector<std::uint32_t>;

inline Codes random_codes(std::size_t count, int bits, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Codes codes(count);
  for (auto& c : codes) c = rng() & ((1u << bits) - 1);
  return codes;
}

// One bit at a time into a stream that begins at bit 0 of word 0.
inline Words pack_stream(const Codes& fields, int bits) {
  Words out((fields.size() * bits + 31) / 32);
  std::size_t at = 0;
  for (std::uint32_t f : fields)
    for (int b = 0; b < bits; ++b, ++at) out[at / 32] |= (f >> b & 1) << at % 32;
  return out;
}

inline Words pack_padded(const Codes& fields, int bits) {
  const std::size_t per_word = 32 / bits;
  Words out((fields.size() + per_word - 1) / per_word);
  for (std::size_t i = 0; i < fields.size(); ++i) out[i / per_word] |= fields[i] << bits * (i % per_word);
  return out;
}

// Blocks of 32 fields; each plane is a stream of its own. REQUIRES: fields.size() % 32 == 0.
inline Words pack_planar(const Codes& fields, int bits) {
  Words out;
  for (std::size_t block = 0; block < fields.size(); block += 32) {
    int offset = 0;
    for (int width : {8, 4, 2, 1}) {
      if (!(bits & width)) continue;
      Codes plane;
      for (std::size_t i = 0; i < 32; ++i) plane.push_back(fields[block + i] >> offset & ((1u << width) - 1));
      for (std::uint32_t w : pack_stream(plane, width)) out.push_back(w);
      offset += width;
    }
  }
  return out;
}

// Nibble i of a word takes field (0,2,4,6,1,3,5,7)[i]. REQUIRES: fields.size() % 8 == 0.
inline Words pack_awq(const Codes& fields) {
  static constexpr std::array<int, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  Words out(fields.size() / 8);
  for (std::size_t w = 0; w < out.size(); ++w)
    for (int i = 0; i < 8; ++i) out[w] |= fields[8 * w + kOrder[i]] << 4 * i;
  return out;
}

// Column n of a [K, N] matrix is one stream: word r of column n lies at [r, n].
inline Words pack_gptq(const Codes& kn, std::size_t k, std::size_t n, int bits, bool planar = false) {
  const std::size_t rows = (k * bits + 31) / 32;
  Words out(rows * n);
  for (std::size_t c = 0; c < n; ++c) {
    Codes column(k);
    for (std::size_t r = 0; r < k; ++r) column[r] = kn[r * n + c];
    const Words w = planar ? pack_planar(column, bits) : pack_stream(column, bits);
    for (std::size_t r = 0; r < rows; ++r) out[r * n + c] = w[r];
  }
  return out;
}

// Each row of a [rows, cols] matrix packed by itself.
template <class Pack>
Words pack_rows(const Codes& m, std::size_t rows, std::size_t cols, Pack pack) {
  Words out;
  for (std::size_t r = 0; r < rows; ++r) {
    const Words w = pack(Codes(m.begin() + r * cols, m.begin() + (r + 1) * cols));
    out.insert(out.end(), w.begin(), w.end());
  }
  return out;
}

// Marlin's packer: 16x16 tiles, each flattened, then 1,024 values permuted at a time, then nibbles.
inline Words pack_marlin(const Codes& kn, std::size_t k, std::size_t n) {
  std::vector<int> perm;
  for (int i = 0; i < 32; ++i) {
    std::vector<int> one;
    for (int block : {0, 1})
      for (int row : {2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4 + 4), 2 * (i % 4 + 4) + 1})
        one.push_back(16 * row + i / 4 + 8 * block);
    for (int j = 0; j < 4; ++j)
      for (int p : one) perm.push_back(p + 256 * j);
  }
  static constexpr std::array<int, 8> kInterleave = {0, 2, 4, 6, 1, 3, 5, 7};
  Words out;
  for (std::size_t tile = 0; tile < k / 16; ++tile) {
    Codes row;  // [N/16, 16, 16] of this K-tile
    for (std::size_t t = 0; t < n / 16; ++t)
      for (std::size_t r = 0; r < 16; ++r)
        for (std::size_t c = 0; c < 16; ++c) row.push_back(kn[(tile * 16 + r) * n + t * 16 + c]);
    for (std::size_t chunk = 0; chunk < row.size(); chunk += 1024)
      for (std::size_t w = 0; w < 128; ++w) {
        std::uint32_t word = 0;
        for (int i = 0; i < 8; ++i) word |= row[chunk + perm[8 * w + kInterleave[i]]] << 4 * i;
        out.push_back(word);
      }
  }
  return out;
}

// Stored order of a row of scales in a Marlin file.
template <class T>
std::vector<T> marlin_scales(const std::vector<T>& columns, bool grouped) {
  std::vector<int> perm;
  if (grouped) {
    for (int i = 0; i < 8; ++i)
      for (int j = 0; j < 8; ++j) perm.push_back(i + 8 * j);
  } else {
    for (int i = 0; i < 4; ++i)
      for (int j : {0, 1, 8, 9, 16, 17, 24, 25}) perm.push_back(2 * i + j);
  }
  std::vector<T> out(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) out[i] = columns[i / perm.size() * perm.size() + perm[i % perm.size()]];
  return out;
}

// AWQ GEMV_FAST: within 32 inputs reorder pairs, then even before odd within 8, then four rows interleaved by 64.
inline std::vector<std::uint16_t> pack_gemv_fast(const Codes& nk, std::size_t n, std::size_t k) {
  Codes m = nk;
  for (std::size_t row = 0; row < n; ++row)
    for (std::size_t b = 0; b < k; b += 32) {
      Codes x(m.begin() + row * k + b, m.begin() + row * k + b + 32), y, z;
      for (int i = 0; i < 4; ++i)          // [4, 4, 2] -> transposed first two
        for (int j = 0; j < 4; ++j)
          for (int p = 0; p < 2; ++p) y.push_back(x[j * 8 + i * 2 + p]);
      for (int q = 0; q < 4; ++q)          // of 8: 0 2 4 6 1 3 5 7
        for (int p = 0; p < 2; ++p)
          for (int i = 0; i < 4; ++i) z.push_back(y[q * 8 + i * 2 + p]);
      std::copy(z.begin(), z.end(), m.begin() + row * k + b);
    }
  std::vector<std::uint16_t> out;
  for (std::size_t block = 0; block < n / 4; ++block)
    for (std::size_t chunk = 0; chunk < k / 64; ++chunk) {
      Codes flat;
      for (std::size_t r = 0; r < 4; ++r)
        for (std::size_t i = 0; i < 64; ++i) flat.push_back(m[(block * 4 + r) * k + chunk * 64 + i]);
      for (std::size_t w = 0; w < 64; ++w)  // [64, 4]: four neighbours of the flat run make one word
        out.push_back(static_cast<std::uint16_t>(flat[4 * w] | flat[4 * w + 1] << 4 | flat[4 * w + 2] << 8 | flat[4 * w + 3] << 12));
    }
  return out;
}

}  // namespace qengine::test
