// Regex: the patterns of tokenizer files. They are written for Oniguruma (formats.md 2.7) and run here
// by PCRE2, translated where the two differ: \s is White_Space, \w and \h mean what Oniguruma means,
// ^ and $ match at every line, character classes may be nested and intersected.
//
// Patterns come from files and are untrusted: matching is bounded in steps and memory. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace qengine {

class Regex {
 public:
  // Throws Error E220 naming the pattern and what is wrong with it.
  explicit Regex(std::string pattern);
  static Regex literal(std::string_view text);  // matches exactly `text`, which is not empty
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  const std::string& pattern() const { return pattern_; }

  // The leftmost match at or after `from`; false when there is none. REQUIRES: well-formed UTF-8.
  // Throws Error E220 when a bound is exceeded.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;

  // visit(begin, end) for every match, left to right; an empty match moves on by one character.
  template <class Visit>
  void each(std::string_view text, Visit&& visit) const {
    std::size_t from = 0, begin = 0, end = 0, last_end = std::string_view::npos;
    while (from <= text.size() && find(text, from, begin, end)) {
      if (!(begin == end && begin == last_end)) visit(begin, end);
      last_end = end;
      from = end > begin ? end : end + step(text, end);
    }
  }

  // As PCRE2 reads it; for tests.
  static std::string translate(std::string_view pattern);

 private:
  Regex(std::string pattern, std::string translated, bool literal);
  static std::size_t step(std::string_view text, std::size_t pos);
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

}  // namespace qengine
