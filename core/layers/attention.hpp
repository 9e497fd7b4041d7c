// Attention over the paged cache: causal, grouped heads, optional sliding window; prefill and decode
// alike.
//
// Every query row meets the keys it sees in tiles of kAttnTile, at absolute multiples of it; a tile's
// softmax is taken whole and joined to the row's running one, tile after tile. The result of a row
// thus depends on its own query and keys alone, bit for bit, however rows are grouped, prompts cut,
// or tiles spread over threads (a long decode computes tiles in parallel and joins them in order).
//
// plan() once a step, run() for each layer; neither allocates once warm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/thread_pool.hpp"
#include "core/kv/kv_cache.hpp"
#include "core/layers/kernels.hpp"

namespace qengine {

// Consecutive query tokens of one sequence. Their keys and values are in the cache already.
struct AttnSeq {
  const BlockId* blocks = nullptr;
  std::int64_t first = 0;  // position of the first query token
  std::int64_t count = 0;
  std::int64_t row = 0;    // of the first query token in the batch
};

class Attention {
 public:
  Attention(const Kernels& kernels, ThreadPool& pool, int num_heads, int num_kv_heads, int head_dim);

  void plan(std::span<const AttnSeq> seqs);
  // q [rows, q_stride]: heads side by side, scaled. out [rows, out_stride]. window 0: full.
  void run(const KvCache& cache, int layer, std::int64_t window, const float* q, std::int64_t q_stride, float* out,
           std::int64_t out_stride);

 private:
  struct Unit {  // some rows of one sequence and KV head
    std::int32_t seq, kv_head, row0, rows;  // rows count (token, head of the group), token-major
  };
  struct Part {  // one tile of a unit, when tiles are spread over threads
    std::int32_t unit, tile;
  };
  struct Call;
  struct Rows;

  void gather_rows(const Call& c, const Unit& u, Rows& rows) const;
  bool tile(const Call& c, const Unit& u, const Rows& rows, std::int64_t t, float* m, float* l, float* acc) const;
  void finish(const Call& c, const Rows& rows, int count, const float* l, float* acc) const;
  void whole_unit(const Call& c, const Unit& u) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
  int heads_, kv_heads_, group_, head_dim_, pad_;
  int rows_per_unit_;
  std::vector<AttnSeq> seqs_;
  std::vector<Unit> units_;
  std::vector<Part> parts_;      // empty: units are not split
  std::vector<std::int32_t> first_part_;  // [units + 1]
  std::vector<float> partial_;   // per part: m, l [rows_per_unit] and acc [rows_per_unit][pad]
  bool serial_ = false;
};

}  // namespace qengine
