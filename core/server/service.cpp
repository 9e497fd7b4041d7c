#include "core/server/service.hpp"

#include <algorithm>
#include <random>

#include "core/base/log.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/server/workers.hpp"

namespace qengine::server {

Service::Service(std::shared_ptr<Backend> first, ServiceOptions options)
    : router_(std::move(first)),
      options_(std::move(options)),
      tokenizer_(router_.stable()->engine->tokenizer()),
      metrics_({{"model_name", options_.served_names.front()}, {"engine", "0"}}),
      id_salt_(std::random_device{}() * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())),
      workers_(std::make_unique<Workers>()) {
  metrics_.base_only_for("vllm:");
  apply(std::exchange(options_.live, {}));
  template_source_ = options_.chat_template.empty() ? tokenizer_->chat_template() : options_.chat_template;
  if (!template_source_.empty()) template_.emplace(template_source_, tokenizer_->bos_text(), tokenizer_->eos_text());  // E504 stops the start
  tool_parser_ = options_.tool_parser == "auto" ? detect_tool_parser(template_source_) : options_.tool_parser;
  reasoning_parser_ = options_.reasoning_parser == "auto" ? detect_reasoning_parser(template_source_) : options_.reasoning_parser;
  log("server").info("tool calls: {}, reasoning: {}", tool_parser_, reasoning_parser_);
  std::vector<std::int32_t> ends = router_.stable()->engine->config().eos_ids;
  for (const std::int32_t id : tokenizer_->eos()) ends.push_back(id);
  structured_ = std::make_unique<StructuredOutput>(tokenizer_, std::move(ends), tool_parser_, reasoning_parser_);
  instruments_ = std::make_unique<Instruments>(metrics_, router_, options_.version, options_.build);
  canary_ = std::make_unique<Canary>(router_, options_.canary_state, Canary::Hooks{[this] {
                                                                                     instruments_->canary_percent(canary_->percent());
                                                                                     instruments_->describe();
                                                                                   },
                                                                                   [this](const std::string& reason) { instruments_->canary_returned(reason); },
                                                                                   [this] {
                                                                                     if (const Backend* old = router_.set_canary(nullptr)) router_.retire(old, [this] { return swapper_->stopping(); });
                                                                                   }});
  swapper_ = std::make_unique<Swapper>(router_, Swapper::Hooks{[this] { instruments_->describe(); }, [this](const SwapReport& r) {
                                                                 instruments_->swapped(r.result, r.reason);
                                                                 log("swap").log(r.result == "switched" || r.result == "unchanged" ? spdlog::level::info : spdlog::level::warn, "{} to {}: {} ({}): {}", r.from, r.to, r.result, r.reason, r.message);
                                                               }, [this] { canary_->promoted(); }});
  http_ = std::make_unique<http::HttpServer>(
      options_.http, [this](const http::Request& r) { return on_header(r); },
      [this](http::Request r, std::shared_ptr<http::Exchange> x) { handle(std::move(r), std::move(x)); });
}

Service::~Service() {
  if (http_) http_->stop();
  workers_->pool.join();
  swapper_->stop();
  canary_->stop();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (output_thread_.joinable()) output_thread_.join();
  generations_.clear();
  router_.clear();  // threads of engines may still call output() until here
}

void Service::start() {
  output_thread_ = std::thread([this] { output_loop(); });
  http_->start();
  if (!live()->canary.backend.empty()) {
    const Reread now = options_.reread();
    SwapSettings settings = live()->swap;
    settings.template_override = !options_.chat_template.empty();
    swapper_->begin(std::nullopt, settings, {}, [this, now, settings] { apply_canary(now, settings); });
  }
}

void Service::first_token(std::int64_t prompt_tokens, double seconds) {
  queued_prompt_tokens_ -= prompt_tokens;
  if (seconds <= 0) return;
  const double rate = static_cast<double>(prompt_tokens) / seconds, seen = prefill_tok_s_;
  prefill_tok_s_ = seen == 0 ? rate : 0.9 * seen + 0.1 * rate;
}

void Service::count_finish(FinishReason reason) {
  if (Counter* c = instruments_->finished[static_cast<int>(reason)]) c->add();
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
      stats_line(now);
    }
  }
}

// vLLM's line, every 10 s, silent when idle: people grep it.
void Service::stats_line(Generation::Clock::time_point now) {
  const double s = std::chrono::duration<double>(now - stats_at_).count();
  if (s < 10) return;
  const EngineStats e = router_.totals(), before = std::exchange(stats_before_, e);
  stats_at_ = now;
  if (!live()->log_stats) return;
  if (e.running || e.waiting || e.generated_tokens != before.generated_tokens)
    log("server").info("Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
                       static_cast<double>(e.prompt_tokens - before.prompt_tokens) / s, static_cast<double>(e.generated_tokens - before.generated_tokens) / s, e.running, e.waiting,
                       e.kv_blocks_total ? 100.0 * static_cast<double>(e.kv_blocks_used) / static_cast<double>(e.kv_blocks_total) : 0.0,
                       e.prefix_queries ? 100.0 * static_cast<double>(e.prefix_hits) / static_cast<double>(e.prefix_queries) : 0.0);
}

std::size_t Service::active() const {
  const std::lock_guard lock(mutex_);
  return generations_.size();
}

bool Service::drain(const std::atomic<bool>& now) {
  draining_ = true;
  http_->stop_accepting();
  swapper_->stop();
  const double timeout = live()->shutdown_timeout_s;
  const auto until = Generation::Clock::now() + std::chrono::duration_cast<Generation::Clock::duration>(std::chrono::duration<double>(timeout));
  while (!now && Generation::Clock::now() < until && (active() > 0 || http_->busy() > 0)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool clean = active() == 0;
  if (!clean) {
    log("server").warn("{} requests were not finished within {} s and are ended", active(), timeout);
    ending_ = true;  // by the output thread, which alone writes their answers
    for (int i = 0; i < 500 && active() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (int i = 0; i < 100 && http_->busy() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return clean;
}

}  // namespace qengine::server
