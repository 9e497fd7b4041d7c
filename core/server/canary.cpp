#include "core/server/canary.hpp"

#include <cmath>
#include <fstream>
#include <iterator>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/eval/statistics.hpp"
#include "core/model/safetensors_writer.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/server/api_error.hpp"

namespace qengine::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRemembered = 100'000;  // request ids, for feedback
constexpr std::size_t kQueued = 8;            // prompts that wait to be scored
constexpr std::size_t kScored = 256;          // tokens of a prompt
constexpr std::size_t kShadows = 2000;        // prompts of a window

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

const char* const kStates[] = {"off", "loading", "running", "passed", "home"};

}  // namespace

const char* to_string(Canary::State s) { return kStates[static_cast<int>(s)]; }

Canary::Canary(Router& router, std::filesystem::path state_file, Hooks hooks)
    : router_(router), file_(std::move(state_file)), hooks_(std::move(hooks)), since_(Clock::now()), random_(std::random_device{}()), written_(Clock::now()) {
  thread_ = std::thread([this] { work(); });
}

Canary::~Canary() { stop(); }

void Canary::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  persist();
}

// ---- settings ----------------------------------------------------------------------------------------

Canary::Change Canary::configure(const CanaryOptions& options, const std::string& key) {
  const std::lock_guard lock(mutex_);
  const bool same = key == key_ && options.backend == options_.backend;
  const bool shares = same && options.steps == options_.steps && options.percent == options_.percent;
  options_ = options;
  const bool there = state_ == State::kRunning || state_ == State::kPassed;
  if (options.backend.empty()) {
    state_ = State::kOff;
    key_.clear();
    percent_ = 0;
    return {there, false};
  }
  if (same) {
    if (!shares && state_ != State::kHome) step_ = 0, by_hand_ = false, percent_ = options.share(0), begin_window();
    dirty_ = true;
    return {false, state_ == State::kLoading};
  }
  key_ = key;
  id_ = sha256_of(key + std::to_string(random_())).substr(0, 16);
  state_ = State::kLoading;
  verdict_.clear(), text_.clear(), reasons_.clear();
  step_ = 0, by_hand_ = false, percent_ = options.share(0);
  begin_window();
  restore();
  dirty_ = true;
  return {there, state_ == State::kLoading};
}

void Canary::begin_window() {
  window_ = {};
  held_s_ = 0;
  since_ = Clock::now();
  look_at_ = next_look(0, options_.min_requests);
}

bool Canary::loaded() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kLoading) return false;
    state_ = verdict_ == "pass" ? State::kPassed : State::kRunning;
    since_ = Clock::now();
    dirty_ = true;
    log("canary").info("{} takes {:g} % of the requests", options_.backend, percent_);
  }
  hooks_.changed();
  return true;
}

void Canary::refused(const std::string& reason, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kLoading) return;
  home({{reason, 0, 0}}, message);
  wake_.notify_all();
}

void Canary::promoted() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kOff;
    percent_ = 0;
    dirty_ = true;
    verdict_ = "promoted";
    log("canary").info("{} has become the stable backend", options_.backend);
  }
  hooks_.changed();
}

void Canary::set_percent(double percent) {
  {
    const std::lock_guard lock(mutex_);
    if (options_.backend.empty() || key_.empty()) throw ApiError("the profile has no [canary]", "percent");
    if (state_ == State::kOff) throw ApiError(options_.backend + " is the stable backend by now", "percent");
    if (unload_) throw ApiError(options_.backend + " is still on its way home; try again in a moment", "percent", "swap_in_progress", 409);
    if (state_ == State::kHome) {
      state_ = State::kLoading;
      verdict_.clear(), text_.clear(), reasons_.clear();
    } else if (state_ == State::kPassed) {
      state_ = State::kRunning;
      verdict_.clear();
    }
    percent_ = percent;
    by_hand_ = true;
    begin_window();
    dirty_ = true;
    log("canary").info("{}: {:g} % of the requests, set by hand", options_.backend, percent);
  }
  wake_.notify_all();
  hooks_.changed();
}

void Canary::abort(const std::string& by) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kOff || state_ == State::kHome) throw ApiError("no canary is running");
  home({{"abort", 0, 0}}, "sent home by " + by);
  wake_.notify_all();
}

bool Canary::wanted() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kLoading;
}

double Canary::percent() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kRunning || state_ == State::kPassed ? percent_ : 0;
}

std::string Canary::sticky() const {
  const std::lock_guard lock(mutex_);
  return options_.sticky;
}

// ---- requests ----------------------------------------------------------------------------------------

Arm Canary::choose(std::string_view sticky, std::string_view pin) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kRunning && state_ != State::kPassed) return Arm::kStable;
  if (options_.allow_pin && (pin == "stable" || pin == "canary")) return pin == "canary" ? Arm::kCanary : Arm::kStable;
  if (sticky.empty()) return std::uniform_real_distribution<double>(0, 100)(random_) < percent_ ? Arm::kCanary : Arm::kStable;
  return in_canary(sticky, id_, percent_) ? Arm::kCanary : Arm::kStable;
}

void Canary::started(const std::string& request_id, Arm arm) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kRunning && state_ != State::kPassed) return;
  if (!seen_.emplace(request_id, std::pair(arm, false)).second) return;
  seen_order_.push_back(request_id);
  if (seen_order_.size() > kRemembered) {
    seen_.erase(seen_order_.front());
    seen_order_.pop_front();
  }
}

void Canary::ended(const CanaryOutcome& o) {
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kRunning && state_ != State::kPassed) return;
    window_.of(o.arm).add(o);
    dirty_ = true;
    wake = due();
  }
  if (wake) wake_.notify_all();
}

void Canary::fault(const std::string& reason, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kRunning && state_ != State::kPassed) return;
  home({{reason, 1, 0}}, message);
  wake_.notify_all();
}

void Canary::shadow(const std::vector<std::int32_t>& prompt) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kRunning && state_ != State::kPassed) return;
    if (options_.shadow_fraction <= 0 || prompt.size() < 2 || prompts_.size() >= kQueued || window_.shadow.size() >= kShadows) return;
    if (std::uniform_real_distribution<double>(0, 1)(random_) >= options_.shadow_fraction) return;
    prompts_.push_back({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(std::min(prompt.size(), kScored))});
  }
  wake_.notify_all();
}

std::optional<Arm> Canary::feedback(const std::string& request_id, bool good) {
  const std::lock_guard lock(mutex_);
  const auto it = seen_.find(request_id);
  if (it == seen_.end()) return std::nullopt;
  auto& [arm, told] = it->second;
  if (!told) ++(good ? window_.of(arm).good : window_.of(arm).bad), dirty_ = true;
  told = true;
  return arm;
}

// ---- its own thread ----------------------------------------------------------------------------------

void Canary::home(std::vector<Reason> reasons, const std::string& text) {
  if (state_ == State::kHome) return;
  if (state_ == State::kRunning || state_ == State::kPassed) unload_ = true;
  tell_ = true;
  state_ = State::kHome;
  percent_ = 0;
  verdict_ = "fail";
  reasons_ = std::move(reasons);
  text_ = text;
  dirty_ = true;
  prompts_.clear();
  log("canary").warn("{} is sent home after {} of its requests: {}", options_.backend, window_.of(Arm::kCanary).requests, text);
}

void Canary::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, std::chrono::milliseconds(200), [&] { return stop_ || unload_ || tell_ || !prompts_.empty() || due(); });
    if (stop_) return;
    if (unload_ || tell_) {
      const bool unload = std::exchange(unload_, false);
      std::vector<std::string> reasons;
      if (std::exchange(tell_, false))
        for (const Reason& r : reasons_) reasons.push_back(r.gate);
      lock.unlock();
      for (const std::string& r : reasons) hooks_.returned(r);
      if (unload) hooks_.unload();
      hooks_.changed();
      persist();
      lock.lock();
      continue;
    }
    if (!prompts_.empty()) {
      const auto prompt = std::move(prompts_.front());
      prompts_.pop_front();
      lock.unlock();
      score(prompt);
      look();  // prompts may come without end
      lock.lock();
      continue;
    }
    lock.unlock();
    look();
    if (seconds(Clock::now() - written_) > 1) persist();
    lock.lock();
  }
}

// Both models over one prompt of a client's. Neither answer goes anywhere.
void Canary::score(const std::vector<std::int32_t>& prompt) {
  const auto stable = router_.stable(), canary = router_.canary();
  if (!stable || !canary) return;
  if (std::ssize(prompt) > stable->engine->max_model_len() || std::ssize(prompt) > canary->engine->max_model_len()) return;
  KlStats stats;
  double sum = 0;
  std::int64_t scored = 0;
  try {
    std::vector<std::vector<float>> rows;
    stable->engine->all_logits(prompt, [&](std::int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); });
    std::size_t at = 0;
    canary->engine->all_logits(prompt, [&](std::int64_t position, std::span<const float> row) {
      if (position + 1 < std::ssize(prompt)) {
        const double one = stats.add(rows.at(at), row, prompt[static_cast<std::size_t>(position + 1)]);
        if (std::isfinite(one)) sum += one, ++scored;
      }
      ++at;
    });
  } catch (const Error& e) {
    if (e.code() == "E404") return;  // a full cache: another prompt will do
    if (e.code() == "E406") return fault("nonfinite", "logits of a prompt were not finite: " + e.message());
    return fault("plugin", e.code() + " " + e.message());
  } catch (const std::exception& e) {
    return fault("plugin", e.what());
  }
  if (scored == 0) return;
  const std::lock_guard lock(mutex_);
  window_.shadow.push_back(sum / static_cast<double>(scored));
  window_.shadow_tokens += scored;
  dirty_ = true;
}

bool Canary::due() const {
  if ((state_ != State::kRunning && state_ != State::kPassed) || window_.of(Arm::kCanary).requests < look_at_) return false;
  // Where everything goes to the canary there is nothing to compare it with.
  return percent_ >= 100 || window_.of(Arm::kStable).requests >= options_.min_requests;
}

void Canary::look() {
  CanaryWindow window;
  CanaryLimits limits;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kRunning && state_ != State::kPassed) return;
    if (!due()) return;
    window = window_;
    limits = options_.limits;
  }
  const Verdict v = judge_canary(window, limits);
  bool changed = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kRunning && state_ != State::kPassed) return;
    look_at_ = next_look(window.of(Arm::kCanary).requests, options_.min_requests);
    if (v.grade == Verdict::kFail) {
      std::vector<Reason> reasons;
      std::string text;
      for (const VerdictReason& r : v.reasons) {
        reasons.push_back({r.gate, r.value, r.limit});
        char one[128];
        std::snprintf(one, sizeof one, "%s%s %.4g, limit %.4g", text.empty() ? "" : "; ", r.gate.c_str(), r.value, r.limit);
        text += one;
      }
      home(std::move(reasons), text);
      wake_.notify_all();
      return;
    }
    const double held = held_s_ + seconds(Clock::now() - since_);
    if (state_ == State::kRunning && !by_hand_ && !options_.last(step_)) {
      if (held >= options_.step_hold_s) {
        ++step_;
        percent_ = options_.share(step_);
        log("canary").info("{} has passed {} requests; it takes {:g} % from here on", options_.backend, window.of(Arm::kCanary).requests, percent_);
        begin_window();
        changed = true;
      }
    } else if (state_ == State::kRunning && (options_.steps.empty() || by_hand_ || held >= options_.step_hold_s)) {
      state_ = State::kPassed;
      verdict_ = "pass";
      log("canary").info("{} has passed: {} requests against {}, nothing beyond its limit", options_.backend, window.of(Arm::kCanary).requests, window.of(Arm::kStable).requests);
      changed = true;
    }
    dirty_ = true;
  }
  if (changed) hooks_.changed();
}

// ---- what survives -----------------------------------------------------------------------------------

Json Canary::kept() const {
  Json reasons = Json::array();
  for (const Reason& r : reasons_) reasons.push_back({{"gate", r.gate}, {"value", r.value}, {"limit", r.limit}});
  return {{"schema", "qengine.canary/1"}, {"backend", options_.backend}, {"key", key_}, {"id", id_}, {"state", to_string(state_)}, {"percent", percent_}, {"by_hand", by_hand_},
          {"step", step_}, {"held_s", held_s_ + (state_ == State::kRunning || state_ == State::kPassed ? seconds(Clock::now() - since_) : 0)}, {"verdict", verdict_}, {"text", text_}, {"reasons", std::move(reasons)},
          {"stable", window_.of(Arm::kStable).json()}, {"canary", window_.of(Arm::kCanary).json()}, {"shadow", window_.shadow}, {"shadow_tokens", window_.shadow_tokens}};
}

void Canary::persist() {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    written_ = Clock::now();
    if (!dirty_ || file_.empty()) return;
    dirty_ = false;
    text = kept().dump(1) + "\n";
  }
  try {
    std::filesystem::create_directories(file_.parent_path());
    write_file_safely(file_, text);
  } catch (const std::exception& e) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) log("canary").warn("{} cannot be written ({}): the canary's state will not survive a restart", file_.string(), e.what());
  }
}

// Only what was kept of the same backend with the same settings.
void Canary::restore() {
  std::ifstream in(file_, std::ios::binary);
  if (file_.empty() || !in) return;
  const Json j = Json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
  if (!j.is_object() || j.value("schema", std::string()) != "qengine.canary/1") {
    log("canary").warn("{} holds no state of a canary and is not used", file_.string());
    return;
  }
  try {
    if (j.value("key", std::string()) != key_ || j.value("backend", std::string()) != options_.backend) return;
    id_ = j.value("id", id_);
    verdict_ = j.value("verdict", std::string());
    text_ = j.value("text", std::string());
    for (const Json& r : j.value("reasons", Json::array())) reasons_.push_back({r.value("gate", std::string()), r.value("value", 0.0), r.value("limit", 0.0)});
    const std::string state = j.value("state", std::string());
    if (state == "home") {
      state_ = State::kHome;
      percent_ = 0;
      log("canary").warn("{} was sent home before the restart and stays there: {}", options_.backend, text_);
      return;
    }
    if (state == "off") return;  // promoted
    by_hand_ = j.value("by_hand", false);
    const auto step = j.value("step", std::size_t{0});
    const double percent = j.value("percent", percent_);
    if (!by_hand_ && options_.share(step) != percent) return;  // the steps are others now
    step_ = step;
    percent_ = percent;
    window_.of(Arm::kStable) = ArmWindow::from_json(j.value("stable", Json::object()));
    window_.of(Arm::kCanary) = ArmWindow::from_json(j.value("canary", Json::object()));
    window_.shadow = j.value("shadow", std::vector<double>());
    window_.shadow_tokens = j.value("shadow_tokens", std::int64_t{0});
    held_s_ = j.value("held_s", 0.0);
    look_at_ = next_look(window_.of(Arm::kCanary).requests, options_.min_requests);
    log("canary").info("{} goes on at {:g} %, after {} requests", options_.backend, percent_, window_.of(Arm::kCanary).requests);
  } catch (const Json::exception& e) {
    log("canary").warn("{} holds no state of a canary ({})", file_.string(), e.what());
  }
}

Json Canary::status() const {
  const std::lock_guard lock(mutex_);
  if (options_.backend.empty()) return {{"state", "off"}};
  Json j = kept();
  for (const char* key : {"schema", "key", "text"}) j.erase(key);
  if (!text_.empty()) j["message"] = text_;
  if (verdict_.empty()) j["verdict"] = nullptr;
  for (const char* arm : {"stable", "canary"}) {
    const auto p95 = [](std::vector<double> v) -> Json {
      if (v.empty()) return nullptr;
      std::sort(v.begin(), v.end());
      return 1e3 * v[static_cast<std::size_t>(.95 * static_cast<double>(v.size() - 1))];
    };
    j[arm]["ttft_p95_ms"] = p95(j[arm]["ttft_s"].get<std::vector<double>>());
    j[arm]["itl_p95_ms"] = p95(j[arm]["gap_s"].get<std::vector<double>>());
    j[arm].erase("ttft_s"), j[arm].erase("gap_s");
  }
  double sum = 0;
  for (const double x : window_.shadow) sum += x;
  j["shadow"] = {{"prompts", window_.shadow.size()}, {"tokens", window_.shadow_tokens}};
  if (!window_.shadow.empty()) j["shadow"]["kl_mean"] = sum / static_cast<double>(window_.shadow.size());
  j.erase("shadow_tokens");
  j["min_requests"] = options_.min_requests;
  j["steps"] = options_.steps;
  j["sticky"] = options_.sticky;
  if (state_ == State::kRunning || state_ == State::kPassed) j["next_look_at"] = look_at_;
  return j;
}

}  // namespace qengine::server
