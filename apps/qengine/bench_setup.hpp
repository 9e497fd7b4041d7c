// What bench throughput and bench serve share: the workload, the methods, the print-out.
#pragma once

#include "apps/qengine/command.hpp"
#include "core/load_test/load_run.hpp"
#include "core/load_test/serving_metrics.hpp"
#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

// --dataset-name, --random-input-len, --num-prompts, --request-rate, --max-concurrency, --method, ...
const SettingGroup& load_settings();

struct BenchPlan {
  bool articles = false;
  std::vector<LoadRequest> requests;          // of a plain run; warm-ups first
  std::int64_t warmups = 0;
  std::vector<std::int64_t> levels;           // articles: requests at once
  std::int64_t batches = 4, input_len = 0, output_len = 0;
  bool ignore_eos = false;
  std::uint64_t seed = 0;
  LoadOptions options;
  MetricsOptions metrics;
  std::string prompts_sha256;
};
// `vocab_size` 0: prompts are texts, since nobody knows ids. Throws Error E101.
BenchPlan bench_plan(const Invocation& in, std::int64_t vocab_size);
std::int64_t longest_request(const BenchPlan& plan);  // tokens, of prompts given as ids

struct LoadOutcome {
  LoadResult whole;  // of a plain run
  Json levels;       // articles: [{concurrency, output_tok_s, output_tok_s_batches, ttft_ms, itl_ms, ...}]
  bool interrupted = false;
  std::int64_t failed = 0, sent = 0;
  double seconds = 0;
  std::vector<std::string> errors;
};
// Runs the plan with a progress bar.
LoadOutcome run_plan(const Invocation& in, LoadTarget& target, const BenchPlan& plan);

// The levels of the articles' method as a table.
std::string levels_text(const Json& levels);
// First ten texts of what failed, to stderr.
void note_failures(const Invocation& in, const LoadOutcome& outcome);
// To --save-result's file.
void save_result(const Invocation& in, const Json& document);

}  // namespace qengine
