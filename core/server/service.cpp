#include "core/server/service.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cmath>
#include <random>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/server/page.hpp"

namespace qengine::server {
namespace {

std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

http::Response json(const Json& j, int status = 200) { return {status, {{"Content-Type", "application/json"}}, dump(j)}; }

// Takes as long for every pair of texts of one length.
bool same(std::string_view a, std::string_view b) {
  unsigned char differ = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

// A name from outside that may go into a header and a log line.
bool sane_id(std::string_view s) {
  return !s.empty() && s.size() <= 128 && std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':'; });
}

const std::vector<double> kTtftEdges = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
const std::vector<double> kItlEdges = {.0005, .001, .002, .003, .004, .005, .0075, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kLatencyEdges = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

}  // namespace

struct Service::Workers {
  boost::asio::thread_pool pool{2};
};

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> all = {
      {"GET", "/v1/models", &Service::models, false, false},
      {"GET", "/v1/models/*", &Service::models, false, false},
      {"POST", "/v1/completions", &Service::completions, false, true},
      {"POST", "/v1/chat/completions", &Service::chat, false, true},
      {"POST", "/tokenize", &Service::tokenize, false, true},
      {"POST", "/detokenize", &Service::detokenize, false, true},
      {"GET", "/tokenizer_info", &Service::tokenizer_info, false, false},
      {"GET", "/server_info", &Service::server_info, false, false},
      {"GET", "/health", &Service::health, true, false},
      {"GET", "/ready", &Service::ready, true, false},
      {"GET", "/version", &Service::version, true, false},
      {"GET", "/metrics", &Service::metrics_page, true, false},
      {"GET", "/", &Service::page, true, false},
  };
  return all;
}

Service::Service(std::unique_ptr<Engine> engine, ServiceOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      tokenizer_(engine_->tokenizer()),
      metrics_({{"model_name", options_.served_names.front()}, {"engine", "0"}}),
      id_salt_(std::random_device{}() * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())),
      workers_(std::make_unique<Workers>()) {
  metrics_.base_only_for("vllm:");
  if (options_.max_num_queued_reqs <= 0) options_.max_num_queued_reqs = std::max<std::int64_t>(256, 4 * engine_->options().max_num_seqs);
  template_source_ = options_.chat_template.empty() ? tokenizer_->chat_template() : options_.chat_template;
  if (!template_source_.empty()) template_.emplace(template_source_, tokenizer_->bos_text(), tokenizer_->eos_text());  // E504 stops the start
  tool_parser_ = options_.tool_parser == "auto" ? detect_tool_parser(template_source_) : options_.tool_parser;
  reasoning_parser_ = options_.reasoning_parser == "auto" ? detect_reasoning_parser(template_source_) : options_.reasoning_parser;
  log("server").info("tool calls: {}, reasoning: {}", tool_parser_, reasoning_parser_);
  for (const auto& k : options_.api_keys) key_hashes_.push_back(sha256_of(k));
  options_.api_keys.assign(options_.api_keys.size(), "");  // only hashes stay
  make_instruments();
  http_ = std::make_unique<http::HttpServer>(
      options_.http, [this](const http::Request& r) { return on_header(r); },
      [this](http::Request r, std::shared_ptr<http::Exchange> x) { handle(std::move(r), std::move(x)); });
}

Service::~Service() {
  if (http_) http_->stop();
  workers_->pool.join();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (output_thread_.joinable()) output_thread_.join();
  engine_.reset();  // its thread may still call output() until here
}

void Service::start() {
  output_thread_ = std::thread([this] { output_loop(); });
  http_->start();
}

void Service::make_instruments() {
  const double longest = static_cast<double>(engine_->max_model_len());
  auto& M = metrics_;
  m.ttft = &M.histogram("vllm:time_to_first_token_seconds", "Time from the arrival of a request to its first token.", kTtftEdges);
  m.itl = &M.histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.", kItlEdges);
  m.tpot = &M.histogram("vllm:request_time_per_output_token_seconds", "Mean time per output token of a request, the first left out.", kItlEdges);
  m.e2e = &M.histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", kLatencyEdges);
  m.prompt_tokens = &M.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", one_two_five(longest));
  m.generation_tokens = &M.histogram("vllm:request_generation_tokens", "Generated tokens of a choice.", one_two_five(longest));
  m.max_generation = &M.histogram("vllm:request_max_num_generation_tokens", "Most tokens generated for a choice of a request.", one_two_five(longest));
  m.params_max_tokens = &M.histogram("vllm:request_params_max_tokens", "The max_tokens that a request asked for.", one_two_five(longest));
  m.params_n = &M.histogram("vllm:request_params_n", "The n that a request asked for.", {1, 2, 5, 10, 20});
  m.prompt_total = &M.counter("vllm:prompt_tokens_total", "Prompt tokens of accepted requests.");
  m.generation_total = &M.counter("vllm:generation_tokens_total", "Generated tokens.");
  m.rejected = &M.counter("vllm:admission_rejections_total", "Requests refused because the queue was full.", {{"reason", "max_num_queued_reqs"}});
  M.counter("vllm:admission_rejections_total", "Requests refused because the queue was full.", {{"reason", "max_num_queued_tokens"}});
  m.nonfinite = &M.counter("qengine:nonfinite_logits_total", "Requests ended because their logits were not finite.");
  m.tool_failures = &M.counter("qengine:tool_parse_failures_total", "Tool calls that did not parse and were returned as content.", {{"arm", "stable"}});
  for (const FinishReason f : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAborted, FinishReason::kError})
    m.finished[static_cast<int>(f)] = &M.counter("vllm:request_success_total", "Finished choices by reason.", {{"finished_reason", to_string(f)}});

  auto& running = M.gauge("vllm:num_requests_running", "Sequences in the running batch.");
  auto& waiting = M.gauge("vllm:num_requests_waiting", "Sequences waiting for a place in the batch.");
  auto& capacity = M.gauge("vllm:num_requests_waiting_by_reason", "Waiting sequences by reason.", {{"reason", "capacity"}});
  M.gauge("vllm:num_requests_waiting_by_reason", "Waiting sequences by reason.", {{"reason", "deferred"}});
  auto& kv = M.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache blocks in use, 0 to 1.");
  auto& preemptions = M.counter("vllm:num_preemptions_total", "Sequences that gave their blocks back and were recomputed.");
  auto& queries = M.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  auto& hits = M.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  m.cached_total = &M.counter("vllm:prompt_tokens_cached_total", "Prompt tokens that came out of the prefix cache.");
  const EngineStats now = engine_->stats();
  const Json kv_report = engine_->kv_report();
  const std::string kv_dtype = kv_report.value("dtype", std::string("auto"));
  char util[16];
  std::snprintf(util, sizeof util, "%.2f", engine_->options().gpu_memory_utilization);
  M.gauge("vllm:cache_config_info", "How the KV cache is set up.",
          {{"block_size", std::to_string(engine_->options().block_size)}, {"cache_dtype", kv_dtype}, {"gpu_memory_utilization", util},
           {"num_gpu_blocks", std::to_string(now.kv_blocks_total)}, {"enable_prefix_caching", engine_->options().prefix_caching ? "True" : "False"}})
      .set(1);

  // What the formats are: one series a (plugin, scheme, tier).
  std::map<std::vector<std::string>, double> layers, fallbacks;
  std::map<std::string, double> bytes;
  for (const LayerReport& r : engine_->format().report()) {
    const std::string tier = r.tier == "native" ? "1" : r.tier == "weight-only" ? "2" : "3";
    layers[{r.plugin, r.scheme, tier}] += 1;
    if (tier != "1") fallbacks[{r.plugin, r.tier}] += 1;
    bytes[r.plugin] += static_cast<double>(r.bytes);
  }
  for (const auto& [k, n] : layers) M.gauge("qengine:layers", "Matrices by plugin, scheme and tier (1 native, 2 weight-only, 3 reference).", {{"plugin", k[0]}, {"scheme", k[1]}, {"tier", k[2]}}).set(n);
  for (const auto& [k, n] : fallbacks) M.gauge("qengine:fallback_layers", "Matrices without a native kernel.", {{"plugin", k[0]}, {"reason", k[1]}}).set(n);
  const std::string device = engine_->options().device;
  for (const auto& [p, n] : bytes) M.gauge("qengine:plugin_memory_bytes", "Bytes held by a plugin.", {{"device", device}, {"plugin", p}, {"kind", "weights"}}).set(n);
  const MemoryReport memory = engine_->memory();
  auto device_bytes = [&](const char* kind, double n) { M.gauge("qengine:device_memory_bytes", "Bytes by owner.", {{"device", device}, {"kind", kind}}).set(n); };
  device_bytes("weights", static_cast<double>(memory.weights_bytes));
  device_bytes("kv", static_cast<double>(memory.kv_bytes));
  device_bytes("workspace", static_cast<double>(memory.workspace_bytes));
  M.gauge("qengine:load_seconds", "Time of loading by phase.", {{"phase", "total"}}).set(engine_->load_seconds());
  std::string plugin, scheme;
  for (const LayerReport& r : engine_->format().report())
    if (plugin.empty() && r.index >= 0) plugin = r.plugin, scheme = r.scheme;
  const Plugin* p = engine_->plugins().find(plugin);
  M.gauge("qengine:build_info", "What is running.",
          {{"version", options_.version}, {"commit", options_.build.value("commit", std::string())}, {"abi", std::to_string(QE_ABI_MAJOR) + "." + std::to_string(QE_ABI_MINOR)},
           {"plugin", plugin}, {"plugin_version", p ? p->version : ""}, {"plugin_sha256", p ? p->sha256 : ""}, {"scheme", scheme}, {"kv_cache_dtype", kv_dtype}})
      .set(1);
  M.gauge("qengine:kv_scale_source", "KV layers by where their scales come from.", {{"source", kv_report.value("scale_source", std::string("none"))}}).set(engine_->config().num_layers);

  auto level = [](Counter& c, std::int64_t total) { c.add(static_cast<double>(total) - c.value()); };
  M.on_render([this, &running, &waiting, &capacity, &kv, &preemptions, &queries, &hits, level] {
    const EngineStats s = engine_->stats();
    running.set(static_cast<double>(s.running));
    waiting.set(static_cast<double>(s.waiting));
    capacity.set(static_cast<double>(s.waiting));
    kv.set(s.kv_blocks_total ? static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks_total) : 0);
    level(preemptions, s.preemptions);
    level(queries, s.prefix_queries);
    level(hits, s.prefix_hits);
    level(*m.cached_total, s.prefix_hits);
  });
}

void Service::first_token(std::int64_t prompt_tokens, double seconds) {
  queued_prompt_tokens_ -= prompt_tokens;
  if (seconds <= 0) return;
  const double rate = static_cast<double>(prompt_tokens) / seconds, seen = prefill_tok_s_;
  prefill_tok_s_ = seen == 0 ? rate : 0.9 * seen + 0.1 * rate;
}

void Service::count_finish(FinishReason reason) {
  if (Counter* c = m.finished[static_cast<int>(reason)]) c->add();
}

// ---- before the body ------------------------------------------------------------------------------

bool Service::key_ok(const http::Request& r) const {
  if (key_hashes_.empty()) return true;
  std::string_view key = r.header("authorization");
  if (key.size() > 7 && (key.substr(0, 7) == "Bearer " || key.substr(0, 7) == "bearer ")) key.remove_prefix(7);
  else key = {};
  const std::string hash = sha256_of(key);
  bool ok = false;
  for (const auto& h : key_hashes_) ok |= same(h, hash);
  return ok;
}

std::optional<http::Response> Service::on_header(const http::Request& r) {
  const Route* found = nullptr;
  std::string allow;
  for (const Route& route : routes()) {
    const std::string_view p = route.path;
    const bool hit = p.ends_with("/*") ? r.path.starts_with(p.substr(0, p.size() - 1)) && r.path.size() > p.size() - 1 : r.path == p;
    if (!hit) continue;
    allow += (allow.empty() ? "" : ", ") + std::string(route.method);
    if (r.method == route.method || (r.method == "HEAD" && std::string_view(route.method) == "GET")) found = &route;
  }
  if (r.method == "OPTIONS" && !options_.allowed_origins.empty() && !allow.empty()) {
    http::Response out{204, common_headers(r, {}), ""};
    out.headers.emplace_back("Access-Control-Allow-Methods", allow + ", OPTIONS");
    out.headers.emplace_back("Access-Control-Allow-Headers", "authorization, content-type");
    return out;
  }
  auto refuse = [&](ApiError e) -> http::Response {
    http::Response out = e.response();
    for (auto& h : common_headers(r, {})) out.headers.push_back(h);
    return out;
  };
  if (allow.empty()) return refuse(ApiError("there is nothing at " + r.path.substr(0, 200) + "; see /v1/models, /v1/completions, /v1/chat/completions", {}, "unknown_url", 404));
  if (!found) {
    ApiError e(r.method.substr(0, 20) + " is not allowed here", {}, "method_not_allowed", 405);
    e.headers.emplace_back("Allow", allow);
    return refuse(e);
  }
  if (!found->open && !key_ok(r)) {
    ApiError e("the API key is missing or wrong; send it as Authorization: Bearer KEY", {}, "invalid_api_key", 401);
    e.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refuse(e);
  }
  if (r.method == "POST") {
    const std::string_view type = r.header("content-type");
    if (!type.empty() && type.find("json") == std::string_view::npos && type.find("text/plain") == std::string_view::npos && type.find("x-www-form-urlencoded") == std::string_view::npos)
      return refuse(ApiError("Content-Type is " + std::string(type.substr(0, 60)) + "; send application/json", {}, "unsupported_media_type", 415));
    if (found->handler == &Service::completions || found->handler == &Service::chat) {
      if (draining_) {
        ApiError e("the server is shutting down", {}, "draining", 503);
        e.headers.emplace_back("Retry-After", "5");
        return refuse(e);
      }
      if (reserved_ >= options_.max_num_queued_reqs) {
        m.rejected->add();
        return refuse(overloaded());
      }
    }
  }
  return std::nullopt;
}

ApiError Service::overloaded() const {
  // Queued prompt tokens over the prefill rate seen so far, within 1 to 30 s.
  const double rate = std::max(1.0, prefill_tok_s_.load());
  const auto wait = std::clamp<long>(std::lround(std::ceil(static_cast<double>(queued_prompt_tokens_) / rate)), 1, 30);
  ApiError e("the queue is full (" + std::to_string(options_.max_num_queued_reqs) + " requests, --max-num-queued-reqs); try again in " + std::to_string(wait) + " s", {},
             options_.overload_status == 503 ? "server_is_overloaded" : "queue_full", options_.overload_status);
  e.headers.emplace_back("Retry-After", std::to_string(wait));
  return e;
}

http::Headers Service::common_headers(const http::Request& r, const std::string& id) const {
  http::Headers h;
  if (!id.empty() && options_.request_id_headers) h.emplace_back("X-Request-Id", id);
  const std::string_view origin = r.header("origin");
  for (const auto& o : options_.allowed_origins)
    if (!origin.empty() && (o == "*" || o == origin)) {
      h.emplace_back("Access-Control-Allow-Origin", o == "*" ? "*" : std::string(origin));
      if (o != "*") h.emplace_back("Vary", "Origin");
      break;
    }
  return h;
}

// ---- dispatch -------------------------------------------------------------------------------------

void Service::handle(http::Request r, std::shared_ptr<http::Exchange> x) {
  for (const Route& route : routes()) {
    const std::string_view p = route.path;
    const bool hit = p.ends_with("/*") ? r.path.starts_with(p.substr(0, p.size() - 1)) && r.path.size() > p.size() - 1 : r.path == p;
    if (!hit || (r.method != route.method && !(r.method == "HEAD" && std::string_view(route.method) == "GET"))) continue;
    auto run = [this, handler = route.handler, r = std::move(r), x]() mutable {
      const http::Headers common = common_headers(r, {});
      try {
        (this->*handler)(std::move(r), x);
      } catch (const ApiError& e) {
        http::Response out = e.response();
        out.headers.insert(out.headers.end(), common.begin(), common.end());
        x->respond(std::move(out));
      } catch (const Error& e) {
        x->respond(ApiError::from(e).response());
      } catch (const std::exception& e) {
        log("server").error("a request failed: {}", e.what());
        x->respond(ApiError("the server could not handle this request", {}, "internal_error", 500).response());
      }
    };
    if (route.slow) boost::asio::post(workers_->pool, std::move(run));
    else run();
    return;
  }
}

void Service::check_model(const std::string& name) const {
  if (name.empty()) return;
  const auto& all = options_.served_names;
  if (std::find(all.begin(), all.end(), name) != all.end()) return;
  std::string served;
  for (const auto& n : all) served += (served.empty() ? "" : ", ") + n;
  throw ApiError("the model \"" + name.substr(0, 100) + "\" does not exist; served: " + served, "model", "model_not_found", 404);
}

void Service::models(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json kv = engine_->kv_report();
  std::string plugin, scheme;
  for (const LayerReport& l : engine_->format().report())
    if (plugin.empty() && l.index >= 0) plugin = l.plugin, scheme = l.scheme;
  Json data = Json::array();
  for (const auto& name : options_.served_names)
    data.push_back({{"id", name}, {"object", "model"}, {"created", 0}, {"owned_by", "qengine"}, {"root", options_.root}, {"parent", nullptr},
                    {"max_model_len", engine_->max_model_len()},
                    {"qengine", {{"plugin", plugin}, {"scheme", scheme}, {"kv_cache_dtype", kv.value("dtype", std::string())}, {"arm", "stable"}}}});
  if (r.path.size() > 11) {  // /v1/models/NAME
    const std::string name = r.path.substr(11);
    for (auto& d : data)
      if (d["id"] == name) return x->respond(json(d));
    throw ApiError("the model \"" + name.substr(0, 100) + "\" does not exist; served: " + model_name(), "model", "model_not_found", 404);
  }
  x->respond(json({{"object", "list"}, {"data", std::move(data)}}));
}

std::vector<std::int32_t> Service::encode_prompt(const Prompt& p, const ApiRequest& r) const {
  std::vector<std::int32_t> ids = p.is_ids ? p.ids : tokenizer_->encode(p.text, r.add_special_tokens.value_or(true));
  const std::int64_t vocabulary = engine_->config().vocab_size;
  for (const std::int32_t id : ids)
    if (id >= vocabulary) throw ApiError("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocabulary), "prompt");
  if (ids.empty()) throw ApiError("the prompt is empty, and this model adds no token of its own to begin with", "prompt");
  std::int64_t keep = r.truncate_prompt_tokens;
  if (keep < 0) keep = std::max<std::int64_t>(1, engine_->max_model_len() - r.sampling.max_tokens);
  if (keep > 0 && static_cast<std::int64_t>(ids.size()) > keep) ids.erase(ids.begin(), ids.end() - keep);
  return ids;
}

std::string Service::render_chat(const ApiRequest& r) const {
  Json v = options_.default_template_kwargs;
  for (const auto& [k, value] : r.template_kwargs.items()) v[k] = value;
  v["messages"] = r.messages;
  if (!r.tools.is_null() && r.tool_choice != "none") v["tools"] = r.tools;
  v["add_generation_prompt"] = r.add_generation_prompt;
  std::string text;
  if (!r.chat_template.empty()) {
    text = ChatTemplate(r.chat_template, tokenizer_->bos_text(), tokenizer_->eos_text()).render(v);
  } else {
    if (!template_) throw ApiError("this model has no chat template; use /v1/completions, or start with --chat-template FILE", "messages", "template_error");
    text = template_->render(v);
  }
  if (r.continue_final_message) {
    const std::string last = r.messages.back().value("content", std::string());
    if (const auto at = text.rfind(last); !last.empty() && at != std::string::npos) text.resize(at + last.size());
  }
  return text;
}

std::unique_ptr<ChatParser> Service::chat_parser(const ApiRequest& r, bool inside_reasoning) const {
  const bool tools = !r.tools.is_null() && r.tool_choice != "none";
  return make_chat_parser(tools ? tool_parser_ : "none", reasoning_parser_, inside_reasoning);
}

void Service::completions(http::Request r, std::shared_ptr<http::Exchange> x) {
  const auto arrival = Generation::Clock::now();
  ApiRequest q = read_completion(parse_body(r.body, options_.limits.max_json_depth), options_.limits);
  r.body = {};
  const std::string_view given = r.header("x-request-id");
  const std::string id = "cmpl-" + (sane_id(given) ? std::string(given) : sane_id(q.request_id) ? q.request_id : std::to_string(id_salt_ % 0xFFFFFFFF) + "-" + std::to_string(next_id_++));
  generate(std::move(q), std::move(x), id, arrival);
}

void Service::chat(http::Request r, std::shared_ptr<http::Exchange> x) {
  const auto arrival = Generation::Clock::now();
  ApiRequest q = read_chat(parse_body(r.body, options_.limits.max_json_depth), options_.limits);
  r.body = {};
  const std::string_view given = r.header("x-request-id");
  const std::string id = "chatcmpl-" + (sane_id(given) ? std::string(given) : sane_id(q.request_id) ? q.request_id : std::to_string(id_salt_ % 0xFFFFFFFF) + "-" + std::to_string(next_id_++));
  generate(std::move(q), std::move(x), id, arrival);
}

void Service::generate(ApiRequest q, std::shared_ptr<http::Exchange> x, const std::string& id, Generation::Clock::time_point arrival) {
  check_model(q.model);
  // What cannot be enforced is refused, never ignored.
  if (q.constraint.kind != Constraint::Kind::kNone)
    throw ApiError("structured output (response_format json_object and json_schema, structured_outputs, guided_*) is not enforced by this build; leave it out", "response_format", "unsupported_parameter");
  if (q.tool_choice == "required" || q.tool_choice == "function")
    throw ApiError("tool_choice \"" + q.tool_choice + "\" cannot be enforced by this build; use auto or none", "tool_choice", "unsupported_parameter");
  q.sampling.allowed_token_ids = q.allowed_token_ids;
  for (const std::int32_t id : q.allowed_token_ids)
    if (id >= engine_->config().vocab_size) throw ApiError("allowed_token_ids names token id " + std::to_string(id) + ", outside the vocabulary", "allowed_token_ids");
  for (const std::string& word : q.bad_words) {  // at the start of a text and after a space
    for (const std::string& form : {word, " " + word})
      if (auto ids = tokenizer_->encode(form, false); !ids.empty()) q.sampling.bad_words.push_back(std::move(ids));
  }
  for (const auto& f : q.ignored_fields) log("server").debug("{}: field {} is not known and was ignored", id, f);
  const std::int64_t places = q.n * static_cast<std::int64_t>(q.chat ? 1 : q.prompts.size());
  if (reserved_.fetch_add(places) + places > options_.max_num_queued_reqs && places <= options_.max_num_queued_reqs) {
    reserved_ -= places;
    m.rejected->add();
    throw overloaded();
  }
  if (places > options_.max_num_queued_reqs) {
    reserved_ -= places;
    throw ApiError("this request asks for " + std::to_string(places) + " choices at once; the queue holds " + std::to_string(options_.max_num_queued_reqs), "n");
  }
  struct Release {  // until the Generation holds the places
    Service* s;
    std::int64_t n;
    ~Release() { if (n) s->release(n); }
  } release{this, places};

  // Sampling defaults: the request, then [sampling] and generation_config.json.
  if (options_.default_sampling) {
    const SamplingParams d = options_.default_sampling();
    auto& s = q.sampling;
    if (!q.given.contains("temperature")) s.temperature = d.temperature;
    if (!q.given.contains("top_p")) s.top_p = d.top_p;
    if (!q.given.contains("top_k")) s.top_k = d.top_k;
    if (!q.given.contains("min_p")) s.min_p = d.min_p;
    if (!q.given.contains("repetition_penalty")) s.repetition_penalty = d.repetition_penalty;
    if (!q.given.contains("presence_penalty")) s.presence_penalty = d.presence_penalty;
    if (!q.given.contains("frequency_penalty")) s.frequency_penalty = d.frequency_penalty;
  }

  std::vector<std::vector<std::int32_t>> prompts;
  if (q.chat) {
    std::string text;
    try {
      text = render_chat(q);
    } catch (const Error& e) {
      throw ApiError::from(e, "messages");
    }
    if (options_.log_prompts) log("server").info("{}: prompt {}", id, text);
    Prompt p;
    p.text = std::move(text);
    if (reasoning_parser_ != "none") {  // templates that open the block themselves
      const auto open = p.text.rfind("<think>"), close = p.text.rfind("</think>");
      q.template_kwargs["__inside_reasoning"] = open != std::string::npos && (close == std::string::npos || close < open);
    }
    if (!q.add_special_tokens) q.add_special_tokens = false;  // the template has printed them
    prompts.push_back(encode_prompt(p, q));
  } else {
    for (const Prompt& p : q.prompts) {
      if (options_.log_prompts && !p.is_ids) log("server").info("{}: prompt {}", id, p.text);
      prompts.push_back(encode_prompt(p, q));
    }
  }
  q.prompts.clear();

  std::int64_t longest = 0, total = 0;
  for (const auto& p : prompts) longest = std::max<std::int64_t>(longest, static_cast<std::int64_t>(p.size())), total += static_cast<std::int64_t>(p.size());
  const std::int64_t room = engine_->max_model_len() - longest;
  if (q.chat && !q.has_max_tokens) q.sampling.max_tokens = std::max<std::int64_t>(room, 1);
  if (q.sampling.max_tokens > room)
    throw ApiError("maximum context length is " + std::to_string(engine_->max_model_len()) + " tokens; the prompt has " + std::to_string(longest) + " and max_tokens asks for " +
                       std::to_string(q.sampling.max_tokens) + ", together " + std::to_string(longest + q.sampling.max_tokens) +
                       (room > 0 ? "; shorten the prompt or set max_tokens to at most " + std::to_string(room) : "; shorten the prompt"),
                   q.chat ? "messages" : "prompt", "context_length_exceeded");
  for (const auto& [token, bias] : q.sampling.logit_bias)
    if (token >= engine_->config().vocab_size) throw ApiError("logit_bias names token id " + std::to_string(token) + ", outside the vocabulary", "logit_bias");

  if (options_.max_num_queued_tokens > 0 && queued_prompt_tokens_ > 0 && queued_prompt_tokens_ + total > options_.max_num_queued_tokens) {
    metrics_.counter("vllm:admission_rejections_total", "", {{"reason", "max_num_queued_tokens"}}).add();
    throw overloaded();
  }
  queued_prompt_tokens_ += total;
  m.prompt_total->add(static_cast<double>(total));
  for (const auto& p : prompts) m.prompt_tokens->observe(static_cast<double>(p.size()));
  m.params_n->observe(static_cast<double>(q.n));
  m.params_max_tokens->observe(static_cast<double>(q.sampling.max_tokens));

  auto g = std::make_shared<Generation>(*this, std::move(q), std::move(x), id, arrival);
  g->reserved = std::exchange(release.n, 0);
  std::string key = id;
  {
    const std::lock_guard lock(mutex_);
    if (generations_.contains(key)) key += "#" + std::to_string(next_id_++);  // a client may repeat its own ids
    generations_.emplace(key, g);
  }
  try {
    g->submit(std::move(prompts));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    generations_.erase(key);
    throw;
  }
}

// ---- outputs --------------------------------------------------------------------------------------

void Service::output(std::weak_ptr<Generation> generation, std::size_t choice, Output output) {
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    wake = pending_.empty();
    pending_.push_back({std::move(generation), choice, std::move(output)});
  }
  if (wake) wake_.notify_one();
}

void Service::output_loop() {
  std::vector<Pending> batch;
  auto next_tick = Generation::Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::milliseconds(200), [&] { return stop_ || !pending_.empty(); });
      if (stop_ && pending_.empty()) return;
      batch.swap(pending_);
    }
    for (Pending& p : batch)
      if (const auto g = p.generation.lock()) {
        try {
          g->take(p.choice, std::move(p.output));
        } catch (const std::exception& e) {
          log("server").error("{}: {}", g->id(), e.what());
          g->fail(ApiError("the server could not write this answer", {}, "internal_error", 500));
        }
      }
    batch.clear();
    const auto now = Generation::Clock::now();
    std::vector<std::shared_ptr<Generation>> ended;  // destroyed outside the lock
    std::vector<std::shared_ptr<Generation>> all;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = generations_.begin(); it != generations_.end();) {
        if (it->second->finished()) {
          ended.push_back(std::move(it->second));
          it = generations_.erase(it);
        } else {
          if (now >= next_tick) all.push_back(it->second);
          ++it;
        }
      }
    }
    if (now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(200);
      for (const auto& g : all) g->tick(now);
      stats_line();
    }
  }
}

// vLLM's line, every 10 s, silent when idle: people grep it.
void Service::stats_line() {
  static auto last = Generation::Clock::now();
  static EngineStats before{};
  const auto now = Generation::Clock::now();
  const double s = std::chrono::duration<double>(now - last).count();
  if (s < 10) return;
  const EngineStats e = engine_->stats();
  if (e.running || e.waiting || e.generated_tokens != before.generated_tokens)
    log("server").info("Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
                       static_cast<double>(e.prompt_tokens - before.prompt_tokens) / s, static_cast<double>(e.generated_tokens - before.generated_tokens) / s, e.running, e.waiting,
                       e.kv_blocks_total ? 100.0 * static_cast<double>(e.kv_blocks_used) / static_cast<double>(e.kv_blocks_total) : 0.0,
                       e.prefix_queries ? 100.0 * static_cast<double>(e.prefix_hits) / static_cast<double>(e.prefix_queries) : 0.0);
  before = e;
  last = now;
}

std::size_t Service::active() const {
  const std::lock_guard lock(mutex_);
  return generations_.size();
}

bool Service::drain(const std::atomic<bool>& now) {
  draining_ = true;
  http_->stop_accepting();
  const auto until = Generation::Clock::now() + std::chrono::duration_cast<Generation::Clock::duration>(std::chrono::duration<double>(options_.shutdown_timeout_s));
  while (!now && Generation::Clock::now() < until && (active() > 0 || http_->busy() > 0)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool clean = active() == 0;
  if (!clean) {
    std::vector<std::shared_ptr<Generation>> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, g] : generations_) all.push_back(g);
    }
    log("server").warn("{} requests were not finished within {} s and are ended", all.size(), options_.shutdown_timeout_s);
    for (const auto& g : all) g->fail(ApiError("the server is shutting down", {}, "draining", 503));
    for (int i = 0; i < 100 && http_->busy() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return clean;
}

// ---- small routes ---------------------------------------------------------------------------------

void Service::tokenize(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = parse_body(r.body, options_.limits.max_json_depth);
  if (!body.is_object()) throw ApiError("the body must be a JSON object", {}, "invalid_json");
  if (body.contains("model") && body["model"].is_string()) check_model(body["model"].get<std::string>());
  std::vector<std::int32_t> ids;
  bool add = !body.contains("messages");
  if (body.contains("add_special_tokens") && body["add_special_tokens"].is_boolean()) add = body["add_special_tokens"].get<bool>();
  if (body.contains("messages")) {
    Json copy = body;
    copy.erase("add_special_tokens");
    try {
      ids = tokenizer_->encode(render_chat(read_chat(copy, options_.limits)), add);
    } catch (const Error& e) {
      throw ApiError::from(e, "messages");
    }
  } else if (body.contains("prompt") && body["prompt"].is_string()) {
    ids = tokenizer_->encode(body["prompt"].get<std::string>(), add);
  } else {
    throw ApiError("give prompt (a string) or messages", "prompt");
  }
  Json out = {{"count", ids.size()}, {"max_model_len", engine_->max_model_len()}, {"tokens", ids}};
  if (body.value("return_token_strs", false)) {
    out["token_strs"] = Json::array();
    for (const auto id : ids) out["token_strs"].push_back(tokenizer_->piece(id));
  }
  x->respond(json(out));
}

void Service::detokenize(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = parse_body(r.body, options_.limits.max_json_depth);
  if (!body.is_object() || !body.contains("tokens") || !body["tokens"].is_array()) throw ApiError("tokens must be a list of token ids", "tokens");
  std::vector<std::int32_t> ids;
  for (const auto& t : body["tokens"]) {
    if (!t.is_number_integer() || t.get<std::int64_t>() < 0 || t.get<std::int64_t>() >= engine_->config().vocab_size)
      throw ApiError("tokens holds " + t.dump().substr(0, 40) + ", which is no token id of this model", "tokens");
    ids.push_back(t.get<std::int32_t>());
  }
  x->respond(json({{"prompt", tokenizer_->decode(ids, false)}}));
}

void Service::tokenizer_info(http::Request, std::shared_ptr<http::Exchange> x) {
  if (!options_.tokenizer_info) throw ApiError("/tokenizer_info is switched off", {}, "unknown_url", 404);
  Json out = {{"tokenizer_class", "qengine"}, {"model_max_length", engine_->max_model_len()}};
  auto text = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  out["bos_token"] = text(tokenizer_->bos_text());
  out["eos_token"] = text(tokenizer_->eos_text());
  out["pad_token"] = engine_->config().pad_id >= 0 ? Json(tokenizer_->piece(engine_->config().pad_id)) : Json(nullptr);
  out["chat_template"] = text(template_source_);
  x->respond(json(out));
}

void Service::server_info(http::Request, std::shared_ptr<http::Exchange> x) {
  Json layers = Json::array();
  for (const LayerReport& l : engine_->format().report())
    layers.push_back({{"name", l.name}, {"plugin", l.plugin}, {"scheme", l.scheme}, {"kernel", l.kernel}, {"tier", l.tier}, {"bytes", l.bytes}, {"reason", l.reason}});
  const MemoryReport memory = engine_->memory();
  x->respond(json({{"model", model_name()},
                   {"root", options_.root},
                   {"version", options_.version},
                   {"max_model_len", engine_->max_model_len()},
                   {"kv", engine_->kv_report()},
                   {"memory", {{"weights_bytes", memory.weights_bytes}, {"kv_bytes", memory.kv_bytes}, {"workspace_bytes", memory.workspace_bytes}, {"peak_rss_bytes", memory.peak_rss_bytes}}},
                   {"layers", std::move(layers)}}));
}

void Service::health(http::Request, std::shared_ptr<http::Exchange> x) { x->respond({200, {}, ""}); }

void Service::ready(http::Request, std::shared_ptr<http::Exchange> x) {
  if (draining_) throw ApiError("the server is shutting down", {}, "draining", 503);
  x->respond({200, {}, ""});
}

void Service::version(http::Request, std::shared_ptr<http::Exchange> x) {
  Json out = {{"version", options_.version}};
  if (options_.build.is_object())
    for (const auto& [k, v] : options_.build.items()) out[k] = v;
  x->respond(json(out));
}

void Service::metrics_page(http::Request, std::shared_ptr<http::Exchange> x) {
  x->respond({200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, metrics_.render()});
}

void Service::page(http::Request, std::shared_ptr<http::Exchange> x) {
  x->respond({200, {{"Content-Type", "text/html; charset=utf-8"}, {"Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:"}}, std::string(kPage)});
}

}  // namespace qengine::server
