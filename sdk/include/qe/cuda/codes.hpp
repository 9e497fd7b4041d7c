// qe/cuda/codes.hpp: products of many tokens in FP8: which layers have them, and what they need. Host code without
// templates and without the CUDA headers.
//
// A layer that is planned with QE_LAYER_ACT_QUANT and whose weights are E4M3 multiplies codes by codes above 64 tokens.
// Tokens are quantized by the scheme's rule, the same bits as qe/activation.hpp gives; the codes of weights become
// panels of bytes; the host's product (qe/gemm.h) takes both with their scales:
//
//   weights            tokens                    scales of the product                            compute capability
//   one scale          static                    one and one                                      8.9 and newer
//   a scale a row      static, a scale a token   a vector and a vector                            9.0
//   128 x 128          128 inputs of a token     [rows / 128, inputs / 128], [tokens, inputs / 128]   9.0
//
// The capabilities are those of cuBLASLt. Rows of a panel and inputs are multiples of 16: its alignment.
#pragma once

#include <qe/activation.hpp>
#include <qe/cuda/container.hpp>
#include <qe/plugin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace qe::cuda {

inline constexpr std::int64_t kScaleBlock = 128;
inline constexpr std::int64_t kTokenBytes = std::int64_t{128} << 20;      // codes of tokens at a time
inline constexpr std::int64_t kCodePanelBytes = std::int64_t{32} << 20;   // stays in L2
// In blocks, cuBLASLt takes tokens by fours. The last ones of another number are done again: the last 64 by themselves.
inline constexpr std::int64_t kTailTokens = 64;

// What the kernels read (codes.cuh). Pointers are device memory.
struct QuantizeArgs {
  const void* in;              // bf16 [m, k]
  std::uint8_t* codes;         // [m, k]
  float* scales;               // [m]; in groups [ceil(k / 128), first]: those of tokens below `first`
  float* tail;                 // in groups [ceil(k / 128), kTailTokens]: those of the last tokens; null: none
  std::int64_t in_stride;
  std::int32_t m, k, first, aligned;  // aligned: eight inputs are 16 aligned bytes
  std::int32_t kind;                  // qe::Activation::Kind: e4m3_static, e4m3_token or e4m3_group
  float scale, bound;
};
// Rows [first, first + rows) of the layer, whole strips, as they are in the checkpoint.
struct CodesArgs {
  const std::uint8_t* units;
  std::uint8_t* out;           // [rows, k]
  float* scales;               // [ceil(rows / 128), scale_stride], null: the format has row factors
  std::int64_t first, rows;
  std::int32_t k, width, unit_bytes, scale_stride;
};

// Where the code of (row, column) of a unit lies, of codes of 8 bits with records no narrower than 32 columns: 16 bytes of
// a lane are eight columns of row g, and between them those of row g + 8.
constexpr int code_byte(int row, int column) { return column / 32 * 512 + (4 * (row % 8) + column % 32 / 8) * 16 + 2 * (column % 8) + row / 8; }

// What a format says about its scales.
struct CodesPart {
  Activation activation;
  std::int64_t rows_per_scale = 1;  // rows under one scale; 0: all
};

struct CodesPlan {
  bool on = false, blocks = false, apart = false;  // apart: a product for each part
  std::int64_t n = 0, k = 0, m_max = 0;

  std::int64_t groups() const { return (k + kScaleBlock - 1) / kScaleBlock; }
  std::int64_t scale_stride() const { return (groups() + 3) / 4 * 4; }
  std::int64_t panel_rows() const { return std::max<std::int64_t>(kScaleBlock, std::min((n + kScaleBlock - 1) / kScaleBlock * kScaleBlock, kCodePanelBytes / k / kScaleBlock * kScaleBlock)); }
  // Most tokens that are quantized together, and how m of them are cut: slice i is [cut(m, i), cut(m, i + 1)).
  std::int64_t most_tokens() const { return std::max<std::int64_t>(1024, std::min((m_max + 63) / 64, kTokenBytes / k / 64) * 64); }
  std::int64_t slices(std::int64_t m) const { return m <= most_tokens() ? 1 : (m + most_tokens() - 65) / (most_tokens() - 64); }
  std::int64_t cut(std::int64_t m, std::int64_t i) const { return i == slices(m) ? m : m * i / slices(m) / 64 * 64; }

  // The workspace: panel | scales of its blocks | codes of tokens | their scales | those of the last once more.
  static std::uint64_t whole(std::int64_t bytes) { return std::uint64_t(bytes + 255) / 256 * 256; }
  std::uint64_t panel_scales_at() const { return whole(panel_rows() * k); }
  std::uint64_t tokens_at() const { return panel_scales_at() + (blocks ? whole(panel_rows() / kScaleBlock * scale_stride() * 4) : 0); }
  std::uint64_t token_scales_at() const { return tokens_at() + whole(most_tokens() * k); }
  std::uint64_t tail_scales_at() const { return token_scales_at() + whole(most_tokens() * (blocks ? groups() : 1) * 4); }
  std::uint64_t bytes() const { return tail_scales_at() + (blocks ? whole(kTailTokens * groups() * 4) : 0); }
};

// `parts` have one format with kernels for codes.
inline CodesPlan plan_codes(int sm, const qe_layer& l, const std::vector<Layout>& parts, const std::vector<CodesPart>& scales) {
  CodesPlan p;
  if (parts.empty() || !(l.flags & QE_LAYER_ACT_QUANT) || (l.flags & QE_LAYER_EXACT) || sm < 89) return p;
  p.k = parts[0].k;
  p.m_max = l.m_max;
  p.blocks = !parts[0].row;
  p.apart = sm != 90;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Layout& a = parts[i];
    const CodesPart& s = scales[i];
    if (a.mapped || a.k % 16 || a.n % 16 || a.n == 0 || a.k == 0) return p;
    if (p.blocks) {
      // A group as wide as the row is said to be none.
      if (sm != 90 || a.run != kScaleBlock || s.rows_per_scale != kScaleBlock || !(a.group == kScaleBlock || (a.group == 0 && a.k <= kScaleBlock))) return p;
      if (s.activation.kind != Activation::e4m3_group || s.activation.group != kScaleBlock) return p;
      if (l.parts[i]->n_begin % kScaleBlock || l.k_begin % kScaleBlock) return p;
    } else {
      if (s.activation.kind != Activation::e4m3_static && s.activation.kind != Activation::e4m3_token) return p;
      if (sm != 90 && (s.activation.kind != Activation::e4m3_static || s.rows_per_scale != 0)) return p;
    }
    p.n += a.n;
  }
  p.on = true;
  return p;
}

// Rows that one product serves: parts side by side that see the same tokens.
struct Segment {
  std::int64_t first = 0, n = 0;
  Activation activation;
  bool one = false;  // one scale for all rows, and one for all tokens
};

// factor[i]: the scale of all rows of part i; NaN when they have several.
inline std::vector<Segment> segments_of(const CodesPlan& p, const std::vector<Layout>& parts, const std::vector<Activation>& activation, const std::vector<float>& factor) {
  std::vector<Segment> out;
  std::int64_t at = 0;
  float scale = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool fixed = activation[i].kind == Activation::e4m3_static;
    if (i && !p.apart && activation[i] == out.back().activation && (!p.blocks || out.back().n % kScaleBlock == 0)) {
      out.back().n += parts[i].n;
      out.back().one = out.back().one && factor[i] == scale;
    } else {
      scale = factor[i];
      out.push_back({at, parts[i].n, activation[i], !p.blocks && fixed && scale == scale});
    }
    at += parts[i].n;
  }
  return out;
}

}  // namespace qe::cuda
