// StopChecker: finds stop strings in text that arrives in pieces, and lets nothing of them out.
//
// Held back is only the longest end of the text that begins some stop string; everything before it may
// be shown at once. Pieces are whole characters, and a stop string begins with one, so what comes out
// is whole characters too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qengine {

class StopChecker {
 public:
  StopChecker(std::vector<std::string> stops, bool include_in_output);

  struct Result {
    std::string text;          // may be shown now
    const std::string* stop = nullptr;  // the string that hit; nothing follows
  };
  // `armed` false (min_tokens not reached): text passes, and none of it counts as part of a stop later.
  Result push(std::string_view piece, bool armed = true);
  std::string flush();  // the end came otherwise: what was held back

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
};

}  // namespace qengine
