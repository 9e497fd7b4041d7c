// BlockManager hands out KV-cache blocks and remembers how many sequences hold each.
//
// A block is `block_size` token slots across every layer. The manager deals in ids only; KvCache owns
// the bytes behind them, on whatever device, and PrefixCache knows what is in them.
//
// A freed block whose content is worth keeping (mark_cached) stays findable until its turn comes:
// allocate() takes freed blocks without content first, then blocks never used, then the cached ones,
// oldest freed first. So a cached prefix survives as long as it can, and memory that was never
// touched is not touched without need.
//
// Invariants, true between any two calls:
//   (1) a block is free exactly when its ref count is 0;
//   (2) a block with ref count > 1 is cached: full, and nobody writes to it again;
//   (3) free + held = num_blocks.
//
// Not thread-safe: the engine thread is the only caller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace qengine {

using BlockId = std::int32_t;

class BlockManager {
 public:
  // `evicted` is told when a cached block is given to somebody else; may be empty.
  BlockManager(std::int32_t num_blocks, int block_size, std::function<void(BlockId)> evicted = {});

  // Takes a free block and holds it once; its old content is gone. nullopt when none is left: an
  // ordinary outcome that the scheduler answers with preemption, not an error.
  std::optional<BlockId> allocate();

  // One more holder of a cached block, free or held. REQUIRES: cached(id).
  void share(BlockId id);

  // Drops a holder; the last one out frees the block. REQUIRES: ref_count(id) > 0.
  void release(BlockId id);

  // From now on the block's content may be shared. REQUIRES: ref_count(id) > 0.
  void mark_cached(BlockId id);
  bool cached(BlockId id) const { return nodes_[static_cast<std::size_t>(id)].cached; }
  // Forgets the content of every free cached block and calls evicted for each.
  void drop_cached();

  std::int32_t ref_count(BlockId id) const { return nodes_[static_cast<std::size_t>(id)].refs; }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t num_blocks() const { return static_cast<std::int32_t>(nodes_.size()); }
  int block_size() const { return block_size_; }

 private:
  struct Node {
    std::int32_t refs = 0;
    bool cached = false;
    BlockId prev = -1, next = -1;  // in the list of free cached blocks
  };
  void unlink(BlockId id);

  std::vector<Node> nodes_;       // [num_blocks]
  std::vector<BlockId> empty_;    // freed without content; last freed first, its pages are warm
  BlockId fresh_ = 0;             // from here on never used
  BlockId oldest_ = -1, newest_ = -1;  // free cached blocks, by time of release
  std::int32_t num_free_ = 0;
  int block_size_;
  std::function<void(BlockId)> evicted_;
};

}  // namespace qengine
