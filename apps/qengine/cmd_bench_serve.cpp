// bench serve: a server under load, its own or any that speaks OpenAI's API, with one client for both.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <regex>
#include <thread>

#include "apps/qengine/bench_setup.hpp"
#include "apps/qengine/child.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/load_test/openai_client.hpp"

namespace qengine {
namespace {

// Above it the client itself is what is measured.
constexpr double kMostClientShare = 0.8;

const SettingGroup& target_settings() {
  static const SettingGroup group{
      "Server to measure",
      {
          {.name = "base-url", .value = "URL", .shown = "MODEL is served here", .help = "a running server: http://HOST:PORT or https://..."},
          {.name = "host", .value = "HOST", .fallback = "127.0.0.1", .help = "the same in two parts, with --port"},
          {.name = "port", .kind = Kind::kInt, .value = "N", .help = "port of a running server", .least = 1, .most = 65535},
          {.name = "backend", .kind = Kind::kChoice, .value = "openai|openai-chat|vllm", .fallback = "openai", .help = "completions, or chat completions"},
          {.name = "endpoint", .value = "PATH", .shown = "/v1/completions, /v1/chat/completions", .help = "path of the requests"},
          {.name = "api-key", .value = "KEY", .shown = "$OPENAI_API_KEY", .help = "sent as Bearer", .secret = true},
          {.name = "prompt-ids-as", .kind = Kind::kChoice, .value = "auto|ids|text", .fallback = "auto", .help = "random prompts as token ids, or as text; auto: ids where the vocabulary is known"},
          {.name = "extra-body", .value = "JSON", .help = "further fields of every request"},
          {.name = "temperature", .kind = Kind::kNumber, .value = "F", .fallback = "0", .help = "of every request", .least = 0, .most = 100},
      }};
  return group;
}

// A server of ours in a process of its own, on a port that it chose.
class OwnServer {
 public:
  explicit OwnServer(const Invocation& in) {
    std::vector<std::string> args{"serve", "--port=0", "--log-level=" + in.values.text("log-level"), "--progress=false", "--quiet=false"};
    for (std::string& flag : flags_of(in.values, with_model_groups({}), {"served-model-name"})) args.push_back(std::move(flag));
    child_ = std::make_unique<Child>(std::move(args), [this](const std::string& line) {
      static const std::regex listening("listening on (http://[^ ]+)");
      std::smatch m;
      const std::lock_guard lock(mutex_);
      if (std::regex_search(line, m, listening)) url_ = m[1];
    });
    while (child_->running() && !GracefulStop::requested()) {
      {
        const std::lock_guard lock(mutex_);
        if (!url_.empty()) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const int code = child_->wait();
    if (GracefulStop::requested()) return;
    throw Error("E505", "the server ended with exit code " + std::to_string(code) + " before it listened").from(child_->error_tail());
  }
  std::string url() const { return url_; }

 private:
  std::mutex mutex_;
  std::string url_;
  std::unique_ptr<Child> child_;
};

std::string first_model(OpenAiClient& client) {
  const auto [status, body] = client.get("/v1/models");
  const Json j = Json::parse(body, nullptr, false);
  if (status == 200 && j.is_object() && j.contains("data") && j["data"].is_array() && !j["data"].empty() && j["data"][0].contains("id") && j["data"][0]["id"].is_string()) return j["data"][0]["id"].get<std::string>();
  throw Error("E505", "/v1/models answered " + std::to_string(status) + " and names no model").hint("--served-model-name NAME says which one to ask for");
}

int run(const Invocation& in) {
  const Values& v = in.values;
  const bool foreign = v.given("base-url") || v.given("port");
  if (!foreign && !v.has("model")) throw Error("E101", "nothing to measure").hint("MODEL starts a server of its own; --base-url URL measures one that runs");
  const GracefulStop graceful;

  OpenAiClient::Options o;
  o.chat = v.text("backend") == "openai-chat";
  o.endpoint = v.has("endpoint") ? v.text("endpoint") : o.chat ? "/v1/chat/completions" : "/v1/completions";
  if (o.endpoint.empty() || o.endpoint[0] != '/') throw Error("E101", "--endpoint " + o.endpoint + " does not begin with /");
  const char* key = std::getenv("OPENAI_API_KEY");
  o.api_key = v.has("api-key") ? v.text("api-key") : key && foreign ? key : "";
  o.temperature = v.number("temperature").value_or(0);
  if (v.has("extra-body")) {
    o.extra = Json::parse(v.text("extra-body"), nullptr, false);
    if (!o.extra.is_object()) throw Error("E101", "--extra-body is no JSON object").hint("for example '{\"top_k\": 20}'");
  }

  // Ids as prompts need a vocabulary that the server shares: the model's own, or that of --tokenizer.
  std::int64_t vocab = 0;
  const std::string as = v.text("prompt-ids-as");
  if (as != "text" && !o.chat) {
    if (v.has("model") && !foreign) vocab = read_model_config(*Checkpoint::open(model_path(in))).vocab_size;
    else if (v.has("tokenizer")) vocab = Tokenizer::load(v.text("tokenizer"))->size();
    else if (v.has("model")) vocab = read_model_config(*Checkpoint::open(model_path(in))).vocab_size;
    else if (as == "ids") throw Error("E101", "--prompt-ids-as ids needs a vocabulary").hint("--tokenizer DIR or MODEL names it");
  }

  std::unique_ptr<OwnServer> own;
  std::string url = v.text("base-url");
  if (!foreign) own = std::make_unique<OwnServer>(in), url = own->url();
  else if (url.empty()) url = "http://" + (v.text("host").find(':') != std::string::npos ? "[" + v.text("host") + "]" : v.text("host")) + ":" + v.text("port");
  if (GracefulStop::requested()) return GracefulStop::exit_code();
  o.url = parse_url(url);
  if (o.url.path.ends_with("/v1") && o.endpoint.starts_with("/v1/")) o.url.path.resize(o.url.path.size() - 3);  // as OpenAI's own clients are told

  BenchPlan plan = bench_plan(in, vocab);
  o.ignore_eos = plan.ignore_eos;
  OpenAiClient client(o);
  const std::string model = v.given("served-model-name") ? v.list("served-model-name").front() : first_model(client);
  client.set_model(model);

  const double cpu_before = client.cpu_seconds();
  const LoadOutcome outcome = run_plan(in, client, plan);
  const double share = outcome.seconds > 0 ? (client.cpu_seconds() - cpu_before) / outcome.seconds : 0;
  const bool valid = share <= kMostClientShare;

  const ServingMetrics metrics = serving_metrics(outcome.whole, plan.metrics);
  Json doc = json_document(in.command);
  if (plan.articles) {
    doc["method"] = "articles";
    doc["levels"] = outcome.levels;
    doc["failed"] = outcome.failed;
  } else {
    doc.update(serving_json(metrics, plan.metrics, outcome.whole, v.flag("save-detailed")));
  }
  doc["qengine"] = {{"url", url}, {"endpoint", o.endpoint}, {"model_id", model}, {"own_server", !foreign}, {"prompts", vocab > 0 ? "ids" : "text"}, {"client_cpu_share", share}, {"seed", plan.seed}, {"prompts_sha256", plan.prompts_sha256}};
  doc["valid"] = valid;
  if (outcome.interrupted) doc["interrupted"] = true;
  save_result(in, doc);
  note_failures(in, outcome);
  if (in.json()) print_json(doc);
  else print(plan.articles ? levels_text(outcome.levels) : serving_text(metrics, plan.metrics));
  if (!valid) {
    char line[128];
    std::snprintf(line, sizeof line, "INVALID: the client itself used %.0f %% of a core, so that it was part of what was measured", 100 * share);
    note(in, line);
  }
  if (outcome.interrupted) return GracefulStop::exit_code();
  if (outcome.sent > 0 && outcome.failed == outcome.sent) return 1;
  return valid ? 0 : 6;
}

}  // namespace

extern const Command bench_serve_command;
const Command bench_serve_command = {
    .name = "bench serve",
    .summary = "a server under load over HTTP: its own, or any of OpenAI's API",
    .usage = {"MODEL --num-prompts 200 --max-concurrency 16", "--base-url http://HOST:8000 --request-rate 4 --num-prompts 500 --json"},
    .details = "Without --base-url a server for MODEL is started in a process of its own, on a free port.",
    .groups = with_model_groups({&target_settings(), &load_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
