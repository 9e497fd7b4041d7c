// Service: a model behind OpenAI's HTTP API. Routes, admission, the threads between the HTTP layer
// and the engine, metrics, drain.
//
//   server thread (http)  headers, refusals, sockets
//   workers (2)           JSON, template, tokenizer, grammar; then Engine::submit
//   engine thread         steps; its callbacks only queue an Output
//   output thread         JSON and events out of Outputs
//   swapper thread        another model in place of this one (swap.hpp)
//
// Engines come and go; a request stays with the one that it began on, and everything else asks the router.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/server/backend.hpp"
#include "core/server/canary.hpp"
#include "core/server/generation.hpp"
#include "core/server/http.hpp"
#include "core/server/instruments.hpp"
#include "core/server/metrics.hpp"
#include "core/server/request.hpp"
#include "core/server/structured_output.hpp"
#include "core/server/swap.hpp"
#include "core/tokenizer/chat_template.hpp"

namespace qengine::server {

// What a reload changes at once, whatever else it does.
struct LiveOptions {
  std::vector<std::string> api_keys;      // empty: no key needed
  std::vector<std::string> admin_keys;    // of /admin; empty: api_keys, and without those only this machine
  std::int64_t max_num_queued_reqs = 0;   // 0: max(256, 4 x max_num_seqs)
  std::int64_t max_num_queued_tokens = 0;  // 0: no bound
  int overload_status = 429;
  double request_timeout_s = 0, shutdown_timeout_s = 30;
  bool log_prompts = false, log_stats = true;
  std::int32_t max_logprobs = 20;
  std::string log_level;                  // "": as it is
  SwapSettings swap;
  CanaryOptions canary;
};

// The profile, read again.
struct Reread {
  std::vector<BackendSpec> backends;      // not empty
  std::string active;                     // the one that answers; live.canary.backend names the other
  LiveOptions live;
  std::vector<std::string> notices;       // what was changed and takes a restart
  // A backend that the profile does not hold: keys of a [[backend]] over the profile's, or over those of its "name". Throws Error E102.
  std::function<BackendSpec(const Json&)> backend_of;
};

struct ServiceOptions {
  http::Options http;
  Limits limits;
  std::vector<std::string> served_names;  // first one is "model" in answers
  LiveOptions live;
  std::function<Reread()> reread;         // throws Error
  std::filesystem::path canary_state;     // "": none
  std::vector<std::string> allowed_origins;
  std::string chat_template;              // "" = the model's
  Json default_template_kwargs = Json::object();
  std::string tool_parser = "auto", reasoning_parser = "auto";
  bool request_id_headers = true, tokenizer_info = true;
  std::string version = "0.0.0";
  Json build;                              // for /version
};

class Service {
 public:
  Service(std::shared_ptr<Backend> backend, ServiceOptions options);
  ~Service();

  void start();
  int port() const { return http_->port(); }
  std::string address() const { return http_->address(); }

  // /ready 503, no new requests; waits for running ones up to the shutdown timeout, then ends them with
  // an error event. True when everything accepted was finished. `now` cuts the wait short when it
  // becomes true.
  bool drain(const std::atomic<bool>& now);

  // Reads the profile again, applies what can change at once, and begins to load what answers from then on. For SIGHUP.
  void reload();

  const ServiceOptions& options() const { return options_; }
  std::shared_ptr<const LiveOptions> live() const;
  std::shared_ptr<Backend> stable() const { return router_.stable(); }
  Canary& canary() { return *canary_; }
  Metrics& metrics() { return metrics_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const std::string& model_name() const { return options_.served_names.front(); }
  std::size_t active() const;
  bool ending() const { return ending_; }  // what still runs is to end with an error now

  // What a Generation needs.
  void release(std::int64_t n) { reserved_ -= n; }
  void output(std::weak_ptr<Generation> generation, std::size_t choice, Output output);
  std::unique_ptr<ChatParser> chat_parser(const ApiRequest& request, bool inside_reasoning) const;
  void count_finish(FinishReason reason);
  // The first token of a request is there: its prompt no longer waits.
  void first_token(std::int64_t prompt_tokens, double seconds);

  Instruments& instruments() { return *instruments_; }

 private:
  using Handler = void (Service::*)(http::Request, std::shared_ptr<http::Exchange>);
  struct Route {
    const char *method, *path;
    Handler handler;
    bool open;       // needs no key
    bool slow;       // runs on a worker
    bool admin = false;  // for those who run the server
  };
  static const std::vector<Route>& routes();

  std::optional<http::Response> on_header(const http::Request& r);
  void handle(http::Request r, std::shared_ptr<http::Exchange> x);
  std::optional<ApiError> key_refusal(const Route& route, const http::Request& r) const;
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
  void admin_status(http::Request, std::shared_ptr<http::Exchange>);
  void admin_reload(http::Request, std::shared_ptr<http::Exchange>);
  void admin_switch(http::Request, std::shared_ptr<http::Exchange>);
  void admin_canary(http::Request, std::shared_ptr<http::Exchange>);
  void admin_abort(http::Request, std::shared_ptr<http::Exchange>);
  void admin_reset_prefix_cache(http::Request, std::shared_ptr<http::Exchange>);
  void admin_feedback(http::Request, std::shared_ptr<http::Exchange>);

  void generate(const http::Request& head, ApiRequest request, std::shared_ptr<http::Exchange> x, const std::string& id, Generation::Clock::time_point arrival);
  std::string sticky_value(const http::Request& head, const ApiRequest& request) const;
  void check_model(const std::string& name) const;
  std::vector<std::int32_t> encode_prompt(const Engine& engine, const Prompt& p, const ApiRequest& r) const;
  std::string render_chat(const ApiRequest& r) const;
  ApiError overloaded() const;
  std::shared_ptr<Backend> backend() const;  // throws ApiError 503 while a swap has emptied the server
  ApiError swapping() const;
  Limits limits() const;
  void apply(LiveOptions live);
  // `choose` picks among what the profile holds now. Answers through `x`, which may be null.
  // Of a profile just read, on the swapper's thread: another canary, other shares, none.
  void apply_canary(const Reread& now, const SwapSettings& settings);
  void change(const std::function<BackendSpec(const Reread&)>& choose, std::optional<SwapSettings::Mode> mode, bool force, std::shared_ptr<http::Exchange> x);
  void output_loop();
  void stats_line(Generation::Clock::time_point now);

  Router router_;
  ServiceOptions options_;
  mutable std::mutex live_mutex_;
  std::shared_ptr<const LiveOptions> live_;  // keys as their hashes
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string template_source_, tool_parser_, reasoning_parser_;
  Metrics metrics_;
  std::unique_ptr<Instruments> instruments_;
  std::atomic<std::int64_t> reserved_{0}, queued_prompt_tokens_{0};
  std::atomic<double> prefill_tok_s_{0};
  std::atomic<bool> draining_{false}, ending_{false};
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
  Generation::Clock::time_point stats_at_ = Generation::Clock::now();  // of the last line; the output thread's
  EngineStats stats_before_;

  std::unique_ptr<StructuredOutput> structured_;
  std::unique_ptr<Canary> canary_;
  std::unique_ptr<Swapper> swapper_;
  struct Workers;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<http::HttpServer> http_;  // last: its thread uses everything above
};

}  // namespace qengine::server
