// KvCache owns the bytes behind the block ids: keys (after rotary) and values of every layer.
//
// One mapping of address space, asked for without committing memory: a page costs nothing until a
// token is written to it. Within a layer, per block and KV head, so that attention streams:
//
//   k  [num_blocks][kv_heads][head_dim][block_size]   dimensions outside: 8 keys side by side make a
//                                                     vector of scores without shuffling
//   v  [num_blocks][kv_heads][block_size][head_pad]   head_pad: head_dim rounded up to 8, zeros there
//
// What is stored is what attention reads, in prefill too: a chunked prompt, a prefix hit and a whole
// prompt see the same numbers.
//
// The engine thread writes and reads; distinct (layer, block, head) may be used from its pool at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/kv/block_manager.hpp"
#include "core/kv/kv_dtype.hpp"

namespace qengine {

struct KvShape {
  int layers = 0, kv_heads = 0, head_dim = 0, block_size = 16;
  KvDtype dtype{};

  int head_pad() const { return (head_dim + 7) / 8 * 8; }
  std::int64_t block_bytes() const;      // of one block over all layers
  std::int64_t bytes_per_token() const;  // rounded up
};

std::int64_t kv_element_size(KvDtype dtype);
std::string kv_dtype_name(KvDtype dtype);  // "bfloat16"

class KvCache {
 public:
  // Throws Error E403 when the address space is refused. REQUIRES: block_size a multiple of 16.
  KvCache(const KvShape& shape, std::int32_t num_blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvShape& shape() const { return shape_; }
  KvDtype dtype() const { return shape_.dtype; }
  int block_size() const { return shape_.block_size; }
  std::int32_t num_blocks() const { return num_blocks_; }
  std::uint64_t bytes() const { return bytes_; }

  // First element of one head at a token offset of a block: k's dimensions follow at block_size, v's
  // tokens at head_pad.
  std::byte* k_at(int layer, BlockId block, int head, int offset) const {
    return base_ + layer * layer_bytes_ + block * k_block_ + head * k_head_ + offset * element_;
  }
  std::byte* v_at(int layer, BlockId block, int head, int offset) const {
    return base_ + layer * layer_bytes_ + v_offset_ + block * v_block_ + head * v_head_ + offset * v_token_;
  }

 private:
  KvShape shape_;
  std::int32_t num_blocks_;
  std::uint64_t bytes_ = 0;
  std::byte* base_ = nullptr;
  std::int64_t element_, k_head_, k_block_, v_token_, v_head_, v_block_, v_offset_, layer_bytes_;
};

}  // namespace qengine
