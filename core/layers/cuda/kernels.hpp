// What core computes between the products of a layer on an NVIDIA GPU. The CPU's kernels.hpp is the
// definition; these agree with it within the rounding of bf16.
//
// Every launcher enqueues on `at.stream` and returns; nothing allocates, waits or prints. With `at.pdl`
// a kernel is launched with the programmatic attribute, so that it may start while the one before it
// ends; each kernel waits for that end before it touches what others write (kernels of a chain:
// launch.cuh). Sums run in an order that depends on shapes alone: the same input gives the same bits.
//
// Layout. Activations are bf16 row-major with a row stride in elements, the residual stream is float32.
// The cache lies in blocks of block_tokens slots; slot = block * block_tokens + offset; strides in
// elements say where a token and a head of it begin.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace qengine::cuda {

struct At {
  cudaStream_t stream = nullptr;
  bool pdl = false;
};

// ---- rows ------------------------------------------------------------------------------------------

// x += delta + bias; out = x / sqrt(mean(x^2) + eps) * w. Each of delta, bias and w may be null: without
// w only the sum is stored. `pick`, when there, names the row of x for each row of out (then nothing is
// added). With `set`, x = delta instead of x += delta (the first layer's input).
struct AddNorm {
  float* x = nullptr;                      // [rows, n]
  const __nv_bfloat16* delta = nullptr;    // [rows, n]
  std::int64_t delta_stride = 0;
  const float* bias = nullptr;             // [n]
  const float* w = nullptr;                // [n]
  __nv_bfloat16* out = nullptr;            // [rows, n]
  std::int64_t out_stride = 0;
  const std::int32_t* pick = nullptr;      // [rows]
  float eps = 0;
  int n = 0, rows = 0;
  bool set = false;
};
cudaError_t add_norm(const AddNorm& a, At at);

// out[r, i] = act(g[r, i] + bias[i]) * (g[r, n + i] + bias[n + i])
enum class Act : int { kSilu = 0, kGeluTanh = 1, kGelu = 2 };
struct ActMul {
  const __nv_bfloat16* g = nullptr;  // [rows, 2 n]
  std::int64_t g_stride = 0;
  const float* bias = nullptr;       // [2 n] or null
  __nv_bfloat16* out = nullptr;      // [rows, n]
  std::int64_t out_stride = 0;
  int n = 0, rows = 0;
  Act act = Act::kSilu;
};
cudaError_t act_mul(const ActMul& a, At at);

// ---- the cache -------------------------------------------------------------------------------------

enum class KvType : int { kBf16 = 0, kE4m3 = 1 };

struct KvPool {
  void* k = nullptr;  // this layer's
  void* v = nullptr;
  KvType type = KvType::kBf16;
  std::int64_t block_stride = 0, token_stride = 0, head_stride = 0;  // elements
  int block_tokens = 16;
  const float* k_scale = nullptr;  // [kv_heads], value = code * scale; null: 1
  const float* v_scale = nullptr;
};

// Everything between the qkv product and attention, in place: bias, norm of q's and k's heads, rotation,
// and k and v into the cache. A null pointer leaves its part out. slot -1: nothing is stored.
struct QkvFinish {
  __nv_bfloat16* qkv = nullptr;  // [rows, (heads + 2 kv_heads) * head_dim]
  std::int64_t stride = 0;
  const float* bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  float eps = 0;
  const float* cos_sin = nullptr;                    // [positions, rot_dim]: rot_dim / 2 cosines, then sines
  const std::int32_t* position = nullptr;            // [rows]
  const std::int64_t* slot = nullptr;                // [rows]
  KvPool pool;
  int rows = 0, heads = 0, kv_heads = 0, head_dim = 0, rot_dim = 0;
};
cudaError_t qkv_finish(const QkvFinish& a, At at);

// ---- attention -------------------------------------------------------------------------------------

// A sequence is rows [cu_q[s], cu_q[s + 1]) of q: its last tokens, of seq_len[s] in the cache. A row
// sees the keys up to its own, the last `window` of them when window > 0.
struct Attention {
  const __nv_bfloat16* q = nullptr;  // [rows, ...], heads side by side
  std::int64_t q_stride = 0;
  __nv_bfloat16* out = nullptr;      // [rows, heads * head_dim]
  std::int64_t out_stride = 0;
  KvPool pool;
  const std::int32_t* block_table = nullptr;  // [seqs, table_stride]
  std::int64_t table_stride = 0;
  const std::int32_t* seq_len = nullptr;      // [seqs]; 0: the row's result is zeros
  const std::int32_t* cu_q = nullptr;         // [seqs + 1]
  float scale = 1;
  int heads = 0, kv_heads = 0, head_dim = 0, window = 0;
};

// One query row a sequence. Keys are split over `splits` blocks, `cluster` of which work side by side; what clusters
// leave in `partial` is joined by the last of them. partial_floats() says how much that takes; counters:
// decode_counters() of them, zero before the first call, and zero again after every call.
struct Decode {
  Attention a;
  const std::int32_t* seqs = nullptr;  // [n_seqs] which sequences; null: 0 .. n_seqs - 1
  int n_seqs = 0, splits = 1;
  int cluster = 1;  // divides splits and a quarter of head_dim; more than 1 from sm_90 on
  float* partial = nullptr;
  std::uint32_t* counters = nullptr;
  // With `finishes`, q is as the product left it and what qkv_finish does happens in here: a launch less.
  // REQUIRES: decode_finishes() of these heads; finish.qkv is a.q, and the rows are those of the sequences. Tables,
  // cu_q and the cache but for the new tokens were there before the chain of launches that this one belongs to;
  // lengths and positions may be moved on by one in it.
  bool finishes = false;
  QkvFinish finish;
};
bool decode_finishes(int heads, int kv_heads, int head_dim);
std::int64_t partial_floats(int n_seqs, int heads, int head_dim, int splits);
int decode_splits(int n_seqs, int kv_heads, int sm_count, std::int64_t longest);
inline constexpr int kMostCluster = 8;
int decode_cluster(int splits, int sm);
std::int64_t decode_counters(int n_seqs, int heads);
cudaError_t attention_decode(const Decode& d, At at);

// Many query rows a sequence. `tiles` says which blocks of kPrefillTokens tokens exist: {sequence, first
// row within it}, longest first.
struct Tile {
  std::int32_t seq, first;
};
// Tokens that one tile holds: kTileRows rows, each one head of a KV head's group for one token.
int prefill_tile_tokens(int heads, int kv_heads);
struct Prefill {
  Attention a;
  const Tile* tiles = nullptr;  // device
  int n_tiles = 0;
};
cudaError_t attention_prefill(const Prefill& p, At at);

// ---- choosing --------------------------------------------------------------------------------------

struct Best {
  std::int32_t index;   // lowest of equals
  float value;
  std::int32_t finite;  // 1: every element of the row is
  std::int32_t pad;
};
// Of the first `limit` of n values a row; finite looks at all n. `partial`: rows * kBestChunks; counters
// as for decode, `rows` of them.
inline constexpr int kBestChunks = 32;
struct ArgMax {
  const float* x = nullptr;  // [rows, n]
  std::int64_t stride = 0;
  int n = 0, limit = 0, rows = 0;
  const std::int32_t* limit_at = nullptr;  // device memory; when there, instead of `limit`
  Best* partial = nullptr;
  std::uint32_t* counters = nullptr;
  Best* out = nullptr;          // [rows]
  std::int32_t* token = nullptr;  // [rows] or null: index once more, where the next step reads it
};
cudaError_t argmax(const ArgMax& a, At at);

// One token on: ids = tokens, positions and lengths + 1, slots by the block table. A row whose length is
// negative is padding and stays that: id 0, no slot.
struct Advance {
  const std::int32_t* tokens = nullptr;  // [rows], what was chosen
  std::int32_t *ids = nullptr, *positions = nullptr, *seq_len = nullptr;
  std::int64_t* slots = nullptr;
  const std::int32_t* block_table = nullptr;
  std::int64_t table_stride = 0;
  int block_tokens = 16, rows = 0;
};
cudaError_t advance(const Advance& a, At at);

// ---- measuring -------------------------------------------------------------------------------------
// The most bytes a second that the whole device reads of `zeros`, device memory that is all zeros; 0 when it is too small to
// tell. `bytes`: several times the L2 cache. Waits.
cudaError_t read_bandwidth(void* zeros, std::uint64_t bytes, cudaStream_t stream, double* bytes_s);

}  // namespace qengine::cuda
