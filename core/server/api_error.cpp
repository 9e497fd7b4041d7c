#include "core/server/api_error.hpp"

#include <nlohmann/json.hpp>

namespace qengine::server {

ApiError ApiError::from(const Error& e, std::string param) {
  std::string text = e.message();
  if (const auto hint = e.find("hint"); !hint.empty()) text += " " + std::string(hint);
  const std::string& c = e.code();
  if (c == "E502") return ApiError(text, std::move(param), "context_length_exceeded");
  if (c == "E503") return ApiError(text, param.empty() ? "model" : std::move(param), "model_not_found", 404);
  if (c == "E504") return ApiError(text, param.empty() ? "messages" : std::move(param), "template_error");
  if (c.starts_with("E1")) return ApiError(text, std::move(param));
  ApiError out(text, {}, c == "E406" ? "nonfinite_logits" : "internal_error", 500);
  out.headers.emplace_back("x-should-retry", "false");
  return out;
}

std::string ApiError::body() const {
  nlohmann::ordered_json e;
  e["message"] = message;
  e["type"] = type;
  e["param"] = param.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(param);
  e["code"] = code.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(code);
  return nlohmann::ordered_json{{"error", std::move(e)}}.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

http::Response ApiError::response() const {
  http::Response r;
  r.status = status;
  r.headers = headers;
  r.headers.emplace_back("Content-Type", "application/json");
  r.body = body();
  return r;
}

}  // namespace qengine::server
