// bench latency: how long one batch takes in this process: prefill and decode speed, time to first
// token, and how near decode comes to what the memory can deliver.
//
// Every run sends the same prompts of random ids, and has to give the same tokens as the run before
// it: a figure for wrong answers is not printed as valid.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>

#include "apps/qengine/command.hpp"
#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/step_bytes.hpp"
#include "core/base/thread_pool.hpp"
#include "core/load_test/serving_metrics.hpp"

namespace qengine {
namespace {

using Clock = std::chrono::steady_clock;

const SettingGroup& bench_settings() {
  static const SettingGroup group{
      "Benchmark",
      {
          {.name = "input-len", .value = "N,...", .fallback = "32", .help = "prompt tokens; also 1-64*2 and 32-128+32"},
          {.name = "output-len", .value = "N,...", .fallback = "128", .help = "tokens to generate"},
          {.name = "batch-size", .value = "N,...", .fallback = "8", .help = "sequences at once"},
          {.name = "warmups", .kind = Kind::kInt, .value = "N", .fallback = "10", .help = "runs before the measurement", .least = 0, .most = 100000},
          {.name = "runs", .kind = Kind::kInt, .value = "N", .fallback = "30", .help = "measured runs", .least = 1, .most = 100000},
          {.name = "num-iters-warmup", .kind = Kind::kInt, .value = "N", .help = "as --warmups", .least = 0, .most = 100000, .hidden = true},
          {.name = "num-iters", .kind = Kind::kInt, .value = "N", .help = "as --runs", .least = 1, .most = 100000, .hidden = true},
      }};
  return group;
}

// "1,2,4", "1-64*2", "32-128+32" and mixtures.
std::vector<std::int64_t> sweep(const std::string& flag, const std::string& text) {
  const auto bad = [&] { return Error("E101", "--" + flag + ": \"" + text + "\" is not a list of numbers such as 1,2,4 or 1-64*2 or 32-128+32"); };
  std::vector<std::int64_t> out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const auto dash = item.find('-');
    if (dash == item.npos) {
      const auto n = parse_integer(item, false);
      if (!n || *n < 1) throw bad();
      out.push_back(*n);
      continue;
    }
    const auto op = item.find_first_of("*+", dash);
    const auto first = parse_integer(item.substr(0, dash), false);
    const auto last = parse_integer(item.substr(dash + 1, op == item.npos ? op : op - dash - 1), false);
    const auto step = op == item.npos ? std::optional<long long>(1) : parse_integer(item.substr(op + 1), false);
    const bool times = op != item.npos && item[op] == '*';
    if (!first || !last || !step || *first < 1 || *last < *first || *step < (times ? 2 : 1)) throw bad();
    for (long long n = *first; n <= *last; n = times ? n * *step : n + *step) {
      out.push_back(n);
      if (out.size() > 1000) throw bad();
    }
  }
  return out;
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

Json spread(const std::vector<double>& v) { return {{"median", percentile(v, .5)}, {"p10", percentile(v, .1)}, {"p90", percentile(v, .9)}}; }

struct Shape {
  std::int64_t input, output, batch;
};

struct RunResult {
  double latency = 0, prefill = 0, decode = 0;  // s, tok/s, tok/s (0: not measured)
  std::vector<double> ttft, itl;                // ms
  std::vector<std::vector<std::int32_t>> tokens;
};

RunResult run_once(Engine& engine, const Shape& shape, const std::vector<std::vector<std::int32_t>>& prompts) {
  struct Sequence {
    std::vector<Clock::time_point> times;
    std::vector<std::int32_t> tokens;
    std::string error;
  };
  std::vector<Sequence> sequences(prompts.size());
  for (Sequence& s : sequences) s.times.reserve(shape.output), s.tokens.reserve(shape.output);
  std::mutex mutex;
  std::condition_variable done;
  std::size_t running = prompts.size();

  std::vector<Request> requests(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request& r = requests[i];
    r.prompt = prompts[i];
    r.sampling.max_tokens = shape.output;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.on_output = [&, i](const Output& o) {  // only the engine thread writes these
      if (o.token >= 0) sequences[i].times.push_back(Clock::now()), sequences[i].tokens.push_back(o.token);
      if (o.finish == FinishReason::kNone) return;
      sequences[i].error = o.error;
      const std::lock_guard lock(mutex);
      --running;
      done.notify_one();
    };
  }
  const auto begin = Clock::now();
  engine.submit(std::move(requests));
  {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return running == 0; });
  }

  RunResult result;
  Clock::time_point all_first = begin, end = begin;
  for (const Sequence& s : sequences) {
    if (s.times.empty() || std::ssize(s.tokens) != shape.output)
      throw Error("E000", "a sequence ended after " + std::to_string(s.tokens.size()) + " of " + std::to_string(shape.output) + " tokens" + (s.error.empty() ? "" : ": " + s.error));
    all_first = std::max(all_first, s.times.front());
    end = std::max(end, s.times.back());
  }
  std::int64_t decoded = 0;
  for (Sequence& s : sequences) {
    result.ttft.push_back(1e3 * seconds(s.times.front() - begin));
    for (std::size_t i = 1; i < s.times.size(); ++i) {
      if (s.times[i] <= all_first) continue;
      ++decoded;
      result.itl.push_back(1e3 * seconds(s.times[i] - s.times[i - 1]));
    }
    result.tokens.push_back(std::move(s.tokens));
  }
  result.latency = seconds(end - begin);
  result.prefill = static_cast<double>(shape.input * shape.batch) / seconds(all_first - begin);
  if (decoded > 0) result.decode = static_cast<double>(decoded) / seconds(end - all_first);
  return result;
}

int run(const Invocation& in) {
  const auto inputs = sweep("input-len", in.values.text("input-len")), outputs = sweep("output-len", in.values.text("output-len")),
             batches = sweep("batch-size", in.values.text("batch-size"));
  const std::int64_t warmups = in.values.integer("num-iters-warmup").value_or(in.values.integer("warmups", 10));
  const std::int64_t runs = in.values.integer("num-iters").value_or(in.values.integer("runs", 30));
  std::vector<Shape> shapes;
  for (const auto i : inputs)
    for (const auto o : outputs)
      for (const auto b : batches) shapes.push_back({i, o, b});

  EngineOptions options = engine_options(in);
  options.need_tokenizer = false;
  const std::int64_t most = *std::max_element(batches.begin(), batches.end());
  if (options.max_num_seqs > 0 && options.max_num_seqs < most)
    throw Error("E101", "--batch-size " + std::to_string(most) + " is more than --max-num-seqs " + std::to_string(options.max_num_seqs)).hint("leave --max-num-seqs out");
  if (options.max_num_seqs == 0 && most > 128) options.max_num_seqs = most;
  const auto engine = load_engine(in, options);
  for (const Shape& s : shapes)
    if (s.input + s.output > engine->max_model_len())
      throw Error("E101", "--input-len " + std::to_string(s.input) + " and --output-len " + std::to_string(s.output) + " are longer together than the model's context of " + std::to_string(engine->max_model_len()))
          .hint("choose shorter ones, or a larger --max-model-len");

  const int threads = options.threads > 0 ? options.threads : ThreadPool::physical_cores();
  const std::uint64_t weights = weight_bytes_per_step(*engine);
  const double kv_per_token = kv_bytes_per_token(*engine);

  const GracefulStop stop;
  Json results = Json::array();
  bool valid = true;
  std::vector<double> decode_steps;  // a second, of each shape; 0: not measured
  {
    Progress progress(in, "bench");
    std::int64_t done = 0;
    const double all = static_cast<double>(std::ssize(shapes) * (warmups + runs));
    for (const Shape& shape : shapes) {
      std::mt19937_64 rng(options.seed);
      std::vector<std::vector<std::int32_t>> prompts(shape.batch);
      for (auto& p : prompts)
        for (std::int64_t i = 0; i < shape.input; ++i) p.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(engine->config().vocab_size)));
      std::vector<double> latency, prefill, decode, ttft, itl;
      std::vector<std::vector<std::int32_t>> first;
      for (std::int64_t r = -warmups; r < runs && !GracefulStop::requested(); ++r) {
        RunResult one = run_once(*engine, shape, prompts);
        progress.at(static_cast<double>(++done) / all);
        if (first.empty()) first = one.tokens;
        else if (first != one.tokens) valid = false;
        if (r < 0) continue;
        latency.push_back(one.latency);
        prefill.push_back(one.prefill);
        if (one.decode > 0) decode.push_back(one.decode);
        ttft.insert(ttft.end(), one.ttft.begin(), one.ttft.end());
        itl.insert(itl.end(), one.itl.begin(), one.itl.end());
      }
      if (latency.empty()) break;
      Json result{{"input_len", shape.input}, {"output_len", shape.output}, {"batch_size", shape.batch}, {"runs", latency.size()}};
      double mean = 0;
      for (const double l : latency) mean += l / static_cast<double>(latency.size());
      Json& l = result["latency_s"] = {{"mean", mean}};
      for (const int p : {10, 25, 50, 75, 90, 99}) l["p" + std::to_string(p)] = percentile(latency, p / 100.0);
      result["prefill_tok_s"] = spread(prefill);
      if (!decode.empty()) result["decode_tok_s"] = spread(decode);
      result["ttft_ms"] = spread(ttft);
      if (!itl.empty()) result["itl_ms"] = spread(itl);
      // A decode step reads the weights once and the cache of every sequence, half of its output long on average.
      result["bytes_per_token"] = weights + static_cast<std::uint64_t>(kv_per_token * static_cast<double>(shape.batch) * (static_cast<double>(shape.input) + static_cast<double>(shape.output) / 2));
      decode_steps.push_back(decode.empty() ? 0 : percentile(decode, .5) / static_cast<double>(shape.batch));
      results.push_back(std::move(result));
    }
  }
  const bool interrupted = GracefulStop::requested();
  const std::uint64_t peak = engine->memory().peak_rss_bytes;  // before the measurement below adds its own
  const double bandwidth = engine->read_bandwidth();
  for (std::size_t i = 0; i < results.size(); ++i)
    if (bandwidth > 0 && decode_steps[i] > 0) results[i]["bandwidth_share"] = results[i]["bytes_per_token"].get<double>() * decode_steps[i] / bandwidth;

  if (in.json()) {
    Json doc = json_document(in.command);
    doc["results"] = results;
    if (bandwidth > 0) doc["read_bandwidth_bytes_s"] = bandwidth;
    doc["load_s"] = engine->load_seconds();
    doc["peak_rss_bytes"] = peak;
    doc["threads"] = threads;
    doc["seed"] = options.seed;
    doc["warmups"] = warmups;
    doc["valid"] = valid;
    if (interrupted) doc["interrupted"] = true;
    print_json(doc);
  } else {
    char line[256];
    print(" input  output  batch  runs    prefill tok/s        decode tok/s         TTFT ms   ITL ms    latency s   share\n");
    for (const Json& r : results) {
      const auto cell = [&](const char* key, const char* format) -> std::string {
        if (!r.contains(key)) return "-";
        char text[64];
        const double m = r[key]["median"], low = r[key]["p10"], high = r[key]["p90"];
        std::snprintf(text, sizeof text, format, m, low, high);
        return text;
      };
      std::snprintf(line, sizeof line, "%6lld  %6lld  %5lld  %4lld  %19s  %19s  %9s  %7s  %11.3f  %6s\n", r["input_len"].get<long long>(), r["output_len"].get<long long>(),
                    r["batch_size"].get<long long>(), r["runs"].get<long long>(), cell("prefill_tok_s", "%.1f (%.0f-%.0f)").c_str(), cell("decode_tok_s", "%.1f (%.0f-%.0f)").c_str(),
                    cell("ttft_ms", "%.2f").c_str(), cell("itl_ms", "%.2f").c_str(), r["latency_s"]["p50"].get<double>(),
                    r.contains("bandwidth_share") ? (std::to_string(static_cast<int>(std::lround(100 * r["bandwidth_share"].get<double>()))) + " %").c_str() : "-");
      print(line);
    }
    const std::string& where = engine->options().device;
    std::snprintf(line, sizeof line, "\nmedian (p10-p90); share: of the read bandwidth, %.1f GB/s on %s\nloaded in %.2f s, peak memory %s, %s of weights read a step\n", bandwidth / 1e9,
                  where.starts_with("cuda") ? where.c_str() : (std::to_string(threads) + " threads").c_str(), engine->load_seconds(), size_text(static_cast<double>(peak)).c_str(), size_text(static_cast<double>(weights)).c_str());
    print(line);
    for (const Json& r : results) {
      const Json& l = r["latency_s"];
      std::snprintf(line, sizeof line, "Avg latency: %.4f seconds; percentiles 10/25/50/75/90/99: %.4f %.4f %.4f %.4f %.4f %.4f\n", l["mean"].get<double>(), l["p10"].get<double>(),
                    l["p25"].get<double>(), l["p50"].get<double>(), l["p75"].get<double>(), l["p90"].get<double>(), l["p99"].get<double>());
      print(line);
    }
    if (!valid) print("INVALID: runs of the same prompts gave different tokens\n");
  }
  if (interrupted) return GracefulStop::exit_code();
  return valid ? 0 : 6;
}

}  // namespace

extern const Command bench_latency_command;
const Command bench_latency_command = {
    .name = "bench latency",
    .summary = "speed of one batch, and its share of the memory bandwidth",
    .usage = {"MODEL --input-len 512 --output-len 128 --batch-size 1,8 --runs 5 --warmups 1"},
    .groups = with_model_groups({&bench_settings(), &dummy_settings()}),
    // Equal prompts would find each other's cache and skip the prefill that is to be measured.
    .defaults = {{"enable-prefix-caching", "false"}},
    .positional = "model",
    .run = run,
};

}  // namespace qengine
