// qe/cuda/work.hpp: how one product of few tokens is spread over a GPU. Host code, no CUDA: a plan is made
// from numbers alone, and tests walk it.
//
// A cluster of `slices` blocks owns whole strips; block s of it has the s-th slice of every strip's units. Within
// a block the units, in order, are cut in equal runs, one a warp: warp w of n has units [u * w / n, u * (w+1) / n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace qe::cuda {

inline constexpr int kMaxParts = 4;
inline constexpr int kTileStride = 20;  // floats between the columns of a partial tile: no bank conflicts

// When what follows may start: at once, or when what was before has ended (join_chain).
inline constexpr int kPdlEarly = 1, kPdlLate = 2;

// What a kernel reads. Pointers are device memory.
struct StreamArgs {
  const std::uint8_t* units;
  const float* row;            // [strips * 16], null: none
  const std::int32_t* map;     // [units * 128], null: column c is input c
  const void* in;              // bf16 [m, k]
  void* out;                   // bf16 or f32 [m, n]
  std::int64_t in_stride, out_stride;
  std::int32_t m, k, strips, width;  // width: units of a strip
  std::int32_t slices, depth, batch;  // depth: slots of a warp's ring; batch: units a slot holds
  std::int32_t token_bytes;           // from token to token in shared memory
  std::uint32_t by_m;                 // 65536 / m + 1: quotients of small numbers by m
  std::int32_t out_f32, aligned, pdl, parts;  // aligned: tokens can be copied 16 bytes at a time; pdl: 0: plain edges
  struct {
    std::int32_t strip, column, n;
  } part[kMaxParts];

  // What surrounds the product (plugin.h, steps); absent where null or 0. Vectors are bf16 or f32, as *_f32 says.
  const void *norm, *bias, *residual;  // [k], [n], [m, n]
  std::int64_t residual_stride;
  float eps;
  std::int32_t norm_f32, gemma, bias_f32, residual_f32;
  std::int32_t pairs;  // 1: silu(gate) * up, 2: gelu_tanh(gate) * up; parts gate and up, out [m, n of a part]
};
inline constexpr int kNormChunks = 4;  // of 8 inputs, that a thread normalizes

// Output row i is layer row `first + i`, or ids[i]. A layer's rows are those of its parts, one after the other.
struct UnpackArgs {
  const std::uint8_t* units;
  const float* row;
  const std::int32_t* map;
  const std::int32_t* ids;  // device memory; null: `first` and on
  void* out;
  std::int64_t first, rows, out_stride;
  std::int32_t k, strips, width, unit_bytes, run, out_f32, pdl, parts, vectors;  // vectors: four columns of `out` are aligned and in order
  struct {
    std::int32_t strip, column, n;  // as in StreamArgs
  } part[kMaxParts];
};

// wide_gemm.cuh: tokens of a launch, warps of a block, those of them that have strips, units of tokens in shared memory.
inline constexpr int kWideTokens = 64, kWideWarps = 16, kWideOwners = 12, kWideStages = 4;
// Bytes of a token's unit in shared memory without warpgroups (no bank conflicts), and of all; for warpgroups also three
// as they come from memory.
constexpr int wide_token_bytes(int run) { return run == 16 ? 288 : 320; }
inline constexpr int kWideTokensBytes = std::max(kWideStages * kWideTokens * 320, (kWideStages + 3) * kWideTokens * 256 + 1024);
inline constexpr int kWideSumsBytes = kWideStages * 8 * kWideTokens * 4, kWideHandedBytes = kWideOwners / 2 * 64 * 16;

struct Kernel {  // what a compiled kernel is like
  int tiles = 1;       // of 8 tokens; kWideTokens / 8: wide_gemm.cuh
  int warps = 12;
  int run = 0;         // columns under a record
  int unit_bytes = 0;
  bool bulk = true;    // the ring is filled by bulk copies
  int batch = 0;       // units of a slot; 0: as many as suit
  int held = 0;        // units a warp holds in registers; there is no ring then
};

struct Gpu {
  int sm = 90, sms = 132;
  std::int64_t shared = 231424;  // most dynamic shared memory of a block; 1 KiB is kept for static variables
  bool clusters() const { return sm >= 90; }
  // Clusters that run at once. They lie within a GPC, and GPCs have no whole number of them: of an H200's 132
  // multiprocessors 120 are in clusters of 4 or 8 at once (cudaOccupancyMaxActiveClusters). One more would wait for
  // another to end.
  int at_once(int slices) const { return std::max(1, (slices <= 2 ? sms : sms * 10 / 11) / slices); }
  // Two blocks fit a multiprocessor when neither takes more: a programmatic edge then overlaps them.
  std::int64_t half() const { return clusters() ? shared / 2 : shared; }
};

struct Work {
  bool fits = false;
  int slices = 1, blocks = 0, depth = 0, batch = 1, token_bytes = 0, strips = 0;  // strips: most of a block
  std::size_t shared = 0, tokens_at = 0, tiles_at = 0, peers_at = 0, rows_at = 0, squares_at = 0;
};

// What a launch does besides the product.
struct Extras {
  bool row = false;    // row factors
  bool norm = false;   // RMS_NORM before
  bool pairs = false;  // ACT_MUL after: strips of gate and up by turns
  // Both need whole sums in one block.
  bool one_slice() const { return norm || pairs; }
};

#ifdef __CUDACC__
#define QE_WORK_HD __host__ __device__
#else
#define QE_WORK_HD
#endif
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// log2 of the fewest outputs, a power of two, that each block of a cluster adds up so that all are.
QE_WORK_HD constexpr int share_shift(int outputs, int slices) {
  int shift = 0;
  while ((slices << shift) < outputs) ++shift;
  return shift;
}

namespace detail {
// Shared memory besides the ring.
inline void lay_out(Work& w, const Kernel& k, std::int64_t width, int m, const Extras& extras) {
  const std::int64_t units = ceil_div(width, w.slices);
  w.token_bytes = int(units * 256 + (k.run == 16 ? 32 : 64));
  std::size_t at = 0;
  const auto take = [&](std::int64_t bytes) { const std::size_t here = at; at += std::size_t((bytes + 15) / 16 * 16); return here; };
  w.tokens_at = take(std::int64_t(m) * w.token_bytes);
  w.tiles_at = take(std::int64_t(k.warps) * (k.held ? 2 + k.held : 3) * kTileStride * m * 4);
  w.peers_at = at;  // sums of other blocks, or of gate and up
  if (w.slices > 1) take(std::int64_t(w.slices) * 4 << share_shift(w.strips * 16 * m, w.slices));
  else if (extras.pairs) take(w.strips * 64 * std::int64_t(m));
  w.rows_at = extras.row ? take(w.strips * 64) : at;
  w.squares_at = extras.norm ? take(k.warps * 4 * std::int64_t(m)) : at;
  w.shared = at;
}

// The fewest bytes that a block has to take in, weights and tokens. Slices cost a cluster's barriers and an exchange.
inline Work plan_wide(const Kernel& k, const Gpu& gpu, std::int64_t strips, std::int64_t width, int m, const Extras& extras) {
  Work w;
  if (!gpu.clusters() || extras.norm) return w;
  const std::int64_t each = extras.pairs ? 2 : 1, items = strips / each;
  std::int64_t least = -1, most_strips = 0;
  for (int slices = 1; slices <= 8; slices *= 2) {
    const std::int64_t clusters = std::min<std::int64_t>(items, gpu.at_once(slices)), most = ceil_div(items, clusters) * each, passes = ceil_div(most, kWideOwners);
    if (slices > 1 && (extras.pairs || passes > 1 || width < slices)) break;
    const std::int64_t taken = ceil_div(width, slices) * (most * k.unit_bytes + passes * m * 256) + (slices > 1 ? 30000 + 2 * most * 64 * m : 0);
    if (least >= 0 && taken >= least) continue;
    least = taken, most_strips = most;
    w.slices = slices;
    w.blocks = int(clusters) * slices;
  }
  w.strips = int(most_strips);
  w.batch = 1;
  w.token_bytes = wide_token_bytes(k.run);
  const std::int64_t slot = k.unit_bytes + 8, gates = 2 * 8 * kWideStages, rest = gates + kWideTokensBytes + kWideSumsBytes + kWideHandedBytes;
  w.depth = int(std::min<std::int64_t>((gpu.shared - rest - 128) / (slot * kWideOwners), 16));
  w.tokens_at = std::size_t((kWideOwners * w.depth * slot + 127) / 128 * 128);
  w.peers_at = w.tokens_at;
  w.squares_at = w.tokens_at + kWideTokensBytes;
  w.rows_at = w.squares_at + kWideSumsBytes;
  w.tiles_at = w.rows_at + kWideHandedBytes;
  w.shared = w.tiles_at + std::size_t(gates);
  w.fits = w.depth >= 2 && std::int64_t(w.shared) <= gpu.shared;
  return w;
}
}  // namespace detail

// REQUIRES: m <= 8 * kernel.tiles. The number of slices does not depend on m within one tile of tokens.
inline Work plan_work(const Kernel& k, const Gpu& gpu, std::int64_t strips, std::int64_t width, int m, const Extras& extras = {}) {
  if (k.tiles == kWideTokens / 8) return detail::plan_wide(k, gpu, strips, width, m, extras);
  const std::int64_t half = gpu.half(), least_ring = k.held ? 0 : std::int64_t(k.warps) * (k.unit_bytes + 8) * 2;
  Work w;
  const auto shape = [&](int slices) {
    w.slices = slices;
    const std::int64_t items = extras.pairs ? strips / 2 : strips;  // what a cluster has whole
    const int clusters = int(std::min<std::int64_t>(items, gpu.at_once(slices)));
    w.blocks = clusters * slices;
    w.strips = int(ceil_div(items, clusters)) * (extras.pairs ? 2 : 1);
  };
  const auto fits = [&](int tokens) {
    detail::lay_out(w, k, width, tokens, extras);
    return std::int64_t(w.shared) + least_ring <= gpu.shared;
  };
  shape(1);
  if (gpu.clusters() && !extras.one_slice() && strips > gpu.sms && width > 1) {
    // Whole strips leave some multiprocessors with one more: halves even that out, at the price of a cluster.
    const double one = double(w.strips) * double(width);
    shape(2);
    const double two = double(w.strips) * double(ceil_div(width, 2));
    if ((one - two) * k.unit_bytes < 22000.0) shape(1);  // 0.45 us at 49 GB/s
  }
  while (!fits(8 * k.tiles) && gpu.clusters() && !extras.one_slice() && w.slices < 8 && width >= 2 * w.slices) shape(w.slices * 2);
  w.fits = fits(m);
  if (!w.fits || k.held) return w;
  // The ring gets what is left of half a multiprocessor, or of all of it where that would starve it.
  w.batch = int(std::max<std::int64_t>(1, std::min<std::int64_t>(4096 / k.unit_bytes, 8)));
  const std::int64_t most = ceil_div(std::int64_t(w.strips) * ceil_div(width, w.slices), k.warps);
  if (!k.bulk) w.batch = 2;
  if (k.batch) w.batch = k.batch;
  w.batch = int(std::min<std::int64_t>(w.batch, most));
  constexpr std::int64_t kSpare = 2048;  // so that the block of join_chain fits beside this one
  std::int64_t slot = std::int64_t(w.batch) * k.unit_bytes + 8, room = half - kSpare - std::int64_t(w.shared);
  if (room < std::max<std::int64_t>(24576, least_ring)) room = gpu.shared - std::int64_t(w.shared);
  while (w.batch > 1 && room / (slot * k.warps) < (k.bulk ? 2 : 3)) --w.batch, slot = std::int64_t(w.batch) * k.unit_bytes + 8;
  w.depth = int(std::clamp<std::int64_t>(room / (slot * k.warps), 1, std::min<std::int64_t>(32, ceil_div(most, w.batch))));
  if (!k.bulk) w.depth = int(std::clamp<std::int64_t>(room / (slot * k.warps), 2, 8));  // the kernel waits for all but 1 .. 7
  const std::size_t ring = (std::size_t(k.warps) * std::size_t(w.depth) * std::size_t(slot) + 15) / 16 * 16;
  for (std::size_t* at : {&w.tokens_at, &w.tiles_at, &w.peers_at, &w.rows_at, &w.squares_at, &w.shared}) *at += ring;
  return w;
}

// How a launch stands in a chain of kernels joined by programmatic edges. Two blocks fit a multiprocessor; of kernels with a
// block for each, every block that ends makes room for one of the next kernel but one, and all stay evenly spread. A kernel
// with fewer blocks breaks that: two blocks of the next share a multiprocessor while others stay empty, and so on to the
// end of the step. So it starts what follows late, is started late, and what follows takes more than half of a
// multiprocessor, of which there is one for each again (docs/adr/0003).
// `other_before`, `other_behind`: no product, or one of few blocks.
inline void join_chain(Work& w, StreamArgs& a, const Gpu& gpu, bool other_before, bool other_behind) {
  a.pdl = other_behind || w.blocks != gpu.sms ? kPdlLate : kPdlEarly;
  if (other_before) w.shared = std::max(w.shared, std::size_t(gpu.half()) + 16);
}

// The strips of cluster c, the units of slice s, the units of warp w.
struct Share {
  int begin, count;
};
constexpr Share share_of(int total, int i, int n) { return {int(std::int64_t(total) * i / n), int(std::int64_t(total) * (i + 1) / n - std::int64_t(total) * i / n)}; }

}  // namespace qe::cuda
