// Kernels: the arithmetic between the products of a layer, on the CPU, in float32.
//
// Two builds of one source (kernels_impl.hpp): plain C++ and AVX2+FMA. Both work in vectors of eight
// with the same operations in the same order, so they agree bit for bit; the tests hold them to it,
// and both to a double-precision loop.
//
// Every function works on one row, or on the rows of one tile, and sums in an order that depends on
// absolute positions only: what else is in the batch, or how a prompt was cut, changes no bit.
//
// Thread-safe: no state.
#pragma once

#include <cstdint>

#include "core/kv/kv_dtype.hpp"

namespace qengine {

inline constexpr int kAttnTile = 128;  // keys whose softmax is taken together, from absolute multiples
inline constexpr int kAttnGroup = 16;  // keys side by side in the cache; a block is a multiple of it
inline constexpr int kAttnRows = 36;   // query rows (token, head) of one tile, at most

// One tile of keys against some query rows that share a KV head.
struct AttnTile {
  int rows = 0;
  const float* const* q = nullptr;   // [rows], each [head_dim], already scaled
  const std::int32_t* lo = nullptr;  // [rows] keys a row sees in this tile: [lo, hi) of 0..kAttnTile
  const std::int32_t* hi = nullptr;
  int head_dim = 0;
  int head_pad = 0;    // head_dim rounded up to 8: length of a row of v and acc
  int block_size = 0;  // distance between two dimensions of k
  const void* k[kAttnTile / kAttnGroup];  // per group: [head_dim] rows of block_size, 16 of them ours
  const void* v[kAttnTile / kAttnGroup];  // per group: [16][head_pad]
  float* m = nullptr;    // out [rows] largest score
  float* l = nullptr;    // out [rows] sum of exp(score - m)
  float* acc = nullptr;  // out [rows][head_pad] sum of exp(score - m) * v
};

struct Argmax {
  std::int32_t index = 0;  // lowest of equals
  float value = 0;
  bool finite = true;      // every element is
};

struct Kernels {
  const char* name;

  // out = x / sqrt(mean(x^2) + eps) * w. out may be x.
  void (*rms_norm)(const float* x, const float* w, float eps, std::int64_t n, float* out);
  void (*add)(float* x, const float* y, std::int64_t n);  // x += y
  // gate = act(gate) * up
  void (*silu_mul)(float* gate, const float* up, std::int64_t n);
  void (*gelu_tanh_mul)(float* gate, const float* up, std::int64_t n);
  // Rotates the pairs (i, i + half) of x, then multiplies both by `scale`.
  void (*rope)(float* x, const float* cos, const float* sin, float scale, std::int64_t half);
  void (*scale)(float* x, float s, std::int64_t n);

  // One token's head, rounded to `dtype`: k goes to dst[i * stride], v to dst[0 .. head_pad).
  void (*store_k)(KvDtype dtype, const float* k, std::int64_t head_dim, std::int64_t stride, void* dst);
  void (*store_v)(KvDtype dtype, const float* v, std::int64_t head_dim, std::int64_t head_pad, void* dst);
  void (*attn_tile)(KvDtype dtype, const AttnTile& tile);
  // Adds one row of a tile to a running row: (m, l, acc) <- both. l == 0 and m == -inf: nothing yet.
  void (*attn_merge)(float* m, float* l, float* acc, float tile_m, float tile_l, const float* tile_acc, std::int64_t n);

  // Rounds to float16 and back, as a float16 engine would hold it; returns the largest |x| before.
  float (*round_f16)(float* x, std::int64_t n);
  float (*amax)(const float* x, std::int64_t n);  // NaN if any element is NaN

  Argmax (*argmax)(const float* x, std::int64_t n);
  // sum of exp((x - shift) * scale), lanes in order; out (may be null) receives the terms.
  double (*sum_exp)(const float* x, float shift, float scale, std::int64_t n, float* out);
};

const Kernels& kernels();       // the best this machine runs
const Kernels& kernels_ref();   // plain C++
const Kernels* kernels_avx2();  // null where it does not run

}  // namespace qengine
