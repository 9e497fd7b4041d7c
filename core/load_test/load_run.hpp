// A load test: requests sent at given times or under a limit of how many run at once, and what was seen of each.
//
// Whoever answers is a LoadTarget: an engine in this process, or a server behind a URL. Times are taken where an
// answer arrives; everything derived from them is in serving_metrics.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace qengine {

struct LoadRequest {
  std::vector<std::int32_t> ids;  // the prompt; else
  std::string text;
  std::int64_t output_tokens = 128;
};

// Seconds since the run began.
struct RequestRecord {
  double start = 0, first = -1, last = -1;  // sent; first and last event
  std::vector<double> gaps;                 // between its events
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  std::int64_t cached_tokens = -1;  // of the prompt, found in the prefix cache; -1: not said
  std::string text;                 // of the answer, when kept
  std::string error;                // "" = it succeeded
  bool ok() const { return error.empty(); }
};

// What a target reports about one request: event() for every piece of the answer, then done() once. Called from one
// thread at a time for one request.
class LoadSink {
 public:
  virtual ~LoadSink() = default;
  virtual void event() = 0;
  // Token counts as the target knows them; -1: it does not.
  virtual void done(std::int64_t prompt_tokens, std::int64_t output_tokens, std::int64_t cached_tokens, std::string error) = 0;
};

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // Starts one request and returns; the sink is called from another thread. A failure goes to done(), not up.
  virtual void send(const LoadRequest& request, std::shared_ptr<LoadSink> sink) = 0;
  // Ends what still runs: each gets done() with an error soon.
  virtual void cancel_all() = 0;
};

struct LoadOptions {
  std::int64_t max_concurrency = 0;  // 0: no limit
  double rate = std::numeric_limits<double>::infinity();  // requests a second
  double burstiness = 1;             // of a gamma process; 1: Poisson
  std::uint64_t seed = 0;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  const std::atomic<bool>* stop = nullptr;  // ends the run early; what had not ended is left out
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of the requests
  double duration = 0;                 // s, first request to last answer
  bool interrupted = false;
};

// Sends every request once and waits for all answers.
LoadResult run_load(LoadTarget& target, std::span<const LoadRequest> requests, const LoadOptions& options);

// When each of `n` requests is due, seconds after the first: a gamma process, reproducible by seed. All 0 for an
// infinite rate.
std::vector<double> arrival_times(std::size_t n, double rate, double burstiness, std::uint64_t seed);

}  // namespace qengine
