// The inner loop of decode: up to 8 query rows of one warp against runs of 16 keys, which are the tall side of both products.
//
//   S^T[16 keys, 8 rows] = K Q^T;  P = softmax so far;  O^T[D, 8 rows] += V^T P^T        mma.m16n8k16, bf16
//
// A group of heads is seldom larger than 8, and 16 rows would be half empty: twice the products, exponentials and registers.
// A thread holds keys g and g + 8 of rows 2t and 2t + 1, and of those rows runs of 8 (4) output dimensions. P^T becomes an
// operand by a transposition within the warp (movmatrix). Fragments of K and V are those of attention.cuh.
#pragma once

#include "core/layers/cuda/attention.cuh"

namespace qengine::cuda {

inline constexpr int kDecodeRows = 8;

// An 8x8 matrix of 16 bits, two to a thread.
__device__ __forceinline__ unsigned transposed(unsigned v) {
  unsigned r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

template <int D, KvType T>
struct WarpRows : KeyRuns<D, T> {
  using Runs = KeyRuns<D, T>;
  using Runs::kChunks, Runs::kWide, Runs::kTail, Runs::kTiles, Runs::g, Runs::t;
  using Run = typename Runs::Run;
  unsigned q[kChunks][2][2];
  float o[kTiles / 2][4];
  float m[2], l[2];  // of rows 2t and 2t + 1: largest score (scaled, base 2), the sum over this thread's keys

  __device__ __forceinline__ void begin() {
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0;
  }
  // Row g of Q; null: a row of zeros.
  __device__ __forceinline__ void load_q(const __nv_bfloat16* row) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Words a{};
      if (row) a = load8<KvType::kBf16>(row, c * 32 + t * 8);
#pragma unroll
      for (int s = 0; s < 2; ++s) q[c][s][0] = a.w[2 * s], q[c][s][1] = a.w[2 * s + 1];
    }
  }
  // Keys key .. key + 15, of which every row sees [lo, hi). scale2: of scores, times log2 e. between(): after the keys were
  // used, before the values are.
  template <class F>
  __device__ __forceinline__ void multiply(const Run& run, int key, int lo, int hi, float scale2, F&& between) {
    float part[2][4] = {};  // two sums, so that a product need not wait for the one before it
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int k = 0; k < 2; ++k) mma(part[k], run.k[0][c].w[2 * k], run.k[1][c].w[2 * k], run.k[0][c].w[2 * k + 1], run.k[1][c].w[2 * k + 1], q[c][k][0], q[c][k][1]);
    float s[4], most[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = key + g + i / 2 * 8;
      s[i] = at >= lo && at < hi ? (part[0][i] + part[1][i]) * scale2 : -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(s[r], s[2 + r]);
#pragma unroll
      for (int x = 4; x < 32; x *= 2) most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], x));
      most[r] = fmaxf(most[r], m[r]);
    }
    const auto grew = [&](int r) { return m[r] > -INFINITY && most[r] > m[r]; };  // of nothing nothing is scaled
    if (__any_sync(~0u, grew(0) || grew(1))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float f = m[r] == -INFINITY ? 1.0f : exp2f(m[r] - most[r]);
        l[r] *= f;
#pragma unroll
        for (int j = 0; j < kTiles / 2; ++j) o[j][r] *= f, o[j][2 + r] *= f;
      }
    }
    float p[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) m[r] = most[r];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = m[i % 2] == -INFINITY ? 0.0f : exp2f(s[i] - m[i % 2]);
      l[i % 2] += p[i];
    }
    const unsigned b0 = transposed(pack(p[0], p[1])), b1 = transposed(pack(p[2], p[3]));
    between();
    const auto add = [&](int tile, unsigned v0, unsigned v1, unsigned v2, unsigned v3) {  // a word: two dimensions of a key
      mma(o[tile], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632), b0, b1);
    };
#pragma unroll
    for (int w = 0; w < kWide; ++w)
#pragma unroll
      for (int j = 0; j < 4; ++j) add(w * 4 + j, run.v[w][0].w[j], run.v[w][1].w[j], run.v[w][2].w[j], run.v[w][3].w[j]);
    if constexpr (kTail) {
      add(kWide * 4, run.tail[0].x, run.tail[1].x, run.tail[2].x, run.tail[3].x);
      add(kWide * 4 + 1, run.tail[0].y, run.tail[1].y, run.tail[2].y, run.tail[3].y);
    }
  }
  // Row r to rows + r * kRow: o [D], m, l. kRow: a multiple of 4; rows: aligned to 16 bytes.
  template <int kRow>
  __device__ __forceinline__ void store(float* rows, int count) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int x = 4; x < 32; x *= 2) l[r] += __shfl_xor_sync(~0u, l[r], x);
      if (2 * t + r >= count) continue;
      float* to = rows + (2 * t + r) * kRow;
      const auto put = [&](int dim, int tile) { *reinterpret_cast<float4*>(to + dim) = make_float4(o[tile][r], o[tile][2 + r], o[tile + 1][r], o[tile + 1][2 + r]); };
#pragma unroll
      for (int w = 0; w < kWide; ++w) put(w * 64 + g * 8, w * 4), put(w * 64 + g * 8 + 4, w * 4 + 2);
      if constexpr (kTail) put(kWide * 64 + g * 4, kWide * 4);
      if (g == 0) to[D] = m[r], to[D + 1] = l[r];
    }
  }
};

}  // namespace qengine::cuda
