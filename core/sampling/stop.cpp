#include "core/sampling/stop.hpp"

#include <algorithm>
#include <utility>

namespace qengine {

StopChecker::StopChecker(std::vector<std::string> stops, bool include_in_output) : stops_(std::move(stops)), include_(include_in_output) {}

StopChecker::Result StopChecker::push(std::string_view piece, bool armed) {
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

std::string StopChecker::flush() { return std::exchange(held_, {}); }

}  // namespace qengine
