// "Did you mean": the known name that is closest to what somebody wrote.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace qengine {

// Damerau-Levenshtein distance: insert, delete, replace, swap two neighbours; stops counting above `limit`.
int edit_distance(std::string_view a, std::string_view b, int limit = 64);

// The name nearest to `word`, "" when none is within `limit`. The first of equals wins.
std::string nearest(std::string_view word, std::span<const std::string> known, int limit = 2);

}  // namespace qengine
