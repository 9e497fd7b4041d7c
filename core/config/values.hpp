// Values: what every setting of one command is set to, and where that was said.
//
//   flag > environment > profile > built-in default
//
// Immutable once resolve() (command_line.hpp) has made it; all texts are normalized and in range, so
// that reading them cannot fail. REQUIRES, for every accessor: the command has a setting of that name
// and the accessor fits its kind.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/setting.hpp"

namespace qengine {

enum class Origin { kDefault, kProfile, kEnvironment, kFlag };

struct Value {
  const Setting* setting = nullptr;
  std::vector<std::string> texts;  // one, but for lists; empty: unset
  Origin origin = Origin::kDefault;
  std::string where;  // "--max-tokens", "QENGINE_MAX_TOKENS", "qengine.toml:14:1", ""
};

class Values {
 public:
  bool has(std::string_view name) const;    // set, if only by default
  bool given(std::string_view name) const;  // by somebody: not the built-in default
  bool knows(std::string_view name) const;  // the command has such a setting

  std::string text(std::string_view name) const;  // "" when unset
  const std::vector<std::string>& list(std::string_view name) const;
  bool flag(std::string_view name) const;  // false when unset
  // Unset, or one of its words ("auto"): nullopt.
  std::optional<std::int64_t> integer(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const { return integer(name).value_or(otherwise); }
  std::optional<double> number(std::string_view name) const;

  const Value& at(std::string_view name) const;
  const std::map<std::string, Value, std::less<>>& all() const { return by_name_; }
  void set(std::string_view name, Value value) { by_name_.insert_or_assign(std::string(name), std::move(value)); }

 private:
  std::map<std::string, Value, std::less<>> by_name_;  // every setting of the command
};

}  // namespace qengine
