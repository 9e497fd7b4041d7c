// Canary: a second backend that answers a share of the traffic and is compared with the first one meanwhile.
//
//   off -> loading -> running -> passed
//              +---------+----------+--> home: no more requests, with the reasons
//
// The share goes up step by step, each held for a time and a number of requests. A limit that is passed (canary_rules.hpp), non-finite
// logits or a fault of its plugin or device send it home at once, and it stays there until its settings change or somebody sets a
// share. What has happened is kept in a file: a restart goes on where it was.
//
// Every member is thread-safe. Judging, scoring and writing run on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/server/backend.hpp"
#include "core/server/canary_rules.hpp"

namespace qengine::server {

class Canary {
 public:
  enum class State { kOff, kLoading, kRunning, kPassed, kHome };
  struct Hooks {
    std::function<void()> changed;                           // its share, or what is loaded
    std::function<void(const std::string& reason)> returned;  // for metrics: one word
    std::function<void()> unload;                            // on the canary's thread: it takes no more requests. Must not throw
  };
  // `state_file` may be empty: nothing survives then.
  Canary(Router& router, std::filesystem::path state_file, Hooks hooks);
  ~Canary();
  void stop();

  // What the profile says now, and what is to be done about the one that is loaded. `key` names the backend's settings; with others of
  // them, or another backend, everything begins anew, also after it was sent home.
  struct Change {
    bool unload = false, load = false;
  };
  Change configure(const CanaryOptions& options, const std::string& key);
  bool loaded();                          // from here on it takes requests; false: it was sent home while it was loaded
  void refused(const std::string& reason, const std::string& message);  // it could not be loaded, or failed its check
  void promoted();                        // it has become the stable one

  // Where a request goes. `pin`: what the client asked for; it counts only where that is allowed.
  Arm choose(std::string_view sticky, std::string_view pin);
  std::string sticky() const;  // "header:x-user-id"

  void started(const std::string& request_id, Arm arm);  // so that feedback finds it
  void ended(const CanaryOutcome& outcome);
  void fault(const std::string& reason, const std::string& message);  // at once: "nonfinite", "plugin"
  // A prompt that may be scored on both; most are not.
  void shadow(const std::vector<std::int32_t>& prompt);
  // Nullopt: the id is not known.
  std::optional<Arm> feedback(const std::string& request_id, bool good);

  void set_percent(double percent);  // by hand; one that was sent home runs again. Throws ApiError when none is configured
  void abort(const std::string& by);
  bool wanted() const;               // it is to be loaded

  Json status() const;
  double percent() const;

 private:
  struct Reason {
    std::string gate;
    double value = 0, limit = 0;
  };
  void work();
  void look();
  bool due() const;  // mutex held: it is time for a look
  void score(const std::vector<std::int32_t>& prompt);
  void home(std::vector<Reason> reasons, const std::string& text);  // mutex held
  void begin_window();                                             // mutex held
  void restore();
  void persist();
  Json kept() const;  // mutex held

  Router& router_;
  const std::filesystem::path file_;
  Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  CanaryOptions options_;
  std::string key_, id_;
  State state_ = State::kOff;
  double percent_ = 0;
  bool by_hand_ = false;  // the share was set by somebody: steps rest
  std::size_t step_ = 0;
  double held_s_ = 0;     // of this step, before this process
  std::chrono::steady_clock::time_point since_;
  CanaryWindow window_;
  std::int64_t look_at_ = 0;
  std::vector<Reason> reasons_;
  std::string verdict_, text_;
  std::unordered_map<std::string, std::pair<Arm, bool>> seen_;  // by request id; whether feedback came
  std::deque<std::string> seen_order_;
  std::deque<std::vector<std::int32_t>> prompts_;
  std::mt19937_64 random_;
  bool dirty_ = false, unload_ = false, tell_ = false, stop_ = false;
  std::chrono::steady_clock::time_point written_;
  std::thread thread_;
};

const char* to_string(Canary::State);

}  // namespace qengine::server
