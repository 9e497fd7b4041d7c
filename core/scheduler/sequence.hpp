// Sequence: the running state of one request, as the scheduler sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/kv/block_manager.hpp"
#include "core/kv/prefix_cache.hpp"

namespace qengine {

struct Sequence {
  std::uint64_t arrival = 0;          // order of arrival; smaller is older and wins
  std::vector<std::int32_t> tokens;   // the prompt, then what was generated
  std::int64_t prompt_len = 0;
  std::string cache_salt;
  bool read_prefix_cache = true;      // false: every position is computed (prompt logprobs)
  bool paused = false;                // holds its place but is not scheduled: its reader is slow

  // The scheduler's.
  enum class State { kWaiting, kRunning, kFinished };
  State state = State::kWaiting;
  std::int64_t computed = 0;          // positions whose keys and values are in the cache
  std::vector<BlockId> blocks;        // block table; covers at least `computed` positions
  std::int64_t cached_tokens = 0;     // of the prompt, found in the prefix cache when first admitted
  bool admitted_before = false;
  std::int64_t chained_blocks = 0;    // full blocks looked up or registered so far
  PrefixCache::Node chain = 0;        // node of the last of them

  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
};

}  // namespace qengine
