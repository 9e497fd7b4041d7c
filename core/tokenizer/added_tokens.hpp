// Added tokens: strings that are found in the text before (or after) normalization and never cut.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qengine {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false, normalized = false, single_word = false, lstrip = false, rstrip = false;
};

// Finds a set of strings in a text, leftmost first and the longest there. The strings are sorted; a
// search narrows the range of those that still match by one byte after the other.
class TokenFinder {
 public:
  // `spelled`: what to look for, as many as tokens. Empty ones are left out.
  TokenFinder(std::vector<AddedToken> tokens, std::vector<std::string> spelled);
  TokenFinder() = default;
  bool empty() const { return entries_.empty(); }

  // visit(token, begin, end) for tokens (with the whitespace they swallow), text(begin, end) for what
  // lies between, left to right.
  template <class Visit, class Text>
  void split(std::string_view in, Visit&& visit, Text&& text) const {
    std::size_t done = 0, from = 0, begin = 0, end = 0;
    while (const AddedToken* token = next(in, from, begin, end)) {
      from = end;
      if (!widen(*token, in, done, begin, end)) continue;
      if (done < begin) text(done, begin);
      visit(*token, begin, end);
      done = end;
    }
    if (done < in.size()) text(done, in.size());
  }

 private:
  struct Entry {
    std::string text;
    std::uint32_t token;
  };
  const AddedToken* next(std::string_view in, std::size_t from, std::size_t& begin, std::size_t& end) const;
  // Applies single_word (false: not a match after all), lstrip and rstrip.
  static bool widen(const AddedToken& token, std::string_view in, std::size_t done, std::size_t& begin, std::size_t& end);

  std::vector<AddedToken> tokens_;
  std::vector<Entry> entries_;                 // by text
  std::array<std::uint32_t, 257> first_{};     // entries whose first byte is b: [first_[b], first_[b+1])
};

}  // namespace qengine
