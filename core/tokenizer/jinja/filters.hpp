// Filters, tests and methods that templates may use (formats.md 2.10), as Python's Jinja defines them.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/tokenizer/jinja/value.hpp"

namespace qengine::jinja {

struct FilterFn {
  std::string_view name;
  Value (*run)(Interpreter&, const Value& in, const Args& args);
};
struct TestFn {
  std::string_view name;
  bool (*run)(Interpreter&, const Value& in, const Args& args);
};

const FilterFn* find_filter(std::string_view name);  // nullptr when unknown
const TestFn* find_test(std::string_view name);

// A method of a str, list or dict; nullopt when that type has no such method.
std::optional<Value> call_method(Interpreter&, const Value& self, const std::string& name, const Args& args);
bool has_method(const Value& self, const std::string& name);

// Arguments by place or name. Throws Failure for unknown and surplus ones.
class Params {
 public:
  Params(std::string_view function, const Args& args, std::initializer_list<std::string_view> names);
  const Value* operator[](std::size_t i) const { return found_[i]; }  // nullptr: not given
  bool flag(std::size_t i, bool otherwise = false) const { return found_[i] ? found_[i]->truthy() : otherwise; }
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  std::string string(std::size_t i, std::string otherwise) const;

 private:
  std::string_view function_;
  static constexpr std::size_t kMax = 6;
  const Value* found_[kMax] = {};
};

// The % operator of strings.
std::string format_percent(const std::string& format, const Value& values);

}  // namespace qengine::jinja
