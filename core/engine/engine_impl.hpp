// The inside of an Engine: what load() puts together and the engine thread works with.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/base/thread_pool.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/live_request.hpp"
#include "core/engine/runner.hpp"
#include "core/scheduler/scheduler.hpp"

namespace qengine {

struct Engine::Impl {
  // Loaded once, then read-only. Order: what is below uses what is above.
  EngineOptions options;
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<PluginHost> plugins;
  std::unique_ptr<FormatPlan> format;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Runner> runner;
  std::uint64_t weights_bytes = 0;
  Json kv_report;
  std::int64_t max_model_len = 0;
  double load_seconds = 0;
  std::vector<std::pair<std::string, double>> load_phases;
  std::function<DeviceMemory()> device_memory;
  std::function<double()> read_bandwidth;
  bool f16 = false;  // activations are rounded to float16
  LiveRequest::Setup setup;

  // The engine thread's.
  std::unique_ptr<Scheduler> scheduler;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> live;
  std::unordered_map<const Sequence*, LiveRequest*> by_sequence;
  std::unique_ptr<float[]> logits;  // [max_logit_rows, vocab_size]; pages are touched by need

  // Between the threads.
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::unique_ptr<LiveRequest>> arrived;
  std::vector<RequestId> cancelled;
  std::vector<std::pair<RequestId, bool>> paused;
  std::vector<std::function<void()>> tasks;
  bool stopping = false;
  std::atomic<RequestId> next_id{1};
  std::uint64_t next_arrival = 0;
  std::thread thread;
  mutable std::mutex stats_mutex;
  EngineStats stats;

  ~Impl();

  std::vector<RequestId> submit(std::vector<Request> requests);
  void ensure_thread();  // mutex held
  void work();
  bool take_inbox(std::unique_lock<std::mutex>& lock);
  void run_items(std::vector<Step::Item> items);
  void finish(LiveRequest& r, Output&& out);
  void fail_all(const std::vector<Step::Item>& items, const std::string& why);
  void abort_all();
  void publish();
  void run_sequence(std::span<const std::int32_t> ids, const std::function<void(std::int64_t first, std::int64_t rows, std::span<const BlockId> table)>& each);
  void run_task(std::function<void()> task);  // on the engine thread, between steps; waits
};

}  // namespace qengine
