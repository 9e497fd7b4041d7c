// Verdict: do figures of one format against its reference pass? Thresholds by class of format, each of
// which a profile ([gates]) or a flag may replace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/statistics.hpp"

namespace qengine {

struct Gates {
  double kl_mean_ok = 0, kl_mean_fail = 0;
  double same_top_warn = 0;  // 0..1
  double ppl_ratio_fail = 1.5;
};

// Starting values for real models, by bits a weight takes (scales included) and parameters of the
// model; `kv_bits` below 16 allows a little more on top.
Gates default_gates(double weight_bits, std::int64_t parameters, double kv_bits);

struct VerdictReason {
  std::string gate;
  double value, limit;
};

struct Verdict {
  enum Grade { kPass, kWarn, kFail } grade = kPass;
  std::vector<VerdictReason> reasons;

  // The grade becomes `g` unless it is worse already.
  void add(Grade g, std::string gate, double value, double limit);
};
const char* to_string(Verdict::Grade);  // "pass", "warn", "fail"

// "verdict: fail (kl_mean_fail 0.8, limit 0.75)\n", the last line of every evaluation.
std::string verdict_line(const Verdict& verdict);

Verdict judge(const KlStats& stats, const Gates& gates);

}  // namespace qengine
