// Instruments: every metric of the server (serving.md 4), made once; what the engines count is read at each scrape.
//
// vllm:* sum over whatever answers or ever answered; qengine:* that describe a model describe those loaded now.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/server/backend.hpp"
#include "core/server/canary_rules.hpp"
#include "core/server/metrics.hpp"

namespace qengine::server {

// Of one side of the traffic.
struct ArmInstruments {
  Counter *ok, *error, *abort, *structured_failures, *tool_failures;
  Histogram *ttft, *itl;
};

struct Instruments {
  // Both outlive it. REQUIRES: the router has a backend.
  Instruments(Metrics& metrics, const Router& router, const std::string& version, const Json& build);

  // What is loaded has changed.
  void describe();
  void swapped(const std::string& result, const std::string& reason);
  void canary_percent(double percent);
  void canary_returned(const std::string& reason);
  void feedback(Arm arm, bool good);

  Histogram *ttft, *itl, *tpot, *e2e, *queue, *inference, *prefill, *decode, *computed, *prompt_tokens, *generation_tokens, *params_n, *params_max_tokens, *max_generation;
  Counter *prompt_total, *generation_total, *cached_total, *rejected, *nonfinite, *corrupted;
  Counter* finished[5] = {};  // by FinishReason
  ArmInstruments& of(Arm a) { return arms_[static_cast<int>(a)]; }

 private:
  Metrics& metrics_;
  const Router& router_;
  std::string version_, commit_;
  ArmInstruments arms_[2];
  void memory();  // what is free changes by itself

  std::vector<std::pair<std::string, double>> load_phases_;
  std::set<std::uint64_t> counted_;  // backends whose deprecated names are counted
};

}  // namespace qengine::server
