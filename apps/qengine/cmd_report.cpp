// report: what each format of one model costs and gives, in one command: memory, speed, answers, side by side.
#include <algorithm>
#include <cstdio>

#include "apps/qengine/child.hpp"
#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/report_pieces.hpp"
#include "apps/qengine/run_record.hpp"
#include "core/eval/sample_text.hpp"
#include "core/model/safetensors_writer.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/report/report.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

const SettingGroup& report_settings() {
  static const SettingGroup group{
      "Report",
      {
          {.name = "arm", .kind = Kind::kTexts, .value = "SPEC", .help = "a format to compare: fp8_per_channel, PLUGIN:SCHEME, path=MODEL, kv=fp8, FLAG=VALUE, name=LABEL, joined by commas"},
          {.name = "base-name", .value = "LABEL", .shown = "from the model", .help = "what the first arm, MODEL itself, is called"},
          {.name = "title", .value = "TEXT", .shown = "from the model", .help = "title of the page"},
          {.name = "output", .kind = Kind::kPath, .value = "DIR", .fallback = "qengine-report", .help = "folder of report.html, .md, .json, the pictures and the measurements"},
          {.name = "text", .kind = Kind::kPath, .value = "FILE", .shown = "12,000 tokens of English built in", .help = "text that perplexity and KL divergence are taken over"},
          {.name = "context", .kind = Kind::kInt, .value = "N", .shown = "2048, or the model's", .help = "longest run of the text seen at once", .least = 4},
          {.name = "runs", .kind = Kind::kInt, .value = "N", .fallback = "5", .help = "rounds of the speed measurement, arms in turn", .least = 1, .most = 1000},
          {.name = "concurrency", .value = "N,...", .fallback = "1,16,64", .help = "requests at once"},
          {.name = "batches", .kind = Kind::kInt, .value = "N", .fallback = "4", .help = "batches a level and round, the first a warm-up", .least = 2, .most = 1000},
          {.name = "input-len", .kind = Kind::kInt, .value = "N", .fallback = "256", .help = "tokens of a prompt", .least = 1},
          {.name = "output-len", .kind = Kind::kInt, .value = "N", .fallback = "128", .help = "tokens of an answer", .least = 1},
          {.name = "task-tokens", .kind = Kind::kInt, .value = "N", .fallback = "256", .help = "tokens of the answer to a task", .least = 1},
          {.name = "skip", .kind = Kind::kList, .value = "WHAT", .help = "leave out speed, kl, greedy or tasks"},
          {.name = "fresh", .kind = Kind::kBool, .fallback = "false", .help = "measure everything again, whatever is in the folder"},
          {.name = "against", .kind = Kind::kPath, .value = "REPORT.json", .help = "an earlier report: name every figure that the intervals do not explain; exit 6 when there is one"},
      }};
  return group;
}

std::string file_name(const std::string& arm) {
  std::string out;
  for (const char c : arm) out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ? c : '_';
  return out.substr(0, 60);
}

std::string base_name(const Invocation& in) {
  if (in.values.has("base-name")) return in.values.text("base-name");
  if (in.values.text("load-format") == "dummy") return in.values.has("format") ? in.values.text("format") : in.values.has("shape") ? "bf16" : "base";
  if (in.values.has("model")) {
    const auto checkpoint = Checkpoint::open(model_path(in), /*config_only=*/false);
    if (checkpoint->kind() == Checkpoint::Kind::kGguf) return model_path(in).stem().string();
    if (!checkpoint->quant_config().is_null()) return checkpoint->quant_config().value("quant_method", std::string("base"));
    const std::string dtype = read_model_config(*checkpoint).dtype;
    return dtype.empty() || dtype == "bfloat16" ? "bf16" : dtype;
  }
  return "base";
}

// The first random weights that somebody asks for decide it for all: there is nothing to say about answers.
bool random_weights(const Invocation& in, const std::vector<Arm>& arms) {
  if (in.values.knows("load-format") && in.values.text("load-format") == "dummy") return true;
  return std::any_of(arms.begin(), arms.end(), [](const Arm& a) { return std::find(a.flags.begin(), a.flags.end(), "--load-format=dummy") != a.flags.end(); });
}

int run(const Invocation& in) {
  const Values& v = in.values;
  std::vector<Arm> arms{{base_name(in), {}}};
  for (const std::string& text : v.list("arm")) arms.push_back(parse_arm(text));
  for (std::size_t i = 0; i < arms.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (arms[i].name == arms[j].name || file_name(arms[i].name) == file_name(arms[j].name)) throw Error("E101", "two arms are called " + arms[i].name).hint("name=LABEL in --arm gives one another name");
  const auto skipped = [&](const char* what) { const auto& all = v.list("skip"); return std::find(all.begin(), all.end(), what) != all.end(); };
  for (const std::string& s : v.list("skip"))
    if (s != "speed" && s != "kl" && s != "greedy" && s != "tasks") throw Error("E101", "--skip " + s + " is none of speed, kl, greedy, tasks");
  const std::string no_quality = random_weights(in, arms) ? "The weights are random (--load-format dummy): speed and memory are those of the real model, answers would mean nothing and were not judged." : "";
  FormatOptions base_format;
  const auto made_up = dummy_model(in, base_format);  // refuses what does not go together
  if (no_quality.empty())
    for (const Arm& a : arms)
      for (const std::string& f : a.flags)
        if (f.starts_with("--format=") || f.starts_with("--shape=")) throw Error("E101", "--arm " + a.name + ": " + f.substr(0, f.find('=')) + " is for made-up weights").hint("add --load-format dummy, or name a format that weights are brought into while loading: fp8_per_channel, ...");
  const fs::path folder = v.text("output");
  const GracefulStop stop;

  // ---- what identifies the run ------------------------------------------------------------------
  Json record;
  std::string title = v.text("title");
  if (title.empty()) {
    fs::path name = v.has("model") ? v.text("model") : v.text("shape");
    if (!name.has_filename()) name = name.parent_path();
    title = (name.extension() == ".gguf" ? name.stem() : name.filename()).string() + ": " + std::to_string(arms.size()) + " format" + (arms.size() == 1 ? "" : "s") + " side by side";
  }
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) throw Error("E108", "cannot make " + folder.string() + ": " + ec.message());
  std::string text_file = v.text("text");
  const std::string text = text_file.empty() ? std::string(sample_text()) : read_text(text_file);
  if (text_file.empty()) write_file_safely(text_file = (folder / "sample.txt").string(), text);

  const bool gpu = v.text("device").starts_with("cuda") || (v.text("device") == "auto" && fs::exists("/dev/nvidia0", ec));
  record["started"] = utc_now();
  std::string command = "qengine report";
  for (const std::string& f : flags_of(v, in.command.groups)) command += " " + f;
  record["command"] = command;
  record["program"] = program_record();
  record["plugins"] = plugins_record(in);
  if (made_up) record["model"] = {{v.has("shape") ? "shape" : "path", v.text(v.has("shape") ? "shape" : "model")}, {"sha256", sha256_of(made_up->config.dump())}};
  else if (v.has("model")) record["model"] = model_record(model_path(in));
  record["machine"] = machine_record(gpu);
  record["text"] = {{"sha256", sha256_of(text)}, {"bytes", text.size()}, {"built_in", !v.has("text")}};
  record["settings"] = {{"runs", v.integer("runs", 5)}, {"concurrency", v.text("concurrency")}, {"batches", v.integer("batches", 4)}, {"input_len", v.integer("input-len", 256)}, {"output_len", v.integer("output-len", 128)}, {"seed", v.integer("seed", 0)}};

  // ---- what is to be measured -------------------------------------------------------------------
  const std::string base_identity = record["program"].dump() + record["plugins"].dump() + record["text"]["sha256"].get<std::string>() + (record.contains("model") ? record["model"]["sha256"].get<std::string>() : "") + record["machine"]["processor"].get<std::string>();
  std::vector<Piece> pieces;
  Json arm_records = Json::array();
  std::vector<std::string> identities;
  for (const Arm& a : arms) {
    std::string identity = base_identity;
    Json j{{"name", a.name}, {"flags", a.flags}};
    for (const std::string& f : a.flags)
      if (f.starts_with("--model=")) j["model"] = model_record(f.substr(8)), identity += j["model"]["sha256"].get<std::string>();
    identities.push_back(identity);
    arm_records.push_back(std::move(j));
  }
  record["arms"] = std::move(arm_records);
  const auto add = [&](const char* kind, std::vector<std::string> verb, std::size_t arm, int round, std::vector<std::string> more) {
    Piece p{kind, arm, round, std::move(verb), "", ""};
    p.must = p.kind == (no_quality.empty() ? "inspect" : "speed") && round == 0;  // what looks at an arm first
    std::vector<std::string> own;  // flags that the arm says itself
    for (const std::string& f : arms[arm].flags) own.push_back(f.substr(2, f.find('=') - 2));
    for (std::string& f : flags_of(v, with_model_groups(no_quality.empty() ? std::vector<const SettingGroup*>{} : std::vector{&dummy_settings()}), own)) p.args.push_back(std::move(f));
    p.args.insert(p.args.end(), arms[arm].flags.begin(), arms[arm].flags.end());
    p.args.insert(p.args.end(), more.begin(), more.end());
    std::string hashed = identities[arm] + std::to_string(round);
    for (const std::string& a : p.args) hashed += "\n" + a;
    p.identity = sha256_of(hashed);
    p.file = std::string(kind) + "-" + file_name(arms[arm].name) + (p.kind == "speed" ? "-" + std::to_string(round + 1) : "") + ".json";
    pieces.push_back(std::move(p));
  };
  const int rounds = skipped("speed") ? 0 : static_cast<int>(v.integer("runs", 5));
  if (no_quality.empty())  // made-up weights have no tensors to list
    for (std::size_t a = 0; a < arms.size(); ++a) add("inspect", {"inspect"}, a, 0, {});
  for (int r = 0; r < rounds; ++r)
    for (std::size_t i = 0; i < arms.size(); ++i)  // A B C, C B A, ...: what drifts, drifts for all of them
      add("speed", {"bench", "throughput"}, r % 2 ? arms.size() - 1 - i : i, r,
          {"--method=articles", "--concurrency=" + v.text("concurrency"), "--batches=" + v.text("batches"), "--input-len=" + v.text("input-len"), "--output-len=" + v.text("output-len"), "--seed=" + std::to_string(v.integer("seed", 0) + r)});
  if (no_quality.empty()) {
    const std::vector<std::string> gates = flags_of(v, {&gate_settings()}, {"config"});
    std::vector<std::string> scored{"--text=" + text_file};
    scored.push_back("--context=" + (v.has("context") ? v.text("context") : "2048"));
    const std::string reference = v.has("model") ? "--reference=" + model_path(in).string() : "";
    if (!v.has("context")) {
      const std::int64_t longest = read_model_config(*Checkpoint::open(model_path(in))).max_position;
      if (longest > 0 && longest < 2048) scored.back() = "--context=" + std::to_string(longest);
    }
    for (std::size_t a = 0; a < arms.size(); ++a) {
      if (!skipped("kl")) {
        if (a == 0) add("ppl", {"eval", "ppl"}, a, 0, scored);
        else {
          std::vector<std::string> with = scored;
          with.push_back(reference);
          with.insert(with.end(), gates.begin(), gates.end());
          add("kl", {"eval", "kl"}, a, 0, with);
        }
      }
      if (!skipped("greedy") && a > 0) add("greedy", {"eval", "greedy-hash"}, a, 0, {reference});
      if (!skipped("tasks")) {
        std::vector<std::string> with{"--max-tokens=" + v.text("task-tokens"), "--constrain=off"};
        with.insert(with.end(), gates.begin(), gates.end());
        add("tasks", {"eval", "tasks"}, a, 0, with);
      }
    }
  }

  Pieces work(folder, std::move(pieces), v.flag("fresh"));
  if (!work.run(in, arms)) {
    note(in, "interrupted; the same command goes on from here");
    return GracefulStop::exit_code();
  }

  // ---- what came of it --------------------------------------------------------------------------
  std::vector<ArmPieces> measured;
  Json errors = Json::array();
  for (std::size_t a = 0; a < arms.size(); ++a) {
    ArmPieces p;
    p.name = arms[a].name;
    p.flags = arms[a].flags_text();
    std::string error;
    const auto get = [&](const char* kind, int round = 0) {
      error.clear();
      Json j = work.result(kind, a, round, &error);
      if (!error.empty()) errors.push_back({{"arm", arms[a].name}, {"measurement", kind}, {"error", error}});
      return j;
    };
    p.inspect = get("inspect");
    for (int r = 0; r < rounds; ++r)
      if (Json j = get("speed", r); j.is_object()) p.speed.push_back(std::move(j));
    p.ppl = get("ppl");
    p.kl = get("kl");
    p.greedy = get("greedy");
    p.tasks = get("tasks");
    if (!p.speed.empty() && !record.contains("prompts_sha256")) {
      record["prompts_sha256"] = p.speed[0]["qengine"]["prompts_sha256"];
      record["device"] = p.speed[0]["qengine"]["device"];
      if (p.speed[0].contains("read_bandwidth_bytes_s")) record["read_bandwidth_bytes_s"] = p.speed[0]["read_bandwidth_bytes_s"];
    }
    measured.push_back(std::move(p));
  }
  record["finished"] = utc_now();
  record["machine_at_end"] = machine_record(gpu);
  char line[512];
  std::snprintf(line, sizeof line, "%s, commit %s, %s", record["machine"]["processor"].get<std::string>().c_str(), record["program"]["commit"].get<std::string>().c_str(), record["started"].get<std::string>().c_str());
  record["subtitle"] = line;
  std::snprintf(line, sizeof line, "%d rounds, arms in turn (forwards, then backwards), each in a process of its own. A level is %s batches of so many requests sent at once, %s tokens in and %s out, the first batch only warms up. Figures are medians of the rounds, ranges 95 %% bootstrap intervals; ratios are of the same round.", rounds,
                v.text("batches").c_str(), v.text("input-len").c_str(), v.text("output-len").c_str());
  record["method"] = line;
  std::snprintf(line, sizeof line, "Against %s, on %s; ± is one standard error. Greedy: 12 prompts of 128 tokens. Tasks: 18 extractions and 36 tool calls without constrained output, ranges are Wilson's 95 %% intervals; so few can show damage, not its absence.", arms[0].name.c_str(),
                v.has("text") ? v.text("text").c_str() : "the built-in English text");
  record["quality_method"] = line;
  if (!errors.empty()) record["errors"] = errors;

  Json report = json_document(in.command);
  report.update(make_report(title, record, measured, no_quality));
  int code = 0;
  std::string compared;
  if (v.has("against")) {
    const Json other = Json::parse(read_text(v.text("against")), nullptr, false);
    if (!other.is_object() || other.value("schema", std::string()) != report["schema"]) throw Error("E101", v.text("against") + " is no report").hint("give the report.json of an earlier run");
    const Disagreements d = compare_reports(report, other);
    report["against"] = {{"file", v.text("against")}, {"compared", d.compared}, {"disagreements", d.list}};
    compared = std::to_string(d.compared - std::ssize(d.list)) + " of " + std::to_string(d.compared) + " figures agree with " + v.text("against") + " within their intervals\n";
    for (const Json& x : d.list) compared += "  " + x["arm"].get<std::string>() + " " + x["figure"].get<std::string>() + ": " + x["this"].dump() + " against " + x["other"].dump() + "\n";
    if (!d.list.empty()) code = 6;
  }
  for (const Json& a : report["arms"])
    if ((a.contains("quality") && a["quality"].value("verdict", std::string()) == "fail") || !a.value("valid", true)) code = 6;
  if (!errors.empty()) code = 6;
  const std::string markdown = report_markdown(report);
  write_file_safely(folder / "report.json", report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  write_file_safely(folder / "report.md", markdown);
  write_file_safely(folder / "report.html", report_page(report));
  for (const auto& [name, picture] : report_pictures(report)) write_file_safely(folder / (name + ".svg"), picture);
  if (in.json()) print_json(report);
  else print(markdown.substr(0, markdown.find("\n## Formats")) + "\n" + compared + "written: " + (folder / "report.html").string() + ", report.md, report.json\n");
  return code;
}

}  // namespace

extern const Command report_command;
const Command report_command = {
    .name = "report",
    .summary = "what each format of a model costs and gives: one command, one page",
    .usage = {"MODEL --arm fp8_per_channel --arm mxfp4 --arm path=Q4.gguf --output DIR", "MODEL --arm fp8_per_tensor,kv=fp8 --runs 3 --concurrency 1,8",
              "--load-format dummy --shape qwen3-4b --arm fp8_per_channel --arm format=gptq --device cuda:0"},
    .details = "Interrupted, the same command goes on where it was. Exit 6 when an arm fails its gates.",
    .groups = with_model_groups({&report_settings(), &gate_settings(), &dummy_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
