// PrefixCache finds KV blocks whose content a new sequence would compute again.
//
// A full block is known by the chain of all tokens up to its end, and by the root of the chain: what
// the numbers in the cache mean (plugin, version, scheme, scales, model) and the request's salt. The
// hash only finds an entry; tokens and chain are then compared, so that equal hashes never mix two
// users' text.
//
// Deals in ids: BlockManager holds and frees, and tells erase() when a block is given away. An entry
// whose parent is gone can no longer be reached and ages out.
//
// Not thread-safe: the engine thread is the only caller.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/kv/block_manager.hpp"

namespace qengine {

class PrefixCache {
 public:
  // Names an entry for the life of the process; 0 is "before the first block". Never used twice.
  using Node = std::uint64_t;

  // `identity` describes the cache's numbers; equal strings share blocks.
  PrefixCache(std::string identity, int block_size);

  struct Hit {
    Node node = 0;
    BlockId block = -1;
  };
  // The block that continues `parent` with exactly these tokens; block -1 when unknown.
  Hit find(Node parent, std::string_view salt, std::span<const std::int32_t> tokens) const;

  // Makes a full block findable. When its content is known already (two sequences computed the same)
  // the older block stays and is returned; the caller's is then not in the cache.
  Hit insert(Node parent, std::string_view salt, std::span<const std::int32_t> tokens, BlockId block);

  void erase(BlockId block);  // no-op for blocks that are not in the cache
  void clear();               // nothing that was inserted so far is found again
  std::size_t size() const { return by_block_.size(); }

 private:
  struct Entry {
    Node node, parent;
    std::string salt;  // identity and salt; only where parent is 0
    std::vector<std::int32_t> tokens;
    BlockId block;
  };
  std::uint64_t hash(Node parent, std::string_view salt, std::span<const std::int32_t> tokens) const;
  const Entry* lookup(std::uint64_t h, Node parent, std::string_view salt, std::span<const std::int32_t> tokens) const;

  std::string identity_;
  int block_size_;
  std::uint64_t seed_;  // of the hash: nobody outside can choose tokens that collide
  Node next_ = 1;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Entry>> entries_;
  std::unordered_map<BlockId, std::pair<std::uint64_t, Entry*>> by_block_;
};

}  // namespace qengine
