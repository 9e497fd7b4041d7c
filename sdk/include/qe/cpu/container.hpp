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
//   head of a panel = [row factors f32 x 8] [supers] [records] pad to 32
//   strip           = heads of its panels, then unit by unit (a vector; a column of wide codes) those
//                     of its panels side by side
//
// A strip is one panel for formats of the integer path, which take one panel at a time, and four (the
// last one may have fewer) for the others, which take four side by side: either way a product reads
// memory strictly forward, which is what hardware prefetchers are good at.
//
// supers: 8 for every 256 columns; records: 8 (1 when shared) for every span of columns. A span is
// a group where groups are multiples of 32; 16 where they are multiples of 16 (a record is then
// repeated); else every group is padded to a multiple of 32 and columns are gathered through a map.
// Padding columns have code 0 and meet an input of 0.
#pragma once

#include <qe/format.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace qe::cpu {

inline constexpr int kRows = 8, kBlock = 32;

constexpr std::int64_t round_up(std::int64_t v, std::int64_t to) { return (v + to - 1) / to * to; }

// Units of a block and their bytes.
template <class F> inline constexpr int kUnits = F::Planes::bits <= 8 ? F::Planes::bits : kBlock;
template <class F> inline constexpr int kUnitBytes = F::Planes::bits <= 8 ? 32 : kRows * F::Planes::bits / 8;

// Where things lie in one part's panels. Two parts with equal columns, span and map may share inputs.
struct Layout {
  std::int64_t n = 0, k = 0;      // rows and inputs of this rank
  std::int64_t group = 0;         // as the format says, 0 = row
  std::int64_t columns = 0;       // packed inputs, a multiple of 32
  std::int64_t span = 0;          // columns that share a record: 16 or a multiple of 32
  std::int64_t spans = 0, supers = 0;
  std::int64_t panels = 0, stride = 0;  // stride: bytes of a panel, on average over its strip
  std::int64_t strip = 1;               // panels of a strip
  std::int64_t super_at = 0, record_at = 0, code_at = 0;  // within a head; code_at is its size
  std::int64_t record_stride = 0;  // bytes of the 8 records of one span
  std::int64_t unit_bytes = 0;
  bool mapped = false;             // columns go through a map
  std::int64_t bytes() const { return panels * stride; }
};

// Where one panel lies: its head, and its codes, `step` bytes from unit to unit.
template <class B>
struct PanelOf {
  B *head, *codes;
  std::int64_t step;
  B* block(std::int64_t b, std::int64_t units) const { return codes + b * units * step; }
};
using Panel = PanelOf<const std::byte>;

template <class B>
inline PanelOf<B> panel_at(const Layout& l, B* base, std::int64_t p) {
  const std::int64_t first = p / l.strip * l.strip, width = std::min(l.strip, l.panels - first), i = p - first;
  B* strip = base + first * l.stride;
  return {strip + i * l.code_at, strip + width * l.code_at + i * l.unit_bytes, width * l.unit_bytes};
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
  l.record_stride = M::kBytes * (meta_shared<M> ? 1 : kRows);
  std::int64_t at = HasRowScale<F> ? 4 * kRows : 0;
  l.super_at = at;
  if constexpr (meta_super_bytes<M> > 0) {
    l.supers = (l.columns + kSuperSpan - 1) / kSuperSpan;
    at += l.supers * kRows * meta_super_bytes<M>;
  }
  l.record_at = at;
  if (M::kBytes) at += l.spans * l.record_stride;
  l.code_at = round_up(at, 32);
  l.unit_bytes = kUnitBytes<F>;
  l.stride = l.code_at + l.columns / kBlock * kUnits<F> * l.unit_bytes;
  l.strip = kInteger<F> ? 1 : 4;
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
  std::memset(panel.head, 0, std::size_t(l.code_at));
  const auto input = [&](std::int64_t c) { return map.empty() ? (c < l.k ? c : -1) : std::int64_t(map[std::size_t(c)]); };
  for (int r = 0; r < rows; ++r) {
    if constexpr (HasRowScale<F>) {
      const float f = F::row_scale(s, row + r);
      std::memcpy(panel.head + 4 * r, &f, 4);
    }
    if constexpr (meta_super_bytes<M> > 0)
      for (std::int64_t i = 0; i < l.supers; ++i)
        M::pack_super(F::super(s, row + r, k_begin + i * kSuperSpan), panel.head + l.super_at + (i * kRows + r) * meta_super_bytes<M>);
    if constexpr (M::kBytes > 0)
      if (!meta_shared<M> || r == 0)
        for (std::int64_t i = 0; i < l.spans; ++i) {
          // the first real input of the span; a span of padding alone keeps zeros
          std::int64_t at = -1;
          for (std::int64_t c = i * l.span; c < std::min(l.columns, (i + 1) * l.span) && at < 0; ++c) at = input(c);
          if (at >= 0) M::pack(F::meta(s, row + r, k_begin + at), panel.head + l.record_at + i * l.record_stride + r * M::kBytes);
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
    std::byte* out = panel.block(b, kUnits<F>);
    if constexpr (F::Planes::bits <= 8) pack_block<F>(packed + b * kBlock, l.columns, out, panel.step);
    else pack_wide_block<F>(packed + b * kBlock, l.columns, out, panel.step);
  }
}

// ---- reading it back -------------------------------------------------------------------------------
template <class F>
inline Terms terms_at(const std::byte* head, const Layout& l, std::int64_t column, int r) {
  using M = typename F::Meta;
  if constexpr (M::kBytes == 0) {
    return {};
  } else {
    const std::byte* record = head + l.record_at + column / l.span * l.record_stride + (meta_shared<M> ? 0 : r * M::kBytes);
    const std::byte* super = head + l.super_at + (column / kSuperSpan * kRows + r) * meta_super_bytes<M>;
    return terms_of<M>(super, record);
  }
}

template <class F>
inline float row_at(const std::byte* head, int r) {
  if constexpr (HasRowScale<F>) {
    float f;
    std::memcpy(&f, head + 4 * r, 4);
    return f;
  } else {
    return 1.0f;
  }
}

// The weights of one block, exactly as the format defines them: out[c][r].
template <class F>
void dequant_block(const Panel& panel, const Layout& l, std::int64_t block, float* out) {
  const std::byte* codes = panel.block(block, kUnits<F>);
  std::uint8_t narrow[kRows * kBlock];
  if constexpr (F::Planes::bits <= 8) unpack_block<F>(codes, panel.step, narrow, kBlock);
  for (int half = 0; half < kBlock; half += 16)
    for (int r = 0; r < kRows; ++r) {
      const Terms t = terms_at<F>(panel.head, l, block * kBlock + half, r);
      const float row = row_at<F>(panel.head, r);
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
