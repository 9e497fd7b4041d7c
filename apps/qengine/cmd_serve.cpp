// serve: the OpenAI-compatible server. Loads, listens, runs until a signal, drains.
#include <csignal>
#include <fstream>
#include <thread>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/log.hpp"
#include "core/server/service.hpp"

namespace qengine {
namespace {

std::vector<std::string> api_keys(const Invocation& in) {
  std::vector<std::string> keys = in.values.list("api-key");
  if (in.values.has("api-key-file")) {
    const std::string file = in.values.text("api-key-file");
    std::ifstream stream(file);
    if (!stream) throw Error("E101", "cannot read --api-key-file " + file).hint("one key a line; the file must be readable by this user");
    for (std::string line; std::getline(stream, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty() && line[0] != '#') keys.push_back(line);
    }
    if (keys.empty()) throw Error("E101", "--api-key-file " + file + " holds no key").hint("one key a line");
  }
  for (const std::string& k : keys)
    if (k.empty()) throw Error("E101", "an API key is empty").hint("leave --api-key out to serve without keys");
  return keys;
}

server::ServiceOptions service_options(const Invocation& in, const Engine& engine) {
  const Values& v = in.values;
  server::ServiceOptions o;
  o.http.host = v.text("host");
  o.http.port = static_cast<int>(v.integer("port", 8000));
  o.http.uds = v.text("uds");
  o.http.max_body_bytes = static_cast<std::size_t>(v.integer("max-body-bytes", 32 << 20));
  o.limits.max_logprobs = engine.options().max_logprobs;
  o.limits.trust_request_chat_template = v.flag("trust-request-chat-template");
  o.served_names = v.list("served-model-name");
  const std::filesystem::path model = engine.options().model;
  if (o.served_names.empty()) {
    const std::filesystem::path whole = std::filesystem::absolute(model).lexically_normal();
    const std::filesystem::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
    o.served_names = {whole.extension() == ".gguf" ? whole.stem().string() : name.string()};
  }
  o.root = model.string();
  o.api_keys = api_keys(in);
  o.allowed_origins = v.list("allowed-origins");
  if (v.has("chat-template")) o.chat_template = read_text(v.text("chat-template"), 4 << 20);
  if (v.has("default-chat-template-kwargs")) {
    o.default_template_kwargs = Json::parse(v.text("default-chat-template-kwargs"), nullptr, false);
    if (!o.default_template_kwargs.is_object()) throw Error("E101", "--default-chat-template-kwargs is no JSON object").hint("for example '{\"enable_thinking\": false}'");
  }
  o.tool_parser = v.flag("enable-auto-tool-choice") ? v.text("tool-call-parser") : "none";
  o.reasoning_parser = v.text("reasoning-parser");
  o.max_num_queued_reqs = v.integer("max-num-queued-reqs", 0);
  o.max_num_queued_tokens = v.integer("max-num-queued-tokens", 0);
  o.overload_status = v.text("overload-status") == "503" ? 503 : 429;
  o.request_timeout_s = v.number("request-timeout").value_or(0);
  o.shutdown_timeout_s = v.number("shutdown-timeout").value_or(30);
  o.log_prompts = v.knows("log-prompts") && v.flag("log-prompts");
  o.request_id_headers = v.flag("enable-request-id-headers");
  o.tokenizer_info = v.flag("enable-tokenizer-info-endpoint");
  const Json document = json_document(in.command);
  o.version = document.value("version", std::string());
  o.build = document.value("build", Json::object());
  SamplingParams defaults = sampling_params(in, engine.checkpoint());
  o.default_sampling = [defaults] { return defaults; };
  return o;
}

int serve(const Invocation& in) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  const GracefulStop stop;
  EngineOptions options = engine_options(in);
  auto engine = load_engine(in, options);
  if (!engine->tokenizer()) throw Error("E210", "this model has no tokenizer").hint("--tokenizer DIR names one");
  server::ServiceOptions service = service_options(in, *engine);
  server::Service server(std::move(engine), std::move(service));
  server.start();
  log("server").info("Starting qengine server on {}", server.address());
  note(in, "listening on " + server.address() + " as " + server.model_name());

  while (!GracefulStop::requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  log("server").info("draining: {} requests are running", server.active());
  static const std::atomic<bool> never{false};  // a second signal ends the process by itself
  const bool clean = server.drain(never);
  return clean ? 0 : GracefulStop::exit_code();
}

}  // namespace

extern const Command serve_command{
    .name = "serve",
    .summary = "answer requests over HTTP, as OpenAI's API does",
    .usage = {"MODEL [--port N] [--api-key-file FILE]"},
    .details = "Listens on 127.0.0.1:8000 unless told otherwise. SIGTERM finishes what was accepted\n(--shutdown-timeout), a second one ends at once.",
    .groups = with_model_groups({&server_settings(), &chat_settings(), &sampling_settings()}),
    .positional = "model",
    .run = serve};

}  // namespace qengine
