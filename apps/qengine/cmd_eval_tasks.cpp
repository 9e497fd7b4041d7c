// eval tasks: structured extractions and tool calls, judged by what can be checked: JSON, schema, values.
//
// Damage of a format often shows here first, as broken form rather than as a wrong answer.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "apps/qengine/chat_frame.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/eval/intervals.hpp"
#include "core/eval/verdict.hpp"
#include "core/server/api_error.hpp"
#include "core/server/structured_output.hpp"
#include "core/structured/matcher.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kEnoughCases = 200;  // fewer cannot condemn a format
constexpr double kSignificant = 0.05;

const SettingGroup& task_settings() {
  static const SettingGroup group{
      "Tasks",
      {
          {.name = "suite", .kind = Kind::kChoice, .value = "structured|tools|all", .fallback = "all", .help = "which of the built-in cases"},
          {.name = "cases", .kind = Kind::kPath, .value = "FILE.jsonl", .help = "cases of your own, in the suite that --suite names (docs/eval.md)"},
          {.name = "reference", .kind = Kind::kPath, .value = "MODEL", .help = "the model to compare with, pair by pair"},
          {.name = "max-tokens", .kind = Kind::kInt, .value = "N", .fallback = "256", .help = "tokens of an answer", .least = 1, .most = 1e6},
          {.name = "constrain", .kind = Kind::kChoice, .value = "both|off|on", .fallback = "both", .help = "answers in free text, held to the schema as a server can, or one after the other"},
      }};
  return group;
}

struct Judged {
  std::string output;
  StructuredScore structured;
  ToolScore tools;
  bool ok = false;
  std::string why;
};

// The grammar that a server would hold the answer to: the schema, or calls whose arguments follow theirs, made when the model
// chooses to. Throws server::ApiError where a schema cannot be enforced.
std::shared_ptr<const structured::Automaton> grammar_of(server::StructuredOutput& compiler, const TaskCase& c) {
  server::ApiRequest r;
  r.chat = true;
  if (c.suite == Suite::kTools) {
    r.tools = c.tools;
    for (Json& t : r.tools) t["function"]["strict"] = true;
  } else {
    r.constraint.kind = server::Constraint::Kind::kJsonSchema;
    r.constraint.schema = c.schema;
    r.constraint.param = "schema";
  }
  return compiler.compile(r, /*inside_reasoning=*/false);
}

// `grammars`: empty, or one a case.
std::vector<Judged> judge_all(const Invocation& in, Engine& engine, const ChatFrame& frame, const std::vector<TaskCase>& cases,
                              const std::vector<std::shared_ptr<const structured::Automaton>>& grammars, const char* what) {
  std::vector<Request> requests;
  std::atomic<std::size_t> ended{0};
  for (const TaskCase& c : cases) {
    Request r;
    r.prompt = frame.prompt(c.messages, c.tools);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = std::min(in.values.integer("max-tokens", 256), engine.max_model_len() - std::ssize(r.prompt));
    if (r.sampling.max_tokens < 1) throw Error("E101", "the prompt of case " + c.id + " has " + std::to_string(r.prompt.size()) + " tokens, the model's context " + std::to_string(engine.max_model_len())).hint("--max-model-len may be too small");
    if (!grammars.empty()) r.sampling.constraint = std::make_shared<structured::Matcher>(grammars[requests.size()], r.sampling.max_tokens);
    r.sampling.skip_special_tokens = c.suite != Suite::kTools;  // a call may be written in special tokens
    r.on_output = [&](const Output& o) { ended += o.finish != FinishReason::kNone; };
    requests.push_back(std::move(r));
  }
  Progress progress(in, what);
  // generate() waits; the bar moves with the answers that ended.
  std::atomic<bool> over{false};
  std::thread bar([&] {
    for (; !over; std::this_thread::sleep_for(std::chrono::milliseconds(100))) progress.at(static_cast<double>(ended) / static_cast<double>(cases.size()));
  });
  std::vector<std::vector<Output>> outputs;
  std::exception_ptr failed;
  try {
    outputs = engine.generate(std::move(requests), &GracefulStop::requested());
  } catch (...) {
    failed = std::current_exception();
  }
  over = true;
  bar.join();
  if (failed) std::rethrow_exception(failed);
  std::vector<Judged> out;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Judged j;
    for (const Output& o : outputs[i]) {
      if (o.finish == FinishReason::kError) throw Error("E406", o.error.substr(0, o.error.find('\n')));
      if (!o.stop_token) j.output += o.text;
    }
    const bool tools = cases[i].suite == Suite::kTools;
    const ChatAnswer a = frame.read(j.output, tools);
    if (tools) j.tools = score_tools(cases[i], a.calls), j.ok = j.tools.ok(), j.why = j.tools.why;
    else j.structured = score_structured(cases[i], a.content), j.ok = j.structured.ok(), j.why = j.structured.why;
    if (!j.ok && tools && a.calls.empty() && !a.content.empty()) j.why += ", wrote: " + a.content.substr(0, 160);
    for (char& c : j.why)
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    out.push_back(std::move(j));
  }
  return out;
}

struct Tally {
  std::int64_t n = 0, steps[5] = {}, ok = 0, reference_ok = 0, only_reference = 0, only_model = 0;

  void add(const TaskCase& c, const Judged& j) {
    const bool steps_of[2][5] = {{j.structured.bare, j.structured.parsed, j.structured.valid, j.structured.exact, false}, {j.tools.called, j.tools.parsed, j.tools.known, j.tools.valid, j.tools.matched}};
    ++n;
    for (int k = 0; k < 5; ++k) steps[k] += steps_of[c.suite == Suite::kTools][k];
    ok += j.ok;
  }
};
constexpr const char* kSteps[2][5] = {{"bare", "parsed", "schema_valid", "exact", nullptr}, {"called", "parsed", "name_known", "args_valid", "matched"}};

// Counts of a suite into `j`, and as the line for people.
std::string tally_line(const Tally& t, bool tools, const char* name, Json& j) {
  const Interval rate = rate_interval(t.ok, t.n);
  char line[256];
  std::snprintf(line, sizeof line, "%-24s %3lld of %3lld succeed (95 %%: %.0f-%.0f %%);", name, static_cast<long long>(t.ok), static_cast<long long>(t.n), 100 * rate.low, 100 * rate.high);
  std::string text = line;
  j["cases"] = t.n;
  for (int k = 0; k < 5 && kSteps[tools][k]; ++k) {
    j[kSteps[tools][k]] = t.steps[k];
    text += std::string(k ? "," : "") + " " + kSteps[tools][k] + " " + std::to_string(t.steps[k]);
  }
  j["ok"] = t.ok;
  j["success"] = rate.value;
  j["success_low"] = rate.low;
  j["success_high"] = rate.high;
  return text + "\n";
}

int run(const Invocation& in) {
  const std::string suite = in.values.text("suite");
  std::vector<TaskCase> cases;
  if (in.values.has("cases")) {
    if (suite == "all") throw Error("E101", "--cases needs --suite").hint("--suite structured or --suite tools says what the file holds");
    cases = parse_tasks(suite == "tools" ? Suite::kTools : Suite::kStructured, read_text(in.values.text("cases")), in.values.text("cases"));
  } else {
    for (const Suite s : {Suite::kStructured, Suite::kTools})
      if (suite == "all" || suite == to_string(s))
        for (TaskCase& c : built_in_tasks(s)) cases.push_back(std::move(c));
  }

  const GracefulStop stop;
  EngineOptions options = engine_options(in);
  const std::string constrain = in.values.text("constrain");
  std::vector<Judged> ours, theirs, held;  // free, the reference's free ones, held to the schema
  std::vector<std::string> unenforced;     // cases whose schema no grammar can hold; then held[i] stands for nothing
  std::vector<char> enforced(cases.size(), 1);
  std::string how[2];
  {
    const auto engine = load_engine(in, options);
    if (!engine->tokenizer()) throw Error("E210", "this model has no tokenizer").hint("--tokenizer DIR names one");
    const ChatFrame frame(in, engine->tokenizer());
    how[0] = frame.how(false), how[1] = frame.how(true);
    if (constrain != "on") ours = judge_all(in, *engine, frame, cases, {}, "tasks");
    if (constrain != "off" && !GracefulStop::requested()) {
      std::vector<std::int32_t> ends = engine->config().eos_ids;
      for (const std::int32_t id : engine->tokenizer()->eos()) ends.push_back(id);
      server::StructuredOutput compiler(engine->tokenizer(), std::move(ends), frame.tool_parser(), frame.reasoning_parser());
      std::vector<TaskCase> these;
      std::vector<std::shared_ptr<const structured::Automaton>> grammars;
      for (std::size_t i = 0; i < cases.size(); ++i) try {
          grammars.push_back(grammar_of(compiler, cases[i]));
          these.push_back(cases[i]);
        } catch (const server::ApiError& e) {
          enforced[i] = 0;
          unenforced.push_back(cases[i].id + ": " + e.what());
        }
      std::vector<Judged> judged = judge_all(in, *engine, frame, these, grammars, "constrained tasks");
      held.resize(cases.size());
      for (std::size_t i = 0, k = 0; i < cases.size() && k < judged.size(); ++i)
        if (enforced[i]) held[i] = std::move(judged[k++]);
    }
    if (ours.empty()) ours = held;
  }
  if (in.values.has("reference") && constrain != "on" && !GracefulStop::requested()) {
    EngineOptions plain = reference_options(in, options);
    plain.need_tokenizer = true;
    const auto engine = load_engine(in, plain);
    theirs = judge_all(in, *engine, ChatFrame(in, engine->tokenizer()), cases, {}, "reference");
  }
  if (GracefulStop::requested()) return GracefulStop::exit_code();

  Tally tally[2], constrained[2];
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const int s = cases[i].suite == Suite::kTools;
    Tally& t = tally[s];
    const Judged& j = ours[i];
    if (constrain != "on") t.add(cases[i], j);
    if (!held.empty() && enforced[i]) constrained[s].add(cases[i], held[i]);
    if (theirs.empty()) continue;
    t.reference_ok += theirs[i].ok;
    t.only_reference += theirs[i].ok && !j.ok;
    t.only_model += j.ok && !theirs[i].ok;
  }

  Verdict verdict;
  for (int s = 0; s < 2; ++s) {
    const Tally& t = tally[s];
    if (t.n == 0) continue;  // gates are about free text
    const double rate = static_cast<double>(t.ok) / static_cast<double>(t.n);
    const char* least = s ? "tool-success-min" : "structured-success-min";
    if (const auto limit = in.values.number(least); limit && rate < *limit) verdict.add(Verdict::kFail, s ? "tool_success_min" : "structured_success_min", rate, *limit);
    if (theirs.empty()) continue;
    const double worse = static_cast<double>(t.reference_ok - t.ok) / static_cast<double>(t.n), limit = in.values.number("task-fail-delta").value_or(0.02);
    const double p = mcnemar(t.only_reference, t.only_model);
    if (worse > limit && p < kSignificant) verdict.add(t.n >= kEnoughCases ? Verdict::kFail : Verdict::kWarn, std::string(s ? "tools" : "structured") + "_worse", worse, limit);
  }

  Json doc = json_document(in.command);
  std::string text;
  Json& suites = doc["suites"] = Json::object();
  for (int s = 0; s < 2; ++s) {
    const Tally& t = tally[s];
    if (t.n + constrained[s].n == 0) continue;
    Json j = Json::object();
    if (t.n > 0) text += tally_line(t, s, s ? "tools" : "structured", j);
    j["prompted_by"] = how[s];
    if (constrained[s].n > 0) text += tally_line(constrained[s], s, s ? "tools, constrained" : "structured, constrained", j["constrained"]);
    if (!theirs.empty()) {
      char line[256];
      const double p = mcnemar(t.only_reference, t.only_model);
      j["reference_ok"] = t.reference_ok;
      j["only_reference"] = t.only_reference;
      j["only_model"] = t.only_model;
      j["mcnemar_p"] = p;
      std::snprintf(line, sizeof line, "                         reference %lld; only the reference %lld, only the model %lld, exact McNemar p = %.3g\n", static_cast<long long>(t.reference_ok), static_cast<long long>(t.only_reference), static_cast<long long>(t.only_model), p);
      text += line;
    }
    suites[s ? "tools" : "structured"] = std::move(j);
  }
  Json& list = doc["cases"] = Json::array();
  std::string failures;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bool nothing = constrain == "on" && !enforced[i];
    Json j{{"suite", to_string(cases[i].suite)}, {"id", cases[i].id}, {"ok", nothing ? Json() : Json(ours[i].ok)}};
    if (!ours[i].ok && !nothing) {
      j["why"] = ours[i].why;
      failures += "  " + std::string(to_string(cases[i].suite)) + " " + cases[i].id + ": " + ours[i].why + "\n";
    }
    if (!theirs.empty()) j["reference_ok"] = theirs[i].ok;
    j["output"] = ours[i].output;
    if (!held.empty() && constrain == "both" && enforced[i]) {
      j["constrained"] = {{"ok", held[i].ok}, {"output", held[i].output}};
      if (!held[i].ok) j["constrained"]["why"] = held[i].why;
    }
    list.push_back(std::move(j));
  }
  doc["constrain"] = constrain;
  if (!unenforced.empty()) doc["unenforced"] = unenforced;
  for (const std::string& u : unenforced) text += "not constrained: " + u + "\n";
  doc["verdict"] = to_string(verdict.grade);
  doc["reasons"] = reasons_json(verdict);
  if (in.json()) print_json(doc);
  else print(text + (failures.empty() ? "" : "\nfailures\n" + failures) + "\n" + verdict_line(verdict));
  return verdict.grade == Verdict::kFail ? 6 : 0;
}

}  // namespace

extern const Command eval_tasks_command;
const Command eval_tasks_command = {
    .name = "eval tasks",
    .summary = "structured extractions and tool calls: how many succeed, and every one that does not",
    .usage = {"MODEL", "MODEL --suite tools --cases FILE.jsonl --tool-success-min 0.9", "MODEL --quantization fp8_per_channel --reference MODEL"},
    .groups = with_model_groups({&task_settings(), &gate_settings(), &chat_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
