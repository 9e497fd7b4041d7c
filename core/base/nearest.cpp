#include "core/base/nearest.hpp"

#include <algorithm>
#include <vector>

namespace qengine {

int edit_distance(std::string_view a, std::string_view b, int limit) {
  const auto na = static_cast<int>(a.size()), nb = static_cast<int>(b.size());
  if (std::abs(na - nb) > limit) return limit + 1;
  std::vector<int> before(nb + 1), last(nb + 1), row(nb + 1);
  for (int j = 0; j <= nb; ++j) last[j] = j;
  for (int i = 1; i <= na; ++i) {
    row[0] = i;
    int best = i;
    for (int j = 1; j <= nb; ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
      best = std::min(best, row[j]);
    }
    // A swap looks two rows back, so only a row far above the limit ends the search.
    if (best > limit + 1) return limit + 1;
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(last[nb], limit + 1);
}

std::string nearest(std::string_view word, std::span<const std::string> known, int limit) {
  std::string best;
  int least = limit + 1;
  for (const std::string& name : known)
    if (const int d = edit_distance(word, name, least - 1); d < least) {
      least = d;
      best = name;
    }
  return best;
}

}  // namespace qengine
