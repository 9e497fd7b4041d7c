// Attention of any head size, a warp a row, and the choice between it and the fast kernels.
//
// The readable kernel is also what the fast ones are held against.
#include <algorithm>
#include <bit>

#include "core/layers/cuda/attention.cuh"
#include "core/layers/cuda/attention_prefill.cuh"
#include "core/layers/cuda/attention_rows.cuh"

namespace qengine::cuda {

#define QE_DECLARE(D)                         \
  cudaError_t decode_##D(const Decode&, At);  \
  cudaError_t prefill_##D(const Prefill&, At);
QE_DECLARE(32) QE_DECLARE(64) QE_DECLARE(96) QE_DECLARE(128) QE_DECLARE(256)
#undef QE_DECLARE

namespace {

constexpr int kMostDim = 256;

__device__ float value(const KvPool& pool, const void* base, std::int64_t at) {
  if (pool.type == KvType::kBf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[at]);
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(base)[at], __NV_E4M3)));
}

// Row `token` of the sequence's query rows, one head; lane l has dimensions l, l + 32, ...
__device__ void one_row(const Attention& a, int seq, int token, int head) {
  const int lane = threadIdx.x % 32;
  const int row0 = a.cu_q[seq], len = a.seq_len[seq], count = max(1, a.cu_q[seq + 1] - row0);
  const int kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t row = row0 + token;
  const int hi = len <= 0 ? 0 : len - count + token + 1, lo = a.window > 0 ? max(0, hi - a.window) : 0;
  const float scale = a.scale * (a.pool.k_scale ? a.pool.k_scale[kv_head] : 1.0f), v_scale = a.pool.v_scale ? a.pool.v_scale[kv_head] : 1.0f;
  float q[kMostDim / 32], o[kMostDim / 32] = {}, m = -INFINITY, l = 0;
  for (int j = 0; j * 32 + lane < a.head_dim; ++j) q[j] = __bfloat162float(a.q[row * a.q_stride + static_cast<std::int64_t>(head) * a.head_dim + j * 32 + lane]);
  for (int key = lo; key < hi; ++key) {
    const std::int64_t at = a.block_table[seq * a.table_stride + key / a.pool.block_tokens] * a.pool.block_stride + key % a.pool.block_tokens * a.pool.token_stride + kv_head * a.pool.head_stride;
    float s = 0;
    for (int j = 0; j * 32 + lane < a.head_dim; ++j) s += q[j] * value(a.pool, a.pool.k, at + j * 32 + lane);
    for (int x = 16; x > 0; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
    s *= scale;
    const float most = fmaxf(m, s), f = expf(m - most), p = expf(s - most);
    m = most;
    l = l * f + p;
    for (int j = 0; j * 32 + lane < a.head_dim; ++j) o[j] = o[j] * f + p * value(a.pool, a.pool.v, at + j * 32 + lane);
  }
  for (int j = 0; j * 32 + lane < a.head_dim; ++j)
    a.out[row * a.out_stride + static_cast<std::int64_t>(head) * a.head_dim + j * 32 + lane] = __float2bfloat16(l > 0 ? o[j] / l * v_scale : 0.0f);
}

__global__ void decode_any_kernel(Decode d) {
  pdl_begin();
  one_row(d.a, d.seqs ? d.seqs[blockIdx.y] : blockIdx.y, 0, blockIdx.x);
}

__global__ void prefill_any_kernel(Prefill p, int tile_tokens) {
  pdl_begin();
  const Tile tile = p.tiles[blockIdx.x];
  const int count = p.a.cu_q[tile.seq + 1] - p.a.cu_q[tile.seq];
  for (int i = 0; i < tile_tokens && tile.first + i < count; ++i) one_row(p.a, tile.seq, tile.first + i, blockIdx.y);
}

}  // namespace

std::int64_t partial_floats(int n_seqs, int heads, int head_dim, int splits) { return std::int64_t{n_seqs} * heads * splits * (head_dim + 2); }

// About two blocks an SM or a few more, in whole clusters; a block takes at least 64 keys.
int decode_splits(int n_seqs, int kv_heads, int sm_count, std::int64_t longest) {
  const int blocks = std::max(1, n_seqs * kv_heads), wanted = (2 * sm_count + blocks - 1) / blocks;
  const int splits = static_cast<int>(std::min<std::int64_t>(wanted, std::max<std::int64_t>(1, (longest + 63) / 64)));
  return splits >= kMostCluster ? splits / kMostCluster * kMostCluster : static_cast<int>(std::bit_floor(static_cast<unsigned>(splits)));
}

int decode_cluster(int splits, int sm) {
  int cluster = sm >= 90 ? kMostCluster : 1;
  while (splits % cluster) cluster /= 2;
  return cluster;
}

std::int64_t decode_counters(int n_seqs, int heads) { return std::int64_t{n_seqs} * heads * kMostCluster; }

// One tile of rows a KV head: else its blocks would not agree on who appends.
bool decode_finishes(int heads, int kv_heads, int head_dim) {
  return heads / kv_heads <= kDecodeRows && (head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256);
}

int prefill_tile_tokens(int heads, int kv_heads) { return std::max(1, kTileRows / (heads / kv_heads)); }

cudaError_t attention_decode(const Decode& d, At at) {
  if (d.n_seqs == 0) return cudaSuccess;
  switch (d.a.head_dim) {
    case 32: return decode_32(d, at);
    case 64: return decode_64(d, at);
    case 96: return decode_96(d, at);
    case 128: return decode_128(d, at);
    case 256: return decode_256(d, at);
  }
  if (d.a.head_dim > kMostDim || d.finishes) return cudaErrorInvalidValue;
  return launch(decode_any_kernel, dim3(static_cast<unsigned>(d.a.heads), static_cast<unsigned>(d.n_seqs)), dim3(32), 0, at, d);
}

cudaError_t attention_prefill(const Prefill& p, At at) {
  if (p.n_tiles == 0) return cudaSuccess;
  switch (p.a.head_dim) {
    case 32: return prefill_32(p, at);
    case 64: return prefill_64(p, at);
    case 96: return prefill_96(p, at);
    case 128: return prefill_128(p, at);
    case 256: return prefill_256(p, at);
  }
  if (p.a.head_dim > kMostDim) return cudaErrorInvalidValue;
  return launch(prefill_any_kernel, dim3(static_cast<unsigned>(p.n_tiles), static_cast<unsigned>(p.a.heads)), dim3(32), 0, at, p, prefill_tile_tokens(p.a.heads, p.a.kv_heads));
}

}  // namespace qengine::cuda
