#include "core/server/backend.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/plugin_host/sha256.hpp"

namespace qengine::server {
namespace {

void add_counts(EngineStats& to, const EngineStats& s, std::int64_t sign = 1) {
  to.preemptions += sign * s.preemptions;
  to.prompt_tokens += sign * s.prompt_tokens;
  to.generated_tokens += sign * s.generated_tokens;
  to.steps += sign * s.steps;
  to.prefix_queries += sign * s.prefix_queries;
  to.prefix_hits += sign * s.prefix_hits;
  to.nonfinite += sign * s.nonfinite;
  for (std::size_t i = 0; i < s.steps_of.size(); ++i) to.steps_of[i] += sign * s.steps_of[i];
  to.step_tokens += sign * s.step_tokens;
}

}  // namespace

Backend::Backend(BackendSpec s, std::uint64_t n) : Backend(std::move(s), n, nullptr) {}

Backend::Backend(BackendSpec s, std::uint64_t n, std::unique_ptr<Engine> loaded)
    : spec(std::move(s)), number(n), engine(loaded ? std::move(loaded) : Engine::load(spec.options)), root(spec.options.model.string()) {
  for (const LayerReport& r : engine->format().report())
    if (plugin.empty() && r.index >= 0) plugin = r.plugin, scheme = r.scheme;
  kv_dtype = engine->kv_report().value("dtype", std::string());
  std::string model = engine->checkpoint().config().dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const Tensor& t : engine->checkpoint().tensors()) {
    model += "\n" + t.name + " " + std::to_string(t.dtype);
    for (const auto n : t.shape) model += " " + std::to_string(n);
  }
  model_sha256 = sha256_of(model);
  if (spec.sampling) sampling = spec.sampling(engine->checkpoint());
}

Json Backend::json() const { return {{"name", spec.name}, {"plugin", plugin}, {"scheme", scheme}, {"kv_cache_dtype", kv_dtype}, {"root", root}}; }

Router::Router(std::shared_ptr<Backend> first) { set_stable(std::move(first)); }

std::shared_ptr<Backend> Router::stable() const {
  const std::lock_guard lock(mutex_);
  return stable_;
}

Backend* Router::set_stable(std::shared_ptr<Backend> next) {
  const std::lock_guard lock(mutex_);
  Backend* const before = stable_.get();
  if (stable_) leaving_.push_back(std::move(stable_));
  stable_ = std::move(next);
  if (stable_) add_counts(gone_, stable_->engine->stats(), -1);  // what it computed for its verification is nobody's request
  return before;
}

std::shared_ptr<Backend> Router::canary() const {
  const std::lock_guard lock(mutex_);
  return canary_;
}

Backend* Router::set_canary(std::shared_ptr<Backend> next) {
  const std::lock_guard lock(mutex_);
  Backend* const before = canary_.get();
  if (canary_) leaving_.push_back(std::move(canary_));
  canary_ = std::move(next);
  if (canary_) add_counts(gone_, canary_->engine->stats(), -1);
  return before;
}

Backend* Router::promote() {
  const std::lock_guard lock(mutex_);
  if (!canary_) return nullptr;
  Backend* const before = stable_.get();
  if (stable_) leaving_.push_back(std::move(stable_));
  stable_ = std::move(canary_);
  return before;
}

Backend* Router::restore(const Backend* back) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& b) { return b.get() == back; });
  if (it == leaving_.end()) return nullptr;
  Backend* const before = stable_.get();
  std::shared_ptr<Backend> returned = std::move(*it);
  leaving_.erase(it);
  if (stable_) leaving_.push_back(std::move(stable_));
  stable_ = std::move(returned);
  return before;
}

bool Router::retire(const Backend* leaving, const std::function<bool()>& give_up) {
  std::shared_ptr<Backend> last;
  while (!last) {
    {
      const std::lock_guard lock(mutex_);
      const auto it = std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& b) { return b.get() == leaving; });
      if (it == leaving_.end()) return true;
      // Nobody can take hold of it any more but all(), under this lock: one holder is us.
      if (it->use_count() == 1) {
        add_counts(gone_, (*it)->engine->stats());
        last = std::move(*it);
        leaving_.erase(it);
        break;
      }
    }
    if (give_up()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  last.reset();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  return true;
}

void Router::clear() {
  std::vector<std::shared_ptr<Backend>> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(leaving_);
  gone.push_back(std::move(stable_));
  gone.push_back(std::move(canary_));
}

std::vector<std::shared_ptr<Backend>> Router::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Backend>> out;
  if (stable_) out.push_back(stable_);
  if (canary_) out.push_back(canary_);
  out.insert(out.end(), leaving_.begin(), leaving_.end());
  return out;
}

std::int64_t Router::holders(const Backend* leaving) const {
  const std::lock_guard lock(mutex_);
  for (const auto& b : leaving_)
    if (b.get() == leaving) return std::max<std::int64_t>(0, b.use_count() - 1);
  return 0;
}

EngineStats Router::totals() const {
  const std::lock_guard lock(mutex_);
  EngineStats out = gone_;
  const auto add = [&](const std::shared_ptr<Backend>& b) {
    const EngineStats s = b->engine->stats();
    add_counts(out, s);
    out.running += s.running;
    out.waiting += s.waiting;
    out.kv_blocks_total += s.kv_blocks_total;
    out.kv_blocks_used += s.kv_blocks_used;
  };
  if (stable_) add(stable_);
  if (canary_) add(canary_);
  for (const auto& b : leaving_) add(b);
  return out;
}

}  // namespace qengine::server
