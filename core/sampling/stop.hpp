// StopChecker: finds stop strings in text that arrives in pieces, and lets nothing of them out.
//
// Held back is only the longest end of the text that begins some stop string; everything before it may
// be shown at once. Pieces are whole characters, and a stop string begins with one, so what comes out
// is whole characters too. In a prelude (params.hpp) nothing stops, and nothing of it counts as part of a
// stop string later.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/sampling/params.hpp"

namespace qengine {

class StopChecker {
 public:
  StopChecker(std::vector<std::string> stops, bool include_in_output, Prelude prelude = {});

  struct Result {
    std::string text;          // may be shown now
    const std::string* stop = nullptr;  // the string that hit; nothing follows
  };
  // `armed` false (min_tokens not reached): text passes, and none of it counts as part of a stop later.
  Result push(std::string_view piece, bool armed = true);
  std::string flush();  // the end came otherwise: what was held back

 private:
  enum class State { kStart, kPrelude, kAnswer };
  // What of the text so far belongs to the answer; the rest goes to `shown`.
  std::string after_prelude(std::string_view piece, std::string& shown);

  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
  Prelude prelude_;
  State state_ = State::kAnswer;
  std::string before_;  // not decided yet whether it opens a prelude; in one, what may begin its close
};

}  // namespace qengine
