#include "core/scheduler/scheduler.hpp"

#include <algorithm>
#include <cassert>

#include "core/base/checked.hpp"

namespace qengine {
namespace {

// Keeps a list of sequences in order of arrival.
template <class List>
void insert_by_age(List& list, Sequence* seq) {
  list.insert(std::upper_bound(list.begin(), list.end(), seq, [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; }), seq);
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, std::int32_t num_blocks, int block_size)
    : limits_(limits), prefix_(limits.cache_identity, block_size),
      blocks_(num_blocks, block_size, [this](BlockId id) { prefix_.erase(id); }) {}

void Scheduler::add(Sequence* seq) {
  assert(!seq->tokens.empty());
  seq->state = Sequence::State::kWaiting;
  waiting_.push_back(seq);
}

void Scheduler::remove(Sequence* seq) {
  if (seq->state == Sequence::State::kFinished) return;
  if (seq->state == Sequence::State::kRunning) {
    std::erase(running_, seq);
    give_back(*seq);
  } else {
    std::erase(waiting_, seq);
  }
  std::erase_if(step_.items, [&](const Step::Item& i) { return i.seq == seq; });
  seq->state = Sequence::State::kFinished;
}

bool Scheduler::grow(Sequence& seq, std::int64_t positions) {
  const std::int64_t need = ceil_div(positions, blocks_.block_size());
  while (std::ssize(seq.blocks) < need) {
    const auto id = blocks_.allocate();
    if (!id) return false;
    seq.blocks.push_back(*id);
  }
  return true;
}

// Last block first: what a chain ends with is forgotten before what it begins with.
void Scheduler::give_back(Sequence& seq) {
  for (auto it = seq.blocks.rbegin(); it != seq.blocks.rend(); ++it) blocks_.release(*it);
  seq.blocks.clear();
  seq.computed = seq.chained_blocks = 0;
  seq.chain = 0;
}

bool Scheduler::preempt_for(const Sequence& seq) {
  Sequence* victim = running_.back();
  running_.pop_back();
  give_back(*victim);
  victim->state = Sequence::State::kWaiting;
  insert_by_age(waiting_, victim);
  ++stats_.preemptions;
  return victim != &seq;
}

// Blocks of the prompt that somebody computed before, but never the last token: its logits are wanted.
void Scheduler::take_prefix(Sequence& seq) {
  const std::int64_t bs = blocks_.block_size(), full = (std::ssize(seq.tokens) - 1) / bs;
  while (seq.chained_blocks < full) {
    const auto hit = prefix_.find(seq.chain, seq.cache_salt, {seq.tokens.data() + seq.chained_blocks * bs, static_cast<std::size_t>(bs)});
    if (hit.block < 0) break;
    blocks_.share(hit.block);
    seq.blocks.push_back(hit.block);
    seq.chain = hit.node;
    ++seq.chained_blocks;
  }
  seq.computed = seq.chained_blocks * bs;
}

bool Scheduler::admit(Sequence& seq) {
  if (limits_.prefix_caching && seq.read_prefix_cache) take_prefix(seq);
  const std::int64_t need = ceil_div(std::ssize(seq.tokens), blocks_.block_size()) - std::ssize(seq.blocks);
  if (need > blocks_.num_free()) {
    give_back(seq);
    return false;
  }
  if (!seq.admitted_before) {
    seq.admitted_before = true;
    seq.cached_tokens = seq.computed;
    if (limits_.prefix_caching && seq.read_prefix_cache) {
      stats_.prefix_queries += std::ssize(seq.tokens);
      stats_.prefix_hits += seq.computed;
    }
  }
  return true;
}

const Step& Scheduler::schedule() {
  step_.items.clear();
  step_.num_tokens = 0;
  std::int64_t budget = limits_.token_budget;
  bool preempted = false;

  // How many of the sequence's pending tokens may run now; 0: not in this step.
  const auto share_of = [&](const Sequence& s) {
    if (limits_.chunked_prefill || s.pending() <= budget) return std::min(s.pending(), budget);
    return step_.empty() ? s.pending() : 0;  // a prompt longer than the budget has a step of its own
  };
  const auto take = [&](Sequence& s, std::int64_t n) {
    step_.items.push_back({&s, s.computed, n, n == s.pending()});
    step_.num_tokens += n;
    budget = std::max<std::int64_t>(0, budget - n);
  };

  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    if (s.paused) continue;
    const std::int64_t n = share_of(s);
    if (n == 0) continue;
    bool fits = true;
    while (!grow(s, s.computed + n)) {
      preempted = true;
      if (!preempt_for(s)) {
        fits = false;
        break;
      }
    }
    if (fits) {
      take(s, n);
      if (s.computed + n < limits_.look_ahead_to && blocks_.num_free() > 2 * num_running()) grow(s, s.computed + n + 1);
    }
  }

  for (std::size_t skipped = 0; !preempted && budget > 0 && skipped < waiting_.size();) {
    if (num_running() >= limits_.max_num_seqs) break;
    Sequence& s = *waiting_[skipped];
    if (s.paused) {
      ++skipped;
      continue;
    }
    if (!admit(s)) break;
    const std::int64_t n = share_of(s);
    if (n == 0 || !grow(s, s.computed + n)) {
      give_back(s);
      break;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(skipped));
    s.state = Sequence::State::kRunning;
    insert_by_age(running_, &s);
    take(s, n);
  }
  return step_;
}

void Scheduler::chain_full_blocks(Sequence& seq) {
  const std::int64_t bs = blocks_.block_size();
  while ((seq.chained_blocks + 1) * bs <= seq.computed) {
    const BlockId block = seq.blocks[static_cast<std::size_t>(seq.chained_blocks)];
    const auto hit = prefix_.insert(seq.chain, seq.cache_salt, {seq.tokens.data() + seq.chained_blocks * bs, static_cast<std::size_t>(bs)}, block);
    if (hit.block == block) blocks_.mark_cached(block);
    seq.chain = hit.node;
    ++seq.chained_blocks;
  }
}

std::int64_t Scheduler::drop_prefix_cache() {
  const auto known = static_cast<std::int64_t>(prefix_.size());
  blocks_.drop_cached();
  prefix_.clear();  // the held ones: what is chained to them later has a parent that nobody finds
  return known;
}

void Scheduler::commit() {
  for (const Step::Item& i : step_.items) {
    i.seq->computed += i.count;
    if (limits_.prefix_caching) chain_full_blocks(*i.seq);
  }
}

}  // namespace qengine
