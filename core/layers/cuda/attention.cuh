// The inner loop of attention: 16 query rows of one warp against runs of 16 keys. Decode has fewer rows and a loop of its
// own (attention_rows.cuh), which reads the same runs.
//
//   S[16 rows, 16 keys] = Q K^T;  P = softmax so far;  O[16 rows, D] += P V        mma.m16n8k16, bf16
//
// Rows are query heads that share a KV head, of several tokens, token-major.
//
// No shared memory on the way: each thread loads its share of K and V straight into the registers where
// the tensor cores want them. For that the order of the sum over dimensions (K) and the order of output
// columns (V) are chosen so that a thread's share is 8 neighbouring dimensions, one 16-byte load of bf16
// or 8 bytes of e4m3. With g = lane / 4, t = lane % 4:
//
//   K  chunk c of 32 dimensions: key g, dimensions 32c + 8t .. + 7. Words 0,1 feed the first k-step,
//      words 2,3 the second; Q is loaded in the same order, so the sum is over the same pairs.
//   V  chunk of 64 (or 32) dimensions: keys 2t, 2t+1, 2t+8, 2t+9, dimensions 8g .. 8g+7 (or 4g .. 4g+3);
//      column tile j takes the j-th of each thread's. A thread then holds whole runs of 8 (4) output
//      dimensions of rows g and g + 8.
//
// Runs that are not yet due wait in shared memory: each thread copies the words that it will read itself, so
// that nobody waits for another thread, and no order of banks matters.
//
// An e4m3 byte becomes bf16 by moving its bits and one exact product with 2^120; scales are folded into
// the scores and the output.
#pragma once

#include <cuda_fp8.h>

#include "core/layers/cuda/launch.cuh"

namespace qengine::cuda {

struct Words {  // 8 bf16
  unsigned w[4];
};

__device__ __forceinline__ unsigned two_e4m3(unsigned pair) {  // bytes 0 and 1 -> bf16x2
  const unsigned spread = (pair & 0xff) << 8 | (pair & 0xff00) << 16;  // each in the high byte of a half
  const unsigned bits = (spread & 0x80008000u) | (spread & 0x7f007f00u) >> 4;
  const __nv_bfloat162 big = __floats2bfloat162_rn(1.329227995784916e36f, 1.329227995784916e36f);  // 2^120
  __nv_bfloat162 v = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), big);
  return *reinterpret_cast<unsigned*>(&v);
}

template <KvType T>
inline constexpr int kElement = T == KvType::kBf16 ? 2 : 1;  // bytes

template <KvType T>
__device__ __forceinline__ Words load8(const void* base, std::int64_t at) {
  const char* from = static_cast<const char*>(base) + at * kElement<T>;
  Words r;
  if constexpr (T == KvType::kBf16) {
    const uint4 q = *reinterpret_cast<const uint4*>(from);
    r.w[0] = q.x, r.w[1] = q.y, r.w[2] = q.z, r.w[3] = q.w;
  } else {
    const uint2 q = *reinterpret_cast<const uint2*>(from);
    r.w[0] = two_e4m3(q.x), r.w[1] = two_e4m3(q.x >> 16), r.w[2] = two_e4m3(q.y), r.w[3] = two_e4m3(q.y >> 16);
  }
  return r;
}
template <KvType T>
__device__ __forceinline__ uint2 load4(const void* base, std::int64_t at) {
  if constexpr (T == KvType::kBf16) return *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(base) + at);
  const unsigned q = *reinterpret_cast<const unsigned*>(static_cast<const unsigned char*>(base) + at);
  return {two_e4m3(q), two_e4m3(q >> 16)};
}

__device__ __forceinline__ unsigned pack(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const unsigned*>(&v);
}

// Where a KV head's keys lie.
struct Keys {
  const void *k, *v;
  const std::int32_t* table;  // of this sequence
  std::int64_t block_stride, token_stride, head_offset;
  int block_tokens;
  // First element of a run of 16 keys; a run never crosses a block.
  __device__ __forceinline__ std::int64_t run(int key) const {
    const int block = key / block_tokens;
    return table[block] * block_stride + (key - block * block_tokens) * token_stride + head_offset;
  }
};

// Runs of 16 keys on their way into registers.
template <int D, KvType T>
struct KeyRuns {
  static constexpr int kChunks = D / 32;               // of K
  static constexpr int kWide = D / 64, kTail = D % 64; // of V; a tail is 32 wide
  static constexpr int kTiles = D / 8;                 // columns of the output, 8 each
  int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;

  // The key of the i-th of this thread's rows of V.
  __device__ __forceinline__ int value_of(int i) const { return 2 * t + (i & 1) + (i & 2) * 4; }
  // This thread's share of 16 keys.
  struct Run {
    Words k[2][kChunks];
    Words v[kWide > 0 ? kWide : 1][4];
    uint2 tail[4];
  };
  // f(piece, offset in the cache, elements) for this thread's share of keys key .. key + 15 in the order of Run; those of
  // values are counted on behind those of keys.
  template <class F>
  __device__ __forceinline__ void key_pieces(const Keys& keys, int key, F&& f) const {
    const std::int64_t at = keys.run(key);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) f(n * kChunks + c, at + (n * 8 + g) * keys.token_stride + c * 32 + t * 8);
  }
  template <class F>
  __device__ __forceinline__ void value_pieces(const Keys& keys, int key, F&& f) const {
    const std::int64_t at = keys.run(key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = at + value_of(i) * keys.token_stride;
#pragma unroll
      for (int w = 0; w < kWide; ++w) f(2 * kChunks + w * 4 + i, row + w * 64 + g * 8);
      if constexpr (kTail) f(2 * kChunks + kWide * 4 + i, row + kWide * 64 + g * 4);
    }
  }
  static constexpr int kEights = 2 * kChunks + 4 * kWide;  // pieces of 8 elements; a tail has 4 of 4
  // Keys key .. key + 15. Values from `end` on become zeros; what lies there may be anything.
  __device__ __forceinline__ void load_keys(Run& run, const Keys& keys, int key) const {
    key_pieces(keys, key, [&](int p, std::int64_t at) { run.k[p / kChunks][p % kChunks] = load8<T>(keys.k, at); });
  }
  __device__ __forceinline__ void load_values(Run& run, const Keys& keys, int key, int end) const {
    value_pieces(keys, key, [&](int p, std::int64_t at) {
      if (p < kEights) run.v[(p - 2 * kChunks) / 4][(p - 2 * kChunks) % 4] = load8<T>(keys.v, at);
      else run.tail[p - kEights] = load4<T>(keys.v, at);
    });
    clear_from(run, key, end);
  }
  // The same in two steps, by way of this thread's part of a place in shared memory.
  static constexpr int kRunBytes = 32 * kElement<T> * (8 * kEights + (kTail ? 16 : 0));
  __device__ __forceinline__ void ask(unsigned place, const Keys& keys, int key) const {
    const int lane = threadIdx.x % 32;
    const auto from = [](const void* base, std::int64_t at) { return static_cast<const char*>(base) + at * kElement<T>; };
    key_pieces(keys, key, [&](int p, std::int64_t at) { copy_async<8 * kElement<T>>(place + (p * 256 + lane * 8) * kElement<T>, from(keys.k, at)); });
    value_pieces(keys, key, [&](int p, std::int64_t at) {
      if (p < kEights) copy_async<8 * kElement<T>>(place + (p * 256 + lane * 8) * kElement<T>, from(keys.v, at));
      else copy_async<4 * kElement<T>>(place + (kEights * 256 + (p - kEights) * 128 + lane * 4) * kElement<T>, from(keys.v, at));
    });
  }
  __device__ __forceinline__ void take_keys(Run& run, const void* place) const {
#pragma unroll
    for (int p = 0; p < 2 * kChunks; ++p) run.k[p / kChunks][p % kChunks] = load8<T>(place, p * 256 + threadIdx.x % 32 * 8);
  }
  __device__ __forceinline__ void take_values(Run& run, const void* place, int key, int end) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < 4 * kWide; ++p) run.v[p / 4][p % 4] = load8<T>(place, (2 * kChunks + p) * 256 + lane * 8);
    if constexpr (kTail)
#pragma unroll
      for (int i = 0; i < 4; ++i) run.tail[i] = load4<T>(place, kEights * 256 + i * 128 + lane * 4);
    clear_from(run, key, end);
  }
  __device__ __forceinline__ void clear_from(Run& run, int key, int end) const {
    if (key + 16 <= end) return;  // 0 * NaN is no zero
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (key + value_of(i) < end) continue;
#pragma unroll
      for (int w = 0; w < kWide; ++w) run.v[w][i] = Words{};
      if constexpr (kTail) run.tail[i] = uint2{};
    }
  }
  // Key `n` of the run, if it has one, is k[0 .. D) and v[0 .. D), as the cache has them.
  __device__ __forceinline__ void replace_key(Run& run, int n, const void* k) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (half * 8 + g == n)
#pragma unroll
        for (int c = 0; c < kChunks; ++c) run.k[half][c] = load8<T>(k, c * 32 + t * 8);
  }
  __device__ __forceinline__ void replace_value(Run& run, int n, const void* v) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (value_of(i) != n) continue;
#pragma unroll
      for (int w = 0; w < kWide; ++w) run.v[w][i] = load8<T>(v, w * 64 + g * 8);
      if constexpr (kTail) run.tail[i] = load4<T>(v, kWide * 64 + g * 4);
    }
  }
};

template <int D, KvType T>
struct WarpAttention : KeyRuns<D, T> {
  using Runs = KeyRuns<D, T>;
  using Runs::kChunks, Runs::kWide, Runs::kTail, Runs::kTiles, Runs::g, Runs::t;
  using Run = typename Runs::Run;
  unsigned q[kChunks][2][4];
  float o[kTiles][4];
  float m[2], l[2];  // of rows g and g + 8: largest score (scaled, base 2), this thread's share of the sum
  __device__ __forceinline__ void begin() {
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0;
  }
  // Rows g and g + 8 of Q; null: a row of zeros.
  __device__ __forceinline__ void load_q(const __nv_bfloat16* low, const __nv_bfloat16* high) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Words a{}, b{};
      if (low) a = load8<KvType::kBf16>(low, c * 32 + t * 8);
      if (high) b = load8<KvType::kBf16>(high, c * 32 + t * 8);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        q[c][s][0] = a.w[2 * s], q[c][s][1] = b.w[2 * s];
        q[c][s][2] = a.w[2 * s + 1], q[c][s][3] = b.w[2 * s + 1];
      }
    }
  }

  // Keys key .. key + 15. lo, hi: what rows g and g + 8 see, [lo, hi). `len`: keys that were ever written;
  // what lies behind them may be anything. scale2: of scores, times log2 e.
  __device__ __forceinline__ void step(const Keys& keys, int key, int len, const int (&lo)[2], const int (&hi)[2], float scale2) {
    Run run;
    this->load_keys(run, keys, key);
    this->load_values(run, keys, key, len);
    float s[2][4] = {};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int k = 0; k < 2; ++k) mma(s[n], q[c][k][0], q[c][k][1], q[c][k][2], q[c][k][3], run.k[n][c].w[2 * k], run.k[n][c].w[2 * k + 1]);

    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2, at_key = key + n * 8 + 2 * t + i % 2;
        s[n][i] = at_key >= lo[r] && at_key < hi[r] ? s[n][i] * scale2 : -INFINITY;
        most[r] = fmaxf(most[r], s[n][i]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
      most[r] = fmaxf(most[r], m[r]);
    }
    const auto grew = [&](int r) { return m[r] > -INFINITY && most[r] > m[r]; };  // of nothing nothing is scaled
    if (__any_sync(~0u, grew(0) || grew(1))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float f = m[r] == -INFINITY ? 1.0f : exp2f(m[r] - most[r]);
        l[r] *= f;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) o[j][2 * r] *= f, o[j][2 * r + 1] *= f;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) m[r] = most[r];
    float p[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = m[i / 2] == -INFINITY ? 0.0f : exp2f(s[n][i] - m[i / 2]);
        l[i / 2] += p[n][i];
      }
    const unsigned a0 = pack(p[0][0], p[0][1]), a1 = pack(p[0][2], p[0][3]), a2 = pack(p[1][0], p[1][1]), a3 = pack(p[1][2], p[1][3]);
#pragma unroll
    for (int w = 0; w < kWide; ++w)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned pick = j % 2 ? 0x7632 : 0x5410;
        mma(o[w * 8 + j], a0, a1, a2, a3, __byte_perm(run.v[w][0].w[j / 2], run.v[w][1].w[j / 2], pick), __byte_perm(run.v[w][2].w[j / 2], run.v[w][3].w[j / 2], pick));
      }
    if constexpr (kTail)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned pick = j % 2 ? 0x7632 : 0x5410;
        const unsigned x0 = j < 2 ? run.tail[0].x : run.tail[0].y, x1 = j < 2 ? run.tail[1].x : run.tail[1].y, x2 = j < 2 ? run.tail[2].x : run.tail[2].y, x3 = j < 2 ? run.tail[3].x : run.tail[3].y;
        mma(o[kWide * 8 + j], a0, a1, a2, a3, __byte_perm(x0, x1, pick), __byte_perm(x2, x3, pick));
      }
  }
  // The sums of rows g and g + 8 over the four threads that share them.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] += __shfl_xor_sync(~0u, l[r], 1);
      l[r] += __shfl_xor_sync(~0u, l[r], 2);
    }
  }
  // f(dimension, value): every output this thread holds of row g (r = 0) or g + 8 (r = 1), runs of 8 or 4
  // neighbours one after another.
  template <class F>
  __device__ __forceinline__ void each(int r, F&& f) const {
#pragma unroll
    for (int w = 0; w < kWide; ++w)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int j = 0; j < 8; ++j) f(w * 64 + (2 * t + n) * 8 + j, o[w * 8 + j][2 * r + n]);
    if constexpr (kTail)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) f(kWide * 64 + (2 * t + n) * 4 + j, o[kWide * 8 + j][2 * r + n]);
  }
};

__device__ __forceinline__ Keys keys_of(const Attention& a, int seq, int kv_head) {
  return {a.pool.k, a.pool.v, a.block_table + seq * a.table_stride, a.pool.block_stride, a.pool.token_stride, kv_head * a.pool.head_stride, a.pool.block_tokens};
}

}  // namespace qengine::cuda
