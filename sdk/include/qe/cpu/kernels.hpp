// qe/cpu/kernels.hpp: what a product is, number for number, and the scalar code that says so.
//
// Three paths, each with one order of operations, whatever M is and whichever instructions run it:
//
//   exact    f32 on dequantized weights.  acc += sum of 256 columns, each a chain of fused
//            multiply-adds in column order
//   float    float-like codes (FP8, NF4, 16 and 32 bits).  The same chains over code values; a
//            segment ends with its span too, acc = fma(chain, scale, acc)
//   integer  int16 activations, one scale for 32 inputs.  d = exact integer dot product of a block;
//            chain = fma(d, x_scale, chain) over the blocks of a span;
//            acc = fma(chain, scale, acc); acc = fma(offset, sum of x over the span, acc)
//
//            16 bits and not 8: rounding 32 inputs to 8 bits costs an NMSE of 5e-5 a product, which a
//            model shows (docs/performance.md); to 16 bits 6e-10, less than a bf16 cache.
//
// and at the end out = acc * row factor. The fast versions must give equal bits; tests hold them to it.
#pragma once

#include <qe/activation.hpp>
#include <qe/cpu/container.hpp>
#include <qe/plugin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace qe::cpu {

inline constexpr int kSegment = 256;  // columns of one chain, at most

// Quantized activations are within +-kLevels: 127 * 256, so that the number splits into two signed bytes,
// 256 * high + low. A block of 32 of them is exact in int32 against unsigned bytes: 255 * 32512 * 32 < 2^28.
inline constexpr int kLevels = 127 * 256, kInputBytes = 2 * kBlock;

// Activations of up to m tokens, made ready once a call and shared by the parts of a layer.
//
// Quantized ones lie in tiles of T tokens, the widest first (tile_width); a tile that starts at token t
// starts at t * (numbers of one token), and within it the tokens are the second dimension from the
// left, so that a kernel reaches all of them from one pointer.
struct Input {
  std::int64_t m = 0, columns = 0, spans = 0;
  const float* x = nullptr;       // [m][x_stride]: float and exact paths; columns ordered and padded
  std::int64_t x_stride = 0;
  int widest = 1;                  // largest T: 1, 2, 4 or 8
  const std::byte* q = nullptr;    // [columns / 32][T][kInputBytes], in the order that the kernels of one instruction set want
  const float* scale = nullptr;    // [columns / 32][T]
  const float* sums = nullptr;     // [spans][T]: of the quantized x over each span
  const std::int32_t* bias = nullptr;  // [columns / min(span, 32)][T]: -128 times the integer sum
};

// Tokens of the tile that holds token t of m; it starts at t / width * width.
inline int tile_width(std::int64_t t, std::int64_t m, int widest) {
  int w = widest;
  while (t >= m / w * w) w /= 2;
  return w;
}

// Where one token's quantized numbers go: token `lane` of a tile of `width`.
struct TokenOut {
  std::byte* q;
  float *scale, *sums;
  std::int32_t* bias;
  std::int64_t width, lane;
};

// Panels [begin, end) of one part times all tokens of the input.
struct Job {
  const std::byte* base = nullptr;
  const Layout* layout = nullptr;
  const Input* in = nullptr;
  float* out = nullptr;  // row 0 of the part for token 0
  std::int64_t out_stride = 0;
  std::int64_t begin = 0, end = 0;
};

enum class Path { exact, floating, integer };

// Float-like codes whose record is at most one factor; others take the exact path.
template <class F>
inline constexpr bool kFloating = !kInteger<F> && !meta_has_zero<typename F::Meta> && !meta_has_offset<typename F::Meta> &&
                                  (!HasWeight<F> || HasRowFactor<F>);
template <class F>
inline constexpr Path kFastPath = kInteger<F> && (!HasWeight<F> || HasRowFactor<F> || !HasRowScale<F>) ? Path::integer
                                  : kFloating<F>                                                        ? Path::floating
                                                                                                        : Path::exact;
// Whether the integer path has a correction to add.
template <class F>
inline constexpr bool kCorrects = meta_has_zero<typename F::Meta> || meta_has_offset<typename F::Meta> || Operand<F>::kBase != 0;

// ---- activations -----------------------------------------------------------------------------------
namespace scalar {

// One block of 32 inputs to int16 and a scale. Anything not finite makes the scale NaN.
inline float quantize_block(const float* x, std::int16_t* q) {
  std::uint32_t top = 0;
  for (int i = 0; i < kBlock; ++i) top = std::max(top, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  if (top >= 0x7f800000u) {
    std::fill(q, q + kBlock, std::int16_t{0});
    return std::bit_cast<float>(0x7fc00000u);
  }
  const float amax = std::bit_cast<float>(top);
  const float inverse = amax < 1e-30f ? 0.0f : float(kLevels) / amax;
  for (int i = 0; i < kBlock; ++i) q[i] = std::int16_t(std::nearbyint(x[i] * inverse));  // at most kLevels * (1 + 2^-23)
  return amax < 1e-30f ? 0.0f : amax / float(kLevels);
}

// One token: codes in column order, scales, sums over the spans, and what signed codes start from.
inline void quantize_token(const float* x, std::int64_t columns, std::int64_t span, const TokenOut& out) {
  const std::int64_t step = std::min<std::int64_t>(span, kBlock);
  float sum = 0;
  for (std::int64_t c = 0; c < columns; c += step) {
    const std::int64_t b = c / kBlock;
    auto* q = reinterpret_cast<std::int16_t*>(out.q + (b * out.width + out.lane) * kInputBytes);
    float& scale = out.scale[b * out.width + out.lane];
    if (c % kBlock == 0) scale = quantize_block(x + c, q);
    std::int32_t total = 0;
    for (std::int64_t i = 0; i < step; ++i) total += q[c % kBlock + i];
    sum = std::fma(scale, float(total), sum);
    out.bias[c / step * out.width + out.lane] = -128 * total;
    if ((c + step) % span == 0 || c + step == columns) out.sums[c / span * out.width + out.lane] = sum, sum = 0;
  }
}

// ---- products --------------------------------------------------------------------------------------
template <class F>
void run_exact(const Job& j) {
  const Layout& l = *j.layout;
  float w[kBlock * kRows];
  for (std::int64_t p = j.begin; p < j.end; ++p) {
    const Panel panel = panel_at(l, j.base, p);
    const int rows = int(std::min<std::int64_t>(kRows, l.n - p * kRows));
    for (std::int64_t t = 0; t < j.in->m; ++t) {
      const float* x = j.in->x + t * j.in->x_stride;
      float acc[kRows] = {}, chain[kRows] = {};
      for (std::int64_t b = 0; b < l.columns / kBlock; ++b) {
        dequant_block<F>(panel, l, b, w);
        for (int c = 0; c < kBlock; ++c)
          for (int r = 0; r < kRows; ++r) chain[r] = std::fma(w[c * kRows + r], x[b * kBlock + c], chain[r]);
        if ((b + 1) * kBlock % kSegment == 0 || b + 1 == l.columns / kBlock)
          for (int r = 0; r < kRows; ++r) acc[r] += chain[r], chain[r] = 0;
      }
      for (int r = 0; r < rows; ++r) j.out[t * j.out_stride + p * kRows + r] = acc[r];
    }
  }
}

template <class F>
void run_floating(const Job& j) {
  using M = typename F::Meta;
  const Layout& l = *j.layout;
  std::uint8_t narrow[kRows * kBlock];
  for (std::int64_t p = j.begin; p < j.end; ++p) {
    const Panel panel = panel_at(l, j.base, p);
    const int rows = int(std::min<std::int64_t>(kRows, l.n - p * kRows));
    for (std::int64_t t = 0; t < j.in->m; ++t) {
      const float* x = j.in->x + t * j.in->x_stride;
      float acc[kRows] = {}, chain[kRows] = {};
      for (std::int64_t c = 0; c < l.columns; ++c) {
        const std::byte* codes = block_at<F>(l, panel, c / kBlock);
        if constexpr (F::Planes::bits <= 8)
          if (c % kBlock == 0) unpack_block<F>(codes, panel.step, narrow, kBlock);
        const bool ends = (c + 1) % l.span == 0 || (c % l.span + 1) % kSegment == 0 || c + 1 == l.columns;
        for (int r = 0; r < kRows; ++r) {
          float v;
          if constexpr (F::Planes::bits <= 8) {
            v = F::value(narrow[r * kBlock + c % kBlock]);
          } else {
            Code<F> code;
            std::memcpy(&code, codes + c % kBlock * panel.step + r * int(sizeof code), sizeof code);
            v = wide_value<F>(code);
          }
          chain[r] = std::fma(v, x[c], chain[r]);
          if (ends) {
            acc[r] = meta_has_scale<M> ? std::fma(chain[r], terms_at<F>(panel, l, c, r).scale, acc[r]) : acc[r] + chain[r];
            chain[r] = 0;
          }
        }
      }
      for (int r = 0; r < rows; ++r) {
        float y = acc[r];
        if constexpr (HasRowScale<F>) y = y * row_factor<F>(row_at<F>(panel, r));
        j.out[t * j.out_stride + p * kRows + r] = y;
      }
    }
  }
}

template <class F>
void run_integer(const Job& j) {
  using M = typename F::Meta;
  using Op = Operand<F>;
  const Layout& l = *j.layout;
  const std::int64_t step = std::min<std::int64_t>(l.span, kBlock), blocks = l.columns / kBlock;
  std::uint8_t codes[kRows * kBlock];
  for (std::int64_t p = j.begin; p < j.end; ++p) {
    const Panel panel = panel_at(l, j.base, p);
    const int rows = int(std::min<std::int64_t>(kRows, l.n - p * kRows));
    for (std::int64_t t = 0; t < j.in->m; ++t) {
      const auto* q = reinterpret_cast<const std::int16_t*>(j.in->q + t * j.in->columns * 2);
      const float* scale = j.in->scale + t * blocks;
      const float* sums = j.in->sums + t * j.in->spans;
      float acc[kRows] = {}, chain[kRows] = {};
      for (std::int64_t c = 0; c < l.columns; c += step) {
        if (c % kBlock == 0) unpack_block<F>(block_at<F>(l, panel, c / kBlock), panel.step, codes, kBlock);
        const bool ends = (c + step) % l.span == 0 || c + step == l.columns;
        for (int r = 0; r < kRows; ++r) {
          std::int32_t dot = 0;
          for (std::int64_t i = 0; i < step; ++i) dot += Op::of(codes[r * kBlock + c % kBlock + i]) * q[c + i];
          chain[r] = std::fma(float(dot), scale[c / kBlock], chain[r]);
          if (!ends) continue;
          const Terms term = terms_at<F>(panel, l, c, r);
          acc[r] = std::fma(chain[r], term.scale * Op::kStep, acc[r]);
          if constexpr (kCorrects<F>) {
            float base = Op::kBase * Op::kStep;
            if constexpr (meta_has_zero<M>) base = base - term.zero;
            base = term.scale * base;
            if constexpr (meta_has_offset<M>) base = base + term.offset;
            acc[r] = std::fma(base, sums[c / l.span], acc[r]);
          }
          chain[r] = 0;
        }
      }
      for (int r = 0; r < rows; ++r) {
        float y = acc[r];
        if constexpr (HasRowScale<F>) y = y * row_factor<F>(row_at<F>(panel, r));
        j.out[t * j.out_stride + p * kRows + r] = y;
      }
    }
  }
}

template <class F>
void run(const Job& j, Path path) {
  if constexpr (kFastPath<F> == Path::integer) {
    if (path == Path::integer) return run_integer<F>(j);
  } else if constexpr (kFastPath<F> == Path::floating) {
    if (path == Path::floating) return run_floating<F>(j);
  }
  run_exact<F>(j);
}

}  // namespace scalar
}  // namespace qe::cpu
