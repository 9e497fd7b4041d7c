// Scheduler decides what the next step runs. It deals in sequences and block ids and never touches a
// device; the engine runs what it says and tells it what came out.
//
//   schedule()  running sequences first, oldest first: one token each in decode, a piece of the prompt
//               in prefill, as far as the token budget goes; then waiting ones, first come first
//               served, if a seat is free and the cache can hold their prompt
//   commit()    after the step: positions count as computed, full blocks go into the prefix cache
//
// When a running sequence needs a block and none is left, the youngest running one gives all of its
// blocks back and waits at the head of the queue; it is computed again later (mostly from the prefix
// cache, if its blocks are not taken meanwhile). The oldest sequence never yields, so the engine moves.
//
// Invariants, true between any two calls:
//   (1) the blocks of running sequences are held, those of waiting ones are not;
//   (2) each list is in order of arrival, and running sequences are older than waiting ones but for paused ones;
//   (3) num_running() <= max_num_seqs.
//
// Not thread-safe: the engine thread is the only caller.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/kv/block_manager.hpp"
#include "core/kv/prefix_cache.hpp"
#include "core/scheduler/sequence.hpp"

namespace qengine {

struct SchedulerLimits {
  std::int64_t max_num_seqs = 128;
  std::int64_t token_budget = 2048;  // most tokens of a step
  bool chunked_prefill = true;       // false: a prompt runs in one step or not at all
  bool prefix_caching = true;
  std::int64_t look_ahead_to = 0;    // > 0: a running sequence gets the block of its next position, up to this
                                     // length, a step early while blocks are plenty: a device may run ahead
  std::string cache_identity;        // what the numbers in the cache mean; see PrefixCache
};

// What one step runs: tokens [first, first + count) of each sequence.
struct Step {
  struct Item {
    Sequence* seq = nullptr;
    std::int64_t first = 0, count = 0;
    bool last = false;  // reaches the end of seq->tokens: its logits choose the next token
  };
  std::vector<Item> items;
  std::int64_t num_tokens = 0;
  bool empty() const { return items.empty(); }
};

struct SchedulerStats {
  std::int64_t preemptions = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, std::int32_t num_blocks, int block_size);

  // Queues a sequence, which must outlive its stay. REQUIRES: its arrival is the largest so far; at
  // least one token; as many blocks as its longest state needs exist.
  void add(Sequence* seq);

  // Takes it out, waiting or running; its blocks are free at once. No-op when it is in neither list.
  void remove(Sequence* seq);

  // The next step; empty when nothing can run. The reference is good until the next call.
  const Step& schedule();

  // The step ran. REQUIRES: called once after each schedule(), before tokens are appended. The step
  // stays readable.
  void commit();

  std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t num_waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  const SchedulerStats& stats() const { return stats_; }
  BlockManager& blocks() { return blocks_; }
  const BlockManager& blocks() const { return blocks_; }
  // Nothing that was computed so far is found by a later sequence. Blocks that somebody holds stay with their holders. Returns how
  // many blocks were known.
  std::int64_t drop_prefix_cache();

 private:
  bool grow(Sequence& seq, std::int64_t positions);  // false: no block left
  void give_back(Sequence& seq);
  bool preempt_for(const Sequence& seq);  // false: seq itself had to go
  bool admit(Sequence& seq);
  void take_prefix(Sequence& seq);
  void chain_full_blocks(Sequence& seq);

  SchedulerLimits limits_;
  PrefixCache prefix_;
  BlockManager blocks_;
  std::vector<Sequence*> running_;
  std::deque<Sequence*> waiting_;
  Step step_;
  SchedulerStats stats_;
};

}  // namespace qengine
