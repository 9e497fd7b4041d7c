#include "core/eval/intervals.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace qengine {
namespace {

constexpr int kDraws = 10'000;
constexpr double kZ = 1.959963984540054;  // of 95 %

double quantile_of_sorted(const std::vector<double>& v, double q) {
  const double at = q * static_cast<double>(v.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  return v[i] + (at - static_cast<double>(i)) * (v[std::min(i + 1, v.size() - 1)] - v[i]);
}

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return quantile_of_sorted(v, q);
}

void redraw(std::mt19937_64& rng, std::span<const double> from, std::vector<double>& to) {
  to.resize(from.size());
  for (double& x : to) x = from[rng() % from.size()];
}

// Of a long sample so many order statistics, evenly: the bootstrap stays quick, its interval rather too wide than too narrow.
std::vector<double> thinned(std::span<const double> v) {
  constexpr std::size_t kMost = 1000;
  std::vector<double> out(v.begin(), v.end());
  if (out.size() <= kMost) return out;
  std::sort(out.begin(), out.end());
  for (std::size_t i = 0; i < kMost; ++i) out[i] = out[i * (out.size() - 1) / (kMost - 1)];
  out.resize(kMost);
  return out;
}

Interval bootstrap(double value, const std::function<double(std::mt19937_64&)>& draw) {
  std::mt19937_64 rng(20240229);
  std::vector<double> values(kDraws);
  for (double& x : values) x = draw(rng);
  std::sort(values.begin(), values.end());
  return {value, quantile_of_sorted(values, .025), quantile_of_sorted(values, .975)};
}

}  // namespace

bool overlap(const Interval& a, const Interval& b) { return a.low <= b.high && b.low <= a.high; }

double median(std::span<const double> v) { return quantile({v.begin(), v.end()}, .5); }

Interval median_interval(std::span<const double> v) {
  if (v.size() < 2) return {median(v), median(v), median(v)};
  std::vector<double> sample;
  return bootstrap(median(v), [&](std::mt19937_64& rng) {
    redraw(rng, v, sample);
    return quantile(sample, .5);
  });
}

Interval ratio_interval(std::span<const double> a, std::span<const double> b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median_interval(ratios);
}

Interval quantile_ratio_interval(std::span<const double> a, std::span<const double> b, double q) {
  if (a.empty() || b.empty()) return {};
  const auto ratio = [&](const std::vector<double>& x, const std::vector<double>& y) {
    const double below = quantile(y, q);
    return below > 0 ? quantile(x, q) / below : 0;
  };
  const std::vector<double> from_a = thinned(a), from_b = thinned(b);
  std::vector<double> x, y;
  return bootstrap(ratio({a.begin(), a.end()}, {b.begin(), b.end()}), [&](std::mt19937_64& rng) {
    redraw(rng, from_a, x);
    redraw(rng, from_b, y);
    return ratio(x, y);
  });
}

Interval rate_interval(std::int64_t k, std::int64_t n) {
  if (n == 0) return {0, 0, 1};
  const double size = static_cast<double>(n), p = static_cast<double>(k) / size, z2 = kZ * kZ;
  const double middle = (p + z2 / (2 * size)) / (1 + z2 / size);
  const double half = kZ / (1 + z2 / size) * std::sqrt(p * (1 - p) / size + z2 / (4 * size * size));
  return {p, k == 0 ? 0 : middle - half, k == n ? 1 : middle + half};
}

Interval rate_difference(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2) {
  const Interval a = rate_interval(k1, n1), b = rate_interval(k2, n2);
  const double d = a.value - b.value;
  const auto root = [](double x, double y) { return std::sqrt(x * x + y * y); };
  return {d, d - root(a.value - a.low, b.high - b.value), d + root(a.high - a.value, b.value - b.low)};
}

double mcnemar(std::int64_t only_first, std::int64_t only_second) {
  const std::int64_t n = only_first + only_second, k = std::min(only_first, only_second);
  if (n == 0) return 1;
  // 2 * P(X <= k), X binomial(n, 1/2), by logarithms of the terms.
  double sum = 0;
  for (std::int64_t i = 0; i <= k; ++i)
    sum += std::exp(std::lgamma(static_cast<double>(n + 1)) - std::lgamma(static_cast<double>(i + 1)) - std::lgamma(static_cast<double>(n - i + 1)) - static_cast<double>(n) * std::log(2.0));
  return std::min(1.0, 2 * sum);
}

}  // namespace qengine
