#include "core/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "core/tokenizer/unicode.hpp"

namespace qengine {

TokenFinder::TokenFinder(std::vector<AddedToken> tokens, std::vector<std::string> spelled) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    if (!spelled[i].empty()) entries_.push_back({std::move(spelled[i]), static_cast<std::uint32_t>(i)});
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  const auto same = [](const Entry& a, const Entry& b) { return a.text == b.text; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  std::uint32_t e = 0;
  for (unsigned b = 0; b <= 256; ++b) {
    while (e < entries_.size() && static_cast<unsigned char>(entries_[e].text[0]) < b) ++e;
    first_[b] = e;
  }
}

const AddedToken* TokenFinder::next(std::string_view in, std::size_t from, std::size_t& begin, std::size_t& end) const {
  if (entries_.empty()) return nullptr;
  for (std::size_t at = from; at < in.size(); ++at) {
    const auto b = static_cast<unsigned char>(in[at]);
    std::uint32_t low = first_[b], high = first_[b + 1u];
    if (low == high) continue;
    const AddedToken* found = nullptr;
    // entries_[low, high) agree with `in` on the first n bytes.
    for (std::size_t n = 1; low < high; ++n) {
      if (entries_[low].text.size() == n) {  // the shortest sorts first
        found = &tokens_[entries_[low].token];
        begin = at, end = at + n;
        ++low;
      }
      if (at + n >= in.size()) break;
      const auto next_byte = static_cast<unsigned char>(in[at + n]);
      const auto byte = [n](const Entry& e) { return static_cast<unsigned char>(e.text[n]); };
      const auto first = entries_.begin() + low, last = entries_.begin() + high;
      const auto l = std::lower_bound(first, last, next_byte, [&](const Entry& e, unsigned char v) { return byte(e) < v; });
      const auto h = std::upper_bound(l, last, next_byte, [&](unsigned char v, const Entry& e) { return v < byte(e); });
      low = static_cast<std::uint32_t>(l - entries_.begin()), high = static_cast<std::uint32_t>(h - entries_.begin());
    }
    if (found) return found;
  }
  return nullptr;
}

bool TokenFinder::widen(const AddedToken& token, std::string_view in, std::size_t done, std::size_t& begin, std::size_t& end) {
  if (token.single_word) {
    std::size_t pos = 0;
    if (begin > 0 && unicode::is_word(unicode::previous(in, begin, pos))) return false;
    pos = end;
    if (end < in.size() && unicode::is_word(unicode::next(in, pos))) return false;
  }
  if (token.lstrip) {
    std::size_t start = 0;
    while (begin > done && unicode::is_whitespace(unicode::previous(in, begin, start)) && start >= done) begin = start;
  }
  if (token.rstrip)
    for (std::size_t pos = end; pos < in.size(); end = pos)
      if (!unicode::is_whitespace(unicode::next(in, pos))) break;
  return true;
}

}  // namespace qengine
