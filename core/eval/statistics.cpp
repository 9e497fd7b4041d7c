#include "core/eval/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace qengine {
namespace {

// Terms whose base probability is below e^-16 are left out of a KL divergence, as llama.cpp does: its
// stored base logits end there.
constexpr double kLeastLogProbability = -16;

// Below this many tokens a standard error says nothing.
constexpr std::int64_t kLeastForError = 10;

Estimate mean(double sum, double sum2, std::int64_t n) {
  if (n < 1) return {};
  const double m = sum / n, variance = sum2 / n - m * m;
  return {m, variance > 0 && n > kLeastForError ? std::sqrt(variance / (n - 1)) : 0};
}

double covariance_of_means(double sum_a, double sum_b, double sum_ab, std::int64_t n) {
  return n < kLeastForError ? 0 : (sum_ab / n - sum_a / n * (sum_b / n)) / (n - 1);
}

Distribution distribution(std::vector<float> v) {
  if (v.empty()) return {};
  std::sort(v.begin(), v.end());
  const auto at = [&](double fraction) {
    const double p = fraction * static_cast<double>(v.size() - 1);
    const auto i = static_cast<std::size_t>(p);
    const double rest = p - static_cast<double>(i);
    return (1 - rest) * v[i] + rest * v[std::min(i + 1, v.size() - 1)];
  };
  return {v.back(), at(.999), at(.99), at(.95), at(.9), at(.75), at(.5), at(.25), at(.1), at(.05), at(.01), at(.001), v.front()};
}

Estimate exp_of(const Estimate& e) { return {std::exp(e.value), std::exp(e.value) * e.error}; }

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return most + std::log(sum);
}

// ---- perplexity ------------------------------------------------------------------------------------

void PerplexityStats::add(double nll) {
  if (!std::isfinite(nll)) {
    finite_ = false;
    return;
  }
  ++count_;
  sum_ += nll;
  sum2_ += nll * nll;
}

Estimate PerplexityStats::nll() const { return mean(sum_, sum2_, count_); }
Estimate PerplexityStats::ppl() const { return exp_of(nll()); }

// ---- KL divergence ---------------------------------------------------------------------------------

double KlStats::add(std::span<const float> base, std::span<const float> quantized, std::int32_t token) {
  const double base_sum = log_sum_exp(base), q_sum = log_sum_exp(quantized);
  if (!std::isfinite(base_sum) || !std::isfinite(q_sum)) {
    ++non_finite_;
    return NAN;
  }
  double kld = 0;
  for (std::size_t i = 0; i < base.size(); ++i)
    if (const double ln_base = base[i] - base_sum; ln_base > kLeastLogProbability)
      kld += std::exp(ln_base) * (ln_base - (quantized[i] - q_sum));
  const double nll_base = base_sum - base[token], nll_q = q_sum - quantized[token];
  if (!std::isfinite(kld) || !std::isfinite(nll_base) || !std::isfinite(nll_q)) {
    ++non_finite_;
    return NAN;
  }
  sum_b_ += nll_base;
  sum_b2_ += nll_base * nll_base;
  sum_q_ += nll_q;
  sum_q2_ += nll_q * nll_q;
  sum_qb_ += nll_q * nll_base;
  same_top_ += std::max_element(base.begin(), base.end()) - base.begin() == std::max_element(quantized.begin(), quantized.end()) - quantized.begin();
  kld_.push_back(static_cast<float>(kld));
  delta_p_.push_back(static_cast<float>(std::exp(-nll_q) - std::exp(-nll_base)));
  return kld;
}

Estimate KlStats::ppl_q() const { return exp_of(mean(sum_q_, sum_q2_, count())); }
Estimate KlStats::ppl_base() const { return exp_of(mean(sum_b_, sum_b2_, count())); }

double KlStats::correlation() const {
  const double errors = mean(sum_q_, sum_q2_, count()).error * mean(sum_b_, sum_b2_, count()).error;
  return errors > 0 ? covariance_of_means(sum_q_, sum_b_, sum_qb_, count()) / errors : 0;
}

Estimate KlStats::ln_ppl_ratio() const {
  const Estimate q = mean(sum_q_, sum_q2_, count()), b = mean(sum_b_, sum_b2_, count());
  const double variance = q.error * q.error + b.error * b.error - 2 * covariance_of_means(sum_q_, sum_b_, sum_qb_, count());
  return {q.value - b.value, std::sqrt(std::max(0.0, variance))};
}

Estimate KlStats::ppl_ratio() const { return exp_of(ln_ppl_ratio()); }

Estimate KlStats::ppl_difference() const {
  const Estimate q = ppl_q(), b = ppl_base();
  const double covariance = q.value * b.value * covariance_of_means(sum_q_, sum_b_, sum_qb_, count());
  return {q.value - b.value, std::sqrt(std::max(0.0, q.error * q.error + b.error * b.error - 2 * covariance))};
}

namespace {

Estimate mean_of(const std::vector<float>& values, int power) {
  double sum = 0, sum2 = 0;
  for (const double x : values) {
    const double y = power == 1 ? x : x * x;
    sum += y;
    sum2 += y * y;
  }
  return mean(sum, sum2, std::ssize(values));
}

}  // namespace

Estimate KlStats::kld() const { return mean_of(kld_, 1); }
Distribution KlStats::kld_distribution() const { return distribution(kld_); }
Estimate KlStats::delta_p() const { return mean_of(delta_p_, 1); }
Distribution KlStats::delta_p_distribution() const { return distribution(delta_p_); }

Estimate KlStats::delta_p_rms() const {
  const Estimate square = mean_of(delta_p_, 2);
  const double rms = std::sqrt(square.value);
  return {rms, rms > 0 ? 0.5 / rms * square.error : 0};
}

Estimate KlStats::same_top() const {
  if (kld_.empty()) return {};
  const double n = static_cast<double>(kld_.size()), share = same_top_ / n;
  return {share, n > 1 ? std::sqrt(share * (1 - share) / (n - 1)) : 0};
}

// ---- text ------------------------------------------------------------------------------------------

std::string kl_text(const KlStats& s) {
  std::string out;
  char line[128];
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    out += line;
  };
  const auto pair = [&](const char* name, const Estimate& e) { add("%-30s: %10.6f ± %10.6f\n", name, e.value, e.error); };
  add("====== Perplexity statistics ======\n");
  pair("Mean PPL(Q)", s.ppl_q());
  pair("Mean PPL(base)", s.ppl_base());
  add("Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%\n", 100 * s.correlation());
  pair("Mean ln(PPL(Q)/PPL(base))", s.ln_ppl_ratio());
  pair("Mean PPL(Q)/PPL(base)", s.ppl_ratio());
  pair("Mean PPL(Q)-PPL(base)", s.ppl_difference());

  add("\n====== KL divergence statistics ======\n");
  const Distribution k = s.kld_distribution();
  add("Mean    KLD: %10.6f ± %10.6f\n", s.kld().value, s.kld().error);
  for (const auto& [name, value] : {std::pair{"Maximum", k.max}, {"99.9%  ", k.p999}, {"99.0%  ", k.p99}, {"95.0%  ", k.p95}, {"90.0%  ", k.p90},
                                    {"Median ", k.median}, {"10.0%  ", k.p10}, {" 5.0%  ", k.p05}, {" 1.0%  ", k.p01}, {" 0.1%  ", k.p001}, {"Minimum", k.min}})
    add("%s KLD: %10.6f\n", name, value);

  add("\n====== Token probability statistics ======\n");
  const Distribution d = s.delta_p_distribution();
  add("Mean    Δp: %6.3f ± %5.3f %%\n", 100 * s.delta_p().value, 100 * s.delta_p().error);
  for (const auto& [name, value] : {std::pair{"Maximum", d.max}, {"99.9%  ", d.p999}, {"99.0%  ", d.p99}, {"95.0%  ", d.p95}, {"90.0%  ", d.p90}, {"75.0%  ", d.p75},
                                    {"Median ", d.median}, {"25.0%  ", d.p25}, {"10.0%  ", d.p10}, {" 5.0%  ", d.p05}, {" 1.0%  ", d.p01}, {" 0.1%  ", d.p001}, {"Minimum", d.min}})
    add("%s Δp: %6.3f%%\n", name, 100 * value);
  add("RMS Δp    : %6.3f ± %5.3f %%\n", 100 * s.delta_p_rms().value, 100 * s.delta_p_rms().error);
  add("Same top p: %6.3f ± %5.3f %%\n", 100 * s.same_top().value, 100 * s.same_top().error);
  return out;
}

}  // namespace qengine
