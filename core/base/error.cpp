#include "core/base/error.hpp"

namespace qengine {

Error::Error(std::string code, std::string message)
    : code_(std::move(code)), message_(std::move(message)), text_(code_ + " " + message_) {}

Error& Error::line(std::string key, std::string text) {
  text_ += "\n  " + key + std::string(key.size() < 5 ? 6 - key.size() : 2, ' ') + text;
  lines_.emplace_back(std::move(key), std::move(text));
  return *this;
}

std::string_view Error::find(std::string_view key) const {
  for (const auto& [k, t] : lines_)
    if (k == key) return t;
  return {};
}

int Error::exit_code() const {
  switch (code_.size() > 1 ? code_[1] : '0') {
    case '1': return 2;
    case '2': return 3;
    case '3': return 4;
    case '4': return 5;
    case '5': return 7;
    default: return 1;
  }
}

}  // namespace qengine
