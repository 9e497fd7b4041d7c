#include "core/base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace qengine {
namespace {

class ThreadPoolRegions : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolRegions, EveryItemRunsOnceInEveryRegion) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> hits(97);
  for (int region = 0; region < 3000; ++region) {
    if (region % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers fall asleep
    pool.parallel_for(hits.size(), [&](std::int64_t i) { hits[i].fetch_add(1, std::memory_order_relaxed); });
    for (auto& h : hits) ASSERT_EQ(h.load(), region + 1);
  }
}

TEST_P(ThreadPoolRegions, ANestedRegionRunsToo) {
  ThreadPool pool(GetParam());
  std::atomic<int> sum{0};
  pool.parallel_for(8, [&](std::int64_t) { pool.parallel_for(5, [&](std::int64_t i) { sum += static_cast<int>(i); }); });
  EXPECT_EQ(sum.load(), 8 * 10);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolRegions, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace qengine
