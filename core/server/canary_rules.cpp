#include "core/server/canary_rules.hpp"

#include <algorithm>
#include <cmath>

#include "core/eval/intervals.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine::server {
namespace {

constexpr std::size_t kLeastLatencies = 20;  // below it a 95th percentile is one request
constexpr std::size_t kLeastPrompts = 3;

void keep(std::deque<double>& list, double value) {
  if (value < 0) return;
  list.push_back(value);
  if (list.size() > ArmWindow::kMost) list.pop_front();
}

std::vector<double> flat(const std::deque<double>& d) { return {d.begin(), d.end()}; }

}  // namespace

const char* to_string(Arm a) { return a == Arm::kCanary ? "canary" : "stable"; }

bool in_canary(std::string_view sticky, std::string_view id, double percent) {
  const std::string hash = sha256_of(std::string(id) + "\n" + std::string(sticky));
  const std::uint64_t n = std::stoull(hash.substr(0, 12), nullptr, 16) % 10000;
  return static_cast<double>(n) < percent * 100;
}

void ArmWindow::add(const CanaryOutcome& o) {
  ++requests;
  errors += o.error;
  structured += o.structured, structured_failed += o.structured_failed;
  tools += o.tools, tools_failed += o.tools_failed;
  if (o.error) return;
  keep(ttft, o.ttft);
  keep(gap, o.gap);
}

Json ArmWindow::json() const {
  return {{"requests", requests}, {"errors", errors}, {"structured", structured}, {"structured_failed", structured_failed}, {"tools", tools}, {"tools_failed", tools_failed},
          {"feedback_good", good}, {"feedback_bad", bad}, {"ttft_s", flat(ttft)}, {"gap_s", flat(gap)}};
}

ArmWindow ArmWindow::from_json(const Json& j) {
  ArmWindow w;
  w.requests = j.value("requests", std::int64_t{0}), w.errors = j.value("errors", std::int64_t{0});
  w.structured = j.value("structured", std::int64_t{0}), w.structured_failed = j.value("structured_failed", std::int64_t{0});
  w.tools = j.value("tools", std::int64_t{0}), w.tools_failed = j.value("tools_failed", std::int64_t{0});
  w.good = j.value("feedback_good", std::int64_t{0}), w.bad = j.value("feedback_bad", std::int64_t{0});
  for (const double v : j.value("ttft_s", std::vector<double>())) keep(w.ttft, v);
  for (const double v : j.value("gap_s", std::vector<double>())) keep(w.gap, v);
  return w;
}

Verdict judge_canary(const CanaryWindow& w, const CanaryLimits& limits) {
  Verdict v;
  const ArmWindow &s = w.of(Arm::kStable), &c = w.of(Arm::kCanary);
  const auto rate = [&](const char* gate, std::int64_t bad_c, std::int64_t n_c, std::int64_t bad_s, std::int64_t n_s, double limit) {
    if (n_c == 0 || n_s == 0) return;
    const Interval d = rate_difference(bad_c, n_c, bad_s, n_s);
    if (d.low > limit) v.add(Verdict::kFail, gate, d.value, limit);
  };
  rate("error_rate_delta", c.errors, c.requests, s.errors, s.requests, limits.error_rate_delta);
  rate("structured_fail_delta", c.structured_failed, c.structured, s.structured_failed, s.structured, limits.structured_fail_delta);
  rate("tool_fail_delta", c.tools_failed, c.tools, s.tools_failed, s.tools, limits.tool_fail_delta);
  rate("feedback_negative_delta", c.bad, c.good + c.bad, s.bad, s.good + s.bad, limits.feedback_negative_delta);
  if (const auto n = static_cast<double>(w.shadow.size()); w.shadow.size() >= kLeastPrompts) {
    double sum = 0, squares = 0;
    for (const double x : w.shadow) sum += x;
    const double mean = sum / n;
    for (const double x : w.shadow) squares += (x - mean) * (x - mean);
    if (mean - 1.96 * std::sqrt(squares / (n - 1) / n) > limits.shadow_kl_mean) v.add(Verdict::kFail, "shadow_kl_mean", mean, limits.shadow_kl_mean);
  }
  if (v.grade == Verdict::kFail) return v;  // what is certain already need not wait for a bootstrap
  const auto ratio = [&](const char* gate, const std::deque<double>& ours, const std::deque<double>& theirs, double limit) {
    if (ours.size() < kLeastLatencies || theirs.size() < kLeastLatencies) return;
    const std::vector<double> a = flat(ours), b = flat(theirs);
    const Interval r = quantile_ratio_interval(a, b, .95);
    if (r.low > limit) v.add(Verdict::kFail, gate, r.value, limit);
  };
  ratio("ttft_p95_ratio", c.ttft, s.ttft, limits.ttft_p95_ratio);
  ratio("itl_p95_ratio", c.gap, s.gap, limits.itl_p95_ratio);
  return v;
}

std::int64_t next_look(std::int64_t requests, std::int64_t min_requests) {
  return requests < min_requests ? min_requests : std::max(requests + 1, requests + requests / 10);
}

}  // namespace qengine::server
