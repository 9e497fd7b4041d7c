#include "core/kv/prefix_cache.hpp"

#include <algorithm>
#include <cassert>
#include <random>
#include <utility>

namespace qengine {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 32);
}

}  // namespace

PrefixCache::PrefixCache(std::string identity, int block_size) : identity_(std::move(identity)), block_size_(block_size) {
  std::random_device random;
  seed_ = std::uint64_t{random()} << 32 | random();
}

std::uint64_t PrefixCache::hash(Node parent, std::string_view salt, std::span<const std::int32_t> tokens) const {
  std::uint64_t h = mix(seed_, parent);
  if (parent == 0) {
    h = mix(h, std::hash<std::string_view>{}(identity_));
    h = mix(h, std::hash<std::string_view>{}(salt));
  }
  for (const std::int32_t t : tokens) h = mix(h, static_cast<std::uint32_t>(t));
  return h;
}

const PrefixCache::Entry* PrefixCache::lookup(std::uint64_t h, Node parent, std::string_view salt,
                                              std::span<const std::int32_t> tokens) const {
  const auto [begin, end] = entries_.equal_range(h);
  for (auto it = begin; it != end; ++it) {
    const Entry& e = *it->second;
    if (e.parent == parent && (parent != 0 || e.salt == salt) && std::ranges::equal(e.tokens, tokens)) return &e;
  }
  return nullptr;
}

PrefixCache::Hit PrefixCache::find(Node parent, std::string_view salt, std::span<const std::int32_t> tokens) const {
  assert(std::ssize(tokens) == block_size_);
  const Entry* e = lookup(hash(parent, salt, tokens), parent, salt, tokens);
  return e ? Hit{e->node, e->block} : Hit{};
}

PrefixCache::Hit PrefixCache::insert(Node parent, std::string_view salt, std::span<const std::int32_t> tokens, BlockId block) {
  assert(std::ssize(tokens) == block_size_ && !by_block_.contains(block));
  const std::uint64_t h = hash(parent, salt, tokens);
  if (const Entry* e = lookup(h, parent, salt, tokens)) return {e->node, e->block};
  auto entry = std::make_unique<Entry>(Entry{next_++, parent, parent == 0 ? std::string(salt) : std::string(),
                                             std::vector<std::int32_t>(tokens.begin(), tokens.end()), block});
  by_block_[block] = {h, entry.get()};
  const Hit hit{entry->node, block};
  entries_.emplace(h, std::move(entry));
  return hit;
}

void PrefixCache::erase(BlockId block) {
  const auto it = by_block_.find(block);
  if (it == by_block_.end()) return;
  const auto [begin, end] = entries_.equal_range(it->second.first);
  for (auto e = begin; e != end; ++e)
    if (e->second.get() == it->second.second) {
      entries_.erase(e);
      break;
    }
  by_block_.erase(it);
}

void PrefixCache::clear() {
  entries_.clear();
  by_block_.clear();
}

}  // namespace qengine
