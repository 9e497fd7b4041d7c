// Settle: however a scope is left, the requests that write into its variables have ended before those are gone.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/engine/engine.hpp"

namespace qengine {

class Settle {
 public:
  // `open`: whether an output may still come. Called with `mutex` held; `changed` is notified, under it too, when that turns false.
  Settle(Engine& engine, std::vector<RequestId> ids, std::mutex& mutex, std::condition_variable& changed, std::function<bool()> open)
      : engine_(engine), ids_(std::move(ids)), mutex_(mutex), changed_(changed), open_(std::move(open)) {}
  Settle(const Settle&) = delete;
  Settle& operator=(const Settle&) = delete;

  void cancel() {
    for (const RequestId id : ids_) engine_.cancel(id);  // those that ended are ignored
  }

  ~Settle() {
    std::unique_lock lock(mutex_);
    if (!open_()) return;
    lock.unlock();
    cancel();
    lock.lock();
    changed_.wait(lock, [&] { return !open_(); });
  }

 private:
  Engine& engine_;
  const std::vector<RequestId> ids_;
  std::mutex& mutex_;
  std::condition_variable& changed_;
  const std::function<bool()> open_;
};

}  // namespace qengine
