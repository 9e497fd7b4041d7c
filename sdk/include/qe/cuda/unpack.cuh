// qe/cuda/unpack.cuh: packed weights back to plain rows: panels for a dense product, rows of an embedding, the
// exact matrix. A warp takes one unit at a time. Of a panel it has the whole unit in shared memory first: all of it is
// asked for at once, where step by step each would wait for its own part.
#pragma once

#include <qe/cuda/decode.cuh>
#include <qe/cuda/work.hpp>

namespace qe::cuda {

template <class F>
struct ValueTable {
  float v[kNeedsTable<F> ? 1 << F::Planes::bits : 1];
};

// Warps of a block: their units have to fit 48 KiB.
template <class F>
inline constexpr int kUnpackBytes = std::max({has_run<F, 0>() ? kUnitBytes<F, 0> : 0, has_run<F, 16>() ? kUnitBytes<F, 16> : 0, has_run<F, 32>() ? kUnitBytes<F, 32> : 0, has_run<F, 128>() ? kUnitBytes<F, 128> : 0});
template <class F>
inline constexpr int kUnpackWarps = kUnpackBytes<F> <= 5600 ? 8 : 4;

template <class F>
__device__ __forceinline__ void unpack_unit(const UnpackArgs& a, const float* table, const uint8_t* unit, int64_t column0, int lane, float row0, float row1,
                                            int64_t out0, int64_t out1) {
  using M = typename F::Meta;
  const bool run16 = a.run == 16;
  const int every = a.run ? a.run / 16 : 8;
#pragma unroll 1
  for (int step = 0; step < 8; ++step) {
    const StepWords<typename F::Planes> words(unit, lane, step);
    TwoTerms terms;
    if constexpr (M::kBytes > 0) terms = two_terms<F>(unit, lane >> 2, step / every);
    const int64_t c = column0 + (run16 ? column_of(lane, step, 0, 0, 16) : column_of(lane, step, 0, 0, 32));  // four columns from here
    unrolled<2>([&](auto h) {
      constexpr int H = decltype(h)::value;
      const int64_t to = H ? out1 : out0;
      if (to < 0) return;
      const float row = H ? row1 : row0;
      const float2 v0 = exact_values<F, H>(words, table), v1 = exact_values<F, H + 2>(words, table);
      const float w[4] = {weight<F>(v0.x, terms.of[H], row), weight<F>(v0.y, terms.of[H], row), weight<F>(v1.x, terms.of[H], row), weight<F>(v1.y, terms.of[H], row)};
      if (a.vectors && c + 4 <= a.k) {
        if (a.out_f32) *reinterpret_cast<float4*>(static_cast<float*>(a.out) + to + c) = make_float4(w[0], w[1], w[2], w[3]);
        else *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + to + c) = make_uint2(bf16x2(w[0], w[1]), bf16x2(w[2], w[3]));
        return;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t k = a.map ? a.map[c + e] : c + e;
        if (k < 0 || k >= a.k) continue;
        if (a.out_f32) static_cast<float*>(a.out)[to + k] = w[e];
        else static_cast<__nv_bfloat16*>(a.out)[to + k] = __float2bfloat16_rn(w[e]);
      }
    });
  }
}

template <class F>
__global__ void __launch_bounds__(kUnpackWarps<F> * 32) unpack_rows(const __grid_constant__ UnpackArgs a, const __grid_constant__ ValueTable<F> values) {
  constexpr int kSize = kNeedsTable<F> ? 1 << F::Planes::bits : 1;
  __shared__ float table[kSize];
  __shared__ __align__(16) uint8_t units[kUnpackWarps<F>][kUnpackBytes<F>];
  if (a.pdl) pdl_launch();
  if constexpr (kNeedsTable<F>) {
    for (int i = threadIdx.x; i < kSize; i += kUnpackWarps<F> * 32) table[i] = values.v[i];
    __syncthreads();
  }
  if (a.pdl) pdl_wait();
  const int lane = threadIdx.x & 31, g = lane >> 2;
  const int64_t warp = int64_t(blockIdx.x) * kUnpackWarps<F> + (threadIdx.x >> 5), warps = int64_t(gridDim.x) * kUnpackWarps<F>;
  const auto part_of_row = [&](int64_t n) {
    int p = 0;
    while (p + 1 < a.parts && n >= a.part[p + 1].column) ++p;
    return p;
  };
  const auto unit_at = [&](int64_t strip, int64_t u) { return a.units + (strip * a.width + u) * a.unit_bytes; };
  const auto unpack = [&](int64_t strip, int64_t u, const uint8_t* unit, int64_t out0, int64_t out1) {
    float row0 = 1.0f, row1 = 1.0f;
    if constexpr (HasRowScale<F>) row0 = a.row[strip * 16 + g], row1 = a.row[strip * 16 + g + 8];
    unpack_unit<F>(a, table, unit, u * kUnit, lane, row0, row1, out0, out1);
  };
  if (a.ids) {
    for (int64_t item = warp; item < a.rows * a.width; item += warps) {
      const int64_t i = item / a.width, u = item - i * a.width, n = a.ids[i];
      const bool known = n >= 0 && n < a.part[a.parts - 1].column + a.part[a.parts - 1].n;
      if (!known) {  // nothing to report to from here: a row of zeros
        for (int c = lane; c < kUnit; c += 32)
          if (const int64_t k = u * kUnit + c; k < a.k) {
            if (a.out_f32) static_cast<float*>(a.out)[i * a.out_stride + k] = 0.0f;
            else static_cast<__nv_bfloat16*>(a.out)[i * a.out_stride + k] = __float2bfloat16_rn(0.0f);
          }
        continue;
      }
      const int p = part_of_row(n);
      const int64_t at = n - a.part[p].column, strip = a.part[p].strip + at / 16;
      const int r = int(at % 16);
      if (g != r % 8) continue;
      unpack(strip, u, unit_at(strip, u), r < 8 ? i * a.out_stride : -1, r < 8 ? -1 : i * a.out_stride);
    }
    return;
  }
  // strips that hold rows [first, first + rows)
  const int p0 = part_of_row(a.first), p1 = part_of_row(a.first + a.rows - 1);
  const int64_t s0 = a.part[p0].strip + (a.first - a.part[p0].column) / 16, s1 = a.part[p1].strip + (a.first + a.rows - 1 - a.part[p1].column) / 16 + 1;
  for (int64_t item = warp; item < (s1 - s0) * a.width; item += warps) {
    const int64_t strip = s0 + item / a.width, u = item % a.width;
    int p = 0;
    while (p + 1 < a.parts && strip >= a.part[p + 1].strip) ++p;
    int64_t out[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t n = (strip - a.part[p].strip) * 16 + g + 8 * h, i = a.part[p].column + n - a.first;
      out[h] = n < a.part[p].n && i >= 0 && i < a.rows ? i * a.out_stride : -1;
    }
    uint8_t* unit = units[threadIdx.x >> 5];
    const uint8_t* from = unit_at(strip, u);
    __syncwarp();  // the unit before this was read
#pragma unroll 4
    for (int at = lane * 16; at < a.unit_bytes; at += 512) *reinterpret_cast<uint4*>(unit + at) = stream16(from + at);
    __syncwarp();
    unpack(strip, u, unit, out[0], out[1]);
  }
}

}  // namespace qe::cuda
