// qe/cuda/wide_gemm.cuh: out[m, n] = in[m, k] * W^T for 17 to 64 tokens, weights read once. For sm_90 and later.
//
// Tokens no longer fit a block's shared memory, so they pass through it: four stages of one unit of columns, copied by
// all threads three steps ahead, a barrier a step. A warp has one or two strips (work.hpp, plan_wide), whose units come
// through a ring of its own as in stream_gemm.cuh, and multiplies each by all tokens; the two strips share what is read
// of the tokens. More strips than a block's warps take at once are passes, which the rings run through. The sums of
// inputs that zero points need are made once a block: warp w those of tile w, a step ahead.
//
// Blocks of a cluster have slices of the units; at the end each adds up a share of the outputs, in the order of blocks.
// With ACT_MUL a warp's two strips are those of gate and up. No norm here.
#pragma once

#include <qe/cuda/stream_gemm.cuh>

namespace qe::cuda {

template <class F, int Run>
__global__ void __launch_bounds__(kWideWarps * 32, 1) wide_gemm(const __grid_constant__ StreamArgs a, const __grid_constant__ StreamShared at,
                                                               const __grid_constant__ StreamTable<F> values) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using D = Decode<F>;
  using M = typename F::Meta;
  constexpr int UB = kUnitBytes<F, Run>, kThreads = kWideWarps * 32, kRow = wide_token_bytes(Run), kStage = kWideTokens * kRow;
  constexpr int kSpans = Run ? kUnit / Run : 1, kTiles = kWideTokens / 8;
  constexpr bool kOnce = Run == 0;  // accumulators run through the whole strip
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint16_t table[D::kTableSize ? D::kTableSize : 1];
  if (a.pdl) pdl_launch();
  int tid = threadIdx.x;
  asm volatile("" : "+r"(tid));
  const int warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int slices = a.slices, clusters = gridDim.x / slices, cluster = blockIdx.x / slices, slice = blockIdx.x - cluster * slices;
  const int items = a.pairs ? a.strips / 2 : a.strips;
  const int item0 = items * cluster / clusters, count = items * (cluster + 1) / clusters - item0;
  const int unit0 = a.width * slice / slices, width = a.width * (slice + 1) / slices - unit0;
  const int each = a.pairs ? kWideWarps : 2 * kWideWarps, passes = (count + each - 1) / each, steps = passes * width;
  // The strips of this warp in a pass: how many, and which of the layer (pairs: strips of gate and up by turns).
  const auto strips_in = [&](int pass) {
    const int left = count - pass * each - warp;
    return left <= 0 ? 0 : a.pairs || left > kWideWarps ? 2 : 1;
  };
  const auto strip_of = [&](int pass, int i) { return a.pairs ? 2 * (item0 + pass * each + warp) + i : item0 + pass * each + warp + i * kWideWarps; };

  // ---- before the wait: weights, tables ------------------------------------------------------------------------
  const int slot_bytes = a.batch * UB;
  const uint8_t* ring = shared + warp * a.depth * slot_bytes;
  const uint32_t ring_at = shared_address(ring), bars = shared_address(shared) + kWideWarps * a.depth * slot_bytes + warp * a.depth * 8;
  int fetched = 0, fetch_pass = 0, fetch_unit = 0;
  const auto fetch = [&](int slot) {
    if (fetched == steps) return;
    ++fetched;
    if (lane == 0) {
      const int n = strips_in(fetch_pass);
      barrier_expect(bars + slot * 8, n * UB);
      for (int i = 0; i < n; ++i) {
        const int strip = strip_of(fetch_pass, i);
        const int64_t where = a.pairs ? (strip & 1) * items + (strip >> 1) : strip;  // in memory
        bulk_copy(ring_at + slot * slot_bytes + i * UB, a.units + (where * a.width + unit0 + fetch_unit) * UB, UB, bars + slot * 8);
      }
    }
    if (++fetch_unit == width) fetch_unit = 0, ++fetch_pass;
  };
  if (lane < a.depth) barrier_init(bars + lane * 8);
  barrier_fence();
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < a.depth; ++i) fetch(i);
  if constexpr (D::kTable)
    for (int i = tid; i < D::kTableSize; i += kThreads) table[i] = values.v[i];
  if (a.pdl) pdl_wait();

  // ---- tokens ----------------------------------------------------------------------------------------------------
  uint8_t* tokens = shared + at.tokens;
  float* sums = reinterpret_cast<float*>(shared + at.squares);  // [step & 1][span][token]
  const __nv_bfloat16* in = static_cast<const __nv_bfloat16*>(a.in);
  const bool copied = a.aligned && !a.map;
  int staged = 0, stage_unit = 0;
  const auto stage = [&] {  // the next unit of all tokens
    if (staged < steps) {
      uint8_t* to = tokens + (staged & 3) * kStage;
      for (int i = tid; i < a.m * 16; i += kThreads) {
        const int token = i >> 4, chunk = i & 15, column = (unit0 + stage_unit) * kUnit + chunk * 8;
        const __nv_bfloat16* from = in + int64_t(token) * a.in_stride;
        uint8_t* here = to + token * kRow + chunk * 16;
        if (copied && column + 8 <= a.k) copy16(shared_address(here), from + column);
        else *reinterpret_cast<uint4*>(here) = gather8(a, from, column);
      }
      ++staged;
      if (++stage_unit == width) stage_unit = 0;
    }
    commit_copies();
  };
  constexpr uint32_t kOnes = 0x3f803f80u;
  const int lane_at = g * kRow + t * (Run == 16 ? 8 : 16);
  const auto add_up = [&](int step) {  // sums of the inputs of tile `warp`
    if (step >= steps || warp * 8 >= a.m) return;
    const uint8_t* x = tokens + (step & 3) * kStage + warp * 8 * kRow + lane_at;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    float c[4] = {};
    unrolled<8>([&](auto s) {
      constexpr int S = decltype(s)::value;
      uint32_t b0, b1;
      if constexpr (Run == 16) {
        const uint2 v = *reinterpret_cast<const uint2*>(x + S * 32);
        b0 = v.x, b1 = v.y;
      } else {
        const uint2 v = *reinterpret_cast<const uint2*>(x + S / 2 * 64 + S % 2 * 8);
        b0 = v.x, b1 = v.y;
      }
      mma(c, ones, b0, b1);
      if constexpr ((S + 1) * 16 % (kUnit / kSpans) == 0) {
        constexpr int kSpan = S * 16 / (kUnit / kSpans);
        if (g == 0) *reinterpret_cast<float2*>(sums + ((step & 1) * kSpans + kSpan) * kWideTokens + warp * 8 + 2 * t) = make_float2(c[0], c[1]);
        c[0] = c[1] = c[2] = c[3] = 0.0f;
      }
    });
  };
  for (int i = 0; i < 3; ++i) stage();
  if constexpr (D::kSums) {
    wait_copies<2>();
    __syncthreads();
    add_up(0);
  }

  // ---- main loop -------------------------------------------------------------------------------------------------
  const bool upper = a.m > kWideTokens / 2;
  float acc[2][kTiles][4] = {}, y[2][kTiles][4] = {};
  // f(tile) for those that have tokens; half of them at a time, so that the code stays straight.
  const auto tiles = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) f(i);
    if (upper)
#pragma unroll
      for (int i = kTiles / 2; i < kTiles; ++i) f(i);
  };
  // One unit of N strips. x: this lane's place among the tokens; sum: those of this step.
  const auto multiply = [&](auto n, const uint8_t* unit, const uint8_t* x, const float* sum) {
    constexpr int N = decltype(n)::value, kSteps = Run == 16 ? 1 : 2;  // k-steps that one read of a token feeds
    Words<typename F::Planes> words[N];
    unrolled<8 / kSteps>([&](auto p) {
      constexpr int P = decltype(p)::value;
      uint32_t A[N][kSteps][D::kParts][4];
#pragma unroll
      for (int i = 0; i < N; ++i)
        unrolled<kSteps>([&](auto j) {
          constexpr int S = P * kSteps + decltype(j)::value;
          words[i].template load<S>(unit + i * UB, lane);
          raw<F, S>(words[i], table, A[i][decltype(j)::value]);
        });
      tiles([&](int tile) {
        uint32_t b[kSteps][2];
        if constexpr (Run == 16) {
          const uint2 v = *reinterpret_cast<const uint2*>(x + tile * 8 * kRow + P * 32);
          b[0][0] = v.x, b[0][1] = v.y;
        } else {
          const uint4 v = *reinterpret_cast<const uint4*>(x + tile * 8 * kRow + P * 64);
          b[0][0] = v.x, b[0][1] = v.y, b[kSteps - 1][0] = v.z, b[kSteps - 1][1] = v.w;
        }
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
          for (int j = 0; j < kSteps; ++j)
#pragma unroll
            for (int part = 0; part < D::kParts; ++part) mma(acc[i][tile], A[i][j][part], b[j][0], b[j][1]);
      });
      if constexpr (!kOnce && (P + 1) * kSteps * 16 % Run == 0) {
        constexpr int kSpan = P * kSteps * 16 / Run;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const TwoTerms terms = two_terms<F>(unit + i * UB, g, kSpan);
          float scale[2], add[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            scale[h] = meta_has_scale<M> ? terms.of[h].scale : 1.0f;
            add[h] = D::kAdd;
            if constexpr (meta_has_zero<M>) add[h] -= terms.of[h].zero;
            add[h] *= scale[h];
            if constexpr (meta_has_offset<M>) add[h] += terms.of[h].offset;
          }
          tiles([&](int tile) {
            float2 s{};
            if constexpr (D::kSums) s = *reinterpret_cast<const float2*>(sum + kSpan * kWideTokens + tile * 8 + 2 * t);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float v = acc[i][tile][j];
              if constexpr (D::kUnitScale != 1.0f) v *= D::kUnitScale;
              y[i][tile][j] = fmaf(scale[j >> 1], v, y[i][tile][j]);
              if constexpr (D::kSums) y[i][tile][j] = fmaf(add[j >> 1], j & 1 ? s.y : s.x, y[i][tile][j]);
              acc[i][tile][j] = 0.0f;
            }
          });
        }
      }
    });
    if constexpr (kOnce && D::kSums)
      tiles([&](int tile) {
        const float2 s = *reinterpret_cast<const float2*>(sum + tile * 8 + 2 * t);
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) y[i][tile][j] = fmaf(D::kAdd, j & 1 ? s.y : s.x, y[i][tile][j]);
      });
  };
  const auto leave = [&](int i, int tile, int j) {  // a sum, and its place is empty
    float v = y[i][tile][j];
    if constexpr (kOnce) v += acc[i][tile][j] * D::kUnitScale;
    y[i][tile][j] = acc[i][tile][j] = 0.0f;
    return v;
  };

  int slot = 0, unit = 0, pass = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<1>();
    __syncthreads();  // this stage and the next are there, and nobody reads the one before this any more
    stage();
    if constexpr (D::kSums) add_up(step + 1);
    const int mine = strips_in(pass);
    barrier_wait(bars + slot * 8, parity);
    const uint8_t *from = ring + slot * slot_bytes, *x = tokens + (step & 3) * kStage + lane_at;
    const float* sum = sums + (step & 1) * kSpans * kWideTokens;
    if (mine == 2) multiply(Int<2>{}, from, x, sum);
    else if (mine == 1) multiply(Int<1>{}, from, x, sum);
    __syncwarp();  // every lane has its registers: the slot is free
    fetch(slot);
    if (++slot == a.depth) slot = 0, parity ^= 1;
    if (++unit < width) continue;
    unit = 0;
    if (slices == 1) {  // strips that are complete
      float factor[2][2], bias[2][2];
      int column[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          column[i][h] = -1, factor[i][h] = 1.0f, bias[i][h] = 0.0f;
          if (i >= mine) continue;
          const int strip = strip_of(pass, i), row = g + 8 * h;
          column[i][h] = column_of_row(a, strip, row);
          if constexpr (HasRowScale<F>) factor[i][h] = device_row_factor<F>(a.row[(a.pairs ? (strip & 1) * items + (strip >> 1) : strip) * kStrip + row]);
          if (a.bias && column[i][h] >= 0) bias[i][h] = number_at(a.bias, column[i][h], a.bias_f32);
        }
      tiles([&](int tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int token = tile * 8 + 2 * t + (j & 1), h = j >> 1;
          const float v0 = fmaf(leave(0, tile, j), factor[0][h], bias[0][h]), v1 = fmaf(leave(1, tile, j), factor[1][h], bias[1][h]);
          if (token >= a.m) continue;
          if (a.pairs) {
            if (column[0][h] >= 0) write_number(a, token, column[0][h], gated(a.pairs, v0, v1));
            continue;
          }
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (const int c = column[i][h]; c >= 0) {
              const float v = i ? v1 : v0;
              write_number(a, token, c, a.residual ? v + number_at(a.residual, int64_t(token) * a.residual_stride + c, a.residual_f32) : v);
            }
        }
      });
      ++pass;
    }
  }
  if (slices == 1) return;

  // ---- slices, in the order of blocks: one pass, where the tokens were ------------------------------------------------
  const int total = count * a.m * 16, shift = share_shift(total, slices);
  float* peers = reinterpret_cast<float*>(tokens);
  cluster_arrive();
  cluster_wait();  // nobody reads tokens any more
  const int mine = strips_in(0);
  tiles([&](int tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = tile * 8 + 2 * t + (j & 1);
        const float v = leave(i, tile, j);
        if (i >= mine || token >= a.m) continue;
        const int o = ((warp + i * kWideWarps) * a.m + token) * 16 + g + 8 * (j >> 1), owner = o >> shift;
        store_in_cluster(peers + (slice << shift) + (o & ((1 << shift) - 1)), uint32_t(owner), v);
      }
  });
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  for (int i = tid; i < 1 << shift && (slice << shift) + i < total; i += kThreads) {
    float v = 0.0f;
    for (int s = 0; s < slices; ++s) v += peers[(s << shift) + i];
    const int o = (slice << shift) + i, item = o >> 4, row = o & 15, strip = item0 + int(unsigned(item) * a.by_m >> 16), token = item - (strip - item0) * a.m;
    const int column = column_of_row(a, strip, row);
    if (column < 0) continue;
    if constexpr (HasRowScale<F>) v *= device_row_factor<F>(a.row[strip * kStrip + row]);
    if (a.bias) v += number_at(a.bias, column, a.bias_f32);
    if (a.residual) v += number_at(a.residual, int64_t(token) * a.residual_stride + column, a.residual_f32);
    write_number(a, token, column, v);
  }
#endif
}

}  // namespace qe::cuda
