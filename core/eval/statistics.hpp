// Perplexity and KL divergence over scored tokens, with the statistics, names and uncertainties of
// llama.cpp's `perplexity --kl-divergence`.
//
// Everything is accumulated in double from float32 logits. Uncertainties are one standard error of
// the mean, propagated to functions of means to first order.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace qengine {

struct Estimate {
  double value = 0, error = 0;
};

// log of the sum of exp(logits).
double log_sum_exp(std::span<const float> logits);

class PerplexityStats {
 public:
  void add(double nll);
  std::int64_t count() const { return count_; }
  Estimate nll() const;  // mean
  Estimate ppl() const;
  bool finite() const { return finite_; }

 private:
  std::int64_t count_ = 0;
  double sum_ = 0, sum2_ = 0;
  bool finite_ = true;
};

struct Distribution {  // over tokens; percentiles by linear interpolation
  double max = 0, p999 = 0, p99 = 0, p95 = 0, p90 = 0, p75 = 0, median = 0, p25 = 0, p10 = 0, p05 = 0, p01 = 0, p001 = 0, min = 0;
};

class KlStats {
 public:
  // One scored token: logits of both models at the position before it. `token` is what came. Returns its KLD.
  // REQUIRES: equal sizes, token inside.
  double add(std::span<const float> base, std::span<const float> quantized, std::int32_t token);

  std::int64_t count() const { return static_cast<std::int64_t>(kld_.size()); }
  std::int64_t non_finite() const { return non_finite_; }  // tokens left out of every statistic

  Estimate ppl_q() const, ppl_base() const;
  double correlation() const;  // of ln PPL(Q) and ln PPL(base)
  Estimate ln_ppl_ratio() const, ppl_ratio() const, ppl_difference() const;
  Estimate kld() const;               // mean
  Distribution kld_distribution() const;
  Estimate delta_p() const;           // mean of p_q(token) - p_base(token)
  Distribution delta_p_distribution() const;
  Estimate delta_p_rms() const, same_top() const;

 private:
  double sum_q_ = 0, sum_q2_ = 0, sum_b_ = 0, sum_b2_ = 0, sum_qb_ = 0;
  std::int64_t same_top_ = 0, non_finite_ = 0;
  std::vector<float> kld_, delta_p_;
};

// The three blocks that llama.cpp prints, `value ± error` a line.
std::string kl_text(const KlStats& stats);

}  // namespace qengine
