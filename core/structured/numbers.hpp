// JSON numbers within bounds, as automata over their text.
//
// What is written is a subset of what the schema allows, chosen so that every parser reads it back
// exactly enough: at most 18 digits before the point and 17 after it; an exponent (two digits) only
// where there are no bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/model/checkpoint.hpp"  // Json
#include "core/structured/dfa.hpp"

namespace qengine::structured {

struct NumberBounds {
  // Decimal texts ("-12.5"), as decimal_text() gives them.
  std::optional<std::string> least, most;
  bool least_excluded = false, most_excluded = false;
  bool integer = false;
  std::int64_t multiple_of = 0;  // 0: any

  // Adds a bound; the tighter one wins.
  void at_least(const Json& value, bool excluded);
  void at_most(const Json& value, bool excluded);
};

// Without exponent: "1e3" becomes "1000".
std::string decimal_text(const Json& number);
// -1, 0, 1 as a < b, a = b, a > b; exact.
int compare_decimal(const std::string& a, const std::string& b);

Dfa number_dfa(const NumberBounds& bounds, Budget& budget);

}  // namespace qengine::structured
