// qe/cpu/container.hpp: R8, the layout of weights in memory on a CPU.
//
// A panel is 8 output rows. Along K it is cut in blocks of 32 columns; a block's 256 codes lie by
// planes, and each plane is a row of 32-byte vectors that serve 8 rows x 4 columns:
//
//   vector j of a block = columns 4j .. 4j+3; byte 4r + i = row r, column 4j + i
//   8-bit plane  8 vectors of bytes
//   4-bit plane  4 vectors; the low nibbles of vector v are j = v, the high ones j = v + 4
//   2-bit plane  2 vectors; bits 2t, 2t+1 of vector v are j = v + 2t
//   1-bit plane  1 vector; bit t is j = t
//   16- and 32-bit codes: column by column, 8 rows side by side
//
// Records travel with the codes they belong to, so that a product reads memory strictly forward, which
// is what hardware prefetchers are good at:
//
//   panel = [row factors f32 x 8] [chunk] [chunk] ...      chunk = [supers] [records] pad to 32 [codes]
//   strip = the same for several panels: their row factors; then per chunk their heads, then unit by
//           unit (a vector; a column of wide codes) those of all panels side by side
//
// A strip is two panels for formats of the integer path and four for the others (the last one may have
// fewer): what fills one or two of the widest vectors. A chunk is the fewest spans whose records fill
// whole vectors; the last one may be shorter.
//
// supers: 8 for every 256 columns; records: 8 (1 when shared) for every span of columns. A span is
// a group where groups are multiples of 32; 16 where they are multiples of 16 (a record is then
// repeated); else every group is padded to a multiple of 32 and columns are gathered through a map.
// Padding columns have code 0 and meet an input of 0.
#pragma once

#include <qe/format.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace qe::cpu {

inline constexpr int kRows = 8, kBlock = 32;

constexpr std::int64_t round_up(std::int64_t v, std::int64_t to) { return (v + to - 1) / to * to; }

// Units of a block and their bytes.
template <class F> inline constexpr int kUnits = F::Planes::bits <= 8 ? F::Planes::bits : kBlock;
template <class F> inline constexpr int kUnitBytes = F::Planes::bits <= 8 ? 32 : kRows * F::Planes::bits / 8;

// Bytes of the records of one span and of the supers of 256 columns, of a panel.
template <class F> inline constexpr int kRecordBytes = F::Meta::kBytes * (meta_shared<typename F::Meta> ? 1 : kRows);
template <class F> inline constexpr int kSuperBytes = kRows * meta_super_bytes<typename F::Meta>;

// Where things lie in one part's panels. Two parts with equal columns, span and map may share inputs.
struct Layout {
  std::int64_t n = 0, k = 0;      // rows and inputs of this rank
  std::int64_t group = 0;         // as the format says, 0 = row
  std::int64_t columns = 0;       // packed inputs, a multiple of 32
  std::int64_t span = 0;          // columns that share a record: 16 or a multiple of 32
  std::int64_t spans = 0;
  std::int64_t panels = 0, stride = 0;  // stride: bytes of a panel, on average over its strip
  std::int64_t strip = 1;               // panels of a strip
  std::int64_t chunk = 0, chunks = 0;   // columns of a chunk
  std::int64_t head = 0, last_head = 0;  // bytes of a chunk's supers and records
  std::int64_t row_bytes = 0, chunk_bytes = 0, unit_bytes = 0;
  bool mapped = false;             // columns go through a map
  std::int64_t bytes() const { return panels * stride; }
  std::int64_t head_of(std::int64_t c) const { return c + 1 == chunks ? last_head : head; }
};

// Where one panel lies.
template <class B>
struct PanelOf {
  B* row;                          // its row factors
  B* strip;                        // the first chunk of its strip
  std::int64_t chunk_step;         // from chunk to chunk
  std::int64_t index, width;       // which of how many panels of the strip
  std::int64_t step;               // from unit to unit

  B* head(const Layout& l, std::int64_t c) const { return strip + c * chunk_step + index * l.head_of(c); }
  B* codes(const Layout& l, std::int64_t c) const { return strip + c * chunk_step + width * l.head_of(c) + index * l.unit_bytes; }
};
using Panel = PanelOf<const std::byte>;

template <class B>
inline PanelOf<B> panel_at(const Layout& l, B* base, std::int64_t p) {
  const std::int64_t first = p / l.strip * l.strip, width = std::min(l.strip, l.panels - first), i = p - first;
  B* strip = base + first * l.stride;
  return {strip + i * l.row_bytes, strip + width * l.row_bytes, width * l.chunk_bytes, i, width, width * l.unit_bytes};
}

// The codes of block b, and the record (its panel's eight) of a column.
template <class F, class B>
inline B* block_at(const Layout& l, const PanelOf<B>& p, std::int64_t b) {
  const std::int64_t c = b * kBlock / l.chunk;
  return p.codes(l, c) + (b - c * (l.chunk / kBlock)) * kUnits<F> * p.step;
}
template <class F, class B>
inline B* super_at(const Layout& l, const PanelOf<B>& p, std::int64_t column) {
  return p.head(l, column / l.chunk) + column % l.chunk / kSuperSpan * kSuperBytes<F>;
}
template <class F, class B>
inline B* record_at(const Layout& l, const PanelOf<B>& p, std::int64_t column) {
  const std::int64_t c = column / l.chunk, columns = std::min(l.chunk, l.columns - c * l.chunk);
  const std::int64_t supers = kSuperBytes<F> ? (columns + kSuperSpan - 1) / kSuperSpan : 0;
  return p.head(l, c) + supers * kSuperBytes<F> + column % l.chunk / l.span * kRecordBytes<F>;
}

// Which input feeds each column, -1 for padding. Empty when column c is input c.
using ColumnMap = std::vector<std::int32_t>;

template <class F>
Layout layout(const typename F::Source& s, std::int64_t n, std::int64_t k) {
  using M = typename F::Meta;
  Layout l;
  l.n = n;
  l.k = k;
  if constexpr (HasGroup<F>) l.group = std::int64_t(F::group(s));
  else if constexpr (requires { F::kGroups[0]; }) l.group = F::kGroups[0];
  if (l.group < 0 || l.group >= k || M::kBytes == 0) l.group = 0;
  bool ordered = false;
  if constexpr (HasInputOrder<F>) {
    if constexpr (requires { F::ordered(s); }) ordered = F::ordered(s);
    else ordered = true;
  }
  std::int64_t inputs = k;  // columns before padding
  if constexpr (HasColumns<F>) if (ordered) inputs = F::columns(s);
  l.mapped = ordered;
  l.columns = round_up(inputs, kBlock);
  if (l.group == 0) {
    l.span = l.columns;
  } else if (l.group % kBlock == 0) {
    l.span = l.group;
  } else if (l.group % 16 == 0) {
    l.span = 16;
  } else {  // every group on its own blocks
    l.mapped = true;
    l.span = round_up(l.group, kBlock);
    const std::int64_t whole = inputs / l.group, rest = inputs % l.group;
    l.columns = whole * l.span + round_up(rest, kBlock);
  }
  l.spans = l.span ? (l.columns + l.span - 1) / l.span : 0;
  l.panels = (n + kRows - 1) / kRows;
  l.strip = kInteger<F> ? 2 : 4;
  l.unit_bytes = kUnitBytes<F>;
  l.row_bytes = HasRowScale<F> ? 4 * kRows : 0;
  // A chunk is whole periods of records that fill vectors.
  constexpr bool two = kSuperBytes<F> > 0;
  if (two && l.span != 16 && l.span != 32 && l.span != 64 && l.span != 128 && l.span != 256) l.span = 32;
  const std::int64_t period = two ? kSuperSpan : l.span;
  const std::int64_t bytes = two ? kSuperBytes<F> + kSuperSpan / std::max<std::int64_t>(1, l.span) * kRecordBytes<F> : kRecordBytes<F>;
  l.chunk = bytes ? period * (32 / std::gcd<std::int64_t, std::int64_t>(32, bytes)) : l.columns;
  l.chunk = std::max<std::int64_t>(kBlock, std::min(round_up(l.chunk, kBlock), l.columns));
  l.chunks = std::max<std::int64_t>(1, (l.columns + l.chunk - 1) / l.chunk);
  const auto head = [&](std::int64_t columns) {
    std::int64_t at = two ? (columns + kSuperSpan - 1) / kSuperSpan * kSuperBytes<F> : 0;
    if (M::kBytes && l.span) at += (columns + l.span - 1) / l.span * kRecordBytes<F>;
    return round_up(at, 32);
  };
  const std::int64_t last = l.columns - (l.chunks - 1) * l.chunk, block_bytes = kUnits<F> * l.unit_bytes;
  l.head = head(l.chunk);
  l.last_head = head(last);
  l.chunk_bytes = l.head + l.chunk / kBlock * block_bytes;
  l.stride = l.row_bytes + (l.chunks - 1) * l.chunk_bytes + l.last_head + last / kBlock * block_bytes;
  return l;
}

// The map of a layout that has one.
template <class F>
ColumnMap column_map(const typename F::Source& s, const Layout& l) {
  ColumnMap map;
  if (!l.mapped) return map;
  map.assign(std::size_t(l.columns), -1);
  bool ordered = false;
  if constexpr (HasInputOrder<F>) {
    if constexpr (requires { F::ordered(s); }) ordered = F::ordered(s);
    else ordered = true;
  }
  std::int64_t inputs = l.k;
  if constexpr (HasColumns<F>) if (ordered) inputs = F::columns(s);
  const bool padded = l.group % 16 != 0;
  for (std::int64_t c = 0; c < inputs; ++c) {
    const std::int64_t at = padded ? c / l.group * l.span + c % l.group : c;
    std::int64_t input = c;
    if constexpr (HasInputOrder<F>) if (ordered) input = std::int64_t(F::input(s, c));
    map[std::size_t(at)] = input >= 0 && input < l.k ? std::int32_t(input) : -1;
  }
  return map;
}

// ---- codes of one block ----------------------------------------------------------------------------
// codes[r][c]: 8 rows of 32 bytes, `ld` apart -> planes.
template <class F>
void pack_block(const std::uint8_t* codes, std::int64_t ld, std::byte* out, std::int64_t step) {
  int shift = 0;
  for (const int bits : F::Planes::kBits) {
    const int per = 8 / bits, vectors = 8 / per;  // codes in a byte, 32-byte vectors of this plane
    const std::uint32_t mask = (1u << bits) - 1;
    for (int v = 0; v < vectors; ++v)
      for (int r = 0; r < kRows; ++r) {
        std::uint32_t word = 0;
        for (int t = 0; t < per; ++t) {
          std::uint32_t four;
          std::memcpy(&four, codes + r * ld + 4 * (v + vectors * t), 4);
          word |= (four >> shift & mask * 0x01010101u) << (bits * t);
        }
        std::memcpy(out + step * v + 4 * r, &word, 4);
      }
    out += step * vectors;
    shift += bits;
  }
}

template <class F>
void unpack_block(const std::byte* in, std::int64_t step, std::uint8_t* codes, std::int64_t ld) {
  for (int r = 0; r < kRows; ++r) std::memset(codes + r * ld, 0, kBlock);
  int shift = 0;
  for (const int bits : F::Planes::kBits) {
    const int per = 8 / bits, vectors = 8 / per;
    const std::uint32_t mask = (1u << bits) - 1;
    for (int v = 0; v < vectors; ++v)
      for (int r = 0; r < kRows; ++r) {
        std::uint32_t word;
        std::memcpy(&word, in + step * v + 4 * r, 4);
        for (int t = 0; t < per; ++t) {
          std::uint8_t* at = codes + r * ld + 4 * (v + vectors * t);
          std::uint32_t four;
          std::memcpy(&four, at, 4);
          four |= (word >> (bits * t) & mask * 0x01010101u) << shift;
          std::memcpy(at, &four, 4);
        }
      }
    in += step * vectors;
    shift += bits;
  }
}

// A unit of a wide block is one column: 8 numbers.
template <class F>
void pack_wide_block(const Code<F>* codes, std::int64_t ld, std::byte* out, std::int64_t step) {
  for (int c = 0; c < kBlock; ++c, out += step) {
    Code<F> column[kRows];
    for (int r = 0; r < kRows; ++r) column[r] = codes[r * ld + c];
    std::memcpy(out, column, sizeof column);
  }
}

template <class F>
inline float wide_value(Code<F> c) {
  if constexpr (F::kWide == Wide::f32) return std::bit_cast<float>(std::uint32_t(c));
  else if constexpr (F::kWide == Wide::bf16) return bf16_to_f32(std::uint16_t(c));
  else return f16_to_f32(std::uint16_t(c));
}

// ---- one panel at load -----------------------------------------------------------------------------
// Source rows [row, row + rows) of this rank, inputs from k_begin, to `panel`.
template <class F>
void pack_panel(const typename F::Source& s, const Layout& l, const ColumnMap& map, std::int64_t row, int rows,
                std::int64_t k_begin, const PanelOf<std::byte>& panel, std::vector<Code<F>>& scratch) {
  using M = typename F::Meta;
  using C = Code<F>;
  if (l.row_bytes) std::memset(panel.row, 0, std::size_t(l.row_bytes));
  for (std::int64_t c = 0; c < l.chunks; ++c) std::memset(panel.head(l, c), 0, std::size_t(l.head_of(c)));
  const auto input = [&](std::int64_t c) { return map.empty() ? (c < l.k ? c : -1) : std::int64_t(map[std::size_t(c)]); };
  for (int r = 0; r < rows; ++r) {
    if constexpr (HasRowScale<F>) {
      const float f = F::row_scale(s, row + r);
      std::memcpy(panel.row + 4 * r, &f, 4);
    }
    if constexpr (kSuperBytes<F> > 0)
      for (std::int64_t c = 0; c < l.k; c += kSuperSpan)
        M::pack_super(F::super(s, row + r, k_begin + c), super_at<F>(l, panel, c) + r * meta_super_bytes<M>);
    if constexpr (M::kBytes > 0)
      if (!meta_shared<M> || r == 0)
        for (std::int64_t from = 0; from < l.columns; from += l.span) {
          // the first real input of the span; a span of padding alone keeps zeros
          std::int64_t at = -1;
          for (std::int64_t c = from; c < std::min(l.columns, from + l.span) && at < 0; ++c) at = input(c);
          if (at >= 0) M::pack(F::meta(s, row + r, k_begin + at), record_at<F>(l, panel, from) + r * M::kBytes);
        }
  }
  scratch.resize(std::size_t(kRows * (l.columns + l.k)));
  C* packed = scratch.data();
  C* plain = packed + kRows * l.columns;
  std::fill(packed, packed + kRows * l.columns, C{0});
  if constexpr (HasUnpackRows<F>) F::unpack_rows(s, row, rows, k_begin, l.k, map.empty() ? packed : plain, map.empty() ? l.columns : l.k);
  for (int r = 0; r < rows; ++r) {
    C* out = packed + r * l.columns;
    C* in = map.empty() ? out : plain + r * l.k;
    if constexpr (HasUnpackRows<F>) {
    } else if constexpr (HasUnpack<F>) {
      F::unpack(s, row + r, k_begin, int(l.k), in);
    } else {
      for (std::int64_t k = 0; k < l.k; ++k) in[k] = C(F::code(s, row + r, k_begin + k));
    }
    if (!map.empty())
      for (std::int64_t c = 0; c < l.columns; ++c) out[c] = map[std::size_t(c)] >= 0 ? in[map[std::size_t(c)]] : C{0};
  }
  for (std::int64_t b = 0; b < l.columns / kBlock; ++b) {
    std::byte* out = block_at<F>(l, panel, b);
    if constexpr (F::Planes::bits <= 8) pack_block<F>(packed + b * kBlock, l.columns, out, panel.step);
    else pack_wide_block<F>(packed + b * kBlock, l.columns, out, panel.step);
  }
}

// ---- reading it back -------------------------------------------------------------------------------
template <class F>
inline Terms terms_at(const Panel& panel, const Layout& l, std::int64_t column, int r) {
  using M = typename F::Meta;
  if constexpr (M::kBytes == 0) return {};
  else return terms_of<M>(super_at<F>(l, panel, column) + r * meta_super_bytes<M>, record_at<F>(l, panel, column) + (meta_shared<M> ? 0 : r * M::kBytes));
}

template <class F>
inline float row_at(const Panel& panel, int r) {
  if constexpr (HasRowScale<F>) {
    float f;
    std::memcpy(&f, panel.row + 4 * r, 4);
    return f;
  } else {
    return 1.0f;
  }
}

// The weights of one block, exactly as the format defines them: out[c][r].
template <class F>
void dequant_block(const Panel& panel, const Layout& l, std::int64_t block, float* out) {
  const std::byte* codes = block_at<F>(l, panel, block);
  std::uint8_t narrow[kRows * kBlock];
  if constexpr (F::Planes::bits <= 8) unpack_block<F>(codes, panel.step, narrow, kBlock);
  for (int half = 0; half < kBlock; half += 16)
    for (int r = 0; r < kRows; ++r) {
      const Terms t = terms_at<F>(panel, l, block * kBlock + half, r);
      const float row = row_at<F>(panel, r);
      for (int c = half; c < half + 16; ++c) {
        float v;
        if constexpr (F::Planes::bits <= 8) {
          v = F::value(narrow[r * kBlock + c]);
        } else {
          Code<F> code;
          std::memcpy(&code, codes + c * panel.step + r * int(sizeof code), sizeof code);
          v = wide_value<F>(code);
        }
        out[c * kRows + r] = weight<F>(v, t, row);
      }
    }
}

}  // namespace qe::cpu
