#include "core/server/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace qengine::server {
namespace {

std::string number(double v) {
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  if (std::isnan(v)) return "NaN";
  char buf[40];
  if (v == std::floor(v) && std::fabs(v) < 1e15) std::snprintf(buf, sizeof buf, "%.0f", v);
  else std::snprintf(buf, sizeof buf, "%.10g", v);
  return buf;
}

std::string label_text(const Labels& labels, const std::string& extra_key = {}, const std::string& extra_value = {}) {
  std::string out;
  auto add = [&](const std::string& k, const std::string& v) {
    out += (out.empty() ? "{" : ",") + k + "=\"";
    for (const char c : v) {
      if (c == '\\' || c == '"') out += '\\';
      if (c == '\n') out += "\\n";
      else out += c;
    }
    out += '"';
  };
  for (const auto& [k, v] : labels) add(k, v);
  if (!extra_key.empty()) add(extra_key, extra_value);
  return out.empty() ? out : out + "}";
}

}  // namespace

Histogram::Histogram(std::vector<double> edges) : edges_(std::move(edges)), counts_(edges_.size() + 1) {}

void Histogram::observe(double v) {
  const auto i = std::lower_bound(edges_.begin(), edges_.end(), v) - edges_.begin();
  counts_[static_cast<std::size_t>(i)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(v, std::memory_order_relaxed);
}

void Histogram::set(std::span<const std::int64_t> counts, double sum) {
  for (std::size_t i = 0; i < std::min(counts.size(), counts_.size()); ++i) counts_[i].store(static_cast<std::uint64_t>(counts[i]), std::memory_order_relaxed);
  sum_.store(sum, std::memory_order_relaxed);
}

std::vector<std::uint64_t> Histogram::cumulative() const {
  std::vector<std::uint64_t> out;
  std::uint64_t n = 0;
  for (const auto& c : counts_) out.push_back(n += c.load(std::memory_order_relaxed));
  return out;
}

Metrics::Metrics(Labels base) : base_(std::move(base)) {}

Metrics::Series& Metrics::series(const std::string& name, const std::string& help, const char* type, Labels labels) {
  Family& f = families_[name];
  if (f.type.empty()) f.help = help, f.type = type;
  if (base_prefix_.empty() || name.starts_with(base_prefix_)) labels.insert(labels.begin(), base_.begin(), base_.end());
  for (Series& s : f.series)
    if (s.labels == labels) return s;
  f.series.push_back({std::move(labels), nullptr, nullptr, nullptr});
  return f.series.back();
}

Counter& Metrics::counter(const std::string& name, const std::string& help, Labels labels) {
  const std::lock_guard lock(mutex_);
  Series& s = series(name, help, "counter", std::move(labels));
  if (!s.counter) s.counter = std::make_unique<Counter>();
  return *s.counter;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, Labels labels) {
  const std::lock_guard lock(mutex_);
  Series& s = series(name, help, "gauge", std::move(labels));
  if (!s.gauge) s.gauge = std::make_unique<Gauge>();
  return *s.gauge;
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help, const std::vector<double>& edges, Labels labels) {
  const std::lock_guard lock(mutex_);
  Series& s = series(name, help, "histogram", std::move(labels));
  if (!s.histogram) s.histogram = std::make_unique<Histogram>(edges);
  return *s.histogram;
}

void Metrics::describe(const std::string& name, const std::string& help, const std::vector<std::pair<Labels, double>>& values) {
  const std::lock_guard lock(mutex_);
  if (const auto it = families_.find(name); it != families_.end()) it->second.series.clear();
  for (const auto& [labels, value] : values) {
    Series& s = series(name, help, "gauge", labels);
    if (!s.gauge) s.gauge = std::make_unique<Gauge>();
    s.gauge->set(value);
  }
}

void Metrics::on_render(std::function<void()> f) {
  const std::lock_guard lock(mutex_);
  on_render_.push_back(std::move(f));
}

std::string Metrics::render() const {
  std::vector<std::function<void()>> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = on_render_;
  }
  for (const auto& f : hooks) f();
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += "# HELP " + name + " " + family.help + "\n# TYPE " + name + " " + family.type + "\n";
    for (const Series& s : family.series) {
      if (s.counter) out += name + label_text(s.labels) + " " + number(s.counter->value()) + "\n";
      if (s.gauge) out += name + label_text(s.labels) + " " + number(s.gauge->value()) + "\n";
      if (s.histogram) {
        const auto counts = s.histogram->cumulative();
        const auto& edges = s.histogram->edges();
        for (std::size_t i = 0; i < counts.size(); ++i)
          out += name + "_bucket" + label_text(s.labels, "le", i < edges.size() ? number(edges[i]) : "+Inf") + " " + std::to_string(counts[i]) + "\n";
        out += name + "_sum" + label_text(s.labels) + " " + number(s.histogram->sum()) + "\n";
        out += name + "_count" + label_text(s.labels) + " " + std::to_string(counts.back()) + "\n";
      }
    }
  }
  return out;
}

std::vector<double> one_two_five(double most) {
  std::vector<double> out;
  for (double p = 1;; p *= 10)
    for (const double m : {1.0, 2.0, 5.0}) {
      out.push_back(m * p);
      if (m * p >= most) return out;
    }
}

}  // namespace qengine::server
