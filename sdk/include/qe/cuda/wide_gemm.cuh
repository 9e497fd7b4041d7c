// qe/cuda/wide_gemm.cuh: out[m, n] = in[m, k] * W^T for 17 to 64 tokens, weights read once. For sm_90 and later.
//
// Tokens no longer fit a block's shared memory, so they pass through it, a unit of columns a step. A warp has one strip,
// whose units come through a ring of its own as in stream_gemm.cuh, and multiplies it by all tokens. More strips than
// warps that have some (kWideOwners) are passes, which the rings run through. Blocks begin at different units: all of
// them read the same tokens, and so not at the same moment. Scales multiply accumulators at the end of each span under
// one record.
//
// On sm_90a the products are those of warpgroups: A from registers as decoding leaves it, B the tokens, which four warps
// without strips spread over shared memory in the order that the container has columns (container.hpp), three units
// ahead. Zero points are taken off the codes, exactly. Elsewhere, and for weights that are sums of several bf16, products
// are mma.m16n8k16, all warps copy tokens, and there is a barrier a step. Offsets need the sums of inputs, which are made
// once a block.
//
// Blocks of a cluster have slices of the units; at the end each adds up a share of the outputs, in the order of blocks.
// With ACT_MUL neighbouring warps have the strips of gate and up, and the second hands its outputs to the first. No
// norm here.
#pragma once

#include <qe/cuda/stream_gemm.cuh>

namespace qe::cuda {

template <class F, int Run>
__global__ void __launch_bounds__(kWideWarps * 32, 1) wide_gemm(const __grid_constant__ StreamArgs a, const __grid_constant__ StreamShared at,
                                                               const __grid_constant__ StreamTable<F> values) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using D = Decode<F>;
  using M = typename F::Meta;
  constexpr int UB = kUnitBytes<F, Run>, kThreads = kWideWarps * 32, kTiles = kWideTokens / 8, kSpans = Run ? kUnit / Run : 1;
  constexpr bool kOnce = Run == 0;  // accumulators run through the whole strip
  constexpr bool kGroups = QE_WARPGROUPS && D::kParts == 1, kFolds = kGroups && D::kFolds, kSums = D::kSums && !kFolds;
  constexpr int kRow = kGroups ? 256 : wide_token_bytes(Run), kStage = kWideTokens * kRow;  // a token's unit, and that of all
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint16_t table[D::kTableSize ? D::kTableSize : 1];
  if (a.pdl == kPdlEarly) pdl_launch();
  // Shuffled, so that the compiler keeps them in registers: making them again inside the loop is slow.
  const int tid = __shfl_sync(~0u, threadIdx.x, threadIdx.x & 31);
  const uint32_t base = __shfl_sync(~0u, shared_address(shared), 0);
  const int warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int slices = a.slices, clusters = gridDim.x / slices, cluster = blockIdx.x / slices, slice = blockIdx.x - cluster * slices;
  // Strips that this cluster has; with pairs strip 2i is strip i of gate and strip 2i + 1 that of up.
  const int pair = a.pairs ? 2 : 1, items = a.strips / pair;
  const int strip0 = items * cluster / clusters * pair, count = items * (cluster + 1) / clusters * pair - strip0;
  const int unit0 = a.width * slice / slices, width = a.width * (slice + 1) / slices - unit0;
  const int passes = (count + kWideOwners - 1) / kWideOwners, steps = passes * width;
  const int first_unit = int(int64_t(cluster) * width / clusters);
  const auto stored = [&](int strip) { return a.pairs ? (strip & 1) * items + (strip >> 1) : strip; };  // where it lies in memory

  // ---- before the wait: weights, tables ------------------------------------------------------------------------
  const uint8_t* ring = shared + warp * a.depth * UB;
  const uint32_t ring_at = base + warp * a.depth * UB, bars = base + kWideOwners * a.depth * UB + warp * a.depth * 8;
  const bool owner = warp < kWideOwners;
  const auto strip_at = [&](int strip) { return a.units + (int64_t(stored(strip0 + strip)) * a.width + unit0) * UB; };
  int fetched = 0, fetch_strip = warp, fetch_unit = first_unit;
  const uint8_t* from = strip_at(min(warp, count - 1)) + first_unit * UB;
  const auto fetch = [&](int slot) {
    if (fetched == steps) return;
    ++fetched;
    if (lane == 0 && fetch_strip < count) {
      barrier_expect(bars + slot * 8, UB);
      bulk_copy(ring_at + slot * UB, from, UB, bars + slot * 8);
    }
    from += UB;
    if (++fetch_unit == width) fetch_unit = 0, from -= width * UB;
    if (fetch_unit == first_unit && passes > 1) fetch_strip += kWideOwners, from = strip_at(min(fetch_strip, count - 1)) + first_unit * UB;
  };
  // Of stages: that they are spread, that they were read.
  const uint32_t spread_gate = base + at.tiles, read_gate = spread_gate + kWideStages * 8;
  if (owner && lane < a.depth) barrier_init(bars + lane * 8, 1);
  if (kGroups && tid < kWideStages) barrier_init(spread_gate + tid * 8, kThreads - kWideOwners * 32), barrier_init(read_gate + tid * 8, kWideOwners);
  barrier_fence();
  __syncwarp();
  if (owner)
#pragma unroll 1
    for (int i = 0; i < a.depth; ++i) fetch(i);
  if constexpr (D::kTable)
    for (int i = tid; i < D::kTableSize; i += kThreads) table[i] = values.v[i];
  __syncthreads();
  if (a.pdl) pdl_wait();
  if (a.pdl == kPdlLate) pdl_launch();

  // ---- tokens ----------------------------------------------------------------------------------------------------
  uint8_t* tokens = shared + at.tokens;
  if constexpr (kGroups) tokens += -(base + at.tokens) & 1023;
#if QE_WARPGROUPS
  const uint64_t tokens_operand = group_operand((base + at.tokens + 1023) & ~1023u);
#endif
  float* sums = reinterpret_cast<float*>(shared + at.squares);  // [stage][span][token]
  const __nv_bfloat16* in = static_cast<const __nv_bfloat16*>(a.in);
  const bool copied = a.aligned && !a.map;
  int staged = 0, stage_unit = first_unit;
  const int lane_at = g * kRow + t * (Run == 16 ? 8 : 16);
  const auto receive = [&] {  // without warpgroups: the next unit of all tokens
    if (staged < steps) {
      uint8_t* to = tokens + staged % kWideStages * kStage;
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
  const auto add_up = [&](int step) {  // the same: sums of the inputs of tile `warp`
    if (step >= steps || warp * 8 >= a.m) return;
    const uint8_t* x = tokens + step % kWideStages * kStage + warp * 8 * kRow + lane_at;
    constexpr uint32_t kOnes = 0x3f803f80u;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    float c[4] = {};
    unrolled<8>([&](auto s) {
      constexpr int S = decltype(s)::value;
      const uint2 v = *reinterpret_cast<const uint2*>(Run == 16 ? x + S * 32 : x + S / 2 * 64 + S % 2 * 8);
      mma(c, ones, v.x, v.y);
      if constexpr ((S + 1) * 16 % (kUnit / kSpans) == 0) {
        constexpr int kSpan = S * 16 / (kUnit / kSpans);
        if (g == 0) *reinterpret_cast<float2*>(sums + (step % kWideStages * kSpans + kSpan) * kWideTokens + warp * 8 + 2 * t) = make_float2(c[0], c[1]);
        c[0] = c[1] = c[2] = c[3] = 0.0f;
      }
    });
  };
  // What the four warps without strips do. A thread copies eight chunks of 8 columns of each unit to a place of its own
  // and spreads them from there: column 8t + 2r of 32 (4t + 2r of 16) goes to pair t of chunk r.
  const auto supply = [&] {
    constexpr int kSpreaders = kThreads - kWideOwners * 32, kChunks = kWideTokens * 16 / kSpreaders;
    const int me = tid - kWideOwners * 32, part0 = me % 8, token0 = me / 8;  // chunk i: part0 + i % 2 * 8 of token token0 + i / 2 * 16
    uint8_t* const inbox = tokens + kWideStages * kStage + me * 16;
    const char* from[kChunks / 2];
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) from[i] = reinterpret_cast<const char*>(in + int64_t(token0 + i * (kSpreaders / 8)) * a.in_stride) + part0 * 16;
    const auto take = [&] {
      if (staged < steps) {
        uint8_t* to = inbox + staged % 3 * kStage;
        const int column = (unit0 + stage_unit) * kUnit;
        if (copied && column + kUnit <= a.k) {
#pragma unroll
          for (int i = 0; i < kChunks; ++i)
            if (token0 + i / 2 * (kSpreaders / 8) < a.m) copy16(shared_address(to + i * kSpreaders * 16), from[i / 2] + column * 2 + i % 2 * 128);
        } else {
#pragma unroll 1
          for (int i = 0; i < kChunks; ++i) {
            const int token = token0 + i / 2 * (kSpreaders / 8);
            if (token < a.m) *reinterpret_cast<uint4*>(to + i * kSpreaders * 16) = gather8(a, in + int64_t(token) * a.in_stride, column + (part0 + i % 2 * 8) * 8);
          }
        }
        ++staged;
        if (++stage_unit == width) stage_unit = 0;
      }
      commit_copies();
    };
    for (int i = 0; i < 3; ++i) take();
    // token0 + i / 2 * 16 has the same place among eight rows for all i.
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int chunk = Run == 16 ? part0 / 2 * 2 + j % 2 : part0 / 4 * 4 + j, at_word = Run == 16 ? part0 % 2 * 2 + j / 2 : part0 % 4;
      word[j] = (kGroups ? (base + at.tokens + 1023) & ~1023u : 0u) + token0 * 128 + ((chunk ^ (token0 & 7)) << 4) + at_word * 4;
    }
    int stage = 0;
    uint32_t parity = 1;  // of what was read: the first round does not wait
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<2>();
      barrier_wait(read_gate + stage * 8, parity);
      const uint8_t* raw_chunks = inbox + step % 3 * kStage;
      uint4 v[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) v[i] = *reinterpret_cast<const uint4*>(raw_chunks + i * kSpreaders * 16);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) store_shared(word[j] + stage * kStage + i % 2 * (kStage / 2) + i / 2 * (kSpreaders / 8) * 128, w[j]);
      }
      if constexpr (kSums) {
        float sum[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
          float odd = 0.0f;
          sum[i] = 0.0f;
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i] += __uint_as_float(w[j] << 16), odd += __uint_as_float(w[j] & 0xffff0000u);
          sum[i] += odd;
        }
        if constexpr (Run != 16 && Run != 32)
#pragma unroll
          for (int i = 0; i < kChunks; i += 2) sum[i] += sum[i + 1];
        float* to = sums + stage * kSpans * kWideTokens + token0;
#pragma unroll
        for (int i = 0; i < kChunks; i += Run == 16 || Run == 32 ? 1 : 2) {
#pragma unroll
          for (int o = 1; o < (Run == 16 ? 2 : Run == 32 ? 4 : 8); o *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], o);
          const int span = Run == 16 ? (part0 + i % 2 * 8) / 2 : Run == 32 ? (part0 + i % 2 * 8) / 4 : 0;
          if (part0 % (Run == 16 ? 2 : Run == 32 ? 4 : 8) == 0) to[span * kWideTokens + i / 2 * (kSpreaders / 8)] = sum[i];
        }
      }
      group_sees_shared();
      barrier_arrive(spread_gate + stage * 8);
      if (++stage == kWideStages) stage = 0, parity ^= 1;
      take();
    }
  };
  if constexpr (kGroups) {
    if (!owner) supply();
  } else {
    for (int i = 0; i < 3; ++i) receive();
    if constexpr (kSums) {
      wait_copies<2>();
      __syncthreads();
      add_up(0);
    }
  }

  // ---- main loop -------------------------------------------------------------------------------------------------
  float acc[kTiles][4] = {}, y[kTiles][4] = {};
  // The end of a span.
  const auto scaled = [&](auto span, const TwoTerms& terms, const float* sum) {
    [[maybe_unused]] constexpr int kSpan = decltype(span)::value;
    [[maybe_unused]] float scale[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = meta_has_scale<M> ? terms.of[h].scale : 1.0f;
      add[h] = D::kAdd;
      if constexpr (meta_has_zero<M>) add[h] -= terms.of[h].zero;
      add[h] *= scale[h];
      if constexpr (meta_has_offset<M>) add[h] += terms.of[h].offset;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      [[maybe_unused]] float2 s{};
      if constexpr (kSums) s = *reinterpret_cast<const float2*>(sum + kSpan * kWideTokens + tile * 8 + 2 * t);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (!kOnce) y[tile][j] = fmaf(scale[j >> 1], acc[tile][j] * D::kUnitScale, y[tile][j]);
        if constexpr (kSums) y[tile][j] = fmaf(add[j >> 1], j & 1 ? s.y : s.x, y[tile][j]);
        if constexpr (!kOnce && !kGroups) acc[tile][j] = 0.0f;
      }
    }
  };
#if QE_WARPGROUPS
  // The warps of a group go in step; one without a strip multiplies what its registers hold.
  const auto multiply_group = [&](bool mine, const uint8_t* unit, uint64_t x, const float* sum) {
    constexpr int kSteps = 8 / kSpans;
    Words<typename F::Planes> words;
    if constexpr (kGroups) unrolled<kSpans>([&](auto span) {
      constexpr int kSpan = decltype(span)::value;
      uint32_t A[kSteps][1][4];
      TwoTerms terms{};
      if (mine) terms = two_terms<F>(unit, g, kSpan);
      [[maybe_unused]] const Folded<F> folded(terms);
      // Two parts: one is multiplied while the other is decoded.
      constexpr int kPart = kSteps > 2 ? kSteps / 2 : kSteps;
      unrolled<kSteps / kPart>([&](auto part) {
        constexpr int kFirst = decltype(part)::value * kPart;
        if (mine)
          unrolled<kPart>([&](auto s) {
            constexpr int I = kFirst + decltype(s)::value, S = kSpan * kSteps + I;
            words.template load<S>(unit, lane);
            raw<F, S>(words, table, A[I]);
            if constexpr (kFolds) folded.take_off(A[I][0]);
          });
        group_fence();
        unrolled<kPart>([&](auto s) {
          constexpr int I = kFirst + decltype(s)::value, S = kSpan * kSteps + I;
          group_mma(acc, A[I][0], x + (S / 4 * (kStage / 2) + S % 4 * 32 >> 4), kOnce || I > 0);
        });
      });
      group_commit();
      group_wait<0>();
      if (mine && (!kOnce || kSums)) scaled(span, terms, sum);
    });
  };
#endif
  const auto multiply = [&](const uint8_t* unit, const uint8_t* x, const float* sum) {
    constexpr int kSteps = Run == 16 ? 1 : 2;  // k-steps that one read of a token feeds
    Words<typename F::Planes> words;
    unrolled<8 / kSteps>([&](auto p) {
      constexpr int P = decltype(p)::value;
      uint32_t A[kSteps][D::kParts][4];
      unrolled<kSteps>([&](auto j) {
        constexpr int S = P * kSteps + decltype(j)::value;
        words.template load<S>(unit, lane);
        raw<F, S>(words, table, A[decltype(j)::value]);
      });
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t b[kSteps][2];
        if constexpr (Run == 16) {
          const uint2 v = *reinterpret_cast<const uint2*>(x + tile * 8 * kRow + P * 32);
          b[0][0] = v.x, b[0][1] = v.y;
        } else {
          const uint4 v = *reinterpret_cast<const uint4*>(x + tile * 8 * kRow + P * 64);
          b[0][0] = v.x, b[0][1] = v.y, b[kSteps - 1][0] = v.z, b[kSteps - 1][1] = v.w;
        }
#pragma unroll
        for (int j = 0; j < kSteps; ++j)
#pragma unroll
          for (int part = 0; part < D::kParts; ++part) mma(acc[tile], A[j][part], b[j][0], b[j][1]);
      }
      if constexpr (!kOnce)
        if constexpr ((P + 1) * kSteps * 16 % Run == 0) scaled(Int<P * kSteps * 16 / Run>{}, two_terms<F>(unit, g, P * kSteps * 16 / Run), sum);
    });
    if constexpr (kOnce && kSums) scaled(Int<0>{}, TwoTerms{}, sum);
  };
  const auto leave = [&](int tile, int j) {  // a sum, and its place is empty
    float v = y[tile][j];
    if constexpr (kOnce) v += acc[tile][j] * D::kUnitScale;
    y[tile][j] = acc[tile][j] = 0.0f;
    return v;
  };

  int slot = 0, unit = 0, strip = warp, stage = 0;  // strip: of the cluster's
  uint32_t parity = 0, stage_parity = 0;
#pragma unroll 1
  for (int step = 0; step < (owner || !kGroups ? steps : 0); ++step) {
    const float* sum = sums + stage * kSpans * kWideTokens;
    const bool mine = owner && strip < count;
    if constexpr (kGroups) {
      if (mine) barrier_wait(bars + slot * 8, parity);
      barrier_wait(spread_gate + stage * 8, stage_parity);
#if QE_WARPGROUPS
      if (strip - (warp & 3) < count) multiply_group(mine, ring + slot * UB, tokens_operand + (stage * kStage >> 4), sum);
#endif
      if (lane == 0) barrier_arrive(read_gate + stage * 8);
    } else {
      wait_copies<1>();
      __syncthreads();  // these tokens and the next are there, and nobody reads those before any more
      receive();
      if constexpr (kSums) add_up(step + 1);
      if (mine) {
        barrier_wait(bars + slot * 8, parity);
        multiply(ring + slot * UB, tokens + stage * kStage + lane_at, sum);
      }
    }
    if (++stage == kWideStages) stage = 0, stage_parity ^= 1;
    __syncwarp();  // every lane has its registers: the slot is free
    if (owner) fetch(slot);
    if (++slot == a.depth) slot = 0, parity ^= 1;
    if (++unit < width) continue;
    unit = 0;
    if (slices == 1) {  // strips that are complete
      const int whole = strip0 + strip;
      float factor[2] = {1.0f, 1.0f}, bias[2] = {};
      int column[2] = {-1, -1};
      if (mine)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = g + 8 * h;
          column[h] = column_of_row(a, whole, row);
          if constexpr (HasRowScale<F>) factor[h] = device_row_factor<F>(a.row[stored(whole) * kStrip + row]);
          if (a.bias && column[h] >= 0) bias[h] = number_at(a.bias, column[h], a.bias_f32);
        }
      // What the warp of up hands to that of gate, two tiles in turn.
      float4* handed = reinterpret_cast<float4*>(shared + at.rows) + warp / 2 * 64 + lane;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = fmaf(leave(tile, j), factor[j >> 1], bias[j >> 1]);
        if (a.pairs) {
          if (!mine) continue;
          if (warp & 1) handed[tile % 2 * 32] = make_float4(v[0], v[1], v[2], v[3]);
          pair_barrier(1 + warp / 2);
          if (warp & 1) continue;
          const float4 up = handed[tile % 2 * 32];
          v[0] = gated(a.pairs, v[0], up.x), v[1] = gated(a.pairs, v[1], up.y), v[2] = gated(a.pairs, v[2], up.z), v[3] = gated(a.pairs, v[3], up.w);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int token = tile * 8 + 2 * t + (j & 1), c = column[j >> 1];
          if (token < a.m && c >= 0) write_number(a, token, c, a.residual ? v[j] + number_at(a.residual, int64_t(token) * a.residual_stride + c, a.residual_f32) : v[j]);
        }
      }
      strip += kWideOwners;
    }
  }
  if (slices == 1) return;

  // ---- slices, in the order of blocks: one pass, where the tokens were ------------------------------------------------
  const int total = count * a.m * 16, shift = share_shift(total, slices);
  float* peers = reinterpret_cast<float*>(tokens);  // [strip][token][row]
  __syncthreads();  // nobody reads tokens any more
  if (warp < count)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int token = tile * 8 + 2 * t + (j & 1); token < a.m) peers[(warp * a.m + token) * 16 + g + 8 * (j >> 1)] = leave(tile, j);
  __syncwarp();
  cluster_arrive();
  cluster_wait();
#pragma unroll 1
  for (int i = tid * 4; i < 1 << shift && (slice << shift) + i < total; i += kThreads * 4) {
    const int o = (slice << shift) + i, item = o >> 4, s0 = int(unsigned(item) * a.by_m >> 16), token = item - s0 * a.m;
    float4 x[8];
#pragma unroll
    for (int s = 0; s < 8; ++s)
      if (s < slices) x[s] = load_from_cluster(peers + o, uint32_t(s));
    float v[4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s)
      if (s < slices) v[0] += x[s].x, v[1] += x[s].y, v[2] += x[s].z, v[3] += x[s].w;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = (o & 15) + j, column = column_of_row(a, strip0 + s0, row);
      float w = v[j];
      if (column < 0) break;  // padding ends the strip
      if constexpr (HasRowScale<F>) w *= device_row_factor<F>(a.row[(strip0 + s0) * kStrip + row]);
      if (a.bias) w += number_at(a.bias, column, a.bias_f32);
      if (a.residual) w += number_at(a.residual, int64_t(token) * a.residual_stride + column, a.residual_f32);
      write_number(a, token, column, w);
    }
  }
  cluster_arrive();
  cluster_wait();  // the others have read
#endif
}

}  // namespace qe::cuda
