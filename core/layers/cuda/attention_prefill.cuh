// attention_prefill: many query tokens of a sequence against its paged cache, causal.
//
// Mapping  Grid (tiles, KV heads). A tile is kTileRows rows of one KV head's group, token-major; each
//          of eight warps has 16 of them and walks the keys alone. The warps of a block read the same
//          keys at about the same time, so they come from L1.
// Bound    Matrix rate, at long prompts; L1 bandwidth before that.
// Numbers  as attention_decode.
// Why not  Shared-memory tiles and wgmma: later, measured against this one.
#pragma once

#include "core/layers/cuda/attention.cuh"

namespace qengine::cuda {

inline constexpr int kPrefillWarps = 8;
inline constexpr int kTileRows = kPrefillWarps * 16;

template <int D, KvType T>
__global__ void __launch_bounds__(kPrefillWarps * 32) attention_prefill_kernel(Prefill p, int tile_tokens) {
  pdl_begin();
  const Attention& a = p.a;
  const int group = a.heads / a.kv_heads, kv_head = blockIdx.y;
  const Tile tile = p.tiles[blockIdx.x];
  const int row0 = a.cu_q[tile.seq], count = a.cu_q[tile.seq + 1] - row0, len = a.seq_len[tile.seq];
  const int tokens = min(tile_tokens, count - tile.first);
  const int warp = threadIdx.x / 32;
  for (int base = warp * 16; base < tokens * group; base += kTileRows) {  // once, unless a group is larger than a tile
    WarpAttention<D, T> w;
    w.begin();
    int lo[2], hi[2];
    std::int64_t at[2];
    const __nv_bfloat16* q[2];
    bool there[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = base + w.g + 8 * r, token = tile.first + i / group;
      there[r] = i < tokens * group;
      const std::int64_t row = row0 + token, head = kv_head * group + i % group;
      q[r] = there[r] ? a.q + row * a.q_stride + head * D : nullptr;
      at[r] = row * a.out_stride + head * D;
      hi[r] = there[r] ? len - count + token + 1 : 0;
      lo[r] = a.window > 0 ? max(0, hi[r] - a.window) : 0;
    }
    w.load_q(q[0], q[1]);
    const Keys keys = keys_of(a, tile.seq, kv_head);
    const float scale2 = a.scale * 1.4426950408889634f * (a.pool.k_scale ? a.pool.k_scale[kv_head] : 1.0f);
    // The warp's first and last rows bound what any of them sees.
    const int last_row = min(base + 15, tokens * group - 1);
    const int end = len - count + tile.first + last_row / group + 1;
    const int start = a.window > 0 ? max(0, len - count + tile.first + base / group + 1 - a.window) : 0;
    for (int key = start / 16 * 16; key < end; key += 16) w.step(keys, key, len, lo, hi, scale2);
    w.end();
    const float v_scale = a.pool.v_scale ? a.pool.v_scale[kv_head] : 1.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!there[r]) continue;
      const float f = w.l[r] > 0 ? v_scale / w.l[r] : 0.0f;
      w.each(r, [&](int dim, float x) { a.out[at[r] + dim] = __float2bfloat16(x * f); });
    }
  }
}

template <int D, KvType T>
cudaError_t prefill_as(const Prefill& p, At at) {
  return launch(attention_prefill_kernel<D, T>, dim3(static_cast<unsigned>(p.n_tiles), static_cast<unsigned>(p.a.kv_heads)), dim3(kPrefillWarps * 32), 0, at, p, prefill_tile_tokens(p.a.heads, p.a.kv_heads));
}

}  // namespace qengine::cuda
