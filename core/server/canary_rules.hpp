// The rules of a canary, without threads, clocks or engines: who goes to it, and what sends it home.
//
// Window: what the two sides did since the present share of the traffic began. A limit is passed when the whole 95 % interval of
// the difference lies beyond it: Newcombe's for rates, the bootstrap's for ratios of percentiles, a normal one over prompts for the
// divergence. Requests are the unit, tokens never: a request's gaps count as their mean.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/eval/verdict.hpp"
#include "core/model/checkpoint.hpp"  // Json

namespace qengine::server {

enum class Arm { kStable, kCanary };
const char* to_string(Arm);  // "stable", "canary"

struct CanaryLimits {  // canary minus, or over, stable
  double error_rate_delta = 0.01;
  double ttft_p95_ratio = 1.25, itl_p95_ratio = 1.25;
  double structured_fail_delta = 0.02, tool_fail_delta = 0.02, feedback_negative_delta = 0.05;
  double shadow_kl_mean = 0.05;
};

struct CanaryOptions {
  std::string backend;  // "": no canary
  double percent = 5;   // of the traffic; `steps` come in its place
  std::vector<double> steps;
  double step_hold_s = 600;
  std::int64_t min_requests = 200;  // of each side, before anything but a fault counts
  double shadow_fraction = 0;       // of the prompts, scored on both
  std::string sticky = "none";      // header:NAME, user, api_key, none
  bool allow_pin = false;           // a client may name its arm
  CanaryLimits limits;

  double share(std::size_t step) const { return steps.empty() ? percent : steps[std::min(step, steps.size() - 1)]; }
  bool last(std::size_t step) const { return steps.empty() || step + 1 >= steps.size(); }
};

// Whether a sticky value belongs to the canary at this share. The same at every start; whoever is in at 5 % is in at 25 % too.
bool in_canary(std::string_view sticky, std::string_view canary_id, double percent);

// How one request ended.
struct CanaryOutcome {
  Arm arm = Arm::kStable;
  bool error = false;
  bool structured = false, structured_failed = false;  // asked for a form; did not come to its end
  bool tools = false, tools_failed = false;
  double ttft = -1, gap = -1;  // seconds; negative: none
};

struct ArmWindow {
  static constexpr std::size_t kMost = 500;  // latencies: of the last so many requests
  std::int64_t requests = 0, errors = 0, structured = 0, structured_failed = 0, tools = 0, tools_failed = 0, good = 0, bad = 0;
  std::deque<double> ttft, gap;

  void add(const CanaryOutcome& o);
  Json json() const;               // with the latencies, as from_json() takes them
  static ArmWindow from_json(const Json& j);
};

struct CanaryWindow {
  ArmWindow arms[2];
  std::vector<double> shadow;  // mean KL divergence of each prompt
  std::int64_t shadow_tokens = 0;
  ArmWindow& of(Arm a) { return arms[static_cast<int>(a)]; }
  const ArmWindow& of(Arm a) const { return arms[static_cast<int>(a)]; }
};

// Fail: what is beyond its limit. Pass: nothing is. The sides are compared only where both have something to show.
Verdict judge_canary(const CanaryWindow& window, const CanaryLimits& limits);

// How many requests of the canary's there must be before it is judged, and after that again: repeated looks at the same data
// would find something sooner or later, so each comes a tenth later than the one before.
std::int64_t next_look(std::int64_t requests, std::int64_t min_requests);

}  // namespace qengine::server
