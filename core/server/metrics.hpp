// Metrics in the Prometheus text format 0.0.4. Families are made once at start; after that counting is
// a few atomic additions and rendering never waits for the engine.
//
// Names, labels and edges: serving.md 4. Label values come from closed sets.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace qengine::server {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(double v = 1) { value_.fetch_add(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> edges);
  void observe(double v);
  // What is counted elsewhere: as many in each bucket, then above the last edge, as `counts` says.
  void set(std::span<const std::int64_t> counts, double sum);
  const std::vector<double>& edges() const { return edges_; }
  std::vector<std::uint64_t> cumulative() const;  // one an edge, then +Inf
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> edges_;
  std::deque<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

class Metrics {
 public:
  // Every family gets these labels before its own.
  explicit Metrics(Labels base);

  // The same name and labels give the same object, which lives as long as this.
  Counter& counter(const std::string& name, const std::string& help, Labels labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, Labels labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& edges, Labels labels = {});

  // A family of gauges that describe what is there now: these series, and none from before. Not for families that gauge() serves.
  void describe(const std::string& name, const std::string& help, const std::vector<std::pair<Labels, double>>& values);

  // Called at the start of each render(), to set gauges that are read and not counted.
  void on_render(std::function<void()> f);

  std::string render() const;

  // Families named vllm:* carry the base labels, others do not.
  void base_only_for(std::string prefix) { base_prefix_ = std::move(prefix); }

 private:
  struct Series {
    Labels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    std::string help, type;
    std::vector<Series> series;
  };
  Series& series(const std::string& name, const std::string& help, const char* type, Labels labels);

  Labels base_;
  std::string base_prefix_;
  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
  std::vector<std::function<void()>> on_render_;
};

// 1, 2, 5 x 10^k up to and including the first value >= most.
std::vector<double> one_two_five(double most);

}  // namespace qengine::server
