// How sure a figure is: 95 % intervals of medians, ratios and rates, and a test of paired yes-or-no outcomes.
//
// The unit is a run or a request, never a token. Bootstraps draw 10,000 times from a fixed seed: the same data give the
// same interval.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qengine {

struct Interval {
  double value = 0, low = 0, high = 0;
  bool holds(double x) const { return low <= x && x <= high; }
};
bool overlap(const Interval& a, const Interval& b);

double median(std::span<const double> values);  // 0 for none

// Median, with the percentile bootstrap of the median. One value: an interval of no width.
Interval median_interval(std::span<const double> values);

// Median of a[i] / b[i], pairs of one round each, with its bootstrap. REQUIRES: equal sizes, b > 0.
Interval ratio_interval(std::span<const double> a, std::span<const double> b);

// quantile(a) / quantile(b) of independent samples, with the bootstrap over both. `q`: 0..1.
Interval quantile_ratio_interval(std::span<const double> a, std::span<const double> b, double q);

// k of n: Wilson's score interval. n 0: 0..1.
Interval rate_interval(std::int64_t k, std::int64_t n);

// k1/n1 - k2/n2: Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10).
Interval rate_difference(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2);

// Two-sided exact McNemar test: the chance of so uneven a split of the pairs that disagree, were both equally good.
double mcnemar(std::int64_t only_first, std::int64_t only_second);

}  // namespace qengine
