// Regular expressions, as JSON Schema and structured_outputs.regex use them: compiled to a Dfa over
// UTF-8, never run by backtracking.
//
// Syntax: the common part of ECMA-262 and Python: literals, . [...] [^...] \d \D \w \W \s \S (ASCII,
// as in ECMA-262), \n \r \t \f \v \0 \xHH \uHHHH \u{H...}, groups (named ones and (?: too), |,
// * + ? {n} {n,} {n,m} and their lazy forms (the language is the same), ^ and $ (of the whole text).
// Refused by name: look-around, back references, \b, \p, flags, possessive and atomic groups.
#pragma once

#include <string_view>

#include "core/structured/dfa.hpp"

namespace qengine::structured {

enum class RegexMode {
  kWhole,   // the whole text must match
  kSearch,  // some part of it must: JSON Schema's "pattern"
};

// Throws GrammarError at budget.place; the message names the character (counted in bytes, from 0).
Dfa compile_regex(std::string_view pattern, RegexMode mode, Budget& budget);

// Every text of UTF-8.
Dfa any_text(Budget& budget);

}  // namespace qengine::structured
