// PluginKv: a KV cache whose bytes are a plugin's. The plugin encodes and decodes; core's attention
// reads what it decoded, so chunked and whole prompts, prefill and decode see the same numbers.
//
// Per layer and step: store() the new tokens, then for a few sequences at a time fetch() every
// position into a cache of core's own layout (float32, one layer) and attend over that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/thread_pool.hpp"
#include "core/kv/kv_cache.hpp"
#include "core/layers/attention.hpp"
#include "core/layers/kernels.hpp"
#include "core/plugin_host/kv_format.hpp"

namespace qengine {

class PluginKv {
 public:
  PluginKv(std::unique_ptr<KvFormat> format, const KvShape& shape, std::int32_t num_blocks, std::int64_t max_model_len, ThreadPool& pool);
  ~PluginKv();
  PluginKv(const PluginKv&) = delete;
  PluginKv& operator=(const PluginKv&) = delete;

  static std::int64_t block_bytes(const KvFormat& format, int layers);  // of one block over all layers
  std::uint64_t bytes() const { return bytes_; }

  // Rotated keys and values of tokens side by side: row r at k + r * stride, heads one after another.
  void store(int layer, const float* k, const float* v, std::int64_t stride, std::span<const std::int64_t> slots);

  // Groups of sequences that fit the scratch cache together: [begin, end) of seqs.
  std::vector<std::pair<std::size_t, std::size_t>> groups(std::span<const AttnSeq> seqs) const;
  // Decodes all positions of the sequences into scratch(); `out` are the same with its block tables.
  void fetch(int layer, std::span<const AttnSeq> seqs, std::vector<AttnSeq>& out);
  const KvCache& scratch() const { return scratch_; }

 private:
  std::byte* pool_of(int layer, int what) const;

  std::unique_ptr<KvFormat> format_;
  KvShape shape_;
  ThreadPool& pool_;
  const Kernels& kernels_;
  std::uint64_t part_[3], layer_bytes_, bytes_;  // k, v, scale pools of a layer
  std::byte* base_;
  std::int64_t scratch_blocks_;
  KvCache scratch_;
  std::vector<BlockId> tables_;  // of the scratch cache
};

}  // namespace qengine
