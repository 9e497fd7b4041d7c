#include "core/sampling/stop.hpp"

#include <algorithm>
#include <utility>

namespace qengine {

StopChecker::StopChecker(std::vector<std::string> stops, bool include_in_output, Prelude prelude)
    : stops_(std::move(stops)), include_(include_in_output), prelude_(std::move(prelude)) {
  if (!stops_.empty() && !prelude_.close.empty()) state_ = prelude_.begun ? State::kPrelude : State::kStart;
}

std::string StopChecker::after_prelude(std::string_view piece, std::string& shown) {
  before_ += piece;
  if (state_ == State::kStart) {
    const std::size_t i = before_.find_first_not_of(" \t\r\n");
    const std::string_view rest = i == std::string::npos ? std::string_view() : std::string_view(before_).substr(i);
    if (rest.starts_with(prelude_.open)) state_ = State::kPrelude;
    else if (prelude_.open.starts_with(rest)) return {};
    else state_ = State::kAnswer;
  }
  if (state_ == State::kAnswer) return std::exchange(before_, {});
  const std::size_t close = before_.find(prelude_.close);
  if (close != std::string::npos) {
    state_ = State::kAnswer;
    shown += before_.substr(0, close + prelude_.close.size());
    const std::string answer = before_.substr(close + prelude_.close.size());
    before_.clear();
    return answer;
  }
  std::size_t keep = std::min(prelude_.close.size() - 1, before_.size());
  while (before_.compare(before_.size() - keep, keep, prelude_.close, 0, keep) != 0) --keep;
  shown += before_.substr(0, before_.size() - keep);
  before_.erase(0, before_.size() - keep);
  return {};
}

StopChecker::Result StopChecker::push(std::string_view piece, bool armed) {
  if (state_ != State::kAnswer) {
    std::string shown;
    const std::string answer = after_prelude(piece, shown);
    if (state_ != State::kAnswer) return {std::move(shown), nullptr};
    Result r = push(answer, armed);
    r.text.insert(0, shown);
    return r;
  }
  Result r;
  if (stops_.empty() || !armed) {
    r.text = std::exchange(held_, {});
    r.text += piece;
    return r;
  }
  held_ += piece;
  // The string that ends first wins, and of those that end together the longest: the same answer
  // however the text was cut into pieces.
  std::size_t begin = 0, end = std::string::npos;
  for (const std::string& s : stops_) {
    const std::size_t p = held_.find(s);
    if (p == std::string::npos || p + s.size() > end || (p + s.size() == end && p >= begin)) continue;
    begin = p;
    end = p + s.size();
    r.stop = &s;
  }
  if (r.stop) {
    r.text = held_.substr(0, include_ ? end : begin);
    held_.clear();
    return r;
  }
  std::size_t keep = 0;
  for (const std::string& s : stops_)
    for (std::size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) {
        keep = n;
        break;
      }
  r.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return r;
}

std::string StopChecker::flush() { return std::exchange(before_, {}) + std::exchange(held_, {}); }

}  // namespace qengine
