// The routes of whoever runs the server: another model in place of this one.
#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/server/json_reply.hpp"
#include "core/server/service.hpp"

namespace qengine::server {
namespace {

// Reports are answers; what did not come about is also an error, so that a client of any kind sees it.
http::Response reply(const SwapReport& r, const std::vector<std::string>& notices) {
  Json j = r.json();
  if (!notices.empty()) j["notices"] = notices;
  if (r.result == "switched" || r.result == "unchanged") return json_reply(j);
  const bool conflict = r.reason == "busy" || r.reason == "memory" || r.reason == "drain";
  j["error"] = {{"message", r.message}, {"type", "invalid_request_error"}, {"param", nullptr}, {"code", r.reason == "busy" ? "swap_in_progress" : "swap_" + r.result}};
  return json_reply(j, r.reason == "stopped" ? 503 : conflict ? 409 : 422);
}

Json body_of(const http::Request& r, int depth) {
  if (r.body.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  Json body = parse_body(r.body, depth);
  if (!body.is_object()) throw ApiError("the body must be a JSON object, or nothing", {}, "invalid_json");
  return body;
}

void only(const Json& body, std::initializer_list<const char*> known) {
  for (const auto& [key, v] : body.items()) {
    bool ok = false;
    std::string all;
    for (const char* k : known) ok |= key == k, all += (all.empty() ? "" : ", ") + std::string(k);
    if (!ok) throw ApiError("unknown field " + key.substr(0, 60) + "; known: " + all, key.substr(0, 60));
  }
}

std::optional<SwapSettings::Mode> mode_of(const Json& body) {
  if (!body.contains("mode")) return std::nullopt;
  const auto mode = body["mode"].is_string() ? swap_mode(body["mode"].get<std::string>()) : std::nullopt;
  if (!mode) throw ApiError("mode is " + body["mode"].dump().substr(0, 40) + "; allowed: auto, beside, drain_first", "mode");
  return mode;
}

}  // namespace

std::shared_ptr<const LiveOptions> Service::live() const {
  const std::lock_guard lock(live_mutex_);
  return live_;
}

void Service::apply(LiveOptions live) {
  for (auto* keys : {&live.api_keys, &live.admin_keys})
    for (std::string& k : *keys) k = sha256_of(k);  // only hashes stay
  if (live.max_num_queued_reqs <= 0) {
    const auto b = router_.stable();
    live.max_num_queued_reqs = std::max<std::int64_t>(256, 4 * (b ? b->engine->options().max_num_seqs : 0));
  }
  if (!live.log_level.empty()) set_log_level(live.log_level);
  const std::lock_guard lock(live_mutex_);
  live_ = std::make_shared<const LiveOptions>(std::move(live));
}

Limits Service::limits() const {
  Limits l = options_.limits;
  l.max_logprobs = live()->max_logprobs;
  return l;
}

std::shared_ptr<Backend> Service::backend() const {
  auto b = router_.stable();
  if (!b) throw swapping();
  return b;
}

void Service::apply_canary(const Reread& now, const SwapSettings& settings) {
  CanaryOptions options = now.live.canary;
  BackendSpec spec;
  for (const BackendSpec& b : now.backends)
    if (b.name == options.backend) spec = b;
  const auto stable = router_.stable();
  if (!options.backend.empty() && stable && stable->spec.key == spec.key) {
    log("canary").warn("{} is the stable backend: there is nothing to try", options.backend);
    options.backend.clear();
  }
  const Canary::Change next = canary_->configure(options, spec.key);
  const auto unload = [this] {
    if (const Backend* old = router_.set_canary(nullptr)) router_.retire(old, [this] { return swapper_->stopping(); });
  };
  if (next.unload) unload();
  if (next.load) {
    const SwapReport r = swapper_->load_canary(spec, settings);
    log("canary").log(r.result == "switched" ? spdlog::level::info : spdlog::level::warn, "{}: {} ({}): {}", spec.name, r.result, r.reason, r.message);
    if (r.result != "switched") canary_->refused(r.reason, r.message);
    else if (!canary_->loaded()) unload();
  }
  instruments_->canary_percent(canary_->percent());
  instruments_->describe();
}

void Service::change(const std::function<BackendSpec(const Reread&)>& choose, std::optional<SwapSettings::Mode> mode, bool force, std::shared_ptr<http::Exchange> x) {
  const auto answer = [x](const SwapReport& r, const std::vector<std::string>& notices) {
    if (x) x->respond(reply(r, notices));
  };
  const auto stable = router_.stable();
  SwapReport failed{"refused", "profile", "", stable ? stable->spec.name : "", "", {}};
  std::vector<std::string> notices;
  BackendSpec spec;
  SwapSettings settings;
  Reread now;
  try {
    now = options_.reread();
    notices = now.notices;
    for (const std::string& n : notices) log("swap").warn("{}", n);
    spec = choose(now);
    apply(LiveOptions(now.live));
    settings = live()->swap;
  } catch (const Error& e) {
    failed.message = e.code() + " " + e.message() + (e.find("hint").empty() ? "" : "; " + std::string(e.find("hint")));
    swapper_->refused(failed);
    return answer(failed, notices);
  } catch (const std::exception& e) {
    failed.reason = "failed";
    failed.message = e.what();
    swapper_->refused(failed);
    return answer(failed, notices);
  }
  settings.template_override = !options_.chat_template.empty();
  if (mode) settings.mode = *mode;
  settings.force = force;
  if (const auto busy = swapper_->begin(std::move(spec), settings, [answer, notices](const SwapReport& r) { answer(r, notices); },
                                         [this, now = std::move(now), settings] { apply_canary(now, settings); })) {
    log("swap").warn("{}: {}", busy->reason, busy->message);
    instruments_->swapped(busy->result, busy->reason);
    answer(*busy, notices);
  }
}

void Service::reload() {
  change([](const Reread& now) {
    for (const BackendSpec& b : now.backends)
      if (b.name == now.active) return b;
    return now.backends.front();
  }, std::nullopt, false, nullptr);
}

void Service::admin_reload(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = body_of(r, options_.limits.max_json_depth);
  only(body, {"backend", "mode", "force"});
  const bool force = body.contains("force") && body["force"].is_boolean() && body["force"].get<bool>();
  const auto mode = mode_of(body);
  change([&](const Reread& now) {
    if (body.contains("backend")) return now.backend_of(body["backend"]);
    for (const BackendSpec& b : now.backends)
      if (b.name == now.active) return b;
    return now.backends.front();
  }, mode, force, std::move(x));
}

void Service::admin_switch(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = body_of(r, options_.limits.max_json_depth);
  only(body, {"to", "mode"});
  if (!body.contains("to") || !body["to"].is_string()) throw ApiError("to must name a [[backend]] of the profile", "to");
  const std::string to = body["to"].get<std::string>();
  const auto mode = mode_of(body);
  change([&](const Reread& now) {
    std::string names;
    for (const BackendSpec& b : now.backends) {
      if (b.name == to) return b;
      names += (names.empty() ? "" : ", ") + b.name;
    }
    throw Error("E102", "no [[backend]] is called \"" + to.substr(0, 100) + "\"").hint("the profile holds " + names);
  }, mode, false, std::move(x));
}

void Service::admin_canary(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = body_of(r, options_.limits.max_json_depth);
  only(body, {"percent"});
  if (!body.contains("percent") || !body["percent"].is_number() || body["percent"].get<double>() < 0 || body["percent"].get<double>() > 100) throw ApiError("percent must be a number from 0 to 100", "percent");
  canary_->set_percent(body["percent"].get<double>());
  if (canary_->wanted()) {  // it was sent home
    SwapSettings settings = live()->swap;
    settings.template_override = !options_.chat_template.empty();
    const Reread now = options_.reread();
    if (const auto busy = swapper_->begin(std::nullopt, settings, {}, [this, now, settings] { apply_canary(now, settings); })) {
      canary_->refused(busy->reason, busy->message);
      throw ApiError(busy->message, {}, "swap_in_progress", 409);
    }
  }
  x->respond(json_reply({{"canary", canary_->status()}}));
}

void Service::admin_abort(http::Request, std::shared_ptr<http::Exchange> x) {
  canary_->abort("POST /admin/abort");
  x->respond(json_reply({{"canary", canary_->status()}}));
}

void Service::admin_reset_prefix_cache(http::Request, std::shared_ptr<http::Exchange> x) {
  Json names = Json::array();
  for (const auto& b : router_.all()) {
    b->engine->drop_prefix_cache();
    names.push_back(b->spec.name);
  }
  x->respond(json_reply({{"reset", std::move(names)}}));
}

void Service::admin_feedback(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = body_of(r, options_.limits.max_json_depth);
  only(body, {"request_id", "verdict"});
  const auto text = [&](const char* key) { return body.contains(key) && body[key].is_string() ? body[key].get<std::string>() : std::string(); };
  const std::string id = text("request_id"), verdict = text("verdict");
  if (id.empty()) throw ApiError("request_id must be the id of an answer", "request_id");
  if (verdict != "good" && verdict != "bad") throw ApiError("verdict must be \"good\" or \"bad\"", "verdict");
  const auto arm = canary_->feedback(id, verdict == "good");
  if (!arm) throw ApiError("no request of this canary's time has the id " + id.substr(0, 140), "request_id", "unknown_request", 404);
  instruments_->feedback(*arm, verdict == "good");
  x->respond(json_reply({{"request_id", id}, {"arm", to_string(*arm)}}));
}

void Service::admin_status(http::Request, std::shared_ptr<http::Exchange> x) {
  Json loaded = Json::array();
  const auto stable = router_.stable();
  for (const auto& b : router_.all()) {
    Json j = b->json();
    j["arm"] = b == stable ? "stable" : b == router_.canary() ? "canary" : "leaving";
    const EngineStats s = b->engine->stats();
    const MemoryReport m = b->engine->memory();
    j["running"] = s.running;
    j["waiting"] = s.waiting;
    j["weights_bytes"] = m.weights_bytes;
    j["kv_bytes"] = m.kv_bytes;
    j["max_model_len"] = b->engine->max_model_len();
    loaded.push_back(std::move(j));
  }
  Json out{{"backend", stable ? Json(stable->spec.name) : Json(nullptr)}, {"backends", std::move(loaded)}, {"requests", active()}, {"swap", swapper_->status()}, {"canary", canary_->status()}};
  x->respond(json_reply(out));
}

}  // namespace qengine::server
