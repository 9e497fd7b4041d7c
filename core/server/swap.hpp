// Swapper: changes the model behind a running server, one change at a time, on a thread of its own.
//
//   plan -> load beside -> verify -> new requests go over -> the old one drains -> it is destroyed
//      +----------+----------+--> given up: the old one never stopped
//
// Where both do not fit: drain_first. The server is emptied, answers 503 meanwhile and says for how long, and loads the old
// model again when the new one fails.
//
// begin() and status() are thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/server/backend.hpp"
#include "core/server/verify.hpp"

namespace qengine::server {

struct SwapSettings {
  enum class Mode { kAuto, kBeside, kDrainFirst };
  Mode mode = Mode::kAuto;
  double drain_timeout_s = 300;  // of drain_first
  GateOptions gates;
  bool template_override = false;
  bool force = false;  // load also what is loaded already
};
// "auto", "beside", "drain_first".
const char* to_string(SwapSettings::Mode);
std::optional<SwapSettings::Mode> swap_mode(std::string_view text);

// What became of a swap. `reason` is one word of a closed set: ok, busy, memory, profile, load, tokenizer, template, nonfinite, kl,
// drain, failed, stopped.
struct SwapReport {
  std::string result;  // switched, unchanged (it is loaded already), refused (nothing was loaded), rolled_back
  std::string reason, message;
  std::string from, to;
  Json checks;
  double load_s = 0, verify_s = 0, silent_s = 0;  // silent: the server did not answer for so long
  Json json() const;
};

class Swapper {
 public:
  struct Hooks {
    std::function<void()> changed;                 // what answers has changed: describe it
    std::function<void(const SwapReport&)> ended;  // metrics, log
    std::function<void()> promoted;                // the canary has become the stable one
  };
  Swapper(Router& router, Hooks hooks);
  ~Swapper();

  // Begins, or gives back why not ("busy"). `done` is called once, on the swapper's thread, when all is over; when the old model's
  // requests take longer than two seconds to end, as soon as new ones go to the new model.
  // `after` is called behind it all, on the same thread and before the next swap may begin. Without a spec it is all there is.
  std::optional<SwapReport> begin(std::optional<BackendSpec> spec, SwapSettings settings, std::function<void(const SwapReport&)> done, std::function<void()> after = {});
  // Loads a canary beside the stable one and checks it against that. For `after`, on the swapper's thread.
  SwapReport load_canary(const BackendSpec& spec, const SwapSettings& settings);
  bool stopping() const { return stop_; }
  // A change that failed before it began: it is remembered and counted.
  void refused(const SwapReport& report);

  Json status() const;
  // While the server is empty: seconds until it answers again, as far as one can tell.
  std::optional<int> silent_for() const;
  void stop();  // gives up what runs, and joins

 private:
  struct Job {
    std::optional<BackendSpec> given;
    BackendSpec spec;  // the same
    SwapSettings settings;
    std::function<void(const SwapReport&)> done;
    std::function<void()> after;
    SwapReport report;
  };
  void work();
  void run(Job& job);
  void empty_and_load(Job& job, std::shared_ptr<Backend> first, LoadPlan plan, SwapReport report);
  void check_and_switch(Job& job, std::shared_ptr<Backend> first, std::shared_ptr<Backend> fresh, SwapReport report);
  void end(Job& job, SwapReport& report, const char* result, std::string reason, std::string message);
  void tell(Job& job);
  void say(const char* state, const std::string& detail = {});
  void finish(Job& job, SwapReport report);
  std::shared_ptr<Backend> load(const BackendSpec& spec, bool beside, std::optional<LoadPlan>& plan);
  void drain(Job& job, Backend* old, std::shared_ptr<Backend> fresh, const SwapReport& report);

  Router& router_;
  Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Job> next_;
  Job* running_ = nullptr;  // the swapper's thread only
  bool busy_ = false;
  std::string state_ = "idle", detail_;
  std::chrono::steady_clock::time_point since_;
  std::optional<SwapReport> last_;
  std::chrono::system_clock::time_point last_at_;
  std::optional<std::chrono::steady_clock::time_point> silent_until_;
  std::uint64_t number_ = 1;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace qengine::server
