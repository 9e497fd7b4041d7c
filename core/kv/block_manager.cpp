#include "core/kv/block_manager.hpp"

#include <cassert>
#include <utility>

namespace qengine {

BlockManager::BlockManager(std::int32_t num_blocks, int block_size, std::function<void(BlockId)> evicted)
    : nodes_(static_cast<std::size_t>(num_blocks)), num_free_(num_blocks), block_size_(block_size), evicted_(std::move(evicted)) {}

void BlockManager::unlink(BlockId id) {
  Node& n = nodes_[static_cast<std::size_t>(id)];
  (n.prev >= 0 ? nodes_[static_cast<std::size_t>(n.prev)].next : oldest_) = n.next;
  (n.next >= 0 ? nodes_[static_cast<std::size_t>(n.next)].prev : newest_) = n.prev;
  n.prev = n.next = -1;
}

std::optional<BlockId> BlockManager::allocate() {
  BlockId id = -1;
  if (!empty_.empty()) {
    id = empty_.back();
    empty_.pop_back();
  } else if (fresh_ < num_blocks()) {
    id = fresh_++;
  } else if (oldest_ >= 0) {
    id = oldest_;
    unlink(id);
    nodes_[static_cast<std::size_t>(id)].cached = false;
    if (evicted_) evicted_(id);
  } else {
    return std::nullopt;
  }
  nodes_[static_cast<std::size_t>(id)].refs = 1;
  --num_free_;
  return id;
}

void BlockManager::share(BlockId id) {
  Node& n = nodes_[static_cast<std::size_t>(id)];
  assert(n.cached);
  if (n.refs++ == 0) {
    unlink(id);
    --num_free_;
  }
}

void BlockManager::release(BlockId id) {
  Node& n = nodes_[static_cast<std::size_t>(id)];
  assert(n.refs > 0);
  if (--n.refs > 0) return;
  ++num_free_;
  if (!n.cached) {
    empty_.push_back(id);
    return;
  }
  n.prev = newest_;
  n.next = -1;
  (newest_ >= 0 ? nodes_[static_cast<std::size_t>(newest_)].next : oldest_) = id;
  newest_ = id;
}

void BlockManager::mark_cached(BlockId id) {
  assert(ref_count(id) > 0);
  nodes_[static_cast<std::size_t>(id)].cached = true;
}

void BlockManager::drop_cached() {
  while (oldest_ >= 0) {
    const BlockId id = oldest_;
    unlink(id);
    nodes_[static_cast<std::size_t>(id)].cached = false;
    if (evicted_) evicted_(id);
    empty_.push_back(id);
  }
}

}  // namespace qengine
