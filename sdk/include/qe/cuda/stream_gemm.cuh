// qe/cuda/stream_gemm.cuh: out[m, n] = in[m, k] * W^T for few tokens, weights read once.
//
// Weights are operand A of mma.m16n8k16, tokens its N = 8 side. A warp walks one run of units (work.hpp): small units
// through its registers, several ahead; larger ones through a ring of its own in shared memory, filled by bulk copies
// on sm_90 and later and by cp.async before that. The first units are asked for before griddepcontrol.wait, tokens
// come after it; the main loop has no barriers. Scales multiply accumulators, at the end of each span of columns under
// one record; zero points, offsets and the bias of a decoding go through the sum of the inputs, which a second product
// with a matrix of ones gives.
//
// Around the product, by uniform switches: RMSNorm of the tokens (weights multiply them, 1 / rms the sums), row
// factors, a bias, a residual, an activation of pairs of gate and up.
//
// A strip that one warp has whole is stored by it; the pieces of others meet in shared memory and are added in the
// order of warps, then those of the blocks of a cluster in the order of blocks. No atomics: the same bits every
// time, and for every m of one tile.
#pragma once

#include <qe/cuda/decode.cuh>
#include <qe/cuda/work.hpp>

namespace qe::cuda {

template <class F>
__device__ __forceinline__ float device_row_factor(float row) { return row_factor<F>(row); }

// Units that a warp holds in registers in place of a ring: small ones, for up to 8 tokens; 0: none. Shared memory is
// then left to tokens, so that two kernels fit beside each other.
template <class F, int Run, int Tiles>
constexpr int held_units() {
  if constexpr (Tiles > 1 || F::Planes::bits > 4) return 0;
  else return HeldUnit<F, Run>::kWords <= 10 ? 4 : 0;
}

// cp.async.wait_group takes a constant.
__device__ __forceinline__ void wait_all_but(int groups) {
  switch (groups) {
    case 1: return wait_copies<1>();
    case 2: return wait_copies<2>();
    case 3: return wait_copies<3>();
    case 4: return wait_copies<4>();
    case 5: return wait_copies<5>();
    case 6: return wait_copies<6>();
    default: return wait_copies<7>();
  }
}

// bf16 of all codes, for formats that are decoded by a table in shared memory.
template <class F>
struct StreamTable {
  uint16_t v[Decode<F>::kTableSize ? Decode<F>::kTableSize : 1];
};

// Offsets within the dynamic shared memory, from Work.
struct StreamShared {
  uint32_t tokens, tiles, peers, rows, squares;
};

__device__ __forceinline__ float number_at(const void* p, int64_t i, int f32) {
  return f32 ? static_cast<const float*>(p)[i] : __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}
__device__ __forceinline__ float gated(int kind, float gate, float up) {
  const float act = kind == 1 ? gate / (1.0f + __expf(-gate)) : 0.5f * gate * (1.0f + tanhf(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate)));
  return act * up;
}

// Column of the output of a row of strip s of the layer; -1: padding. With pairs strip 2i is strip i of gate and strip
// 2i + 1 that of up.
__device__ __forceinline__ int column_of_row(const StreamArgs& a, int s, int row) {
  if (a.pairs) {
    const int n = (s >> 1) * 16 + row;
    return n < a.part[0].n ? n + (s & 1) * a.part[1].column : -1;
  }
  int p = 0;
  if (a.parts > 1) {
#pragma unroll
    for (int i = 1; i < kMaxParts; ++i) p += i < a.parts && s >= a.part[i].strip;
  }
  const int n = (s - a.part[p].strip) * 16 + row;
  return n < a.part[p].n ? a.part[p].column + n : -1;
}
__device__ __forceinline__ void write_number(const StreamArgs& a, int token, int column, float v) {
  const int64_t o = int64_t(token) * a.out_stride + column;
  if (a.out_f32) static_cast<float*>(a.out)[o] = v;
  else static_cast<__nv_bfloat16*>(a.out)[o] = __float2bfloat16_rn(v);
}
// Eight columns of a token, one by one.
__device__ __forceinline__ uint4 gather8(const StreamArgs& a, const __nv_bfloat16* in, int column) {
  alignas(16) __nv_bfloat16 v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int k = a.map ? a.map[column + j] : column + j;
    v[j] = k >= 0 && k < a.k ? in[k] : __nv_bfloat16(0.0f);
  }
  return *reinterpret_cast<const uint4*>(v);
}

template <class F, int Run, int Tiles, int Warps, int Resident>
__global__ void __launch_bounds__(Warps * 32, Resident) stream_gemm(const __grid_constant__ StreamArgs a, const __grid_constant__ StreamShared at,
                                                                           const __grid_constant__ StreamTable<F> values) {
  using D = Decode<F>;
  using M = typename F::Meta;
  constexpr int UB = kUnitBytes<F, Run>, kThreads = Warps * 32;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr bool kBulk = !held_units<F, Run, Tiles>();
#else
  constexpr bool kBulk = false;
#endif
  constexpr int kHeld = held_units<F, Run, Tiles>(), kSlots = kHeld ? 2 + kHeld : 3;  // of a warp in `tiles`
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint16_t table[D::kTableSize ? D::kTableSize : 1];
  __shared__ int2 joints[Warps];  // by warp that begins inside of a strip as the first: the strip and its pieces; else 0 pieces
  if (a.pdl == kPdlEarly) pdl_launch();
  const int tid = __shfl_sync(~0u, threadIdx.x, threadIdx.x & 31);  // kept in a register: reading it again inside the loop is slow
  const int warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int slices = a.slices, clusters = gridDim.x / slices, cluster = blockIdx.x / slices, slice = blockIdx.x - cluster * slices;
  // With pairs strip 2i is strip i of gate and strip 2i + 1 that of up.
  const int items = a.pairs ? a.strips / 2 : a.strips, each = a.pairs ? 2 : 1;
  const int strip0 = items * cluster / clusters * each, strips = items * (cluster + 1) / clusters * each - strip0;
  const int unit0 = a.width * slice / slices, width = a.width * (slice + 1) / slices - unit0;
  const int units = strips * width, active = min(Warps, units);
  const auto first_of = [&](int w) { return units * w / active; };
  const int begin = warp < active ? first_of(warp) : units, end = warp < active ? first_of(warp + 1) : units;

  // ---- before the wait: weights, tables ------------------------------------------------------------------------
  const int slot_bytes = a.batch * UB;
  uint8_t* ring = shared + warp * a.depth * slot_bytes;
  const uint32_t ring_at = shared_address(ring), bars = shared_address(shared) + Warps * a.depth * slot_bytes + warp * a.depth * 8;
  // Units are contiguous within a slice of a strip, and all along when there is one slice.
  struct Cursor {
    int left, run;  // units left of the warp, and until the address jumps
  };
  const bool jumps = slices > 1 || a.pairs;
  const auto where = [&](int strip) { return a.pairs ? (strip & 1) * items + (strip >> 1) : strip; };  // in memory
  const auto place = [&](int strip) { return a.units + (int64_t(where(strip0 + strip)) * a.width + unit0) * UB; };
  int fetching = begin / width;  // the strip
  Cursor fetched{end - begin, jumps ? width - begin % width : end - begin};
  const uint8_t* from = place(fetching) + (begin % width) * UB;
  const auto advance = [&](Cursor& c) {  // how many units the next slot holds
    const int n = min(a.batch, min(c.left, c.run));
    c.left -= n, c.run -= n;
    return n;
  };
  const auto fetch = [&](int slot) {
    const int n = advance(fetched);
    if constexpr (kBulk) {
      if (lane == 0 && n) {
        barrier_expect(bars + slot * 8, n * UB);
        bulk_copy(ring_at + slot * slot_bytes, from, n * UB, bars + slot * 8);
      }
    } else {
#pragma unroll 4
      for (int i = lane; i < n * (UB / 16); i += 32) copy16(ring_at + slot * slot_bytes + i * 16, from + i * 16);
      commit_copies();
    }
    from += n * UB;
    if (fetched.run == 0 && jumps) from = place(++fetching), fetched.run = width;
  };
  if constexpr (kBulk) {
    if (lane < a.depth) barrier_init(bars + lane * 8);
    barrier_fence();
    __syncwarp();
  }
  HeldUnit<F, Run> held[kHeld ? kHeld : 1];
  const auto hold = [&](HeldUnit<F, Run>& h) {
    h.load(from, lane);
    from += UB;
    if (--fetched.run == 0 && jumps) from = place(++fetching), fetched.run = width;
  };
  if constexpr (kHeld > 0) {
    unrolled<kHeld>([&](auto j) { if (end - begin > decltype(j)::value) hold(held[decltype(j)::value]); });
  } else {
#pragma unroll 1
    for (int i = 0; i < a.depth - (kBulk ? 0 : 1); ++i) fetch(i);
  }
  float* rows = reinterpret_cast<float*>(shared + at.rows);
  if constexpr (HasRowScale<F>)
    for (int i = tid; i < strips * 16; i += kThreads) rows[i] = device_row_factor<F>(a.row[where(strip0 + (i >> 4)) * 16 + (i & 15)]);
  if (tid < Warps) {
    int pieces = 0, strip = 0;
    if (tid > 0 && tid < active) {
      const int first = first_of(tid);
      strip = first / width;
      if (first % width != 0 && first_of(tid - 1) <= strip * width)
        for (pieces = 1; tid + pieces - 1 < active && first_of(tid + pieces - 1) < (strip + 1) * width;) ++pieces;
    }
    joints[tid] = make_int2(strip, pieces);
  }
  if constexpr (D::kTable)
    for (int i = tid; i < D::kTableSize; i += kThreads) table[i] = values.v[i];
  uint4 norms[kNormChunks];  // bf16 weights of the norm, for the inputs that this thread prepares
  if (a.norm)
#pragma unroll
    for (int i = 0; i < kNormChunks; ++i) {
      const int column = (tid + i * kThreads) * 8;
      if (column >= width * kUnit) break;
      float w[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int k = a.map ? a.map[column + j] : column + j;
        w[j] = k >= 0 && k < a.k ? number_at(a.norm, k, a.norm_f32) + (a.gemma ? 1.0f : 0.0f) : 0.0f;
      }
      norms[i] = make_uint4(bf16x2(w[0], w[1]), bf16x2(w[2], w[3]), bf16x2(w[4], w[5]), bf16x2(w[6], w[7]));
    }
  if (slices > 1) cluster_arrive_relaxed();
  if (a.pdl) pdl_wait();
  if (a.pdl == kPdlLate) pdl_launch();

  // ---- tokens ----------------------------------------------------------------------------------------------------
  uint8_t* tokens = shared + at.tokens;
  {
    const int chunks = width * 16;  // of 8 inputs, a token
    const __nv_bfloat16* row = static_cast<const __nv_bfloat16*>(a.in);
    const bool copied = a.aligned && !a.map;
    for (int token = 0; token < a.m; ++token)
      for (int chunk = tid; chunk < chunks; chunk += kThreads) {
        const int column = unit0 * kUnit + chunk * 8;
        const __nv_bfloat16* in = row + int64_t(token) * a.in_stride;
        uint8_t* to = tokens + token * a.token_bytes + chunk * 16;
        if (copied && column + 8 <= a.k) copy16(shared_address(to), in + column);
        else *reinterpret_cast<uint4*>(to) = gather8(a, in, column);
      }
    commit_copies();
    wait_copies<0>();
    if (a.norm) {  // a thread normalizes what it copied; 1 / rms comes in with the sums
      float* squares = reinterpret_cast<float*>(shared + at.squares);  // [token][warps]
#pragma unroll 2
      for (int token = 0; token < a.m; ++token) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kNormChunks; ++i) {
          const int chunk = tid + i * kThreads;
          if (chunk >= chunks) break;
          uint4* here = reinterpret_cast<uint4*>(tokens + token * a.token_bytes + chunk * 16);
          const uint4 v = *here;
          const uint32_t x[4] = {v.x, v.y, v.z, v.w}, w[4] = {norms[i].x, norms[i].y, norms[i].z, norms[i].w};
          uint32_t y[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float x0 = __uint_as_float(x[e] << 16), x1 = __uint_as_float(x[e] & 0xffff0000u);
            sum = fmaf(x0, x0, sum), sum = fmaf(x1, x1, sum);
            y[e] = bf16x2(x0 * __uint_as_float(w[e] << 16), x1 * __uint_as_float(w[e] & 0xffff0000u));
          }
          *here = make_uint4(y[0], y[1], y[2], y[3]);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (lane == 0) squares[token * Warps + warp] = sum;
      }
    }
  }
  __syncthreads();

  // ---- main loop -------------------------------------------------------------------------------------------------
  float* tiles = reinterpret_cast<float*>(shared + at.tiles);
  float* peers = reinterpret_cast<float*>(shared + at.peers);
  const int total = strips * a.m * 16, shift = slices > 1 ? share_shift(total, slices) : 0;  // a block adds up 2^shift of them

  const auto rms_of = [&](int token) {  // where it is used: a barrier less before the products
    const float* squares = reinterpret_cast<const float*>(shared + at.squares) + token * Warps;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; ++w) sum += squares[w];
    return rsqrtf(sum / float(a.k) + a.eps);
  };
  const auto residual_of = [&](int strip, int row, int token) {
    const int column = column_of_row(a, strip0 + strip, row);
    return column >= 0 ? number_at(a.residual, int64_t(token) * a.residual_stride + column, a.residual_f32) : 0.0f;
  };
  const auto finished = [&](int strip, int row, int token, int column, float v) {  // all but residual and activation
    if constexpr (HasRowScale<F>) v *= rows[strip * 16 + row];
    if (a.norm) v *= rms_of(token);
    if (a.bias && column >= 0) v += number_at(a.bias, column, a.bias_f32);
    return v;
  };
  const auto store = [&](int strip, int row, int token, float v, float residual) {
    const int column = column_of_row(a, strip0 + strip, row);
    if (column < 0) return;
    v = finished(strip, row, token, column, v);
    write_number(a, token, column, a.residual ? v + residual : v);
  };
  bool joined = false;
  const auto finish = [&](int strip, int row, int token, float v, float residual) {
    if (a.pairs) {
      peers[(strip * a.m + token) * 16 + row] = finished(strip, row, token, column_of_row(a, strip0 + strip, row), v);
      return;
    }
    if (slices == 1) return store(strip, row, token, v, residual);
    const int o = (strip * a.m + token) * 16 + row, owner = o >> shift;
    store_in_cluster(peers + (slice << shift) + (o & ((1 << shift) - 1)), uint32_t(owner), v);
  };
  const auto join = [&] {  // the other blocks of the cluster have begun
    if (slices > 1 && !joined) cluster_wait();
    joined = true;
  };

  // What the first of this thread's outputs adds, fetched before it is needed.
  float early = 0.0f;
  if (a.residual) {
    if (slices > 1) {
      const int o = (slice << shift) + tid, item = o >> 4, s = item / a.m;
      if (tid < 1 << shift && o < total) early = residual_of(s, o & 15, item - s * a.m);
    } else if (tid < (active - 1) * a.m * 16) {
      const int item = tid >> 4, w = int(unsigned(item) * a.by_m >> 16);
      if (joints[w + 1].y) early = residual_of(joints[w + 1].x, tid & 15, item - w * a.m);
    }
  }

  float y[Tiles][4] = {};
  const uint8_t* x[Tiles];
  int column_unit = begin % width, strip = begin / width;
  bool whole = column_unit == 0;  // the strip's units so far are all this warp's
#pragma unroll
  for (int i = 0; i < Tiles; ++i) x[i] = tokens + min(i * 8 + g, a.m - 1) * a.token_bytes + t * (Run == 16 ? 8 : 16) + column_unit * 256;

  constexpr uint32_t kOnes = 0x3f803f80u;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
  constexpr bool kOnce = Run == 0;  // accumulators run through the whole strip
  float acc[Tiles][2][4] = {}, sums[Tiles][2][4] = {};
  const auto flush = [&](const TwoTerms& terms) {
    constexpr float kUnitScale = D::kUnitScale;
    float scale[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = meta_has_scale<M> ? terms.of[h].scale : 1.0f;
      add[h] = D::kAdd;
      if constexpr (meta_has_zero<M>) add[h] -= terms.of[h].zero;
      add[h] *= scale[h];
      if constexpr (meta_has_offset<M>) add[h] += terms.of[h].offset;
    }
#pragma unroll
    for (int i = 0; i < Tiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float v = acc[i][0][j] + acc[i][1][j];
        if constexpr (kUnitScale != 1.0f) v *= kUnitScale;
        y[i][j] = fmaf(scale[j >> 1], v, y[i][j]);
        if constexpr (D::kSums) y[i][j] = fmaf(add[j >> 1], sums[i][0][j & 1] + sums[i][1][j & 1], y[i][j]);
        acc[i][0][j] = acc[i][1][j] = 0.0f;
      }
    if constexpr (D::kSums)
#pragma unroll
      for (int i = 0; i < Tiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][0][j] = sums[i][1][j] = 0.0f;
  };

  // One unit: `load(Int<S>)` brings what k-step S needs, `terms(Int<Span>)` gives the record of a span.
  const auto multiply = [&](auto& words, auto&& load, auto&& terms) {
    [[maybe_unused]] uint4 b[Tiles];
    unrolled<8>([&](auto s) {
      constexpr int S = decltype(s)::value;
      load(s);
      uint32_t A[D::kParts][4];
      raw<F, S>(words, table, A);
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        uint32_t b0, b1;
        if constexpr (Run == 16) {
          const uint2 v = *reinterpret_cast<const uint2*>(x[tile] + S * 32);
          b0 = v.x, b1 = v.y;
        } else {
          if constexpr (S % 2 == 0) b[tile] = *reinterpret_cast<const uint4*>(x[tile] + S / 2 * 64);
          b0 = S % 2 ? b[tile].z : b[tile].x, b1 = S % 2 ? b[tile].w : b[tile].y;
        }
#pragma unroll
        for (int part = 0; part < D::kParts; ++part) mma(acc[tile][S % 2], A[part], b0, b1);
        if constexpr (D::kSums) mma(sums[tile][S % 2], ones, b0, b1);
      }
      if constexpr (Run != 0 && Run != 128)
        if constexpr ((S + 1) * 16 % Run == 0) flush(terms(Int<S * 16 / Run>{}));
    });
    if constexpr (Run == 128) flush(terms(Int<0>{}));
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) x[tile] += 256;
    ++column_unit;
  };
  // The end of a strip, or of the warp's units: leaves the sums in a slot of `tiles`. A strip's piece: 0, the first of a
  // warp that began inside of it; 1, the last of one that did not end it; from 2 on, whole strips on their way out.
  const auto leave = [&](int out_slot) {
    if constexpr (kOnce) flush(TwoTerms{});
    const bool own = column_unit == width && whole;
    float* piece = tiles + (warp * kSlots + (own ? out_slot : whole ? 1 : 0)) * a.m * kTileStride;
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int token = tile * 8 + 2 * t + (j & 1); token < a.m) piece[token * kTileStride + g + (j >> 1) * 8] = y[tile][j];
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      x[tile] -= column_unit * 256;
#pragma unroll
      for (int j = 0; j < 4; ++j) y[tile][j] = 0.0f;
    }
    column_unit = 0;
    whole = true;
    ++strip;
    return own;
  };
  // Whole strips in the slots from 2 on, the last of them strip - 1.
  const auto send = [&](int count) {
    join();
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const float* piece = tiles + (warp * kSlots + 2 + i) * a.m * kTileStride;
      const int s = strip - count + i;
#pragma unroll 1
      for (int e = lane; e < a.m * 16; e += 32) finish(s, e & 15, e >> 4, piece[(e >> 4) * kTileStride + (e & 15)], a.residual ? residual_of(s, e & 15, e >> 4) : 0.0f);
    }
    __syncwarp();
  };

  if constexpr (kHeld > 0) {
    int left = end - begin;
    while (left > 0) {
      int whole_strips = 0, last_whole = 0;
      unrolled<kHeld>([&](auto j) {
        constexpr int J = decltype(j)::value;
        if (left <= 0) return;
        multiply(held[J], [](auto) {}, [&](auto span) { return held[J].template terms<decltype(span)::value>(lane); });
        if (left > kHeld) hold(held[J]);
        --left;
        if (column_unit == width || left == 0)
          if (leave(2 + whole_strips)) ++whole_strips, last_whole = strip;
      });
      if (whole_strips) {
        const int now = strip;
        strip = last_whole;
        send(whole_strips);
        strip = now;
      }
    }
  } else {
    const uint8_t* const ring_end = ring + a.depth * slot_bytes;
    const uint8_t* unit = ring;  // in shared memory
    Cursor used{end - begin, jumps ? width - column_unit : end - begin};
    int slot = 0;
    uint32_t parity = 0;
    while (used.left > 0) {
      const int n = advance(used);
      if (used.run == 0 && jumps) used.run = width;
      if constexpr (kBulk) {
        barrier_wait(bars + slot * 8, parity);
      } else {
        fetch(slot ? slot - 1 : a.depth - 1);
        wait_all_but(a.depth - 1);
        __syncwarp();
      }
      for (int i = 0; i < n; ++i) {
        Words<typename F::Planes> words;
        multiply(words, [&](auto s) { words.template load<decltype(s)::value>(unit, lane); }, [&](auto span) { return two_terms<F>(unit, g, decltype(span)::value); });
        if (column_unit == width || (i + 1 == n && used.left == 0))
          if (leave(2)) send(1);
        unit += UB;
      }
      unit += (a.batch - n) * UB;
      if (unit == ring_end) unit = ring;
      __syncwarp();  // every lane has its registers: the slot is free
      if constexpr (kBulk) fetch(slot);
      if (++slot == a.depth) slot = 0, parity ^= 1;
    }
  }
  __syncthreads();
  join();

  // ---- pieces, in the order of warps -------------------------------------------------------------------------------
  for (int i = tid; i < (active - 1) * a.m * 16; i += kThreads) {
    const int item = i >> 4, row = i & 15, w = int(unsigned(item) * a.by_m >> 16), token = item - w * a.m;
    const int2 joint = joints[w + 1];
    if (joint.y == 0) continue;
    const float* piece = tiles + ((w * kSlots + 1) * a.m + token) * kTileStride + row;
    const int step = kSlots * a.m * kTileStride;
    float v = *piece;
    piece += (kSlots - 1) * a.m * kTileStride;
    for (int j = 1; j < joint.y; ++j, piece += step) v += *piece;
    finish(joint.x, row, token, v, i == tid ? early : a.residual ? residual_of(joint.x, row, token) : 0.0f);
  }
  if (slices > 1) {
    cluster_arrive();
    cluster_wait();
    for (int i = tid; i < 1 << shift && (slice << shift) + i < total; i += kThreads) {
      float v = 0.0f;
      for (int s = 0; s < slices; ++s) v += peers[(s << shift) + i];
      const int o = (slice << shift) + i, item = o >> 4, strip = item / a.m;
      store(strip, o & 15, item - strip * a.m, v, i == tid ? early : a.residual ? residual_of(strip, o & 15, item - strip * a.m) : 0.0f);
    }
  }
  if (a.pairs) {
    __syncthreads();
    for (int i = tid; i < strips / 2 * a.m * 16; i += kThreads) {
      const int item = i >> 4, row = i & 15, pair = item / a.m, token = item - pair * a.m;
      const int column = column_of_row(a, strip0 + 2 * pair, row);
      const float* gate = peers + ((2 * pair * a.m) + token) * 16 + row;
      if (column >= 0) write_number(a, token, column, gated(a.pairs, gate[0], gate[a.m * 16]));
    }
  }
}

}  // namespace qe::cuda
