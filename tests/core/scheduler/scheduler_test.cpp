#include "core/scheduler/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace qengine {
namespace {

struct Fleet {
  std::vector<std::unique_ptr<Sequence>> all;
  Sequence* make(std::vector<std::int32_t> tokens) {
    auto s = std::make_unique<Sequence>();
    s->arrival = all.size();
    s->prompt_len = std::ssize(tokens);
    s->tokens = std::move(tokens);
    all.push_back(std::move(s));
    return all.back().get();
  }
  Sequence* make(std::int64_t len, std::int32_t first = 0) {
    std::vector<std::int32_t> t;
    for (std::int64_t i = 0; i < len; ++i) t.push_back(first + static_cast<std::int32_t>(i));
    return make(t);
  }
};

// What each sequence ran in the step, then one more token for those that reached their end.
std::map<const Sequence*, std::int64_t> run(Scheduler& s) {
  std::map<const Sequence*, std::int64_t> ran;
  const Step& step = s.schedule();
  for (const auto& i : step.items) ran[i.seq] = i.count;
  s.commit();
  for (const auto& i : step.items)
    if (i.last) i.seq->tokens.push_back(7);
  return ran;
}

TEST(Scheduler, DecodesComeBeforeAPromptThatTakesTheRestOfTheBudget) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 10}, 64, 16);
  Fleet f;
  Sequence *a = f.make(4), *b = f.make(30, 100);
  s.add(a);
  EXPECT_EQ(run(s)[a], 4);
  s.add(b);
  auto ran = run(s);
  EXPECT_EQ(ran[a], 1);
  EXPECT_EQ(ran[b], 9);
  EXPECT_EQ(run(s)[b], 9);
  EXPECT_EQ(run(s)[b], 9);
  EXPECT_EQ(b->tokens.size(), 30u);
  EXPECT_EQ(run(s)[b], 3);
  EXPECT_EQ(b->tokens.size(), 31u);
}

// A device may run one position ahead: its block is there a step early, while blocks are plenty and up to the
// longest sequence there may be.
TEST(Scheduler, LooksOnePositionAhead) {
  for (const bool ahead : {false, true}) {
    Scheduler s({.max_num_seqs = 8, .token_budget = 100, .look_ahead_to = ahead ? 33 : 0}, 64, 16);
    Fleet f;
    Sequence* a = f.make(15);
    s.add(a);
    run(s);  // positions 0 .. 14
    EXPECT_EQ(a->blocks.size(), 1u);
    run(s);  // position 15: the next one lies in another block
    EXPECT_EQ(a->blocks.size(), ahead ? 2u : 1u);
    while (a->computed < 32) run(s);
    EXPECT_EQ(a->blocks.size(), ahead ? 3u : 2u) << "position 32 is the last that a length of 33 has";
    run(s);
    EXPECT_EQ(a->blocks.size(), 3u);
  }
}

TEST(Scheduler, NeverLooksAheadWhenBlocksAreScarce) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100, .look_ahead_to = 1000}, 4, 16);
  Fleet f;
  Sequence *a = f.make(15), *b = f.make(15, 100);
  s.add(a);
  s.add(b);
  run(s);
  run(s);
  EXPECT_EQ(a->blocks.size() + b->blocks.size(), 2u);
  EXPECT_EQ(s.stats().preemptions, 0);
}

TEST(Scheduler, WithoutChunksAPromptRunsWholeOrNotAtAll) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 10, .chunked_prefill = false}, 64, 16);
  Fleet f;
  Sequence *a = f.make(8), *b = f.make(6, 100), *c = f.make(25, 200);
  for (Sequence* q : {a, b, c}) s.add(q);
  EXPECT_EQ(run(s), (std::map<const Sequence*, std::int64_t>{{a, 8}}));
  EXPECT_EQ(run(s), (std::map<const Sequence*, std::int64_t>{{a, 1}, {b, 6}}));
  s.remove(a);
  s.remove(b);
  EXPECT_EQ(run(s), (std::map<const Sequence*, std::int64_t>{{c, 25}}));  // above the budget: alone
}

TEST(Scheduler, TheYoungestYieldsAndComesBackFirst) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100, .prefix_caching = false}, 4, 16);
  Fleet f;
  Sequence *a = f.make(31), *b = f.make(32, 100), *c = f.make(5, 200);
  for (Sequence* q : {a, b, c}) s.add(q);
  run(s);  // a and b fill all four blocks
  EXPECT_EQ(s.num_running(), 2);
  run(s);  // b needs a fifth block and is the youngest: it goes, and its blocks come free
  EXPECT_EQ(b->state, Sequence::State::kWaiting);
  EXPECT_EQ(b->computed, 0);
  EXPECT_TRUE(b->blocks.empty());
  EXPECT_EQ(c->state, Sequence::State::kWaiting) << "a younger request overtook a preempted one";
  EXPECT_EQ(s.stats().preemptions, 1);
  s.remove(a);
  const auto ran = run(s);
  EXPECT_EQ(ran.at(b), 33);  // its prompt and the token it had
  EXPECT_EQ(ran.at(c), 5);
}

TEST(Scheduler, AFullBlockOfAnEqualPromptIsSharedButNeverTheLastToken) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100}, 64, 16);
  Fleet f;
  Sequence *a = f.make(32), *b = f.make(32), *other = f.make(32), *salted = f.make(32);
  other->tokens[3] = 999;
  salted->cache_salt = "x";
  s.add(a);
  run(s);
  for (Sequence* q : {b, other, salted}) s.add(q);
  auto ran = run(s);
  EXPECT_EQ(ran[b], 16) << "16 tokens from the cache, 16 computed: the last block holds the last token";
  EXPECT_EQ(b->cached_tokens, 16);
  EXPECT_EQ(b->blocks[0], a->blocks[0]);
  EXPECT_NE(b->blocks[1], a->blocks[1]);
  EXPECT_EQ(ran[other], 32);
  EXPECT_EQ(ran[salted], 32);
  EXPECT_EQ(s.blocks().ref_count(a->blocks[0]), 2);
}

// Held blocks too: `a` and `b` go on, and end, with what they have.
TEST(Scheduler, AfterADropNothingComputedBeforeIsFound) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100}, 16, 16);
  Fleet f;
  Sequence *a = f.make(32), *b = f.make(32), *c = f.make(32), *d = f.make(32);
  s.add(a);
  run(s);
  s.add(b);
  run(s);
  ASSERT_EQ(b->blocks[0], a->blocks[0]);
  EXPECT_EQ(s.drop_prefix_cache(), 2) << "the two full blocks of the prompt, the second known as computed first";
  EXPECT_EQ(s.drop_prefix_cache(), 0);
  s.add(c);
  EXPECT_EQ(run(s)[c], 32) << "a block of before was found";
  for (Sequence* q : {a, b, c}) s.remove(q);
  EXPECT_EQ(s.blocks().num_free(), 16);
  s.add(d);
  EXPECT_EQ(run(s)[d], 16) << "what was computed afterwards is found";
  s.remove(d);
  EXPECT_EQ(s.blocks().num_free(), 16);
}

TEST(Scheduler, APreemptedSequenceFindsItsOwnBlocksAgain) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100}, 5, 16);
  Fleet f;
  Sequence *a = f.make(47), *b = f.make(31, 100);
  s.add(a);
  s.add(b);
  for (int i = 0; i < 3; ++i) run(s);
  ASSERT_EQ(b->state, Sequence::State::kWaiting);
  s.remove(a);
  EXPECT_LT(run(s)[b], 20) << "the full block it had given back is still in the cache";
}

TEST(Scheduler, APausedReaderHoldsNobodyUp) {
  Scheduler s({.max_num_seqs = 8, .token_budget = 100}, 64, 16);
  Fleet f;
  Sequence *a = f.make(4), *b = f.make(4, 100);
  s.add(a);
  s.add(b);
  run(s);
  a->paused = true;
  EXPECT_EQ(run(s), (std::map<const Sequence*, std::int64_t>{{b, 1}}));
  a->paused = false;
  EXPECT_EQ(run(s).size(), 2u);
}

// Random arrivals, lengths and cancellations against rules that any step must obey, and a model that
// knows only what each sequence should have ended with.
class SchedulerWalk : public ::testing::TestWithParam<unsigned> {};

TEST_P(SchedulerWalk, EverySequenceEndsAndNothingIsLost) {
  std::mt19937 rng(GetParam());
  const SchedulerLimits limits{.max_num_seqs = 1 + static_cast<std::int64_t>(rng() % 6), .token_budget = 3 + static_cast<std::int64_t>(rng() % 40),
                               .chunked_prefill = rng() % 4 != 0, .prefix_caching = rng() % 2 == 0};
  constexpr int kBlock = 4, kBlocks = 12, kMaxLen = kBlock * kBlocks;
  Scheduler s(limits, kBlocks, kBlock);
  Fleet f;
  std::map<Sequence*, std::int64_t> goal;     // length at which it ends
  std::map<Sequence*, std::int64_t> computed; // the model of the cache: positions written, by sequence
  std::map<BlockId, std::vector<std::int32_t>> written;  // per block: the whole prefix that its content depends on
  std::int64_t finished = 0, cancelled = 0;
  std::set<Sequence*> live;
  for (int step = 0; step < 6000 && (step < 1500 || !live.empty()); ++step) {
    if (step < 1500 && rng() % 4 == 0) {
      std::vector<std::int32_t> prompt;
      for (std::size_t n = 1 + rng() % (kMaxLen / 2); prompt.size() < n;) prompt.push_back(static_cast<std::int32_t>(prompt.size() < 9 ? 0 : rng() % 2));
      Sequence* q = f.make(prompt);
      goal[q] = std::min<std::int64_t>(kMaxLen, q->prompt_len + 1 + static_cast<std::int64_t>(rng() % 20));
      live.insert(q);
      s.add(q);
    }
    if (!live.empty() && rng() % 40 == 0) {
      Sequence* q = *std::next(live.begin(), static_cast<std::ptrdiff_t>(rng() % live.size()));
      s.remove(q);
      live.erase(q);
      ++cancelled;
    }
    const Step& st = s.schedule();
    ASSERT_TRUE(!st.empty() || live.empty()) << "step " << step << ": work waits and nothing runs";
    ASSERT_LE(s.num_running(), limits.max_num_seqs);
    std::int64_t sum = 0;
    for (const auto& i : st.items) {
      sum += i.count;
      ASSERT_GT(i.count, 0);
      ASSERT_EQ(i.first, i.seq->computed);
      ASSERT_EQ(i.last, i.first + i.count == std::ssize(i.seq->tokens));
      ASSERT_GE(std::ssize(i.seq->blocks) * kBlock, i.first + i.count);
      // What it builds on is what it would have computed itself; what it writes nobody else reads.
      for (std::int64_t p = 0; p < i.first + i.count; ++p) {
        const BlockId b = i.seq->blocks[static_cast<std::size_t>(p / kBlock)];
        const std::vector<std::int32_t> prefix(i.seq->tokens.begin(), i.seq->tokens.begin() + p + 1);
        auto& content = written[b];
        if (p < i.first) {
          ASSERT_GE(std::ssize(content), p + 1) << "position never computed";
          ASSERT_TRUE(std::equal(prefix.begin(), prefix.end(), content.begin())) << "somebody else's block";
        } else {
          ASSERT_EQ(s.blocks().ref_count(b), 1) << "write into a shared block";
          content = prefix;
        }
      }
    }
    ASSERT_EQ(sum, st.num_tokens);
    if (limits.chunked_prefill) {
      ASSERT_LE(sum, limits.token_budget);
    }
    std::map<BlockId, std::int32_t> held;
    for (Sequence* q : live) {
      ASSERT_TRUE(q->state != Sequence::State::kWaiting || q->blocks.empty());
      for (const BlockId b : q->blocks) ++held[b];
    }
    for (BlockId b = 0; b < kBlocks; ++b) ASSERT_EQ(s.blocks().ref_count(b), held.contains(b) ? held[b] : 0) << "leaked or lost block";
    s.commit();
    const std::vector<Step::Item> items = st.items;
    for (const auto& i : items) {
      if (!i.last) continue;
      if (std::ssize(i.seq->tokens) + 1 > goal[i.seq]) {
        s.remove(i.seq);
        live.erase(i.seq);
        ++finished;
      } else {
        i.seq->tokens.push_back(static_cast<std::int32_t>(rng() % 2));
      }
    }
  }
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(finished + cancelled, std::ssize(f.all));
  EXPECT_EQ(s.blocks().num_free(), kBlocks);
}

INSTANTIATE_TEST_SUITE_P(Seed, SchedulerWalk, ::testing::Range(0u, 30u));

}  // namespace
}  // namespace qengine
