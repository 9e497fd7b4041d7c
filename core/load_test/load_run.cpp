#include "core/load_test/load_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace qengine {
namespace {

using Clock = std::chrono::steady_clock;

struct Shared {
  Clock::time_point begin = Clock::now();
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t running = 0, finished = 0;
  double now() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
};

class Recorder final : public LoadSink {
 public:
  Recorder(std::shared_ptr<Shared> shared, RequestRecord* record) : shared_(std::move(shared)), record_(record) {}
  void event() override {
    const double now = shared_->now();
    RequestRecord& r = *record_;
    if (r.first < 0) r.first = now;
    else r.gaps.push_back(now - r.last);
    r.last = now;
    ++events_;
  }
  void done(std::int64_t prompt, std::int64_t output, std::int64_t cached, std::string error) override {
    RequestRecord& r = *record_;
    if (prompt >= 0) r.prompt_tokens = prompt;
    r.output_tokens = output >= 0 ? output : events_;
    r.cached_tokens = cached;
    r.error = std::move(error);
    if (r.ok() && r.first < 0) r.error = "the answer held no token";
    const std::lock_guard lock(shared_->mutex);
    --shared_->running;
    ++shared_->finished;
    shared_->changed.notify_all();
  }

 private:
  std::shared_ptr<Shared> shared_;
  RequestRecord* record_;
  std::int64_t events_ = 0;
};

}  // namespace

std::vector<double> arrival_times(std::size_t n, double rate, double burstiness, std::uint64_t seed) {
  std::vector<double> at(n, 0.0);
  if (!std::isfinite(rate)) return at;
  std::mt19937_64 rng(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  for (std::size_t i = 1; i < n; ++i) at[i] = at[i - 1] + gap(rng);
  return at;
}

LoadResult run_load(LoadTarget& target, std::span<const LoadRequest> requests, const LoadOptions& o) {
  LoadResult result;
  result.records.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) result.records[i].prompt_tokens = std::ssize(requests[i].ids);
  const std::vector<double> due = arrival_times(requests.size(), o.rate, o.burstiness, o.seed);
  const auto shared = std::make_shared<Shared>();
  const auto stopped = [&] { return o.stop && o.stop->load(); };
  constexpr auto kLook = std::chrono::milliseconds(50);  // how soon a stop is noticed
  std::size_t sent = 0;
  std::unique_lock lock(shared->mutex);
  const auto say = [&] {
    if (!o.progress) return;
    const std::int64_t n = shared->finished;
    lock.unlock();
    o.progress(n, std::ssize(requests));
    lock.lock();
  };
  for (; sent < requests.size() && !stopped(); ++sent) {
    while (!stopped()) {
      const double wait = due[sent] - shared->now();
      const bool full = o.max_concurrency > 0 && shared->running >= o.max_concurrency;
      if (wait <= 0 && !full) break;
      if (full) shared->changed.wait_for(lock, kLook);
      else shared->changed.wait_for(lock, std::min<std::chrono::duration<double>>(kLook, std::chrono::duration<double>(wait)));
      say();
    }
    if (stopped()) break;
    ++shared->running;
    lock.unlock();
    result.records[sent].start = shared->now();
    target.send(requests[sent], std::make_shared<Recorder>(shared, &result.records[sent]));
    lock.lock();
  }
  bool told = false;
  while (shared->running > 0) {
    shared->changed.wait_for(lock, kLook);
    say();
    if (stopped() && !told) {
      told = true;
      lock.unlock();
      target.cancel_all();
      lock.lock();
    }
  }
  result.duration = shared->now();
  result.interrupted = stopped();
  if (result.interrupted) {
    result.records.resize(sent);
    std::erase_if(result.records, [](const RequestRecord& r) { return !r.ok(); });
  }
  return result;
}

}  // namespace qengine
