// bench throughput: what the engine gives many requests at once, without HTTP.
#include <cstdio>
#include <mutex>

#include "apps/qengine/bench_setup.hpp"
#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/step_bytes.hpp"
#include "core/base/thread_pool.hpp"

namespace qengine {
namespace {

// The answers to one prompt before and after: a figure for wrong answers is not printed as valid.
constexpr std::int64_t kCheckTokens = 32, kCheckPrompt = 64;

class EngineTarget final : public LoadTarget {
 public:
  EngineTarget(Engine& engine, bool ignore_eos) : engine_(engine), ignore_eos_(ignore_eos) {}

  void send(const LoadRequest& r, std::shared_ptr<LoadSink> sink) override {
    Request q;
    q.prompt = r.ids.empty() ? engine_.tokenizer()->encode(r.text, /*add_special=*/true) : r.ids;
    q.sampling.max_tokens = r.output_tokens;
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = ignore_eos_;
    q.on_output = [sink, prompt = std::ssize(q.prompt), tokens = std::int64_t{0}, cached = std::int64_t{0}](const Output& o) mutable {
      if (o.token >= 0) ++tokens, sink->event();
      cached = std::max<std::int64_t>(cached, o.cached_tokens);
      if (o.finish == FinishReason::kNone) return;
      std::string error;
      if (o.finish == FinishReason::kError) error = o.error.substr(0, o.error.find('\n'));
      else if (o.finish == FinishReason::kAborted) error = "cancelled";
      sink->done(prompt, tokens, cached, std::move(error));
    };
    try {
      const RequestId id = engine_.submit(std::move(q));
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
    } catch (const Error& e) {
      sink->done(-1, 0, -1, e.code() + " " + e.message());
    }
  }
  void cancel_all() override {
    const std::lock_guard lock(mutex_);
    for (const RequestId id : ids_) engine_.cancel(id);  // those that ended are ignored
  }

 private:
  Engine& engine_;
  bool ignore_eos_;
  std::mutex mutex_;
  std::vector<RequestId> ids_;
};

std::vector<std::int32_t> check_answer(Engine& engine, const std::vector<std::int32_t>& prompt) {
  engine.drop_prefix_cache();  // what is left of a prompt may go through kernels for fewer tokens: other bits
  Request r;
  r.prompt.assign(prompt.begin(), prompt.begin() + std::min<std::ptrdiff_t>(std::ssize(prompt), kCheckPrompt));
  r.sampling.max_tokens = std::min(kCheckTokens, engine.max_model_len() - std::ssize(r.prompt));
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  std::vector<Request> one;
  one.push_back(std::move(r));
  std::vector<std::int32_t> ids;
  const auto answers = engine.generate(std::move(one));
  for (const Output& o : answers[0]) {
    if (o.finish == FinishReason::kError) throw Error("E406", o.error.substr(0, o.error.find('\n')));
    if (o.token >= 0) ids.push_back(o.token);
  }
  return ids;
}

int run(const Invocation& in) {
  EngineOptions options = engine_options(in);
  const bool custom = in.values.text("dataset-name") == "custom";
  options.need_tokenizer = custom;
  const auto engine = load_engine(in, options);
  BenchPlan plan = bench_plan(in, engine->config().vocab_size);
  if (longest_request(plan) > engine->max_model_len())
    throw Error("E101", "a prompt and its answer have " + std::to_string(longest_request(plan)) + " tokens, the model's context " + std::to_string(engine->max_model_len())).hint("choose shorter --random-input-len and --random-output-len, or a larger --max-model-len");
  EngineTarget target(*engine, plan.ignore_eos);

  const std::vector<std::int32_t> check = plan.requests[0].ids.empty() ? engine->tokenizer()->encode(plan.requests[0].text, true) : plan.requests[0].ids;
  const auto before = check_answer(*engine, check);
  const LoadOutcome outcome = run_plan(in, target, plan);
  const bool valid = outcome.interrupted || check_answer(*engine, check) == before;

  const MemoryReport memory = engine->memory();
  const EngineStats stats = engine->stats();
  const int threads = options.threads > 0 ? options.threads : ThreadPool::physical_cores();
  Json levels = outcome.levels;
  double bandwidth = 0;
  if (plan.articles) {
    bandwidth = engine->read_bandwidth();
    const double weights = static_cast<double>(weight_bytes_per_step(*engine)), kv = kv_bytes_per_token(*engine);
    for (Json& l : levels) {
      if (bandwidth <= 0 || !l.contains("itl_ms") || l["itl_ms"]["median"].get<double>() <= 0) continue;
      const double bytes = weights + kv * l["concurrency"].get<double>() * (static_cast<double>(plan.input_len) + static_cast<double>(plan.output_len) / 2);
      l["bytes_per_step"] = static_cast<std::uint64_t>(bytes);
      l["bandwidth_share"] = bytes * 1e3 / l["itl_ms"]["median"].get<double>() / bandwidth;
    }
  }

  const ServingMetrics metrics = serving_metrics(outcome.whole, plan.metrics);
  Json doc = json_document(in.command);
  if (plan.articles) {
    doc["method"] = "articles";
    doc["levels"] = levels;
    doc["failed"] = outcome.failed;
    if (bandwidth > 0) doc["read_bandwidth_bytes_s"] = bandwidth;
  } else {
    doc.update(serving_json(metrics, plan.metrics, outcome.whole, in.values.flag("save-detailed")));
  }
  Json& own = doc["qengine"] = {{"load_s", engine->load_seconds()}, {"weights_bytes", memory.weights_bytes}, {"kv_bytes", memory.kv_bytes}, {"workspace_bytes", memory.workspace_bytes},
                                {"peak_rss_bytes", memory.peak_rss_bytes}, {"kv_tokens", stats.kv_blocks_total * engine->options().block_size}, {"kv", engine->kv_report()},
                                {"threads", threads}, {"device", engine->options().device}, {"seed", plan.seed}, {"prompts_sha256", plan.prompts_sha256}};
  own["preemptions"] = stats.preemptions;
  if (plan.articles) own["input_len"] = plan.input_len, own["output_len"] = plan.output_len;
  doc["valid"] = valid;
  if (outcome.interrupted) doc["interrupted"] = true;
  save_result(in, doc);
  note_failures(in, outcome);
  if (in.json()) {
    print_json(doc);
  } else if (plan.articles) {
    print(levels_text(levels));
  } else {
    print(serving_text(metrics, plan.metrics));
    char line[200];
    std::snprintf(line, sizeof line, "Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\nTotal num prompt tokens: %lld\nTotal num output tokens: %lld\n", metrics.request_throughput,
                  metrics.total_throughput, metrics.output_throughput, static_cast<long long>(metrics.input_tokens), static_cast<long long>(metrics.output_tokens));
    print(line);
  }
  if (!valid) note(in, "INVALID: the same prompt gave different tokens before and after");
  if (outcome.interrupted) return GracefulStop::exit_code();
  if (!valid) return 6;
  return outcome.sent > 0 && outcome.failed == outcome.sent ? 1 : 0;
}

}  // namespace

extern const Command bench_throughput_command;
const Command bench_throughput_command = {
    .name = "bench throughput",
    .summary = "many requests at once in this process: tokens a second, latencies",
    .usage = {"MODEL --num-prompts 200 --random-input-len 256 --max-concurrency 16", "MODEL --method articles --concurrency 1,16,64"},
    .groups = with_model_groups({&load_settings(), &dummy_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
