// The figures of a load test, with the names, definitions and print-out of vLLM's `vllm bench serve`.
//
//   TTFT  request sent to first event          TPOT  (E2EL - TTFT) / (output tokens - 1), per request of two or more
//   E2EL  request sent to last event           ITL   every gap between two events, of all requests together
//
// Percentiles interpolate linearly, as numpy does.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/load_test/load_run.hpp"

namespace qengine {

struct MetricsOptions {
  std::vector<double> percentiles{99};
  std::vector<std::string> shown{"ttft", "tpot", "itl"};  // also "e2el"
  std::map<std::string, double> goodput;                  // "ttft", "tpot", "e2el" -> limit in ms
  std::int64_t max_concurrency = 0;
  double rate = std::numeric_limits<double>::infinity();
};

// 0..1, of values in any order; 0 for none.
double percentile(std::vector<double> values, double p);

// Times in ms: mean, median, standard deviation, percentiles.
struct LatencyFigures {
  double mean = 0, median = 0, deviation = 0;
  std::vector<double> percentiles;  // as asked for
};

struct ServingMetrics {
  std::int64_t completed = 0, failed = 0, input_tokens = 0, output_tokens = 0;
  double duration = 0, request_throughput = 0, request_goodput = 0, output_throughput = 0, total_throughput = 0;
  double peak_output_throughput = 0;  // events of the best second
  double peak_concurrency = 0;        // most requests under way at one moment
  std::map<std::string, LatencyFigures> latency;            // "ttft", "tpot", "itl", "e2el"
};

ServingMetrics serving_metrics(const LoadResult& result, const MetricsOptions& options);

// The familiar block.
std::string serving_text(const ServingMetrics& metrics, const MetricsOptions& options);
// The keys of vLLM's result file. `detailed`: ttfts, itls and errors of every request, too.
nlohmann::ordered_json serving_json(const ServingMetrics& metrics, const MetricsOptions& options, const LoadResult& result, bool detailed);

}  // namespace qengine
