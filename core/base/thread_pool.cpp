#include "core/base/thread_pool.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#define QE_PAUSE() _mm_pause()
#else
#define QE_PAUSE() std::this_thread::yield()
#endif

namespace qengine {
namespace {

// Set while this thread runs items of a region: a nested region then runs serially.
thread_local bool inside = false;

// How long a worker spins before it sleeps. Long enough to bridge sampling and scheduling between
// two steps, short enough that an idle engine costs nothing anybody would notice.
constexpr auto kSpin = std::chrono::microseconds(300);

}  // namespace

int ThreadPool::physical_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::max(1u, std::thread::hardware_concurrency());
  std::set<std::string> cores;
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    ++logical;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(in, siblings) ? siblings : std::to_string(cpu));
  }
  // A virtual machine may show its virtual CPUs as siblings of one core: then count them all when
  // there are few, as a single thread cannot saturate the memory.
  const int n = static_cast<int>(cores.size());
  return std::max(1, logical <= 2 ? logical : n);
}

ThreadPool::ThreadPool(int threads) {
  const int n = threads > 0 ? threads : physical_cores();
  for (int i = 1; i < n; ++i) workers_.emplace_back([this] { worker(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    gate_.fetch_add(kRegion);
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::take_items() {
  inside = true;
  for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) body_(arg_, i);
  inside = false;
}

void ThreadPool::run(std::int64_t n, Body body, void* arg) {
  if (n <= 0) return;
  if (inside || workers_.empty() || n == 1) {
    for (std::int64_t i = 0; i < n; ++i) body(arg, i);
    return;
  }
  n_ = n;
  body_ = body;
  arg_ = arg;
  next_.store(0, std::memory_order_relaxed);
  gate_.store((gate_.load(std::memory_order_relaxed) & ~(kRegion - 1)) + kRegion);  // seq_cst: ordered before the look at sleeping_
  if (sleeping_.load() > 0) {
    {
      const std::lock_guard lock(mutex_);
      sleeping_.store(0);
    }
    wake_.notify_all();
  }
  take_items();
  gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
    if (spins < 4096) QE_PAUSE();
    else std::this_thread::yield();
  }
}

void ThreadPool::worker() {
  std::uint64_t seen = 0;
  for (;;) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    std::uint64_t gate = gate_.load(std::memory_order_acquire);
    for (int i = 0; gate / kRegion == seen; ++i) {
      if (i % 64 != 63) {
        QE_PAUSE();
      } else if (std::chrono::steady_clock::now() > until) {
        std::unique_lock lock(mutex_);
        if (gate_.load() / kRegion == seen) {
          sleeping_.fetch_add(1);
          wake_.wait(lock, [&] { return gate_.load() / kRegion != seen; });
        }
      }
      gate = gate_.load(std::memory_order_acquire);
    }
    if (stop_) return;
    seen = gate / kRegion;
    while (!(gate & kClosed) && gate / kRegion == seen && !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {}
    if ((gate & kClosed) || gate / kRegion != seen) continue;
    take_items();
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace qengine
