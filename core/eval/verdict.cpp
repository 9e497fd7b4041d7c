#include "core/eval/verdict.hpp"

#include <algorithm>
#include <cstdio>

namespace qengine {

const char* to_string(Verdict::Grade g) { return g == Verdict::kPass ? "pass" : g == Verdict::kWarn ? "warn" : "fail"; }

Gates default_gates(double weight_bits, std::int64_t parameters, double kv_bits) {
  Gates g;
  if (weight_bits >= 12) g = {0.001, 0.003, 0.99};
  else if (weight_bits >= 6) g = {0.04, 0.12, 0.93};
  else if (parameters >= 4'000'000'000) g = {0.08, 0.24, 0.90};
  else g = {0.25, 0.75, 0.80};
  if (kv_bits < 16) g.kl_mean_ok += 0.01, g.kl_mean_fail += 0.03;
  return g;
}

void Verdict::add(Grade g, std::string gate, double value, double limit) {
  grade = std::max(grade, g);
  reasons.push_back({std::move(gate), value, limit});
}

std::string verdict_line(const Verdict& v) {
  std::string reasons;
  char text[160];
  for (const VerdictReason& r : v.reasons) {
    std::snprintf(text, sizeof text, "%s%s %.4g, limit %.4g", reasons.empty() ? "" : "; ", r.gate.c_str(), r.value, r.limit);
    reasons += text;
  }
  return std::string("verdict: ") + to_string(v.grade) + (reasons.empty() ? "" : " (" + reasons + ")") + "\n";
}

Verdict judge(const KlStats& s, const Gates& g) {
  Verdict v;
  const auto add = [&](Verdict::Grade grade, const char* gate, double value, double limit) { v.add(grade, gate, value, limit); };
  if (s.non_finite() > 0) add(Verdict::kFail, "non_finite_tokens", static_cast<double>(s.non_finite()), 0);
  const double kl = s.kld().value;
  if (kl > g.kl_mean_fail) add(Verdict::kFail, "kl_mean_fail", kl, g.kl_mean_fail);
  else if (kl > g.kl_mean_ok) add(Verdict::kWarn, "kl_mean_ok", kl, g.kl_mean_ok);
  if (s.same_top().value < g.same_top_warn) add(Verdict::kWarn, "same_top_warn", s.same_top().value, g.same_top_warn);
  // The whole 95 % interval must lie beyond the limit before noise is ruled out.
  const Estimate ratio = s.ppl_ratio();
  if (ratio.value - 1.96 * ratio.error > g.ppl_ratio_fail) add(Verdict::kFail, "ppl_ratio_fail", ratio.value, g.ppl_ratio_fail);
  return v;
}

}  // namespace qengine
