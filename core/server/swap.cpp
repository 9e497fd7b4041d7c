#include "core/server/swap.hpp"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/format_plan.hpp"

namespace qengine::server {
namespace {

using Clock = std::chrono::steady_clock;

// Thrown out of a load that is planned and not to be made.
struct DoesNotFit {};
struct PlanOnly {};

// How long whoever asked for a swap waits for the old model's last request.
constexpr auto kPatience = std::chrono::seconds(2);

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string seconds_text(double s) {
  char text[32];
  std::snprintf(text, sizeof text, s < 10 ? "%.1f s" : "%.0f s", s);
  return text;
}

std::string short_of(const LoadPlan& p, const std::string& hint) {
  return "both models do not fit on " + p.device + ": " + format_bytes(p.need_bytes() - std::min(p.need_bytes(), p.free_bytes)) + " short (" + std::to_string(p.need_bytes() - std::min(p.need_bytes(), p.free_bytes)) +
         " bytes); the new one takes weights " + format_bytes(p.weights_bytes) + ", loading " + format_bytes(p.load_temp_bytes) + ", cache " + format_bytes(p.kv_bytes) + "; free: " + format_bytes(p.free_bytes) + hint;
}

bool about_memory(const Error& e) { return e.code() == "E403" || e.code() == "E404" || e.code() == "E405"; }

// Message and hint in one line.
std::string one_line(const Error& e) {
  std::string text = e.code() + " " + e.message();
  for (const auto& [key, value] : e.lines())
    if (key == "hint" || key == "in") text += (key == "hint" ? "; " : ", in ") + value;
  return text;
}

}  // namespace

const char* to_string(SwapSettings::Mode m) { return m == SwapSettings::Mode::kBeside ? "beside" : m == SwapSettings::Mode::kDrainFirst ? "drain_first" : "auto"; }

std::optional<SwapSettings::Mode> swap_mode(std::string_view text) {
  for (const auto m : {SwapSettings::Mode::kAuto, SwapSettings::Mode::kBeside, SwapSettings::Mode::kDrainFirst})
    if (text == to_string(m)) return m;
  return std::nullopt;
}

Json SwapReport::json() const {
  Json j{{"result", result}, {"reason", reason}, {"message", message}, {"from", from}, {"to", to}};
  if (!checks.is_null()) j["checks"] = checks;
  if (load_s > 0) j["load_s"] = load_s;
  if (verify_s > 0) j["verify_s"] = verify_s;
  if (silent_s > 0) j["silent_s"] = silent_s;
  return j;
}

Swapper::Swapper(Router& router, Hooks hooks) : router_(router), hooks_(std::move(hooks)), since_(Clock::now()), thread_([this] { work(); }) {}

Swapper::~Swapper() { stop(); }

void Swapper::stop() {
  {
    const std::lock_guard lock(mutex_);  // not between the thread's look at stop_ and its sleep
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<SwapReport> Swapper::begin(std::optional<BackendSpec> spec, SwapSettings settings, std::function<void(const SwapReport&)> done, std::function<void()> after) {
  const std::lock_guard lock(mutex_);
  if (busy_ || stop_) {
    const auto live = router_.stable();
    return SwapReport{"refused", stop_ ? "stopped" : "busy", stop_ ? "the server is shutting down" : "a swap is under way: " + state_ + (detail_.empty() ? "" : ", " + detail_), live ? live->spec.name : "", spec ? spec->name : "", {}};
  }
  busy_ = true;
  Job job;
  job.spec = spec.value_or(BackendSpec{});
  job.given = std::move(spec);
  job.settings = std::move(settings);
  job.done = std::move(done);
  job.after = std::move(after);
  next_ = std::move(job);
  wake_.notify_one();
  return std::nullopt;
}

void Swapper::refused(const SwapReport& report) {
  {
    const std::lock_guard lock(mutex_);
    last_ = report;
    last_at_ = std::chrono::system_clock::now();
  }
  hooks_.ended(report);
}

Json Swapper::status() const {
  const std::lock_guard lock(mutex_);
  Json j{{"state", state_}};
  if (!detail_.empty()) j["detail"] = detail_;
  if (busy_) j["for_s"] = seconds(Clock::now() - since_);
  if (silent_until_) j["answers_again_in_s"] = std::max(0.0, std::ceil(seconds(*silent_until_ - Clock::now())));
  if (last_) {
    j["last"] = last_->json();
    j["last"]["at"] = std::chrono::duration_cast<std::chrono::seconds>(last_at_.time_since_epoch()).count();
  }
  return j;
}

std::optional<int> Swapper::silent_for() const {
  const std::lock_guard lock(mutex_);
  if (!silent_until_) return std::nullopt;
  return static_cast<int>(std::clamp(std::ceil(seconds(*silent_until_ - Clock::now())), 1.0, 3600.0));
}

void Swapper::say(const char* state, const std::string& detail) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    detail_ = detail;
    since_ = Clock::now();
  }
  if (std::string_view(state) != "idle") log("swap").info("{}{}{}", state, detail.empty() ? "" : ": ", detail);
}

void Swapper::finish(Job& job, SwapReport report) {
  {
    const std::lock_guard lock(mutex_);
    last_ = report;
    last_at_ = std::chrono::system_clock::now();
    silent_until_.reset();
  }
  hooks_.ended(report);
  job.report = std::move(report);
}

// Tells how it ended, and keeps it in `report`.
void Swapper::end(Job& job, SwapReport& report, const char* result, std::string reason, std::string message) {
  report.result = result;
  report.reason = std::move(reason);
  report.message = std::move(message);
  finish(job, report);
}

void Swapper::tell(Job& job) {
  if (const auto done = std::exchange(job.done, nullptr)) done(job.report);
}

void Swapper::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || next_; });
    if (stop_ && !next_) return;
    Job job = std::move(*next_);
    next_.reset();
    lock.unlock();
    try {
      if (job.given) run(job);
    } catch (const std::exception& e) {
      log("swap").error("a swap failed: {}", e.what());
      if (job.report.result.empty()) job.report = {"rolled_back", "failed", e.what(), "", job.spec.name, {}};
    }
    if (job.after) {
      running_ = &job;
      try {
        job.after();
      } catch (const std::exception& e) {
        log("swap").error("{}", e.what());
      }
      running_ = nullptr;
    }
    say("idle");
    lock.lock();
    busy_ = false;
    lock.unlock();
    tell(job);
    lock.lock();
    if (stop_ && !next_) return;
  }
}

// `plan` is what the load came to, also when it was not made. `beside`: only if it fits.
std::shared_ptr<Backend> Swapper::load(const BackendSpec& spec, bool beside, std::optional<LoadPlan>& plan) {
  BackendSpec s = spec;
  s.options.format.cancel = &stop_;
  s.options.admit = [&](const LoadPlan& p) {
    plan = p;
    if (beside && p.need_bytes() > p.free_bytes) throw DoesNotFit{};
  };
  auto engine = Engine::load(s.options);
  return std::make_shared<Backend>(spec, ++number_, std::move(engine));
}

void Swapper::run(Job& job) {
  std::shared_ptr<Backend> first = router_.stable();
  Backend* const old = first.get();
  SwapReport report;
  report.from = old ? old->spec.name : "";
  report.to = job.spec.name;
  const auto give_up = [&](const char* result, std::string reason, std::string message) { end(job, report, result, std::move(reason), std::move(message)); };
  if (old && !job.settings.force && !job.spec.key.empty() && old->spec.key == job.spec.key) return give_up("unchanged", "ok", report.to + " answers already, and nothing that it is loaded from has changed");
  if (const auto canary = router_.canary(); old && canary && !job.settings.force && !job.spec.key.empty() && canary->spec.key == job.spec.key) {
    first.reset();
    router_.promote();
    hooks_.promoted();
    give_up("switched", "ok", report.to + " was the canary, and answers all requests");
    say("draining", std::to_string(router_.holders(old)) + " requests on " + report.from);
    const auto begin = Clock::now();
    router_.retire(old, [&] {
      if (Clock::now() - begin > kPatience) tell(job);
      return stop_.load();
    });
    return hooks_.changed();
  }
  std::optional<LoadPlan> plan;
  std::shared_ptr<Backend> fresh;
  const SwapSettings::Mode mode = job.settings.mode;
  bool drain_first = old && mode == SwapSettings::Mode::kDrainFirst;

  // ---- plan; where it fits, load ----
  say("loading", job.spec.name + (old ? " beside " + old->spec.name : ""));
  const auto loading = Clock::now();
  try {
    if (drain_first) {
      BackendSpec s = job.spec;
      s.options.admit = [&](const LoadPlan& p) {
        plan = p;
        throw PlanOnly{};
      };
      Engine::load(s.options);
    } else {
      fresh = load(job.spec, /*beside=*/old != nullptr, plan);
      report.load_s = seconds(Clock::now() - loading);
    }
  } catch (const PlanOnly&) {
  } catch (const DoesNotFit&) {
    if (mode == SwapSettings::Mode::kBeside)
      return give_up("refused", "memory", short_of(*plan, ". swap_mode drain_first empties the server before it loads"));
    drain_first = true;
  } catch (const Error& e) {
    malloc_trim(0);
    return give_up(plan ? "rolled_back" : "refused", about_memory(e) ? "memory" : stop_ ? "stopped" : "load", one_line(e));
  } catch (const std::exception& e) {
    malloc_trim(0);
    return give_up("rolled_back", "failed", e.what());
  }
  if (drain_first) return empty_and_load(job, std::move(first), std::move(*plan), std::move(report));
  check_and_switch(job, std::move(first), std::move(fresh), std::move(report));
}

// Both do not fit beside each other: the server is emptied, and loads the old model again when the new one fails.
void Swapper::empty_and_load(Job& job, std::shared_ptr<Backend> first, LoadPlan plan, SwapReport report) {
  Backend* const old = first.get();
  const auto give_up = [&](const char* result, std::string reason, std::string message) { end(job, report, result, std::move(reason), std::move(message)); };
  const MemoryReport held = old->engine->memory();
  const std::uint64_t theirs = held.weights_bytes + held.kv_bytes;
  if (plan.need_bytes() > plan.free_bytes + theirs) {
    const std::uint64_t missing = plan.need_bytes() - plan.free_bytes - theirs;
    return give_up("refused", "memory", job.spec.name + " does not fit on " + plan.device + " even without " + report.from + ": " + format_bytes(missing) + " short (" + std::to_string(missing) + " bytes); it takes " +
                                            format_bytes(plan.need_bytes()) + ", " + format_bytes(plan.free_bytes + theirs) + " would be free");
  }
  const double rate = held.weights_bytes > 0 ? old->engine->load_seconds() / static_cast<double>(held.weights_bytes) : 0;
  const double estimate = std::max(1.0, rate * static_cast<double>(plan.weights_bytes) + 2);
  std::optional<Reference> reference;
  try {
    say("verifying", "what " + report.from + " says, before it goes");
    reference.emplace(*old->engine);
    reference->record(stop_);
  } catch (const Refusal& e) {
    return give_up("refused", e.reason, e.message);
  } catch (const std::exception& e) {
    log("swap").warn("{} could not be asked ({}): the new model is not compared with it", report.from, e.what());
    reference.reset();
  }
  log("swap").warn("{} and {} do not fit beside each other: the server stops answering, for about {} after its running requests are done", report.from, report.to, seconds_text(estimate));
  const auto from_now = [&] {
    const std::lock_guard lock(mutex_);
    silent_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(estimate));
  };
  from_now();
  const auto silent = Clock::now();
  BackendSpec before = old->spec;
  router_.set_stable(nullptr);
  say("draining", report.from);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(job.settings.drain_timeout_s));
  first.reset();
  if (!router_.retire(old, [&] { return from_now(), stop_ || Clock::now() > until; })) {
    router_.restore(old);
    report.silent_s = seconds(Clock::now() - silent);
    return give_up("rolled_back", stop_ ? "stopped" : "drain", "requests still ran after " + seconds_text(job.settings.drain_timeout_s) + " (swap_drain_timeout); " + report.from + " goes on");
  }
  from_now();
  say("loading", report.to);
  std::shared_ptr<Backend> fresh;
  std::string reason, message;
  try {
    const auto again = Clock::now();
    std::optional<LoadPlan> made;
    fresh = load(job.spec, false, made);
    report.load_s = seconds(Clock::now() - again);
    say("verifying", report.to);
    const auto checking = Clock::now();
    if (reference) report.checks = verify(*fresh->engine, *reference, job.settings.gates, job.settings.template_override, stop_);
    report.verify_s = seconds(Clock::now() - checking);
  } catch (const Refusal& e) {
    reason = e.reason, message = e.message;
  } catch (const Error& e) {
    reason = about_memory(e) ? "memory" : "load", message = one_line(e);
  } catch (const std::exception& e) {
    reason = "failed", message = e.what();
  }
  if (!reason.empty()) {
    fresh.reset();
    malloc_trim(0);
    log("swap").warn("{}: {}; {} is loaded again", report.to, message, report.from);
    say("loading", report.from);
    try {
      std::optional<LoadPlan> made;
      router_.set_stable(load(before, false, made));
      hooks_.changed();
    } catch (const std::exception& e) {
      log("swap").error("{} could not be loaded again: {}; the server answers 503 until a reload succeeds", before.name, e.what());
      message += "; and " + before.name + " could not be loaded again: " + e.what();
    }
    report.silent_s = seconds(Clock::now() - silent);
    return give_up("rolled_back", reason, message);
  }
  router_.set_stable(fresh);
  hooks_.changed();
  report.silent_s = seconds(Clock::now() - silent);
  log("swap").info("the server did not answer for {}", seconds_text(report.silent_s));
  end(job, report, "switched", "ok", report.to + " answers; the server was silent for " + seconds_text(report.silent_s));
}

// Loaded beside the old one, if there is one: it is checked, gets the new requests, and the old one is drained.
void Swapper::check_and_switch(Job& job, std::shared_ptr<Backend> first, std::shared_ptr<Backend> fresh, SwapReport report) {
  Backend* const old = first.get();
  const auto give_up = [&](const char* result, std::string reason, std::string message) { end(job, report, result, std::move(reason), std::move(message)); };
  if (old) {
    say("verifying", report.to);
    const auto checking = Clock::now();
    try {
      Reference reference(*old->engine);
      report.checks = verify(*fresh->engine, reference, job.settings.gates, job.settings.template_override, stop_);
      report.verify_s = seconds(Clock::now() - checking);
    } catch (const Refusal& e) {
      fresh.reset();
      malloc_trim(0);
      return give_up("rolled_back", e.reason, e.message);
    } catch (const std::exception& e) {
      fresh.reset();
      malloc_trim(0);
      return give_up("rolled_back", "failed", e.what());
    }
  }
  router_.set_stable(fresh);
  hooks_.changed();
  end(job, report, "switched", "ok", report.to + " answers new requests");
  first.reset();
  if (old) drain(job, old, std::move(fresh), report);
}

SwapReport Swapper::load_canary(const BackendSpec& spec, const SwapSettings& settings) {
  if (running_) tell(*running_);  // whoever asked for the swap before it need not wait for this
  SwapReport report;
  report.to = spec.name;
  const auto refused = [&](const char* result, std::string reason, std::string message) {
    malloc_trim(0);
    report.result = result;
    report.reason = std::move(reason);
    report.message = std::move(message);
    return report;
  };
  const auto stable = router_.stable();
  if (!stable) return refused("refused", "failed", "nothing is loaded that it could be compared with");
  report.from = stable->spec.name;
  say("loading", spec.name + " as a canary beside " + report.from);
  std::optional<LoadPlan> plan;
  try {
    const auto loading = Clock::now();
    std::shared_ptr<Backend> fresh = load(spec, true, plan);
    report.load_s = seconds(Clock::now() - loading);
    say("verifying", spec.name);
    Reference reference(*stable->engine);
    report.checks = verify(*fresh->engine, reference, settings.gates, settings.template_override, stop_);
    router_.set_canary(std::move(fresh));
  } catch (const DoesNotFit&) {
    return refused("refused", "memory", short_of(*plan, ""));
  } catch (const Refusal& e) {
    return refused("rolled_back", e.reason, e.message);
  } catch (const Error& e) {
    return refused(plan ? "rolled_back" : "refused", about_memory(e) ? "memory" : stop_ ? "stopped" : "load", one_line(e));
  } catch (const std::exception& e) {
    return refused("rolled_back", "failed", e.what());
  }
  report.result = "switched";
  report.reason = "ok";
  report.message = spec.name + " is loaded as a canary";
  return report;
}

// The old one until its last request is done. Should the new one turn out to be broken meanwhile, they change places again.
void Swapper::drain(Job& job, Backend* old, std::shared_ptr<Backend> fresh, const SwapReport& report) {
  say("draining", std::to_string(router_.holders(old)) + " requests on " + report.from);
  bool broken = false;
  const auto begin = Clock::now();
  const bool gone = router_.retire(old, [&] {
    if (Clock::now() - begin > kPatience) tell(job);
    return stop_ || (broken = fresh->faults > 0);
  });
  if (gone) hooks_.changed();
  if (gone || !broken) return;
  const Backend* const bad = fresh.get();
  const std::string message = report.to + " failed a request (non-finite logits, a plugin or the device; the log says which) before " + report.from + " was gone; " + report.from + " answers again";
  fresh.reset();
  router_.restore(old);
  hooks_.changed();
  SwapReport back{"rolled_back", "failed", message, report.from, report.to, report.checks};
  finish(job, back);
  say("draining", report.to);
  router_.retire(bad, [&] {
    tell(job);
    return stop_.load();
  });
  hooks_.changed();
}

}  // namespace qengine::server
