#include "core/kv/kv_cache.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "core/base/error.hpp"
#include "core/kv/kv_size.hpp"

namespace qengine {
namespace {

TEST(KvCache, NoTwoElementsShareBytesAndNothingLiesOutside) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kF16, KvDtype::kBf16}) {
    const KvShape shape{.layers = 2, .kv_heads = 3, .head_dim = 20, .block_size = 16, .dtype = dtype};
    KvCache cache(shape, 3);
    const std::int64_t e = kv_element_size(dtype);
    const std::byte* base = cache.k_at(0, 0, 0, 0);
    std::set<std::ptrdiff_t> seen;
    for (int layer = 0; layer < 2; ++layer)
      for (BlockId block = 0; block < 3; ++block)
        for (int head = 0; head < 3; ++head)
          for (int t = 0; t < 16; ++t) {
            for (int d = 0; d < 20; ++d) ASSERT_TRUE(seen.insert(cache.k_at(layer, block, head, t) + d * 16 * e - base).second);
            for (int d = 0; d < 24; ++d) ASSERT_TRUE(seen.insert(cache.v_at(layer, block, head, t) + d * e - base).second);
          }
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin() + e, static_cast<std::ptrdiff_t>(cache.bytes()));
    EXPECT_EQ(cache.bytes(), static_cast<std::uint64_t>(3 * shape.block_bytes()));
  }
}

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

KvLimits limits() {
  return {.block_bytes = 1 << 20, .block_size = 16, .free_bytes = 100 * kGiB, .max_model_len = 4096, .max_num_seqs = 256};
}

TEST(KvSize, TheLeastOfFourGibAQuarterOfFreeMemoryAndWhatIsUseful) {
  KvLimits l = limits();
  EXPECT_EQ(kv_size(l).num_blocks, 4096);  // 4 GiB
  l.free_bytes = 8 * kGiB;
  EXPECT_EQ(kv_size(l).num_blocks, 2048);  // a quarter
  l.max_num_seqs = 2;
  EXPECT_EQ(kv_size(l).num_blocks, 512);  // two sequences
  l.bytes = 300 << 20;
  EXPECT_EQ(kv_size(l).num_blocks, 300);  // asked for
}

TEST(KvSize, AnAskedLengthThatDoesNotFitIsRefusedWithTheOneThatDoes) {
  KvLimits l = limits();
  l.max_model_len = 131072;
  EXPECT_EQ(kv_size(l).max_model_len, 65536);
  l.max_model_len_asked = true;
  try {
    kv_size(l);
    FAIL() << "8 GiB fit into 4";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E404");
    EXPECT_EQ(e.message(), "one request of --max-model-len 131072 needs 8.00 GiB of KV cache; 4.00 GiB are available");
    EXPECT_EQ(e.find("hint"), "--max-model-len 65536 (or auto) is the longest that fits");
  }
}

TEST(KvSize, LessThanOneBlockIsRefused) {
  KvLimits l = limits();
  l.bytes = 1000;
  EXPECT_THROW(kv_size(l), Error);
}

}  // namespace
}  // namespace qengine
