#include "core/config/values.hpp"

#include "core/base/error.hpp"

namespace qengine {

const Value& Values::at(std::string_view name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) throw Error("E000", "this command has no setting " + std::string(name));
  return it->second;
}

bool Values::knows(std::string_view name) const { return by_name_.count(name) != 0; }
bool Values::has(std::string_view name) const { return knows(name) && !at(name).texts.empty(); }
bool Values::given(std::string_view name) const { return knows(name) && at(name).origin != Origin::kDefault; }

std::string Values::text(std::string_view name) const {
  const Value& v = at(name);
  return v.texts.empty() ? std::string() : v.texts.back();
}

const std::vector<std::string>& Values::list(std::string_view name) const { return at(name).texts; }
bool Values::flag(std::string_view name) const { return knows(name) && text(name) == "true"; }

std::optional<std::int64_t> Values::integer(std::string_view name) const {
  const Value& v = at(name);
  return v.texts.empty() ? std::nullopt : parse_integer(v.texts.back(), true);
}

std::optional<double> Values::number(std::string_view name) const {
  const Value& v = at(name);
  return v.texts.empty() ? std::nullopt : parse_number(v.texts.back());
}

}  // namespace qengine
