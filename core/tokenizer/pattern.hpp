// The `pattern` of a Split or Replace step: {"String": ...} or {"Regex": ...}.
#pragma once

#include <string>
#include <string_view>

#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/regex.hpp"

namespace qengine {

class Pattern {
 public:
  Pattern(std::string text, bool regex) : text_(std::move(text)) {
    if (regex) regex_.emplace_back(text_);
  }

  // visit(begin, end) for each match. An empty string matches nowhere.
  template <class Visit>
  void each(std::string_view in, Visit&& visit) const {
    if (!regex_.empty()) return regex_[0].each(in, visit);
    if (text_.empty()) return;
    for (std::size_t at = in.find(text_); at != std::string_view::npos; at = in.find(text_, at + text_.size()))
      visit(at, at + text_.size());
  }

  bool is_regex() const { return !regex_.empty(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<Regex> regex_;  // none or one
};

inline Pattern parse_pattern(const Json& json, const std::string& where) {
  if (json.is_string()) return Pattern(json.get<std::string>(), false);
  const JsonFields f(json, where);
  if (f.find("Regex")) {
    try {
      return Pattern(f.string("Regex"), true);
    } catch (Error& e) {
      throw e.from(f.path("Regex"));
    }
  }
  return Pattern(f.string("String"), false);
}

inline void replace_all(std::string& text, const Pattern& pattern, std::string_view with) {
  std::string out;
  std::size_t done = 0;
  bool any = false;
  pattern.each(text, [&](std::size_t begin, std::size_t end) {
    any = true;
    out.append(text, done, begin - done).append(with);
    done = end;
  });
  if (!any) return;
  out.append(text, done);
  text.swap(out);
}

}  // namespace qengine
