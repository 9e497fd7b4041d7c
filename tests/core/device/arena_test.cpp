// Arena and ledger without a device: the backing is a counter.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "core/base/error.hpp"
#include "core/device/arena.hpp"
#include "core/device/gpu.hpp"
#include "core/device/memory_ledger.hpp"

namespace qengine {
namespace {

struct Driver {
  std::uint64_t held = 0, limit = ~0ull;
  int calls = 0;
  Arena::Backing backing() {
    return {[this](std::uint64_t bytes) -> void* {
              ++calls;
              if (held + bytes > limit) return nullptr;
              held += bytes;
              return std::aligned_alloc(4096, bytes);
            },
            [this](void* p, std::uint64_t bytes) {
              held -= bytes;
              std::free(p);
            }};
  }
};

// Random walks: pieces never overlap, and everything goes back.
TEST(Arena, PiecesAreApartAndGoBack) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    Driver driver;
    {
      Arena arena(driver.backing());
      std::mt19937 rng(seed);
      std::map<char*, std::uint64_t> held;
      std::uint64_t used = 0;
      for (int step = 0; step < 3000; ++step) {
        if (held.empty() || rng() % 5 < 3) {
          const std::uint64_t bytes = rng() % 10 == 0 ? rng() % (8 << 20) : rng() % 5000;
          auto* p = static_cast<char*>(arena.allocate(bytes));
          ASSERT_NE(p, nullptr);
          ASSERT_EQ(reinterpret_cast<std::uintptr_t>(p) % Arena::kAlign, 0u);
          const std::uint64_t size = Arena::rounded(bytes);
          const auto next = held.upper_bound(p);
          if (next != held.end()) ASSERT_LE(p + size, next->first) << "seed " << seed;
          if (next != held.begin()) ASSERT_LE(std::prev(next)->first + std::prev(next)->second, p) << "seed " << seed;
          held.emplace(p, size);
          used += size;
        } else {
          auto it = std::next(held.begin(), static_cast<std::ptrdiff_t>(rng() % held.size()));
          arena.free(it->first);
          used -= it->second;
          held.erase(it);
        }
        ASSERT_EQ(arena.used(), used);
        ASSERT_EQ(arena.reserved(), driver.held);
        ASSERT_LE(arena.used(), arena.reserved());
      }
      for (const auto& [p, size] : held) arena.free(p);
      EXPECT_EQ(arena.used(), 0u);
      EXPECT_EQ(driver.held, 0u) << "empty slabs go back at once";
    }
  }
}

TEST(Arena, WhatIsExpectedLiesInOneSlab) {
  Driver driver;
  Arena arena(driver.backing());
  arena.expect(100 * Arena::rounded(3'000'001));
  for (int i = 0; i < 100; ++i) ASSERT_NE(arena.allocate(3'000'001), nullptr);
  EXPECT_EQ(driver.calls, 1);
  EXPECT_LT(driver.held - arena.used(), Arena::kPage);
  ASSERT_NE(arena.allocate(1), nullptr);  // more than was said: an ordinary slab
  EXPECT_LE(driver.held, arena.used() + Arena::kSlab + Arena::kPage);
}

TEST(Arena, TakesLessWhenTheExpectedDoesNotFitAndSaysNoWhenNothingDoes) {
  Driver driver;
  driver.limit = 10 << 20;
  Arena arena(driver.backing());
  arena.expect(64 << 20);
  EXPECT_NE(arena.allocate(4 << 20), nullptr);
  EXPECT_NE(arena.allocate(4 << 20), nullptr);
  EXPECT_EQ(arena.allocate(4 << 20), nullptr);
}

TEST(MemoryLedger, CountsByOwnerAndNamesTheLargestFirst) {
  MemoryLedger l;
  EXPECT_EQ(l.text(), "nothing");
  l.take(MemoryOwner::kWorkspace, 1ull << 29);
  l.take(MemoryOwner::kWeights, 5ull << 29);
  l.take(MemoryOwner::kLoading, 1ull << 30);
  l.give(MemoryOwner::kLoading, 1ull << 30);
  EXPECT_EQ(l.total(), 6ull << 29);
  EXPECT_EQ(l.text(), "weights 2.50 GiB, workspace 0.50 GiB");
  EXPECT_EQ(l.peak(MemoryOwner::kLoading), 1ull << 30);
  l.reset_peaks();
  EXPECT_EQ(l.peak(MemoryOwner::kLoading), 0u);
}

GpuList two_gpus() {
  GpuList l;
  for (int i = 0; i < 2; ++i) {
    GpuInfo g;
    g.device.ordinal = i;
    l.gpus.push_back(g);
  }
  return l;
}

TEST(ChooseDevice, AutoTakesAGpuWhenThereIsOne) {
  const GpuList two = two_gpus(), none{{}, "no NVIDIA driver is installed"};
  EXPECT_EQ(choose_device("auto", none), nullptr);
  EXPECT_EQ(choose_device("cpu", two), nullptr);
  EXPECT_EQ(choose_device("auto", two)->device.ordinal, 0);
  EXPECT_EQ(choose_device("cuda", two)->device.ordinal, 0);
  EXPECT_EQ(choose_device("cuda:1", two)->label(), "cuda:1");
}

TEST(ChooseDevice, RefusalsSayWhy) {
  const GpuList two = two_gpus(), none{{}, "no NVIDIA driver is installed"};
  const auto text = [](const std::string& device, const GpuList& list) {
    try {
      choose_device(device, list);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text("cuda:0", none), "E402 no usable GPU: no NVIDIA driver is installed\n  hint  --device cpu works with every shipped plugin");
  EXPECT_NE(text("cuda:2", two).find("E402 no usable GPU: cuda:2 was asked for, and there are cuda:0 to cuda:1"), std::string::npos) << text("cuda:2", two);
  for (const char* bad : {"cuda:", "cuda:x", "cuda:-1", "gpu", "", "cuda:1x"}) EXPECT_TRUE(text(bad, two).starts_with("E107 --device is ")) << bad;
}

}  // namespace
}  // namespace qengine
