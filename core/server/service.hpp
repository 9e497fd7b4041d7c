// Service: an engine behind OpenAI's HTTP API. Routes, admission, the threads between the HTTP layer
// and the engine, metrics, drain.
//
//   server thread (http)  headers, refusals, sockets
//   workers (2)           JSON, template, tokenizer, grammar; then Engine::submit
//   engine thread         steps; its callbacks only queue an Output
//   output thread         JSON and events out of Outputs
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/engine/engine.hpp"
#include "core/server/generation.hpp"
#include "core/server/http.hpp"
#include "core/server/metrics.hpp"
#include "core/server/request.hpp"
#include "core/tokenizer/chat_template.hpp"

namespace qengine::server {

struct ServiceOptions {
  http::Options http;
  Limits limits;
  std::vector<std::string> served_names;  // first one is "model" in answers
  std::vector<std::string> api_keys;      // empty: no key needed
  std::vector<std::string> allowed_origins;
  std::string chat_template;              // "" = the model's
  Json default_template_kwargs = Json::object();
  std::string tool_parser = "auto", reasoning_parser = "auto";
  std::int64_t max_num_queued_reqs = 0;   // 0: max(256, 4 x max_num_seqs)
  std::int64_t max_num_queued_tokens = 0;  // 0: no bound
  int overload_status = 429;
  double request_timeout_s = 0, shutdown_timeout_s = 30;
  bool log_prompts = false, request_id_headers = true, tokenizer_info = true;
  std::string version = "0.0.0", root;     // root: the model's path, for /v1/models
  Json build;                              // for /version
  std::function<SamplingParams()> default_sampling;  // [sampling], generation_config.json, neutral
};

class Service {
 public:
  Service(std::unique_ptr<Engine> engine, ServiceOptions options);
  ~Service();

  void start();
  int port() const { return http_->port(); }
  std::string address() const { return http_->address(); }

  // /ready 503, no new requests; waits for running ones up to the shutdown timeout, then ends them with
  // an error event. True when everything accepted was finished. `now` cuts the wait short when it
  // becomes true.
  bool drain(const std::atomic<bool>& now);

  Engine& engine() { return *engine_; }
  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const std::string& model_name() const { return options_.served_names.front(); }
  std::size_t active() const;

  // What a Generation needs.
  void release(std::int64_t n) { reserved_ -= n; }
  void output(std::weak_ptr<Generation> generation, std::size_t choice, Output output);
  std::unique_ptr<ChatParser> chat_parser(const ApiRequest& request, bool inside_reasoning) const;
  void count_finish(FinishReason reason);
  // The first token of a request is there: its prompt no longer waits.
  void first_token(std::int64_t prompt_tokens, double seconds);

  struct Instruments {
    Histogram *ttft, *itl, *tpot, *e2e, *queue, *prompt_tokens, *generation_tokens, *params_n, *params_max_tokens, *max_generation;
    Counter *prompt_total, *generation_total, *cached_total, *rejected, *nonfinite, *tool_failures;
    Counter* finished[5];
  } m{};

 private:
  using Handler = void (Service::*)(http::Request, std::shared_ptr<http::Exchange>);
  struct Route {
    const char *method, *path;
    Handler handler;
    bool open;       // needs no key
    bool slow;       // runs on a worker
  };
  static const std::vector<Route>& routes();

  std::optional<http::Response> on_header(const http::Request& r);
  void handle(http::Request r, std::shared_ptr<http::Exchange> x);
  bool key_ok(const http::Request& r) const;
  http::Headers common_headers(const http::Request& r, const std::string& id) const;

  void models(http::Request, std::shared_ptr<http::Exchange>);
  void completions(http::Request, std::shared_ptr<http::Exchange>);
  void chat(http::Request, std::shared_ptr<http::Exchange>);
  void tokenize(http::Request, std::shared_ptr<http::Exchange>);
  void detokenize(http::Request, std::shared_ptr<http::Exchange>);
  void tokenizer_info(http::Request, std::shared_ptr<http::Exchange>);
  void server_info(http::Request, std::shared_ptr<http::Exchange>);
  void health(http::Request, std::shared_ptr<http::Exchange>);
  void ready(http::Request, std::shared_ptr<http::Exchange>);
  void version(http::Request, std::shared_ptr<http::Exchange>);
  void metrics_page(http::Request, std::shared_ptr<http::Exchange>);
  void page(http::Request, std::shared_ptr<http::Exchange>);

  void generate(ApiRequest request, std::shared_ptr<http::Exchange> x, const std::string& id, Generation::Clock::time_point arrival);
  void check_model(const std::string& name) const;
  std::vector<std::int32_t> encode_prompt(const Prompt& p, const ApiRequest& r) const;
  std::string render_chat(const ApiRequest& r) const;
  ApiError overloaded() const;
  void make_instruments();
  void output_loop();
  void stats_line();

  std::unique_ptr<Engine> engine_;
  ServiceOptions options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string template_source_, tool_parser_, reasoning_parser_;
  std::vector<std::string> key_hashes_;
  Metrics metrics_;
  std::atomic<std::int64_t> reserved_{0}, queued_prompt_tokens_{0};
  std::atomic<double> prefill_tok_s_{0};
  std::atomic<bool> draining_{false};
  std::atomic<std::uint64_t> next_id_{1};
  std::uint64_t id_salt_;

  struct Pending {
    std::weak_ptr<Generation> generation;
    std::size_t choice;
    Output output;
  };
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Pending> pending_;
  std::unordered_map<std::string, std::shared_ptr<Generation>> generations_;
  bool stop_ = false;
  std::thread output_thread_;

  struct Workers;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<http::HttpServer> http_;  // last: its thread uses everything above
};

}  // namespace qengine::server
