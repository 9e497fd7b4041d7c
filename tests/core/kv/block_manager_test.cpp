#include "core/kv/block_manager.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace qengine {
namespace {

TEST(BlockManager, TheOldestCachedBlockIsTheFirstToGo) {
  std::vector<BlockId> gone;
  BlockManager blocks(3, 16, [&](BlockId id) { gone.push_back(id); });
  const BlockId a = *blocks.allocate(), b = *blocks.allocate(), c = *blocks.allocate();
  for (const BlockId id : {a, b, c}) blocks.mark_cached(id);
  for (const BlockId id : {b, c, a}) blocks.release(id);
  blocks.share(c);  // found again: no longer a candidate
  EXPECT_EQ(blocks.allocate(), b);
  EXPECT_EQ(blocks.allocate(), a);
  EXPECT_EQ(blocks.allocate(), std::nullopt);
  EXPECT_EQ(gone, (std::vector<BlockId>{b, a}));
  EXPECT_TRUE(blocks.cached(c));
}

TEST(BlockManager, BlocksWithoutContentGoBeforeFreshAndCachedOnes) {
  BlockManager blocks(3, 16);
  const BlockId a = *blocks.allocate(), b = *blocks.allocate();
  blocks.mark_cached(a);
  blocks.release(a);
  blocks.release(b);
  EXPECT_EQ(blocks.allocate(), b);  // touched already, holds nothing
  EXPECT_EQ(blocks.allocate(), 2);  // never used
  EXPECT_EQ(blocks.allocate(), a);
}

// Random walks against the dumbest model that could work: a list with one entry per holder.
class BlockManagerWalk : public ::testing::TestWithParam<unsigned> {};

TEST_P(BlockManagerWalk, FreeAndHeldAlwaysAddUp) {
  std::mt19937 rng(GetParam());
  std::set<BlockId> content;  // the model of "cached"
  BlockManager blocks(8, 16, [&](BlockId id) { ASSERT_EQ(content.erase(id), 1u) << "evicted a block that held nothing"; });
  std::vector<BlockId> holders;
  for (int step = 0; step < 2000; ++step) {
    const auto count = [&](BlockId id) { return std::ranges::count(holders, id); };
    switch (rng() % 4) {
      case 0: {
        std::set<BlockId> held(holders.begin(), holders.end());
        const auto id = blocks.allocate();
        ASSERT_EQ(id.has_value(), held.size() < 8);
        if (!id) break;
        ASSERT_FALSE(held.contains(*id)) << "block " << *id << " given out twice";
        ASSERT_FALSE(content.contains(*id)) << "content of " << *id << " was not reported as gone";
        holders.push_back(*id);
        break;
      }
      case 1:
        if (!holders.empty()) {
          const BlockId id = holders[rng() % holders.size()];
          blocks.mark_cached(id);
          content.insert(id);
        }
        break;
      case 2:
        if (!content.empty()) {
          const BlockId id = *std::next(content.begin(), static_cast<std::ptrdiff_t>(rng() % content.size()));
          blocks.share(id);
          holders.push_back(id);
        }
        break;
      default:
        if (!holders.empty()) {
          const std::size_t i = rng() % holders.size();
          blocks.release(holders[i]);
          holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
    const std::set<BlockId> held(holders.begin(), holders.end());
    ASSERT_EQ(blocks.num_free() + std::ssize(held), 8) << "step " << step;
    for (BlockId id = 0; id < 8; ++id) {
      ASSERT_EQ(blocks.ref_count(id), count(id)) << "step " << step;
      ASSERT_EQ(blocks.cached(id), content.contains(id)) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seed, BlockManagerWalk, ::testing::Range(0u, 20u));

}  // namespace
}  // namespace qengine
