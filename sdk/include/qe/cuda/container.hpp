// qe/cuda/container.hpp: the layout of weights in the memory of a GPU, and packing into it. No CUDA here:
// packing runs on the host, and tests read it back there.
//
// A strip is 16 output rows. Along K it is cut in units of 128 columns, the work of one warp at a time:
//
//   unit   = [planes of codes] [supers] [records] pad to 32 bytes
//   strip  = its units in order of k
//   layer  = the strips of part 0, part 1, ... | row factors f32 [16 * strips]
//
// A plane of b bits is 256 * b bytes: a lane of the warp finds its codes in 16 bytes (8 for b = 1) of each
// 512-byte run, already in the order of its A registers of mma.m16n8k16, k-step by k-step. With lane = 4g + t,
// register r (0..3) and element e (0, 1) of k-step s (0..7):
//
//   row      g + 8 * (r % 2)
//   column   s / 2 * 32 + t * 8 + s % 2 * 4 + r / 2 * 2 + e     16 bytes of a token feed two k-steps
//            s * 16 + t * 4 + r / 2 * 2 + e                     where records change every 16 columns
//   pair     p = 4s + r; 16/b pairs share a word: bits [b*i, b*i + b) of its low half hold e = 0, of its high
//            half e = 1, i = p % (16/b). A 32-bit code is a word by itself.
//
// Records belong to spans of 128, 32 or 16 columns (a wider group repeats its record): record and super of row
// g + 8h lie at 2g + h, so that a lane fetches both of its rows with one load. Shared records (blocks of rows)
// are two a span, one for each 8 rows. Groups that are no multiple of a span are padded to one, act order and
// padding are a map from columns to inputs. Padding has code 0 and meets an input of 0. Codes of 8-bit ramps are
// stored with the top bit turned.
#pragma once

#include <qe/format.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace qe::cuda {

inline constexpr int kStrip = 16, kUnit = 128;

// A plane's bits as a constant: std::array's operator is host code for nvcc.
template <class P, int I> inline constexpr int kPlaneBits = P::kBits[I];

template <class F> inline constexpr int kPayload = 256 * F::Planes::bits;
// The meaning of codes, as kernels see it. (qe::kKind asks the same; it compares NaNs, which nvcc does not do while
// compiling.)
enum class Decoding { ramp, e4m3, table, wide };
constexpr bool is_nan(float v) { return (std::bit_cast<std::uint32_t>(v) & 0x7fffffffu) > 0x7f800000u; }
template <class F>
constexpr Decoding decoding_of() {
  constexpr int bits = F::Planes::bits;
  if constexpr (bits > 8) {
    return Decoding::wide;
  } else {
    bool ramp = true, fp8 = bits == 8;
    const float first = F::value(0);
    for (std::uint32_t c = 0; c < (1u << bits); ++c) {
      const float v = F::value(c);
      if (is_nan(v)) ramp = false;
      else if (v != first + float(c)) ramp = false;
      if (bits == 8 && (c & 0x7f) != 0x7f && (is_nan(v) || v != e4m3_to_f32(std::uint8_t(c)))) fp8 = false;
    }
    if (ramp && first == float(int(first)) && first >= -256.0f && first <= 256.0f) return Decoding::ramp;
    return fp8 ? Decoding::e4m3 : Decoding::table;
  }
}
template <class F> inline constexpr Decoding kDecoding = decoding_of<F>();
template <class F> inline constexpr bool kFlipTop = kDecoding<F> == Decoding::ramp && F::Planes::bits == 8;

// Bytes of a record here: the next power of two, at most 16.
constexpr int power_of_two(int bytes) { return bytes <= 1 ? bytes : bytes <= 2 ? 2 : bytes <= 4 ? 4 : bytes <= 8 ? 8 : 16; }
template <class M> inline constexpr int kRecord = power_of_two(M::kBytes);
template <class M> inline constexpr int kSuper = meta_super_bytes<M>;
template <class M> inline constexpr int kRecordRows = meta_shared<M> ? 2 : kStrip;

template <class F> inline constexpr int kSuperUnit = kStrip * kSuper<typename F::Meta>;
template <class F, int Run> inline constexpr int kRecordUnit = Run ? kUnit / Run * kRecordRows<typename F::Meta> * kRecord<typename F::Meta> : 0;
template <class F, int Run> inline constexpr int kUnitBytes = (kPayload<F> + kSuperUnit<F> + kRecordUnit<F, Run> + 31) / 32 * 32;

// The spans of columns under one record that kernels of F are made for: 0 where there are no records.
template <class F, int Run>
constexpr bool has_run() {
  if constexpr (F::Meta::kBytes == 0) {
    return Run == 0;
  } else if constexpr (HasGroup<F>) {
    return kSuper<typename F::Meta> ? Run == 32 || Run == 16 : Run == 128 || Run == 32;
  } else {
    constexpr int group = F::kGroups[0], span = group == 0 ? 128 : group % 16 ? (group + 31) / 32 * 32 : group % 32 ? 16 : group;
    return Run == (span % 128 == 0 ? 128 : span % 32 == 0 ? 32 : 16);
  }
}

// Where a code lies: its word within the plane of `bits`, counted in 32-bit words from the unit, and its first bit.
struct Place {
  int lane, step, reg, element;
};
constexpr Place place_of(int row, int column, int run) {
  const int g = row % 8, half = row / 8;
  const int t = run == 16 ? column % 16 / 4 : column % 32 / 8;
  const int step = run == 16 ? column / 16 : column / 32 * 2 + column % 8 / 4;
  const int i = column % 4;
  return {4 * g + t, step, i / 2 * 2 + half, i % 2};
}
constexpr int column_of(int lane, int step, int reg, int element, int run) {
  const int t = lane % 4, i = reg / 2 * 2 + element;
  return run == 16 ? step * 16 + t * 4 + i : step / 2 * 32 + t * 8 + step % 2 * 4 + i;
}
struct Bits {
  int byte, shift;  // byte of the 32-bit word within the plane
};
constexpr Bits bits_of(const Place& p, int bits) {
  const int pair = 4 * p.step + p.reg;
  int word, shift;
  if (bits == 32) {
    word = 2 * pair + p.element, shift = 0;
  } else {
    const int per = 16 / bits;
    word = pair / per, shift = pair % per * bits + 16 * p.element;
  }
  if (bits == 1) return {p.lane * 8 + word * 4, shift};
  return {word / 4 * 512 + p.lane * 16 + word % 4 * 4, shift};
}

// Which input feeds each column, -1 for none. Empty when column c is input c.
using ColumnMap = std::vector<std::int32_t>;

// One part of a layer.
struct Layout {
  std::int64_t n = 0, k = 0;         // rows and inputs of this rank
  std::int64_t group = 0;            // as the format says, 0: the row
  std::int64_t span = 0;             // columns that a group takes, 0: all
  int run = 0;                       // columns under a record
  std::int64_t units = 0, strips = 0;
  std::int64_t unit_bytes = 0;
  bool mapped = false, row = false;  // row: has row factors
  std::int64_t strip_bytes() const { return units * unit_bytes; }
  bool same_columns(const Layout& o) const { return units == o.units && span == o.span && run == o.run && mapped == o.mapped; }
};

namespace detail {
template <class F>
bool ordered(const typename F::Source& s) {
  if constexpr (HasInputOrder<F>) {
    if constexpr (requires { F::ordered(s); }) return F::ordered(s);
    else return true;
  } else {
    return false;
  }
}
template <class F>
std::int64_t inputs(const typename F::Source& s, std::int64_t k) {
  if constexpr (HasColumns<F>)
    if (ordered<F>(s)) return F::columns(s);
  return k;
}
}  // namespace detail

template <class F>
Layout layout(const typename F::Source& s, std::int64_t n, std::int64_t k) {
  using M = typename F::Meta;
  Layout l;
  l.n = n, l.k = k;
  if constexpr (HasGroup<F>) l.group = std::int64_t(F::group(s));
  else if constexpr (requires { F::kGroups[0]; }) l.group = F::kGroups[0];
  if (l.group < 0 || l.group >= k || M::kBytes == 0) l.group = 0;
  l.mapped = detail::ordered<F>(s);
  l.row = HasRowScale<F>;
  int least = 0;
  const auto offer = [&](auto run) {
    constexpr int kRun = decltype(run)::value;
    if constexpr (has_run<F, kRun>()) {
      least = kRun;
      if (l.unit_bytes == 0 && l.group % (kRun ? kRun : 1) == 0) l.run = kRun, l.unit_bytes = kUnitBytes<F, kRun>;
    }
  };
  offer(std::integral_constant<int, 0>{}), offer(std::integral_constant<int, 128>{});
  offer(std::integral_constant<int, 32>{}), offer(std::integral_constant<int, 16>{});
  std::int64_t columns = detail::inputs<F>(s, k);
  l.span = l.group;
  if (l.unit_bytes == 0) {  // every group on spans of its own
    l.run = least;
    l.mapped = true;
    l.unit_bytes = least == 16 ? kUnitBytes<F, 16> : least == 32 ? kUnitBytes<F, 32> : kUnitBytes<F, 128>;
    l.span = (l.group + least - 1) / least * least;
    columns = columns / l.group * l.span + columns % l.group;
  }
  l.units = (columns + kUnit - 1) / kUnit;
  l.strips = (n + kStrip - 1) / kStrip;
  return l;
}

// The map of a layout that has one, in whole units.
template <class F>
ColumnMap column_map(const typename F::Source& s, const Layout& l) {
  ColumnMap map;
  if (!l.mapped) return map;
  map.assign(std::size_t(l.units * kUnit), -1);
  const std::int64_t inputs = detail::inputs<F>(s, l.k);
  for (std::int64_t c = 0; c < inputs; ++c) {
    const std::int64_t at = l.span == l.group ? c : c / l.group * l.span + c % l.group;
    std::int64_t input = c;
    if constexpr (HasInputOrder<F>)
      if (detail::ordered<F>(s)) input = std::int64_t(F::input(s, c));
    map[std::size_t(at)] = input >= 0 && input < l.k ? std::int32_t(input) : -1;
  }
  return map;
}

template <class F> constexpr std::uint32_t stored_code(std::uint32_t c) { return kFlipTop<F> ? c ^ 0x80u : c; }

// The codes of one unit: codes[row][column], rows `ld` apart.
template <class F>
void pack_unit(const Code<F>* codes, std::int64_t ld, int run, std::byte* out) {
  for (int lane = 0; lane < 32; ++lane)
    for (int step = 0; step < 8; ++step)
      for (int reg = 0; reg < 4; ++reg) {
        const int row = lane / 4 + 8 * (reg % 2);
        const Code<F>* from = codes + row * ld + column_of(lane, step, reg, 0, run);
        const std::uint32_t c0 = stored_code<F>(from[0]), c1 = stored_code<F>(from[1]);
        std::byte* plane = out;
        int low = 0;
        [&]<int... I>(std::integer_sequence<int, I...>) {
          const auto put = [&](auto b) {
            constexpr int kBits = decltype(b)::value;
            constexpr std::uint32_t mask = kBits == 32 ? ~0u : (1u << kBits % 32) - 1;
            const Bits at = bits_of({lane, step, reg, 0}, kBits);
            std::uint32_t word;
            std::memcpy(&word, plane + at.byte, 4);
            if constexpr (kBits == 32) {
              std::memcpy(plane + at.byte, &c0, 4);
              std::memcpy(plane + at.byte + 4, &c1, 4);
            } else {
              word |= (c0 >> low & mask) << at.shift | (c1 >> low & mask) << (at.shift + 16);
              std::memcpy(plane + at.byte, &word, 4);
            }
            plane += 256 * kBits;
            low += kBits;
          };
          (put(std::integral_constant<int, kPlaneBits<typename F::Planes, I>>{}), ...);
        }(std::make_integer_sequence<int, F::Planes::kCount>{});
      }
}

// The code of one weight, read back.
template <class F>
std::uint32_t code_at(const std::byte* unit, int row, int column, int run) {
  std::uint32_t code = 0;
  int low = 0;
  for (const int bits : F::Planes::kBits) {
    const Bits at = bits_of(place_of(row, column, run), bits);
    std::uint32_t word;
    std::memcpy(&word, unit + at.byte, 4);
    code |= (bits == 32 ? word : word >> at.shift & ((1u << bits) - 1)) << low;
    unit += 256 * bits;
    low += bits;
  }
  return stored_code<F>(code);
}

template <class M>
constexpr int record_index(int row, int sub) { return meta_shared<M> ? sub * 2 + row / 8 : sub * kStrip + row % 8 * 2 + row / 8; }
constexpr int super_index(int row) { return row % 8 * 2 + row / 8; }

// Terms of the record of (row, column) in a unit, read back.
template <class F>
Terms terms_at(const std::byte* unit, int row, int column, int run) {
  using M = typename F::Meta;
  if constexpr (M::kBytes == 0) return {};
  else {
    const std::byte* supers = unit + kPayload<F>;
    return terms_of<M>(supers + super_index(row) * kSuper<M>, supers + kSuperUnit<F> + record_index<M>(row, column / run) * kRecord<M>);
  }
}

// Source rows [row, row + rows), rows <= 16, inputs from k_begin, to one strip; their row factors to `factors` (16).
template <class F>
void pack_strip(const typename F::Source& s, const Layout& l, const ColumnMap& map, std::int64_t row, int rows, std::int64_t k_begin,
                std::byte* strip, float* factors, std::vector<Code<F>>& scratch) {
  using M = typename F::Meta;
  using C = Code<F>;
  std::memset(strip, 0, std::size_t(l.strip_bytes()));
  const std::int64_t width = l.units * kUnit;
  const auto input = [&](std::int64_t c) { return map.empty() ? (c < l.k ? c : -1) : std::int64_t(map[std::size_t(c)]); };
  for (int r = 0; r < rows; ++r) {
    if constexpr (HasRowScale<F>) factors[r] = F::row_scale(s, row + r);
    if constexpr (kSuper<M> > 0)
      for (std::int64_t u = 0; u < l.units && u * kUnit < l.k; ++u)
        M::pack_super(F::super(s, row + r, k_begin + u * kUnit), strip + u * l.unit_bytes + kPayload<F> + super_index(r) * kSuper<M>);
    if constexpr (M::kBytes > 0)
      if (!meta_shared<M> || r % 8 == 0)
        for (std::int64_t from = 0; from < width; from += l.run) {
          // the first real input of the span; a span of padding alone keeps zeros
          std::int64_t at = -1;
          for (std::int64_t c = from; c < from + l.run && at < 0; ++c) at = input(c);
          if (at >= 0)
            M::pack(F::meta(s, row + r, k_begin + at), strip + from / kUnit * l.unit_bytes + kPayload<F> + kSuperUnit<F> +
                                                           record_index<M>(r, int(from % kUnit) / l.run) * kRecord<M>);
        }
  }
  scratch.assign(std::size_t(kStrip * width + (map.empty() ? 0 : kStrip * l.k)), C{0});
  C* packed = scratch.data();
  C* plain = packed + kStrip * width;
  const std::int64_t ld = map.empty() ? width : l.k;
  C* to = map.empty() ? packed : plain;
  if constexpr (HasUnpackRows<F>) {
    for (int r = 0; r < rows; r += 8) F::unpack_rows(s, row + r, std::min(8, rows - r), k_begin, l.k, to + r * ld, ld);
  } else {
    for (int r = 0; r < rows; ++r) {
      if constexpr (HasUnpack<F>) {
        F::unpack(s, row + r, k_begin, int(l.k), to + r * ld);
      } else {
        for (std::int64_t k = 0; k < l.k; ++k) to[r * ld + k] = C(F::code(s, row + r, k_begin + k));
      }
    }
  }
  if (!map.empty())
    for (int r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < width; ++c)
        if (const std::int32_t k = map[std::size_t(c)]; k >= 0) packed[r * width + c] = plain[r * l.k + k];
  for (std::int64_t u = 0; u < l.units; ++u) pack_unit<F>(packed + u * kUnit, width, l.run, strip + u * l.unit_bytes);
}

}  // namespace qe::cuda
