// `x is ...`
#include <unicode/uchar.h>

#include "core/tokenizer/jinja/filters.hpp"
#include "core/tokenizer/jinja/interpreter.hpp"
#include "core/tokenizer/jinja/text.hpp"

namespace qengine::jinja {
namespace {

using In = Interpreter;

const Value& only(std::string_view test, const Args& a) {
  if (a.positional.size() != 1 || !a.named.empty()) throw Failure("the test '" + std::string(test) + "' takes one argument");
  return a.positional[0];
}

std::int64_t whole(const Value& v) {
  if (v.is_undefined()) throw Failure(v.why());
  if (!v.is_integral()) throw Failure("a test for integers was given " + std::string(v.type_name()));
  return v.integer();
}

bool cased(In& in, const Value& v, std::string (*f)(std::string_view), std::string (*other)(std::string_view)) {
  const std::string s = in.str(v);
  return s == f(s) && s != other(s);
}

constexpr TestFn kTests[] = {
    {"defined", [](In&, const Value& v, const Args&) { return !v.is_undefined(); }},
    {"undefined", [](In&, const Value& v, const Args&) { return v.is_undefined(); }},
    {"none", [](In&, const Value& v, const Args&) { return v.is_none(); }},
    {"boolean", [](In&, const Value& v, const Args&) { return v.is_bool(); }},
    {"true", [](In&, const Value& v, const Args&) { return v.is_bool() && v.integer(); }},
    {"false", [](In&, const Value& v, const Args&) { return v.is_bool() && !v.integer(); }},
    {"integer", [](In&, const Value& v, const Args&) { return v.is_int(); }},
    {"float", [](In&, const Value& v, const Args&) { return v.is_float(); }},
    {"number", [](In&, const Value& v, const Args&) { return v.is_number(); }},
    {"string", [](In&, const Value& v, const Args&) { return v.is_string(); }},
    {"mapping", [](In&, const Value& v, const Args&) { return v.is_dict(); }},
    {"sequence", [](In&, const Value& v, const Args&) { return v.is_list() || v.is_string() || v.is_dict() || v.is_range(); }},
    {"iterable", [](In&, const Value& v, const Args&) { return v.is_list() || v.is_string() || v.is_dict() || v.is_range() || v.is_undefined(); }},
    {"callable", [](In&, const Value& v, const Args&) { return v.is_object() && v.object().callable(); }},
    {"escaped", [](In&, const Value&, const Args&) { return false; }},
    {"sameas",
     [](In&, const Value& v, const Args& a) {
       const Value& o = only("sameas", a);
       return v.kind() == o.kind() && (v.is_list() ? &v.items() == &o.items() : v.is_dict() ? &v.pairs() == &o.pairs() : v.equals(o));
     }},
    {"eq", [](In&, const Value& v, const Args& a) { return v.equals(only("eq", a)); }},
    {"equalto", [](In&, const Value& v, const Args& a) { return v.equals(only("equalto", a)); }},
    {"==", [](In&, const Value& v, const Args& a) { return v.equals(only("==", a)); }},
    {"ne", [](In&, const Value& v, const Args& a) { return !v.equals(only("ne", a)); }},
    {"!=", [](In&, const Value& v, const Args& a) { return !v.equals(only("!=", a)); }},
    {"lt", [](In&, const Value& v, const Args& a) { return v.compare(only("lt", a)) < 0; }},
    {"lessthan", [](In&, const Value& v, const Args& a) { return v.compare(only("lessthan", a)) < 0; }},
    {"<", [](In&, const Value& v, const Args& a) { return v.compare(only("<", a)) < 0; }},
    {"le", [](In&, const Value& v, const Args& a) { return v.compare(only("le", a)) <= 0; }},
    {"<=", [](In&, const Value& v, const Args& a) { return v.compare(only("<=", a)) <= 0; }},
    {"gt", [](In&, const Value& v, const Args& a) { return v.compare(only("gt", a)) > 0; }},
    {"greaterthan", [](In&, const Value& v, const Args& a) { return v.compare(only("greaterthan", a)) > 0; }},
    {">", [](In&, const Value& v, const Args& a) { return v.compare(only(">", a)) > 0; }},
    {"ge", [](In&, const Value& v, const Args& a) { return v.compare(only("ge", a)) >= 0; }},
    {">=", [](In&, const Value& v, const Args& a) { return v.compare(only(">=", a)) >= 0; }},
    {"in", [](In& in, const Value& v, const Args& a) { return in.charge(only("in", a).weight() / 16), only("in", a).contains(v); }},
    {"even", [](In&, const Value& v, const Args&) { return whole(v) % 2 == 0; }},
    {"odd", [](In&, const Value& v, const Args&) { return whole(v) % 2 != 0; }},
    {"divisibleby",
     [](In&, const Value& v, const Args& a) {
       const std::int64_t n = whole(only("divisibleby", a));
       if (n == 0) throw Failure("integer division or modulo by zero");
       return n == -1 || whole(v) % n == 0;
     }},
    {"lower", [](In& in, const Value& v, const Args&) { return cased(in, v, lower, upper); }},
    {"upper", [](In& in, const Value& v, const Args&) { return cased(in, v, upper, lower); }},
    {"filter", [](In&, const Value& v, const Args&) { return v.is_string() && find_filter(v.string()); }},
    {"test", [](In&, const Value& v, const Args&) { return v.is_string() && find_test(v.string()); }},
};

}  // namespace

const TestFn* find_test(std::string_view name) {
  for (const TestFn& t : kTests)
    if (t.name == name) return &t;
  return nullptr;
}

}  // namespace qengine::jinja
