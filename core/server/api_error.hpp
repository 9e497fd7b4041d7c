// ApiError: a refusal in OpenAI's shape (serving.md 3.3). Thrown while a request is read, written once.
#pragma once

#include <exception>
#include <string>

#include "core/base/error.hpp"
#include "core/server/http.hpp"

namespace qengine::server {

struct ApiError : std::exception {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // "" becomes null
  std::string param;  // "" becomes null: the field, "messages[2].content"
  std::string message;
  http::Headers headers;  // Retry-After, Allow, WWW-Authenticate

  ApiError(std::string message_, std::string param_ = {}, std::string code_ = {}, int status_ = 400)
      : status(status_), code(std::move(code_)), param(std::move(param_)), message(std::move(message_)) {
    if (status == 429) type = "rate_limit_error";
    if (status == 500) type = "server_error";
    if (status == 503) type = "service_unavailable_error";
  }
  const char* what() const noexcept override { return message.c_str(); }

  // Our own errors as a client sees them: message and hint in one line; E502 context_length_exceeded,
  // E503 model_not_found, E504 template_error, other E1xx plain 400, the rest 500.
  static ApiError from(const Error& e, std::string param = {});

  http::Response response() const;
  std::string body() const;  // {"error":{...}} in one line
};

}  // namespace qengine::server
