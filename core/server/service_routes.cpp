// What happens to a request before and after its handler: routes, keys, refusals before the body, CORS.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/sha256.hpp"
#include "core/server/service.hpp"
#include "core/server/workers.hpp"

namespace qengine::server {
namespace {

// Takes as long for every pair of texts of one length.
bool same(std::string_view a, std::string_view b) {
  unsigned char differ = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace

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
      {"GET", "/admin/status", &Service::admin_status, false, false, true},
      {"POST", "/admin/reload", &Service::admin_reload, false, true, true},
      {"POST", "/admin/switch", &Service::admin_switch, false, true, true},
      {"POST", "/admin/canary", &Service::admin_canary, false, true, true},
      {"POST", "/admin/abort", &Service::admin_abort, false, true, true},
      {"POST", "/admin/reset_prefix_cache", &Service::admin_reset_prefix_cache, false, true, true},
      {"POST", "/admin/feedback", &Service::admin_feedback, false, true, true},
  };
  return all;
}

std::optional<ApiError> Service::key_refusal(const Route& route, const http::Request& r) const {
  const auto live = this->live();
  const bool own = route.admin && !live->admin_keys.empty();
  const std::vector<std::string>& keys = own ? live->admin_keys : live->api_keys;
  // Whoever can open that socket is the user that the server runs as.
  if (r.by_admin_socket) return std::nullopt;
  // A page in somebody's browser may send to this machine too, and says so.
  if (route.admin && !r.header("origin").empty()) return ApiError("web pages may not use " + std::string(route.path), {}, "admin_disabled", 403);
  if (route.admin && !own && !options_.http.admin_uds.empty())
    return ApiError(std::string(route.path) + " answers on the admin socket only (--admin-uds); --admin-key-file FILE opens it here to whoever has a key", {}, "admin_disabled", 403);
  if (keys.empty()) {
    const bool here = r.remote == "unix" || r.remote == "::1" || r.remote.starts_with("127.") || r.remote.starts_with("::ffff:127.");
    const bool passed_on = !r.header("forwarded").empty() || !r.header("x-forwarded-for").empty() || !r.header("x-real-ip").empty();
    if (route.admin && (!here || passed_on)) return ApiError(std::string(route.path) + " answers this machine only; --admin-key-file FILE opens it to whoever has a key", {}, "admin_disabled", 403);
    return std::nullopt;
  }
  std::string_view key = r.header("authorization");
  if (key.size() > 7 && (key.substr(0, 7) == "Bearer " || key.substr(0, 7) == "bearer ")) key.remove_prefix(7);
  else key = {};
  const std::string hash = sha256_of(key);
  bool ok = false;
  for (const auto& h : keys) ok |= same(h, hash);
  if (ok) return std::nullopt;
  ApiError e(std::string("the ") + (own ? "admin" : "API") + " key is missing or wrong; send it as Authorization: Bearer KEY", {}, "invalid_api_key", 401);
  e.headers.emplace_back("WWW-Authenticate", "Bearer");
  return e;
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
  if (r.by_admin_socket && !found->admin && r.method == "POST")
    return refuse(ApiError("the admin socket has the routes of /admin; " + std::string(found->path) + " is at " + address(), {}, "unknown_url", 404));
  if (!found->open)
    if (const auto e = key_refusal(*found, r)) return refuse(*e);
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
      if (!router_.stable()) return refuse(swapping());
      if (reserved_ >= live()->max_num_queued_reqs) {
        instruments_->rejected->add();
        return refuse(overloaded());
      }
    }
  }
  return std::nullopt;
}

ApiError Service::swapping() const {
  const int wait = swapper_->silent_for().value_or(5);
  ApiError e("the server is changing its model and answers again in about " + std::to_string(wait) + " s", {}, "swapping", 503);
  e.headers.emplace_back("Retry-After", std::to_string(wait));
  return e;
}

ApiError Service::overloaded() const {
  const auto live = this->live();
  // Queued prompt tokens over the prefill rate seen so far, within 1 to 30 s.
  const double rate = std::max(1.0, prefill_tok_s_.load());
  const auto wait = std::clamp<long>(std::lround(std::ceil(static_cast<double>(queued_prompt_tokens_) / rate)), 1, 30);
  ApiError e("the queue is full (" + std::to_string(live->max_num_queued_reqs) + " requests, --max-num-queued-reqs); try again in " + std::to_string(wait) + " s", {},
             live->overload_status == 503 ? "server_is_overloaded" : "queue_full", live->overload_status);
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

}  // namespace qengine::server
