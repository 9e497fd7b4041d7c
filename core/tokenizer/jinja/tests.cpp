// `x is ...`
#include <unicode/uchar.h>

#include <cmath>

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

// v modulo n, of numbers of either kind, with the sign of n.
double modulo(const Value& v, const Value& n) {
  for (const Value* x : {&v, &n}) {
    if (x->is_undefined()) throw Failure(x->why());
    if (!x->is_number()) throw Failure("a test for numbers was given " + std::string(x->type_name()));
  }
  if (n.real() == 0) throw Failure("integer division or modulo by zero");
  if (v.is_integral() && n.is_integral()) {
    if (n.integer() == -1) return 0;
    const std::int64_t r = v.integer() % n.integer();
    return static_cast<double>(r != 0 && (r < 0) != (n.integer() < 0) ? r + n.integer() : r);
  }
  const double r = std::fmod(v.real(), n.real());
  return r != 0 && (r < 0) != (n.real() < 0) ? r + n.real() : r;
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
    {"sequence", [](In&, const Value& v, const Args&) { return v.is_list() || v.is_string() || v.is_dict() || v.is_range() || v.is_undefined(); }},
    {"iterable", [](In&, const Value& v, const Args&) { return v.is_list() || v.is_string() || v.is_dict() || v.is_range() || v.is_undefined(); }},
    {"callable", [](In&, const Value& v, const Args&) { return v.is_undefined() || (v.is_object() && v.object().callable()); }},
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
    {"even", [](In&, const Value& v, const Args&) { return modulo(v, Value::integer(2)) == 0; }},
    {"odd", [](In&, const Value& v, const Args&) { return modulo(v, Value::integer(2)) == 1; }},
    {"divisibleby",
     [](In&, const Value& v, const Args& a) {
       return modulo(v, only("divisibleby", a)) == 0;
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
