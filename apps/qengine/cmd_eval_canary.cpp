// eval canary: logged requests replayed on two configurations, before the second one gets real traffic.
//
// Every request runs on both, one after the other, in turn which one first; sampling is the request's own with one seed for both. Where
// texts part says little, so the first one's answer is also read by the second: the divergence of its next-token distributions along
// that answer is what is judged, besides failures, broken JSON and tool calls, and latency.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "apps/qengine/arm.hpp"
#include "apps/qengine/chat_frame.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/logit_compare.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/eval/intervals.hpp"
#include "core/eval/statistics.hpp"
#include "core/server/api_error.hpp"
#include "core/server/request.hpp"

namespace qengine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShown = 10;

const SettingGroup& replay_settings() {
  static const SettingGroup group{
      "Canary",
      {
          {.name = "arm", .value = "SPEC", .help = "the second configuration: fp8_per_channel, path=MODEL, kv=fp8, FLAG=VALUE, joined by commas (as in report)"},
          {.name = "limit", .kind = Kind::kInt, .value = "N", .shown = "all", .help = "requests to replay", .least = 1},
      }};
  return group;
}

struct Logged {
  int line = 0;
  server::ApiRequest request;
  std::vector<TaskCase> tools, structured;  // none or one: how an answer can be judged
};

// A line is the body of a request, or {"request": body, ...} around it.
std::vector<Logged> read_log(const std::string& name, std::vector<std::string>& skipped) {
  const std::string text = read_text(name);
  std::vector<Logged> out;
  std::size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    begin = end + 1;
    if (one.find_first_not_of(" \t\r") == one.npos) continue;
    try {
      Json body = server::parse_body(one, 64);
      if (body.is_object() && body.contains("request") && body["request"].is_object()) body = Json(body["request"]);
      if (!body.is_object()) throw Error("E101", "no JSON object");
      body.erase("stream"), body.erase("stream_options"), body.erase("n"), body.erase("echo"), body.erase("prompt_logprobs");
      Logged l;
      l.line = line;
      l.request = body.contains("messages") ? server::read_chat(body, {}) : server::read_completion(body, {});
      if (!l.request.chat && l.request.prompts.size() != 1) throw Error("E101", "more than one prompt");
      TaskCase c;
      if (!l.request.tools.is_null() && l.request.tool_choice != "none") {
        c.suite = Suite::kTools, c.tools = l.request.tools;
        l.tools.push_back(c);
      } else if (l.request.constraint.kind == server::Constraint::Kind::kJsonSchema || l.request.constraint.kind == server::Constraint::Kind::kJsonObject) {
        c.schema = l.request.constraint.kind == server::Constraint::Kind::kJsonSchema ? l.request.constraint.schema : Json{{"type", "object"}};
        l.structured.push_back(c);
      }
      out.push_back(std::move(l));
    } catch (const std::exception& e) {
      std::string why = e.what();
      skipped.push_back("line " + std::to_string(line) + ": " + why.substr(0, why.find('\n')));
    }
  }
  return out;
}

struct Answer {
  std::vector<std::int32_t> ids;
  std::string text, error, finish;
  double ttft = 0;           // ms
  std::vector<double> gaps;  // ms
  bool judged = false, sound = false;  // the form that was asked for
};

Answer replay(Engine& engine, const std::vector<std::int32_t>& prompt, const SamplingParams& sampling) {
  Answer a;
  Request r;
  r.prompt = prompt;
  r.sampling = sampling;
  const auto begin = Clock::now();
  Clock::time_point last{};
  r.on_output = [&](const Output& o) {
    if (o.token < 0) return;
    const auto now = Clock::now();
    if (a.ids.empty()) a.ttft = 1e3 * std::chrono::duration<double>(now - begin).count();
    else a.gaps.push_back(1e3 * std::chrono::duration<double>(now - last).count());
    last = now;
    a.ids.push_back(o.token);
  };
  std::vector<Request> one;
  one.push_back(std::move(r));
  try {
    const auto answers = engine.generate(std::move(one), &GracefulStop::requested());
    for (const Output& o : answers[0]) {
      if (!o.stop_token) a.text += o.text;
      if (o.finish == FinishReason::kError) a.error = o.error.substr(0, o.error.find('\n'));
      if (o.finish != FinishReason::kNone) a.finish = to_string(o.finish);
    }
  } catch (const Error& e) {
    a.error = e.code() + " " + e.message();
  }
  return a;
}

void judge_form(Answer& a, const Logged& l, const ChatFrame& frame) {
  if (!a.error.empty()) return;
  if (!l.structured.empty()) {
    a.judged = true;
    a.sound = score_structured(l.structured[0], frame.read(a.text, false).content).valid;
  } else if (!l.tools.empty()) {
    const auto calls = frame.read(a.text, true).calls;
    if (calls.empty()) return;  // an answer in words is an answer
    a.judged = true;
    TaskCase c = l.tools[0];
    c.expected = Json::array({{{"name", calls[0].name}}});  // any call: its form is judged, not its choice
    a.sound = score_tools(c, calls).valid;
  }
}

int run(const Invocation& in) {
  if (in.words.empty()) throw Error("E101", "no FILE").hint("qengine eval canary REQUESTS.jsonl --model MODEL --arm fp8_per_channel");
  if (!in.values.has("arm")) throw Error("E101", "no --arm").hint("--arm says how the second configuration differs: --arm fp8_per_channel, --arm path=MODEL");
  const GracefulStop stop;
  std::vector<std::string> skipped;
  std::vector<Logged> logged = read_log(in.words[0], skipped);
  if (const auto limit = in.values.integer("limit"); limit && std::ssize(logged) > *limit) logged.resize(static_cast<std::size_t>(*limit));
  if (logged.empty()) throw Error("E101", in.words[0] + " holds no request that can be replayed").from(skipped.empty() ? "the file is empty" : skipped[0]);

  const Arm arm = parse_arm(in.values.text("arm"));
  const Arguments other = with_arm(in, in.command, arm);
  const Invocation second{in.command, other.values, other.profile, in.words};
  const std::unique_ptr<Engine> engines[2] = {load_engine(in, engine_options(in)), load_engine(in, engine_options(second))};
  for (const auto& e : engines)
    if (!e->tokenizer()) throw Error("E210", "this model has no tokenizer").hint("--tokenizer DIR names one");
  if (engines[0]->config().vocab_size != engines[1]->config().vocab_size) throw Error("E101", "the two configurations have different vocabularies").hint("compare two formats of one model");
  const ChatFrame frame(in, engines[0]->tokenizer());

  KlStats kl;
  std::vector<double> ttft[2], gaps[2];
  std::int64_t errors[2] = {}, sound[2] = {}, judged[2] = {}, equal = 0, same_finish = 0, replayed = 0;
  Json list = Json::array();
  std::string shown;
  {
    Progress progress(in, "canary");
    for (std::size_t i = 0; i < logged.size() && !GracefulStop::requested(); ++i) {
      const Logged& l = logged[i];
      SamplingParams sampling = l.request.sampling;
      const SamplingParams defaults = sampling_params(in, engines[0]->checkpoint());
      if (!l.request.given.contains("temperature")) sampling.temperature = defaults.temperature;
      if (!l.request.given.contains("top_p")) sampling.top_p = defaults.top_p;
      if (!l.request.given.contains("top_k")) sampling.top_k = defaults.top_k;
      if (!sampling.seed) sampling.seed = static_cast<std::int64_t>(i);
      sampling.logprobs = sampling.prompt_logprobs = -1;
      sampling.skip_special_tokens = l.tools.empty();
      std::vector<std::int32_t> prompt;
      try {
        if (l.request.chat) prompt = frame.prompt(l.request.messages, l.tools.empty() ? Json() : l.request.tools, l.request.template_kwargs);
        else if (l.request.prompts[0].is_ids) prompt = l.request.prompts[0].ids;
        else prompt = engines[0]->tokenizer()->encode(l.request.prompts[0].text, l.request.add_special_tokens.value_or(true));
      } catch (const Error& e) {
        skipped.push_back("line " + std::to_string(l.line) + ": " + e.message());
        continue;
      }
      const std::int64_t room = std::min(engines[0]->max_model_len(), engines[1]->max_model_len()) - std::ssize(prompt);
      if (prompt.empty() || room < 1) {
        skipped.push_back("line " + std::to_string(l.line) + ": the prompt has " + std::to_string(prompt.size()) + " tokens");
        continue;
      }
      const std::int64_t most = in.values.integer("max-tokens", 256);
      sampling.max_tokens = std::min({l.request.has_max_tokens ? sampling.max_tokens : most, most, room});
      Answer a[2];
      for (const int k : {0, 1}) {
        const int which = (i + static_cast<std::size_t>(k)) % 2;  // who goes first changes
        a[which] = replay(*engines[which], prompt, sampling);
        judge_form(a[which], l, frame);
      }
      if (GracefulStop::requested()) break;
      ++replayed;
      double mean = 0;
      std::int64_t scored = 0;
      if (a[0].error.empty() && a[1].error.empty() && !a[0].ids.empty()) {
        Window w;
        w.ids = prompt;
        w.ids.insert(w.ids.end(), a[0].ids.begin(), a[0].ids.end());
        w.first = std::ssize(prompt);
        compare_logits(*engines[0], *engines[1], w, [&](std::int64_t position, std::span<const float> x, std::span<const float> y) {
          const double one = kl.add(x, y, w.ids[static_cast<std::size_t>(position + 1)]);
          if (std::isfinite(one)) mean += one, ++scored;
        });
      }
      const auto differs = static_cast<std::size_t>(std::ranges::mismatch(a[0].ids, a[1].ids).in1 - a[0].ids.begin());
      const bool same = a[0].ids == a[1].ids && a[0].error.empty() && a[1].error.empty();
      equal += same;
      same_finish += a[0].finish == a[1].finish;
      for (const int k : {0, 1}) {
        errors[k] += !a[k].error.empty();
        judged[k] += a[k].judged;
        sound[k] += a[k].sound;
        if (!a[k].error.empty() || a[k].ids.empty()) continue;
        ttft[k].push_back(a[k].ttft);
        gaps[k].insert(gaps[k].end(), a[k].gaps.begin(), a[k].gaps.end());
      }
      Json j{{"line", l.line}, {"equal", same}, {"finish", {a[0].finish, a[1].finish}}};
      if (!same) j["first_difference"] = differs;
      if (scored > 0) j["kl_mean"] = mean / static_cast<double>(scored);
      for (const int k : {0, 1})
        if (!a[k].error.empty()) j[k ? "arm_error" : "error"] = a[k].error;
      if (a[0].judged || a[1].judged) j["form"] = {a[0].sound, a[1].sound};
      j["text"] = {a[0].text, a[1].text};
      if (list.size() < 10'000) list.push_back(std::move(j));
      progress.at(static_cast<double>(i + 1) / static_cast<double>(logged.size()));
    }
  }
  const bool interrupted = GracefulStop::requested();
  if (replayed == 0) return interrupted ? GracefulStop::exit_code() : throw Error("E101", "no request could be replayed").from(skipped.empty() ? "" : skipped[0]);

  const auto gate = [&](const char* name, double otherwise) { return in.values.number(name).value_or(otherwise); };
  Verdict verdict;
  const Interval failing = rate_difference(errors[1], replayed, errors[0], replayed);
  if (const double limit = gate("error-rate-delta", 0.01); failing.low > limit) verdict.add(Verdict::kFail, "error_rate_delta", failing.value, limit);
  else if (errors[1] > errors[0]) verdict.add(Verdict::kWarn, "error_rate_delta", failing.value, limit);
  const Interval form = rate_difference(judged[0] - sound[0], judged[0], judged[1] - sound[1], judged[1]);  // first minus second
  if (judged[0] > 0 && judged[1] > 0) {
    const double limit = gate("task-fail-delta", 0.02);
    if (-form.high > limit) verdict.add(Verdict::kFail, "task_fail_delta", -form.value, limit);
    else if (-form.value > limit) verdict.add(Verdict::kWarn, "task_fail_delta", -form.value, limit);
  }
  const Interval first = quantile_ratio_interval(ttft[1], ttft[0], .95), between = quantile_ratio_interval(gaps[1], gaps[0], .95);
  if (const double limit = gate("ttft-p95-ratio", 1.25); first.low > limit) verdict.add(Verdict::kFail, "ttft_p95_ratio", first.value, limit);
  if (const double limit = gate("itl-p95-ratio", 1.25); between.low > limit) verdict.add(Verdict::kFail, "itl_p95_ratio", between.value, limit);
  if (kl.non_finite() > 0) verdict.add(Verdict::kFail, "non_finite_tokens", static_cast<double>(kl.non_finite()), 0);
  if (const double limit = gate("kl-mean-fail", 0.05); kl.count() > 0 && kl.kld().value > limit) verdict.add(Verdict::kFail, "kl_mean_fail", kl.kld().value, limit);

  const auto interval = [](const Interval& i) { return Json{{"value", i.value}, {"low", i.low}, {"high", i.high}}; };
  Json doc = json_document(in.command);
  doc["arm"] = arm.flags;
  doc["replayed"] = replayed;
  doc["skipped"] = skipped;
  doc["equal"] = equal;
  doc["same_finish"] = same_finish;
  doc["errors"] = {errors[0], errors[1]};
  doc["error_rate_difference"] = interval(failing);
  doc["form"] = {{"judged", {judged[0], judged[1]}}, {"sound", {sound[0], sound[1]}}};
  doc["kl_mean"] = kl.kld().value;
  doc["kl_mean_error"] = kl.kld().error;
  doc["kl_tokens"] = kl.count();
  doc["same_top_p"] = kl.same_top().value;
  doc["ttft_p95_ratio"] = interval(first);
  if (!gaps[0].empty() && !gaps[1].empty()) doc["itl_p95_ratio"] = interval(between);
  doc["requests"] = std::move(list);
  doc["verdict"] = to_string(verdict.grade);
  doc["reasons"] = reasons_json(verdict);
  if (interrupted) doc["interrupted"] = true;
  if (in.json()) {
    print_json(doc);
  } else {
    char line[256];
    std::snprintf(line, sizeof line, "%lld requests replayed%s, %lld with the same answer, %lld ended alike\n", static_cast<long long>(replayed), skipped.empty() ? "" : (", " + std::to_string(skipped.size()) + " left out").c_str(), static_cast<long long>(equal), static_cast<long long>(same_finish));
    std::string out = line;
    std::snprintf(line, sizeof line, "%-22s %12s %12s\n%-22s %12lld %12lld\n", "", "MODEL", "--arm", "failed", static_cast<long long>(errors[0]), static_cast<long long>(errors[1]));
    out += line;
    if (judged[0] + judged[1] > 0) {
      std::snprintf(line, sizeof line, "%-22s %6lld of %2lld %6lld of %2lld\n", "JSON and calls sound", static_cast<long long>(sound[0]), static_cast<long long>(judged[0]), static_cast<long long>(sound[1]), static_cast<long long>(judged[1]));
      out += line;
    }
    for (const auto& [what, values, ratio] : {std::tuple{"TTFT ms, P95", ttft, &first}, {"ITL ms, P95", gaps, &between}}) {
      if (values[0].empty() || values[1].empty()) continue;
      const auto p95 = [](std::vector<double> v) { std::sort(v.begin(), v.end()); return v[static_cast<std::size_t>(.95 * static_cast<double>(v.size() - 1))]; };
      std::snprintf(line, sizeof line, "%-22s %12.2f %12.2f   ratio %.2f (%.2f-%.2f)\n", what, p95(values[0]), p95(values[1]), ratio->value, ratio->low, ratio->high);
      out += line;
    }
    std::snprintf(line, sizeof line, "along MODEL's answers  mean KL divergence %.4g ± %.2g over %lld tokens, same top token %.2f %%\n", kl.kld().value, kl.kld().error, static_cast<long long>(kl.count()), 100 * kl.same_top().value);
    out += line;
    for (std::size_t i = 0; i < std::min(kShown, skipped.size()); ++i) out += "left out: " + skipped[i] + "\n";
    print(out + "\n" + verdict_line(verdict));
  }
  if (interrupted) return GracefulStop::exit_code();
  return verdict.grade == Verdict::kFail ? 6 : 0;
}

}  // namespace

extern const Command eval_canary_command;
const Command eval_canary_command = {
    .name = "eval canary",
    .summary = "logged requests replayed on two configurations; exit 6 when the second does worse",
    .usage = {"REQUESTS.jsonl --model MODEL --arm fp8_per_channel", "REQUESTS.jsonl --model MODEL --arm path=OTHER,kv=fp8 --json"},
    .details = "A line of the file is the body of a request of OpenAI's API, chat or completions. Sampling flags hold\nwhere a request does not say; no answer is longer than --max-tokens (256).",
    .groups = with_model_groups({&replay_settings(), &gate_settings(), &chat_settings(), &sampling_settings()}),
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
