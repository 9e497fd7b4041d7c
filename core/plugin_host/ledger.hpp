// Ledger: every tensor of the checkpoint is used by somebody, or named together with the rule that
// lets it lie. A left-over scale is the usual mark of a misread dialect, so it stops the load.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/plugin_host/match.hpp"

namespace qengine {

struct Ledger {
  std::set<std::string, std::less<>> used;
  std::set<std::string, std::less<>> expected;  // names somebody looked for, there or not: for "closest expected"

  std::set<std::string, std::less<>> quantized;  // modules of which more than a `weight` is used

  struct Result {
    std::vector<std::string> ignored;   // "NAME (rule)"
    std::vector<std::string> left_over;  // nobody wants them, and they do not look like scales
    std::vector<std::string> unused_rules;
  };
  // Throws E203 for a scale-like tensor that nobody uses, and for one beside those of a quantized
  // matrix: there only a `weight` may be left, with a warning, since some tools leave both forms.
  Result close(const Checkpoint& checkpoint, std::span<const std::string> ignore_rules) const;
};

// Does the name look like a part of a quantized matrix: a scale, a zero point, packed codes?
bool scale_like(std::string_view name);

}  // namespace qengine
