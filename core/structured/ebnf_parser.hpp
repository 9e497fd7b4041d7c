// The syntax of ebnf.hpp as a tree. Every name in it is defined.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/structured/budget.hpp"

namespace qengine::structured {

inline constexpr int kUnbounded = -1;

struct EbnfNode;
using EbnfSequence = std::vector<EbnfNode>;
using EbnfAlternatives = std::vector<EbnfSequence>;

struct EbnfNode {
  enum class Kind { kText, kSet, kName, kGroup, kRepeat } kind = Kind::kText;
  std::string text;    // the bytes; a class as a regular expression; the name
  EbnfAlternatives parts;  // kGroup; kRepeat: one sequence of one
  int least = 0, most = 0;
  int id = 0;          // equal nodes have equal ids
};

struct EbnfRule {
  std::string place;
  EbnfAlternatives parts;  // none of them empty
};
using EbnfRules = std::map<std::string, EbnfRule, std::less<>>;

// Throws GrammarError whose place is "line L, column C".
EbnfRules parse_ebnf(std::string_view text, Budget& budget);

}  // namespace qengine::structured
