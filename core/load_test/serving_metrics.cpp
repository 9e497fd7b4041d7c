#include "core/load_test/serving_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace qengine {
namespace {

using Json = nlohmann::ordered_json;

struct Kind {
  const char *key, *title, *label;
};
constexpr Kind kKinds[] = {{"ttft", "Time to First Token", "TTFT"},
                           {"tpot", "Time per Output Token (excl. 1st token)", "TPOT"},
                           {"itl", "Inter-token Latency", "ITL"},
                           {"e2el", "End-to-end Latency", "E2EL"}};
constexpr std::size_t kWidth = 50, kLabel = 40;

LatencyFigures figures(const std::vector<double>& seconds, const std::vector<double>& percentiles) {
  LatencyFigures f;
  const double n = static_cast<double>(seconds.size());
  for (const double s : seconds) f.mean += 1e3 * s / n;
  for (const double s : seconds) f.deviation += (1e3 * s - f.mean) * (1e3 * s - f.mean) / n;
  f.deviation = std::sqrt(f.deviation);
  f.median = 1e3 * percentile(seconds, .5);
  for (const double p : percentiles) f.percentiles.push_back(1e3 * percentile(seconds, p / 100));
  return f;
}

std::string rule(const std::string& title, char c) {
  const std::size_t left = (kWidth - std::min(kWidth, title.size())) / 2;
  std::string out(left, c);
  out += title;
  out.resize(std::max(kWidth, out.size()), c);
  return out + "\n";
}

std::string percent_name(double p) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", p);
  return text;
}

}  // namespace

double percentile(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = p * static_cast<double>(v.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  const double rest = at - static_cast<double>(i);
  return v[i] + rest * (v[std::min(i + 1, v.size() - 1)] - v[i]);
}

ServingMetrics serving_metrics(const LoadResult& result, const MetricsOptions& o) {
  ServingMetrics m;
  m.duration = result.duration;
  std::vector<double> ttft, tpot, itl, e2el;
  std::vector<std::int64_t> events;            // by second
  std::vector<std::pair<double, int>> running;  // when one begins, and ends
  const auto bucket = [](std::vector<std::int64_t>& v, double at) -> std::int64_t& {
    const auto i = static_cast<std::size_t>(std::max(0.0, at));
    if (v.size() <= i) v.resize(i + 1);
    return v[i];
  };
  std::int64_t good = 0;
  for (const RequestRecord& r : result.records) {
    if (!r.ok()) {
      ++m.failed;
      continue;
    }
    ++m.completed;
    m.input_tokens += r.prompt_tokens;
    m.output_tokens += r.output_tokens;
    const double first = r.first - r.start, whole = r.last - r.start;
    const double per_token = r.output_tokens > 1 ? (whole - first) / static_cast<double>(r.output_tokens - 1) : 0;
    ttft.push_back(first);
    e2el.push_back(whole);
    if (r.output_tokens > 1) tpot.push_back(per_token);
    itl.insert(itl.end(), r.gaps.begin(), r.gaps.end());
    double at = r.first;
    ++bucket(events, at);
    for (const double gap : r.gaps) ++bucket(events, at += gap);
    running.emplace_back(r.start, 1);
    running.emplace_back(r.last, -1);
    good += std::all_of(o.goodput.begin(), o.goodput.end(), [&](const auto& limit) {
      const double value = limit.first == "ttft" ? first : limit.first == "tpot" ? per_token : whole;
      return 1e3 * value <= limit.second;
    });
  }
  if (m.duration > 0) {
    m.request_throughput = static_cast<double>(m.completed) / m.duration;
    m.request_goodput = static_cast<double>(good) / m.duration;
    m.output_throughput = static_cast<double>(m.output_tokens) / m.duration;
    m.total_throughput = static_cast<double>(m.input_tokens + m.output_tokens) / m.duration;
  }
  for (const std::int64_t n : events) m.peak_output_throughput = std::max(m.peak_output_throughput, static_cast<double>(n));
  std::sort(running.begin(), running.end());  // at the same moment ends come first
  std::int64_t now = 0;
  for (const auto& [at, change] : running) m.peak_concurrency = std::max(m.peak_concurrency, static_cast<double>(now += change));
  m.latency["ttft"] = figures(ttft, o.percentiles);
  m.latency["tpot"] = figures(tpot, o.percentiles);
  m.latency["itl"] = figures(itl, o.percentiles);
  m.latency["e2el"] = figures(e2el, o.percentiles);
  return m;
}

std::string serving_text(const ServingMetrics& m, const MetricsOptions& o) {
  std::string out = rule(" Serving Benchmark Result ", '=');
  char text[64];
  const auto line = [&](std::string label) {
    label.resize(std::max(kLabel, label.size()), ' ');
    out += label + " " + text + "\n";
  };
  const auto whole = [&](const char* label, std::int64_t n) { std::snprintf(text, sizeof text, "%lld", static_cast<long long>(n)), line(label); };
  const auto number = [&](const std::string& label, double x) { std::snprintf(text, sizeof text, "%.2f", x), line(label); };
  whole("Successful requests:", m.completed);
  whole("Failed requests:", m.failed);
  if (o.max_concurrency > 0) whole("Maximum request concurrency:", o.max_concurrency);
  if (std::isfinite(o.rate)) number("Request rate configured (RPS):", o.rate);
  number("Benchmark duration (s):", m.duration);
  whole("Total input tokens:", m.input_tokens);
  whole("Total generated tokens:", m.output_tokens);
  number("Request throughput (req/s):", m.request_throughput);
  if (!o.goodput.empty()) number("Request goodput (req/s):", m.request_goodput);
  number("Output token throughput (tok/s):", m.output_throughput);
  number("Peak output token throughput (tok/s):", m.peak_output_throughput);
  number("Peak concurrent requests:", m.peak_concurrency);
  number("Total token throughput (tok/s):", m.total_throughput);
  for (const Kind& k : kKinds) {
    if (std::find(o.shown.begin(), o.shown.end(), k.key) == o.shown.end()) continue;
    const LatencyFigures& f = m.latency.at(k.key);
    out += rule(k.title, '-');
    number(std::string("Mean ") + k.label + " (ms):", f.mean);
    number(std::string("Median ") + k.label + " (ms):", f.median);
    for (std::size_t i = 0; i < o.percentiles.size(); ++i) number("P" + percent_name(o.percentiles[i]) + " " + k.label + " (ms):", f.percentiles[i]);
  }
  return out + rule("", '=');
}

Json serving_json(const ServingMetrics& m, const MetricsOptions& o, const LoadResult& result, bool detailed) {
  Json j{{"duration", m.duration}, {"completed", m.completed}, {"failed", m.failed}, {"total_input_tokens", m.input_tokens}, {"total_output_tokens", m.output_tokens},
         {"request_throughput", m.request_throughput}};
  if (!o.goodput.empty()) j["request_goodput"] = m.request_goodput;
  j["output_throughput"] = m.output_throughput;
  j["total_token_throughput"] = m.total_throughput;
  j["max_output_tokens_per_s"] = m.peak_output_throughput;
  j["max_concurrent_requests"] = m.peak_concurrency;
  if (o.max_concurrency > 0) j["max_concurrency"] = o.max_concurrency;
  if (std::isfinite(o.rate)) j["request_rate"] = o.rate;
  for (const Kind& k : kKinds) {
    const LatencyFigures& f = m.latency.at(k.key);
    const std::string end = std::string("_") + k.key + "_ms";
    j["mean" + end] = f.mean;
    j["median" + end] = f.median;
    j["std" + end] = f.deviation;
    for (std::size_t i = 0; i < o.percentiles.size(); ++i) j["p" + percent_name(o.percentiles[i]) + end] = f.percentiles[i];
  }
  Json errors = Json::array();
  for (const RequestRecord& r : result.records)
    if (!r.ok() || detailed) errors.push_back(r.error);
  j["errors"] = std::move(errors);
  if (!detailed) return j;
  for (const char* key : {"input_lens", "output_lens", "start_times", "ttfts", "itls"}) j[key] = Json::array();
  for (const RequestRecord& r : result.records) {
    j["input_lens"].push_back(r.prompt_tokens);
    j["output_lens"].push_back(r.output_tokens);
    j["start_times"].push_back(r.start);
    j["ttfts"].push_back(r.ok() ? r.first - r.start : 0);
    j["itls"].push_back(r.gaps);
  }
  return j;
}

}  // namespace qengine
