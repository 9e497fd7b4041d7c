#include "core/kv/prefix_cache.hpp"

#include <gtest/gtest.h>

namespace qengine {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(PrefixCache, ABlockIsFoundOnlyBehindItsWholePrefix) {
  PrefixCache cache("bf16", 2);
  const auto a = cache.insert(0, "", Tokens{1, 2}, 10);
  const auto b = cache.insert(a.node, "", Tokens{3, 4}, 11);
  EXPECT_EQ(cache.find(0, "", Tokens{1, 2}).block, 10);
  EXPECT_EQ(cache.find(a.node, "", Tokens{3, 4}).block, 11);
  EXPECT_EQ(cache.find(0, "", Tokens{3, 4}).block, -1);       // same tokens, no prefix
  EXPECT_EQ(cache.find(b.node, "", Tokens{3, 4}).block, -1);  // same tokens, another prefix
  EXPECT_EQ(cache.find(a.node, "", Tokens{4, 3}).block, -1);
}

TEST(PrefixCache, SaltsDoNotSeeEachOther) {
  PrefixCache cache("bf16", 2);
  cache.insert(0, "alice", Tokens{1, 2}, 10);
  EXPECT_EQ(cache.find(0, "bob", Tokens{1, 2}).block, -1);
  EXPECT_EQ(cache.find(0, "", Tokens{1, 2}).block, -1);
  EXPECT_EQ(cache.find(0, "alice", Tokens{1, 2}).block, 10);
}

TEST(PrefixCache, TheSecondOfTwoEqualBlocksLeavesTheFirstInPlace) {
  PrefixCache cache("bf16", 2);
  const auto first = cache.insert(0, "", Tokens{1, 2}, 10), second = cache.insert(0, "", Tokens{1, 2}, 11);
  EXPECT_EQ(second.block, 10);
  EXPECT_EQ(second.node, first.node);
  cache.erase(11);  // was never in
  EXPECT_EQ(cache.size(), 1u);
}

TEST(PrefixCache, AfterAnEvictionNothingOldIsReached) {
  PrefixCache cache("bf16", 2);
  const auto a = cache.insert(0, "", Tokens{1, 2}, 10);
  cache.insert(a.node, "", Tokens{3, 4}, 11);
  cache.erase(10);
  EXPECT_EQ(cache.find(0, "", Tokens{1, 2}).block, -1);
  const auto again = cache.insert(0, "", Tokens{1, 2}, 10);  // the id comes back with the same tokens
  EXPECT_NE(again.node, a.node);
  EXPECT_EQ(cache.find(again.node, "", Tokens{3, 4}).block, -1) << "a block computed behind other bytes was reached";
}

TEST(PrefixCache, AfterAClearNothingOldIsReached) {
  PrefixCache cache("bf16", 2);
  const auto a = cache.insert(0, "", Tokens{1, 2}, 10);
  cache.insert(a.node, "", Tokens{3, 4}, 11);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.find(0, "", Tokens{1, 2}).block, -1);
  cache.insert(a.node, "", Tokens{3, 4}, 11);  // somebody who runs goes on behind a node that is gone
  const auto again = cache.insert(0, "", Tokens{1, 2}, 10);
  EXPECT_EQ(cache.find(again.node, "", Tokens{3, 4}).block, -1) << "a block computed before the clear was reached";
}

TEST(PrefixCache, ManyEntriesStayDistinct) {
  PrefixCache cache("bf16", 1);
  PrefixCache::Node parent = 0;
  for (std::int32_t i = 0; i < 3000; ++i) {
    const auto hit = cache.insert(i % 3 == 0 ? 0 : parent, "", Tokens{i}, i);
    ASSERT_EQ(hit.block, i);
    parent = hit.node;
  }
  for (std::int32_t i = 0; i < 3000; i += 3) ASSERT_EQ(cache.find(0, "", Tokens{i}).block, i);
  for (std::int32_t i = 0; i < 3000; ++i) cache.erase(i);
  EXPECT_EQ(cache.size(), 0u);
}

}  // namespace
}  // namespace qengine
