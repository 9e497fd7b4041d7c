// The engine thread: inbox, schedule, run, choose, call back.
#include "core/engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/layers/kernels.hpp"

namespace qengine {
namespace {

Error not_finite(Runner& runner, const RunSpan& token, bool f16) {
  Error e("E406", "logits became non-finite " + runner.diagnose(token));
  if (f16) e.hint("this model was trained in bfloat16: use --dtype bfloat16");
  else e.hint("a weight may be damaged: check all of them with qengine inspect --check");
  return e;
}

std::uint64_t peak_rss() {
  std::ifstream in("/proc/self/status");
  for (std::string key; in >> key;) {
    std::uint64_t kib = 0;
    if (key == "VmHWM:" && in >> kib) return kib * 1024;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

const char* to_string(FinishReason r) {
  switch (r) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAborted: return "abort";
    case FinishReason::kError: return "error";
    case FinishReason::kNone: break;
  }
  return "";
}

// ---- any thread ----------------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ModelConfig& Engine::config() const { return impl_->config; }
std::shared_ptr<const Tokenizer> Engine::tokenizer() const { return impl_->tokenizer; }
const Checkpoint& Engine::checkpoint() const { return *impl_->checkpoint; }
const FormatPlan& Engine::format() const { return *impl_->format; }
const PluginHost& Engine::plugins() const { return *impl_->plugins; }
const EngineOptions& Engine::options() const { return impl_->options; }
std::int64_t Engine::max_model_len() const { return impl_->max_model_len; }
double Engine::load_seconds() const { return impl_->load_seconds; }
Json Engine::kv_report() const { return impl_->kv_report; }

const std::vector<std::pair<std::string, double>>& Engine::load_phases() const { return impl_->load_phases; }

DeviceMemory Engine::device_memory() const { return impl_->device_memory(); }
double Engine::read_bandwidth() const { return impl_->read_bandwidth(); }

MemoryReport Engine::memory() const {
  return {impl_->weights_bytes, impl_->runner->kv_bytes(), impl_->runner->workspace_bytes() + static_cast<std::uint64_t>(impl_->runner->max_logit_rows() * impl_->config.vocab_size) * sizeof(float), peak_rss()};
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->stats_mutex);
  return impl_->stats;
}

void Engine::drop_prefix_cache() {
  impl_->run_task([this] { impl_->scheduler->drop_prefix_cache(); });
}

RequestId Engine::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return impl_->submit(std::move(one)).front();
}

std::vector<RequestId> Engine::submit(std::vector<Request> requests) { return impl_->submit(std::move(requests)); }

std::vector<RequestId> Engine::Impl::submit(std::vector<Request> requests) {
  for (const Request& r : requests) {
    const SamplingParams& p = r.sampling;
    check(p, config.vocab_size);
    if (r.prompt.empty()) throw Error("E107", "the prompt holds no tokens").hint("give at least one token; many models begin with a BOS token");
    for (const std::int32_t t : r.prompt)
      if (t < 0 || t >= config.vocab_size)
        throw Error("E107", "the prompt holds token id " + std::to_string(t)).hint("allowed: token ids 0 to " + std::to_string(config.vocab_size - 1));
    const std::int64_t len = std::ssize(r.prompt), left = max_model_len - len;
    if (p.max_tokens > left) {
      Error e("E502", "maximum context length is " + std::to_string(max_model_len) + " tokens; the prompt has " + std::to_string(len) +
                          " and max_tokens asks for " + std::to_string(p.max_tokens) + ", together " + std::to_string(len + p.max_tokens));
      throw left > 0 ? e.hint("shorten the prompt or set max_tokens to at most " + std::to_string(left)) : e.hint("shorten the prompt");
    }
    if (!p.stop.empty() && !tokenizer) throw Error("E107", "stop strings need a tokenizer, and none is loaded").hint("use stop_token_ids, or name one with --tokenizer");
  }
  std::vector<RequestId> ids;
  std::vector<std::unique_ptr<LiveRequest>> made;
  for (Request& r : requests) {
    const RequestId id = next_id++;
    LiveRequest::Setup s = setup;
    s.seed = r.sampling.seed ? static_cast<std::uint64_t>(*r.sampling.seed) : (options.seed + 1) * 0x9e3779b97f4a7c15u + id;
    ids.push_back(id);
    made.push_back(std::make_unique<LiveRequest>(id, std::move(r), s));
  }
  const std::lock_guard lock(mutex);
  for (auto& r : made) r->seq.arrival = next_arrival++;
  std::ranges::move(made, std::back_inserter(arrived));
  ensure_thread();
  wake.notify_one();
  return ids;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancelled.push_back(id);
  impl_->wake.notify_one();
}

void Engine::pause(RequestId id, bool paused) {
  const std::lock_guard lock(impl_->mutex);
  impl_->paused.emplace_back(id, paused);
  impl_->wake.notify_one();
}

std::vector<std::vector<Output>> Engine::generate(std::vector<Request> requests, const std::atomic<bool>* stop) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::size_t open;
  } shared;
  shared.open = requests.size();
  std::vector<std::vector<Output>> out(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i].on_output = [&shared, &list = out[i], next = std::move(requests[i].on_output)](const Output& o) {
      list.push_back(o);
      if (next) next(o);
      if (o.finish == FinishReason::kNone) return;
      const std::lock_guard lock(shared.mutex);
      if (--shared.open == 0) shared.done.notify_one();
    };
  const std::vector<RequestId> ids = impl_->submit(std::move(requests));
  std::unique_lock lock(shared.mutex);
  bool told = false;
  while (!shared.done.wait_for(lock, std::chrono::milliseconds(20), [&] { return shared.open == 0; }))
    if (stop && stop->load() && !told) {
      told = true;
      lock.unlock();
      for (const RequestId id : ids) cancel(id);
      lock.lock();
    }
  return out;
}

// One sequence through the layers, in chunks: each(first, rows of it) after each, with the sequence's block table.
void Engine::Impl::run_sequence(std::span<const std::int32_t> ids, const std::function<void(std::int64_t, std::int64_t, std::span<const BlockId>)>& each) {
  for (const std::int32_t t : ids)
    if (t < 0 || t >= config.vocab_size)
      throw Error("E107", "the text holds token id " + std::to_string(t)).hint("allowed: token ids 0 to " + std::to_string(config.vocab_size - 1));
  if (std::ssize(ids) > max_model_len)
    throw Error("E502", "maximum context length is " + std::to_string(max_model_len) + " tokens; the text has " + std::to_string(ids.size()))
        .hint("shorten it, or raise --max-model-len as far as the model and the KV cache allow");
  run_task([&] {
    BlockManager& blocks = scheduler->blocks();
    std::vector<BlockId> table;
    const struct Release {
      BlockManager& blocks;
      std::vector<BlockId>& table;
      ~Release() {
        for (const BlockId b : table) blocks.release(b);
      }
    } release{blocks, table};
    for (std::int64_t p = 0; p < std::ssize(ids); p += blocks.block_size()) {
      const auto id = blocks.allocate();
      if (!id) throw Error("E404", "the KV cache is in use by requests").hint("wait for them, or raise --kv-cache-memory-bytes");
      table.push_back(*id);
    }
    for (std::int64_t first = 0; first < std::ssize(ids); first += runner->max_rows()) {
      const std::int64_t n = std::min(runner->max_rows(), std::ssize(ids) - first);
      const RunSpan span{ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)), first, table};
      runner->forward({&span, 1});
      each(first, n, table);
    }
  });
}

void Engine::all_logits(std::span<const std::int32_t> ids, const std::function<void(std::int64_t, std::span<const float>)>& sink) {
  Impl& s = *impl_;
  std::vector<std::int32_t> rows;
  s.run_sequence(ids, [&](std::int64_t first, std::int64_t n, std::span<const BlockId> table) {
    for (std::int64_t r = 0; r < n; r += s.runner->max_logit_rows()) {
      rows.clear();
      for (std::int64_t i = r; i < std::min(n, r + s.runner->max_logit_rows()); ++i) rows.push_back(static_cast<std::int32_t>(i));
      s.runner->logits(rows, s.logits.get());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::int64_t v = s.config.vocab_size, at = first + rows[i];
        const std::span<const float> row(s.logits.get() + static_cast<std::int64_t>(i) * v, static_cast<std::size_t>(v));
        if (!kernels().argmax(row.data(), v).finite)
          throw not_finite(*s.runner, {ids.subspan(static_cast<std::size_t>(at), 1), at, table}, s.f16);
        sink(at, row);
      }
    }
  });
}

void Engine::observe(std::span<const std::int32_t> ids, RunObserver& observer) {
  Impl& s = *impl_;
  s.runner->observe(&observer);
  const struct Leave {
    Runner& runner;
    ~Leave() { runner.observe(nullptr); }
  } leave{*s.runner};
  s.run_sequence(ids, [](std::int64_t, std::int64_t, std::span<const BlockId>) {});
}

// ---- the engine thread ---------------------------------------------------------------------------

Engine::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  wake.notify_all();
  if (thread.joinable()) thread.join();
}

void Engine::Impl::ensure_thread() {
  if (!thread.joinable()) thread = std::thread([this] { work(); });
}

void Engine::Impl::run_task(std::function<void()> task) {
  std::promise<void> done;
  auto result = done.get_future();
  {
    const std::lock_guard lock(mutex);
    tasks.push_back([&] {
      try {
        task();
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
    ensure_thread();
  }
  wake.notify_one();
  result.get();
}

// Takes what came in since; false: stop.
bool Engine::Impl::take_inbox(std::unique_lock<std::mutex>& lock) {
  if (stopping) return false;
  auto in = std::move(arrived);
  arrived.clear();
  const auto gone = std::move(cancelled);
  cancelled.clear();
  const auto slow = std::move(paused);
  paused.clear();
  const auto jobs = std::move(tasks);
  tasks.clear();
  lock.unlock();
  for (auto& r : in) {
    LiveRequest& request = *r;
    by_sequence[&request.seq] = &request;
    live[request.id] = std::move(r);
    if (request.request.sampling.max_tokens == 0 && request.request.sampling.prompt_logprobs < 0) finish(request, request.end(FinishReason::kLength));
    else scheduler->add(&request.seq);
  }
  for (const RequestId id : gone)
    if (const auto it = live.find(id); it != live.end()) finish(*it->second, it->second->end(FinishReason::kAborted));
  for (const auto& [id, on] : slow)
    if (const auto it = live.find(id); it != live.end()) it->second->seq.paused = on;
  for (const auto& job : jobs) job();
  lock.lock();
  return true;
}

void Engine::Impl::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    if (!take_inbox(lock)) break;
    lock.unlock();
    const std::int64_t preempted = scheduler->stats().preemptions;
    const Step& next = scheduler->schedule();
    const bool idle = next.empty() && scheduler->stats().preemptions == preempted;  // else blocks came free
    if (!next.empty()) run_items(next.items);
    publish();
    lock.lock();
    if (idle)
      wake.wait(lock, [&] { return stopping || !arrived.empty() || !cancelled.empty() || !paused.empty() || !tasks.empty(); });
  }
  lock.unlock();
  abort_all();
}

void Engine::Impl::run_items(std::vector<Step::Item> items) {
  // A step may hold more tokens than a forward pass takes: then it runs as several, in order.
  struct Wanted {
    std::int32_t row;
    LiveRequest* request;
    std::int64_t position;
    bool chooses;  // else a prompt position whose log-probabilities are asked for
  };
  const std::int64_t v = runner->vocab_size();
  std::vector<RunSpan> spans;
  std::vector<Wanted> wanted;
  std::vector<SampleResult> chosen;
  std::vector<std::int32_t> rows;
  std::vector<Runner::Greedy> best;
  std::vector<std::pair<LiveRequest*, SampleResult>> results;
  std::vector<std::pair<LiveRequest*, std::string>> failed;

  const auto flush = [&] {
    runner->forward(spans);
    for (std::size_t begin = 0; begin < wanted.size(); begin += static_cast<std::size_t>(runner->max_logit_rows())) {
      const std::size_t n = std::min(wanted.size() - begin, static_cast<std::size_t>(runner->max_logit_rows()));
      rows.clear();
      for (std::size_t i = 0; i < n; ++i) rows.push_back(wanted[begin + i].row);
      chosen.assign(n, {});
      best.resize(n);
      const bool plain = std::all_of(wanted.begin() + static_cast<std::ptrdiff_t>(begin), wanted.begin() + static_cast<std::ptrdiff_t>(begin + n),
                                     [](const Wanted& w) { return w.chooses && w.request->sampler->plain_greedy(); });
      if (plain && runner->greedy(rows, setup.limit, best.data())) {
        for (std::size_t i = 0; i < n; ++i) {
          chosen[i].token = best[i].token;
          if (!best[i].finite) chosen[i].status = SampleResult::Status::kNonFinite;
        }
      } else {
        runner->logits(rows, logits.get());
        pool->parallel_for(static_cast<std::int64_t>(n), [&](std::int64_t i) {
          const Wanted& w = wanted[begin + static_cast<std::size_t>(i)];
          const std::span<const float> row(logits.get() + i * v, static_cast<std::size_t>(v));
          SampleResult& c = chosen[static_cast<std::size_t>(i)];
          if (w.chooses) c = w.request->sampler->sample(row);
          else if (!kernels().argmax(row.data(), v).finite) c.status = SampleResult::Status::kNonFinite;
        });
      }
      for (std::size_t i = 0; i < n; ++i) {
        const Wanted& w = wanted[begin + i];
        if (std::ranges::any_of(failed, [&](const auto& f) { return f.first == w.request; })) continue;
        if (chosen[i].status == SampleResult::Status::kNonFinite) {
          const Sequence& q = w.request->seq;
          const RunSpan token{{q.tokens.data() + w.position, 1}, w.position, q.blocks};
          failed.emplace_back(w.request, not_finite(*runner, token, f16).what());
          // diagnose() ran a forward pass: the other rows' hidden states must come back.
          if (begin + n < wanted.size()) runner->forward(spans);
        } else if (chosen[i].status == SampleResult::Status::kNothingAllowed) {
          failed.emplace_back(w.request, "E107 no token is allowed at position " + std::to_string(w.position + 1) +
                                             "\n  hint  allowed_token_ids, bad_words and the grammar leave nothing");
        } else if (!w.chooses) {
          w.request->add_prompt_row(w.position, RawLogprobs({logits.get() + static_cast<std::int64_t>(i) * v, static_cast<std::size_t>(v)}, setup.limit));
        } else {
          results.emplace_back(w.request, std::move(chosen[i]));
        }
      }
    }
    spans.clear();
    wanted.clear();
  };

  try {
    std::int64_t used = 0;
    for (const Step::Item& item : items) {
      LiveRequest* r = by_sequence.at(item.seq);
      r->begin();
      for (std::int64_t done = 0; done < item.count;) {
        const std::int64_t n = std::min(item.count - done, runner->max_rows() - used), first = item.first + done;
        spans.push_back({{item.seq->tokens.data() + first, static_cast<std::size_t>(n)}, first, item.seq->blocks});
        for (std::int64_t i = 0; i < n; ++i) {
          const bool last = item.last && done + i + 1 == item.count;
          if (last ? r->request.sampling.max_tokens > 0 : r->wants_prompt_row(first + i))
            wanted.push_back({static_cast<std::int32_t>(used + i), r, first + i, last});
        }
        used += n;
        done += n;
        if (used == runner->max_rows()) {
          flush();
          used = 0;
        }
      }
    }
    if (used > 0) flush();
  } catch (const std::exception& e) {
    log("engine").error("a step failed: {}", e.what());
    fail_all(items, e.what());
    return;
  }
  scheduler->commit();

  std::int64_t prompt_tokens = 0, tokens = 0;
  for (const Step::Item& item : items) tokens += item.count, prompt_tokens += std::max<std::int64_t>(0, std::min(item.first + item.count, item.seq->prompt_len) - item.first);
  {
    const std::lock_guard lock(stats_mutex);
    ++stats.steps;
    ++stats.steps_of[static_cast<std::size_t>(std::ranges::lower_bound(kStepTokenEdges, tokens) - kStepTokenEdges.begin())];
    stats.step_tokens += tokens;
    stats.prompt_tokens += prompt_tokens;
    stats.generated_tokens += std::ssize(results);
    for (const auto& f : failed) stats.nonfinite += f.second.starts_with("E406");
  }
  for (auto& [r, why] : failed) {
    std::erase_if(results, [&, q = r](const auto& x) { return x.first == q; });
    log("engine").info("request {} ends: {}", r->id, why);  // whoever asked says it aloud
    std::erase_if(items, [&, q = r](const Step::Item& i) { return i.seq == &q->seq; });
    finish(*r, r->end(FinishReason::kError, std::move(why)));
  }
  for (const Step::Item& item : items)
    if (LiveRequest* r = by_sequence.at(item.seq); item.last && r->request.sampling.max_tokens == 0) finish(*r, r->end(FinishReason::kLength));
  for (auto& [r, token] : results) {
    Output out = r->accept(token);
    if (r->finished()) finish(*r, std::move(out));
    else r->emit(std::move(out));
  }
}

void Engine::Impl::finish(LiveRequest& r, Output&& out) {
  scheduler->remove(&r.seq);  // its blocks are free before anybody hears of it
  publish();
  by_sequence.erase(&r.seq);
  const auto it = live.find(r.id);
  const std::unique_ptr<LiveRequest> keep = std::move(it->second);
  live.erase(it);
  keep->emit(std::move(out));
}

void Engine::Impl::fail_all(const std::vector<Step::Item>& items, const std::string& why) {
  for (const Step::Item& item : items) {
    LiveRequest* r = by_sequence.at(item.seq);
    finish(*r, r->end(FinishReason::kError, why));
  }
}

void Engine::Impl::abort_all() {
  for (auto& r : arrived) r->emit(r->end(FinishReason::kAborted));
  arrived.clear();
  while (!live.empty()) finish(*live.begin()->second, live.begin()->second->end(FinishReason::kAborted));
  for (const auto& task : tasks) task();
  tasks.clear();
}

void Engine::Impl::publish() {
  const BlockManager& b = scheduler->blocks();
  const SchedulerStats& s = scheduler->stats();
  const std::lock_guard lock(stats_mutex);
  stats.running = scheduler->num_running();
  stats.waiting = scheduler->num_waiting();
  stats.kv_blocks_total = b.num_blocks();
  stats.kv_blocks_used = b.num_blocks() - b.num_free();
  stats.preemptions = s.preemptions;
  stats.prefix_queries = s.prefix_queries;
  stats.prefix_hits = s.prefix_hits;
}

}  // namespace qengine
