#include "apps/qengine/bench_setup.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/qengine/model_setup.hpp"
#include "core/load_test/prompts.hpp"
#include "core/model/safetensors_writer.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine {
namespace {

// The articles' workload (product.md): four batches a level, of which the first only warms up.
constexpr std::int64_t kArticlesInput = 256, kArticlesOutput = 128;

}  // namespace

const SettingGroup& load_settings() {
  static const SettingGroup group{
      "Load",
      {
          {.name = "method", .kind = Kind::kChoice, .value = "load|articles", .fallback = "load",
           .help = "one run of all prompts; or batches of 256 in, 128 out at each --concurrency, the first of which warms up"},
          {.name = "dataset-name", .kind = Kind::kChoice, .value = "random|custom", .fallback = "random", .help = "prompts: random ones, or the lines of --dataset-path"},
          {.name = "dataset-path", .kind = Kind::kPath, .value = "FILE.jsonl", .help = "{\"prompt\": TEXT or [ids], \"output_tokens\": N} a line"},
          {.name = "random-input-len", .kind = Kind::kInt, .value = "N", .shown = "1024; articles: 256", .help = "tokens of a prompt (--input-len)", .least = 1, .most = 10e6},
          {.name = "random-output-len", .kind = Kind::kInt, .value = "N", .shown = "128", .help = "tokens of an answer (--output-len)", .least = 1, .most = 1e6},
          {.name = "input-len", .kind = Kind::kInt, .value = "N", .help = "as --random-input-len", .least = 1, .most = 10e6, .hidden = true},
          {.name = "output-len", .kind = Kind::kInt, .value = "N", .help = "as --random-output-len", .least = 1, .most = 1e6, .hidden = true},
          {.name = "random-range-ratio", .kind = Kind::kNumber, .value = "F", .fallback = "0", .help = "lengths vary by this share, both ways", .least = 0, .most = 0.999},
          {.name = "num-prompts", .kind = Kind::kInt, .value = "N", .fallback = "1000", .help = "requests", .least = 1, .most = 1e6},
          {.name = "num-warmups", .kind = Kind::kInt, .value = "N", .fallback = "0", .help = "requests before the measurement", .least = 0, .most = 1e6},
          {.name = "request-rate", .kind = Kind::kNumber, .value = "F|inf", .shown = "inf: all at once", .help = "requests a second, at random times", .least = 1e-6},
          {.name = "burstiness", .kind = Kind::kNumber, .value = "F", .fallback = "1", .help = "1: Poisson; smaller: in bursts; larger: evenly", .least = 1e-3},
          {.name = "max-concurrency", .kind = Kind::kInt, .value = "N", .shown = "no limit", .help = "requests under way at once", .least = 1, .most = 1e5},
          {.name = "concurrency", .value = "N,...", .fallback = "1,16,64", .help = "articles: the levels"},
          {.name = "batches", .kind = Kind::kInt, .value = "N", .fallback = "4", .help = "articles: batches a level, the first a warm-up", .least = 2, .most = 1000},
          {.name = "ignore-eos", .kind = Kind::kBool, .shown = "true for random prompts", .help = "answers are as long as asked for"},
          {.name = "goodput", .kind = Kind::kList, .value = "ttft:MS", .help = "limits a good request keeps: ttft:, tpot:, e2el:"},
          {.name = "percentile-metrics", .kind = Kind::kList, .value = "NAME", .fallback = "ttft,tpot,itl", .help = "which blocks are printed; also e2el"},
          {.name = "metric-percentiles", .kind = Kind::kList, .value = "N", .fallback = "99", .help = "percentiles beside mean and median"},
          {.name = "save-result", .kind = Kind::kPath, .value = "FILE.json", .help = "write the JSON document there, too"},
          {.name = "save-detailed", .kind = Kind::kBool, .fallback = "false", .help = "with every request's times in it"},
      }};
  return group;
}

BenchPlan bench_plan(const Invocation& in, std::int64_t vocab_size) {
  const Values& v = in.values;
  BenchPlan p;
  p.articles = v.text("method") == "articles";
  p.seed = static_cast<std::uint64_t>(v.integer("seed", 0));
  p.input_len = v.integer("random-input-len").value_or(v.integer("input-len", p.articles ? kArticlesInput : 1024));
  p.output_len = v.integer("random-output-len").value_or(v.integer("output-len", p.articles ? kArticlesOutput : 128));
  const bool custom = v.text("dataset-name") == "custom";
  if (custom != v.has("dataset-path")) throw Error("E101", custom ? "--dataset-name custom needs --dataset-path" : "--dataset-path needs --dataset-name custom").hint("give both, or neither");
  if (custom && p.articles) throw Error("E101", "--method articles has prompts of its own").hint("leave --dataset-path out, or use --method load");
  p.ignore_eos = v.has("ignore-eos") ? v.flag("ignore-eos") : !custom;

  p.metrics.percentiles.clear();
  for (const std::string& text : v.list("metric-percentiles")) {
    const auto n = parse_number(text);
    if (!n || !(*n >= 0 && *n <= 100)) throw Error("E101", "--metric-percentiles " + text + " is no number from 0 to 100");
    p.metrics.percentiles.push_back(*n);
  }
  p.metrics.shown = v.list("percentile-metrics");
  for (const std::string& name : p.metrics.shown)
    if (name != "ttft" && name != "tpot" && name != "itl" && name != "e2el") throw Error("E101", "--percentile-metrics " + name + " is none of ttft, tpot, itl, e2el");
  for (const std::string& text : v.list("goodput")) {
    const auto colon = text.find(':');
    const std::string name = text.substr(0, colon);
    const auto limit = colon == text.npos ? std::nullopt : parse_number(text.substr(colon + 1));
    if (!limit || *limit <= 0 || (name != "ttft" && name != "tpot" && name != "e2el")) throw Error("E101", "--goodput " + text + " is not NAME:MILLISECONDS").hint("for example --goodput ttft:200,tpot:20");
    p.metrics.goodput[name] = *limit;
  }
  p.metrics.max_concurrency = p.options.max_concurrency = v.integer("max-concurrency", 0);
  p.metrics.rate = p.options.rate = v.number("request-rate").value_or(std::numeric_limits<double>::infinity());
  p.options.burstiness = v.number("burstiness").value_or(1);
  p.options.seed = p.seed;
  p.warmups = v.integer("num-warmups", 0);
  p.batches = v.integer("batches", 4);

  std::int64_t count = v.integer("num-prompts", 1000) + p.warmups;
  if (p.articles) {
    count = 0;
    const std::string text = v.text("concurrency");
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      const auto n = parse_integer(text.substr(begin, end - begin), false);
      if (!n || *n < 1 || *n > 100'000) throw Error("E101", "--concurrency " + text + " is no list of numbers such as 1,16,64");
      p.levels.push_back(*n);
      count += *n * p.batches;
      begin = end + 1;
    }
  }
  if (custom) {
    p.requests = prompts_of_jsonl(read_text(v.text("dataset-path")), v.text("dataset-path"), p.output_len);
    if (v.given("num-prompts") && std::ssize(p.requests) > count) p.requests.resize(static_cast<std::size_t>(count));
    if (p.warmups >= std::ssize(p.requests)) throw Error("E101", "--num-warmups " + std::to_string(p.warmups) + " leaves none of " + std::to_string(p.requests.size()) + " prompts to measure");
  } else {
    p.requests = random_prompts({.count = count, .input_len = p.input_len, .output_len = p.output_len, .range_ratio = p.articles ? 0 : v.number("random-range-ratio").value_or(0), .vocab_size = vocab_size, .seed = p.seed});
  }
  std::string hashed;
  for (const LoadRequest& r : p.requests) {
    hashed += r.text;
    for (const std::int32_t id : r.ids)
      for (int b = 0; b < 4; ++b) hashed += static_cast<char>(static_cast<std::uint32_t>(id) >> 8 * b);
  }
  p.prompts_sha256 = sha256_of(hashed);
  return p;
}

std::int64_t longest_request(const BenchPlan& plan) {
  std::int64_t most = 0;
  for (const LoadRequest& r : plan.requests) most = std::max(most, std::ssize(r.ids) + r.output_tokens);
  return most;
}

LoadOutcome run_plan(const Invocation& in, LoadTarget& target, const BenchPlan& plan) {
  LoadOutcome out;
  const GracefulStop graceful;
  Progress progress(in, "bench");
  LoadOptions options = plan.options;
  options.stop = &GracefulStop::requested();
  const double all = static_cast<double>(plan.requests.size());
  std::size_t before = 0;
  options.progress = [&](std::int64_t done, std::int64_t) {
    const double at = static_cast<double>(before) + static_cast<double>(done);
    progress.at(at / all, std::to_string(static_cast<long long>(at)) + " of " + std::to_string(plan.requests.size()) + " requests");
  };
  const auto count = [&](const LoadResult& r) {
    out.interrupted |= r.interrupted;
    out.seconds += r.duration;
    out.sent += std::ssize(r.records);
    for (const RequestRecord& one : r.records)
      if (!one.ok()) ++out.failed, out.errors.push_back(one.error);
  };
  const std::span<const LoadRequest> requests(plan.requests);
  if (!plan.articles) {
    if (plan.warmups > 0) {
      run_load(target, requests.first(static_cast<std::size_t>(plan.warmups)), options);
      before = static_cast<std::size_t>(plan.warmups);
    }
    out.whole = run_load(target, requests.subspan(before), options);
    count(out.whole);
    return out;
  }
  out.levels = Json::array();
  options.max_concurrency = 0;
  options.rate = std::numeric_limits<double>::infinity();
  for (const std::int64_t level : plan.levels) {
    std::vector<double> ttft, itl, rates;
    std::int64_t tokens = 0, cached = 0, short_answers = 0;
    double seconds = 0;
    for (std::int64_t b = 0; b < plan.batches && !out.interrupted; ++b) {
      const LoadResult r = run_load(target, requests.subspan(before, static_cast<std::size_t>(level)), options);
      before += static_cast<std::size_t>(level);
      count(r);
      if (b == 0 || r.interrupted) continue;
      std::int64_t these = 0;
      for (const RequestRecord& one : r.records) {
        if (!one.ok()) continue;
        these += one.output_tokens;
        short_answers += one.output_tokens < plan.output_len;
        cached += std::max<std::int64_t>(0, one.cached_tokens);
        ttft.push_back(1e3 * (one.first - one.start));
        for (const double gap : one.gaps) itl.push_back(1e3 * gap);
      }
      tokens += these;
      seconds += r.duration;
      rates.push_back(static_cast<double>(these) / r.duration);
    }
    if (rates.empty()) break;
    const auto spread = [](const std::vector<double>& v) { return Json{{"median", percentile(v, .5)}, {"p10", percentile(v, .1)}, {"p90", percentile(v, .9)}, {"p99", percentile(v, .99)}}; };
    Json j{{"concurrency", level}, {"batches", rates.size()}, {"output_tok_s", static_cast<double>(tokens) / seconds}, {"output_tok_s_batches", rates}, {"ttft_ms", spread(ttft)}};
    if (!itl.empty()) j["itl_ms"] = spread(itl);
    j["output_tokens"] = tokens;
    j["cached_tokens"] = cached;
    if (short_answers > 0) j["short_answers"] = short_answers;
    out.levels.push_back(std::move(j));
  }
  return out;
}

std::string levels_text(const Json& levels) {
  std::string out = " at once   output tok/s   (slowest-fastest batch)   TTFT ms median / P99    ITL ms median / P99\n";
  char line[200];
  for (const Json& l : levels) {
    const auto rates = l["output_tok_s_batches"].get<std::vector<double>>();
    std::snprintf(line, sizeof line, "%8lld   %12.1f   %10.1f-%-11.1f   %12.1f / %-9.1f   %9.2f / %-8.2f\n", l["concurrency"].get<long long>(), l["output_tok_s"].get<double>(),
                  *std::min_element(rates.begin(), rates.end()), *std::max_element(rates.begin(), rates.end()), l["ttft_ms"]["median"].get<double>(), l["ttft_ms"]["p99"].get<double>(),
                  l.contains("itl_ms") ? l["itl_ms"]["median"].get<double>() : 0, l.contains("itl_ms") ? l["itl_ms"]["p99"].get<double>() : 0);
    out += line;
  }
  return out;
}

void note_failures(const Invocation& in, const LoadOutcome& o) {
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, o.errors.size()); ++i) note(in, "failed: " + o.errors[i]);
  if (o.errors.size() > kShown) note(in, "and " + std::to_string(o.errors.size() - kShown) + " more");
}

void save_result(const Invocation& in, const Json& document) {
  if (in.values.has("save-result")) write_file_safely(in.values.text("save-result"), document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace qengine
