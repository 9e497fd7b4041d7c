// ThreadPool: the engine's CPU threads. One pool an engine; plugins reach it through the host table.
//
// parallel_for(n, body) calls body(0) .. body(n-1), each once, spread over the threads; the caller
// takes part and returns when all are done. Workers spin for a short while between regions (a decode
// step is a row of regions a few microseconds apart) and then sleep. Nobody waits for a worker that the
// system has not let run: one that comes late finds the region closed.
//
// Threads: one parallel_for at a time per pool (the engine thread's). A nested call runs serially on
// its own thread. `body` must not throw.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace qengine {

class ThreadPool {
 public:
  // `threads` counts the caller; 0 = physical cores this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  using Body = void (*)(void* arg, std::int64_t i);
  void run(std::int64_t n, Body body, void* arg);

  template <class F>
  void parallel_for(std::int64_t n, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(n, [](void* arg, std::int64_t i) { (*static_cast<Fn*>(arg))(i); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

  static int physical_cores();

 private:
  void worker();
  void take_items();

  // Region number, whether it takes no more workers, how many are inside.
  static constexpr std::uint64_t kInside = 0xffff, kClosed = 0x10000, kRegion = 0x20000;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint64_t> gate_{kClosed};
  alignas(64) std::atomic<std::int64_t> next_{0};
  // Of the open region: written while nobody is inside.
  std::int64_t n_ = 0;
  Body body_ = nullptr;
  void* arg_ = nullptr;
};

}  // namespace qengine
