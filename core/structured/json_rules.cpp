#include "core/structured/json_rules.hpp"

#include "core/structured/regex.hpp"

namespace qengine::structured {
namespace {

constexpr int kMaxBlanks = 16;

}  // namespace

JsonRules::JsonRules(GrammarBuilder& builder, bool blanks, const std::optional<std::string>& pattern) : b_(builder), blanks_(blanks) {
  if (!pattern) return;
  Budget& budget = b_.budget();
  const Dfa d = compile_regex(*pattern, RegexMode::kWhole, budget);
  if (!without(d, compile_regex("\\s*", RegexMode::kWhole, budget), budget).empty()) throw GrammarError(budget.place, "the white space pattern matches other things than white space");
  pattern_ = with_length(both(d, compile_regex("[ \\t\\n\\r]*", RegexMode::kWhole, budget), budget), 0, kMaxBlanks, budget);  // what JSON calls white space
  if (pattern_->empty()) throw GrammarError(budget.place, "the white space pattern matches nothing of at most " + std::to_string(kMaxBlanks) + " characters");
}

RuleId JsonRules::blanks() {
  const auto [it, fresh] = rules_.emplace("blank", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  StateId at = b_.start(r);
  if (pattern_) {
    const StateId end = b_.state();
    b_.accept(end);
    b_.dfa(at, *pattern_, end);
    return r;
  }
  const StateId line = b_.state();
  b_.edge(at, '\n', '\n', line);
  b_.accept(at);
  b_.accept(line);
  for (int i = 0; i < kMaxBlanks; ++i) {
    const StateId next = b_.state();
    for (const char c : {' ', '\t'}) {
      b_.edge(at, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
      if (i == 0) b_.edge(line, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
    }
    b_.accept(next);
    at = next;
  }
  return r;
}

StateId JsonRules::blank(StateId from) {
  if (!blanks_) return from;
  const StateId to = b_.state();
  b_.call(from, blanks(), to);
  return to;
}

void JsonRules::blank(StateId from, StateId to) {
  if (blanks_) b_.call(from, blanks(), to);
  else b_.jump(from, to);
}

// One character as JSON writes it: UTF-8 without quotes, backslashes and control characters, or an
// escape; a surrogate only as one half of a pair.
void JsonRules::character(StateId from, StateId to) {
  const auto edge = [&](StateId a, int lo, int hi, StateId z) { b_.edge(a, static_cast<std::uint8_t>(lo), static_cast<std::uint8_t>(hi), z); };
  edge(from, 0x20, 0x21, to);
  edge(from, 0x23, 0x5B, to);
  edge(from, 0x5D, 0x7F, to);
  const StateId last = b_.state(), last2 = b_.state(), last3 = b_.state();
  edge(last, 0x80, 0xBF, to);
  edge(last2, 0x80, 0xBF, last);
  edge(last3, 0x80, 0xBF, last2);
  edge(from, 0xC2, 0xDF, last);
  const auto special = [&](int lead, int lo, int hi, StateId then) {
    const StateId s = b_.state();
    edge(from, lead, lead, s);
    edge(s, lo, hi, then);
  };
  special(0xE0, 0xA0, 0xBF, last);
  edge(from, 0xE1, 0xEC, last2);
  special(0xED, 0x80, 0x9F, last);
  edge(from, 0xEE, 0xEF, last2);
  special(0xF0, 0x90, 0xBF, last2);
  edge(from, 0xF1, 0xF3, last3);
  special(0xF4, 0x80, 0x8F, last2);

  const StateId escape = b_.state(), u = b_.state();
  edge(from, '\\', '\\', escape);
  for (const char c : std::string_view("\"\\/bfnrt")) edge(escape, c, c, to);
  edge(escape, 'u', 'u', u);
  const auto hex = [&](StateId a, int lo, int hi, StateId z) {  // digits of value lo to hi
    if (lo <= 9) edge(a, '0' + lo, '0' + std::min(hi, 9), z);
    if (hi >= 10)
      for (const char base : {'a', 'A'}) edge(a, base + std::max(lo, 10) - 10, base + hi - 10, z);
  };
  const StateId h1 = b_.state(), h2 = b_.state(), h3 = b_.state(), d = b_.state();
  hex(h3, 0, 15, to);
  hex(h2, 0, 15, h3);
  hex(h1, 0, 15, h2);
  hex(u, 0, 12, h1);
  hex(u, 14, 15, h1);
  hex(u, 13, 13, d);  // D000 to D7FF, or the first of a pair
  hex(d, 0, 7, h2);
  const StateId p2 = b_.state(), p3 = b_.state(), p4 = b_.state(), p5 = b_.state(), p6 = b_.state(), p7 = b_.state();
  hex(d, 8, 11, p2);
  hex(p2, 0, 15, p3);
  hex(p3, 0, 15, p4);
  edge(p4, '\\', '\\', p5);
  edge(p5, 'u', 'u', p6);
  hex(p6, 13, 13, p7);
  hex(p7, 12, 15, h2);
}

RuleId JsonRules::character() {
  const auto [it, fresh] = rules_.emplace("character", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId end = b_.state();
  b_.accept(end);
  character(b_.start(r), end);
  return r;
}

RuleId JsonRules::string() {
  const auto [it, fresh] = rules_.emplace("string", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId body = b_.state(), end = b_.state();
  b_.text(b_.start(r), "\"", body);
  character(body, body);
  b_.text(body, "\"", end);
  b_.accept(end);
  return r;
}

RuleId JsonRules::number(const NumberBounds& n) {
  const std::string key = "number " + n.least.value_or("") + (n.least_excluded ? " < " : " <= ") + n.most.value_or("") + (n.most_excluded ? " x " : " ") + (n.integer ? "i" : "") + std::to_string(n.multiple_of);
  const auto [it, fresh] = rules_.emplace(key, -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId end = b_.state();
  b_.accept(end);
  b_.dfa(b_.start(r), number_dfa(n, b_.budget()), end);
  return r;
}

RuleId JsonRules::literal(const std::string& text) {
  const auto [it, fresh] = rules_.emplace("literal " + text, -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  b_.accept(b_.text(b_.start(r), text));
  return r;
}

RuleId JsonRules::value() {
  const auto [it, fresh] = rules_.emplace("value", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId end = b_.state(), s = b_.start(r);
  b_.accept(end);
  b_.call(s, string(), end);
  b_.call(s, number({}), end);
  for (const char* word : {"true", "false", "null"}) b_.text(s, word, end);
  b_.call(s, object(), end);
  b_.call(s, array(), end);
  return r;
}

RuleId JsonRules::object() {
  const auto [it, fresh] = rules_.emplace("object", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId close = b_.state(), end = b_.state(), key = b_.state(), after_key = b_.state(), before_value = b_.state(), after_value = b_.state(), comma = b_.state();
  b_.accept(end);
  const StateId open = b_.text(b_.start(r), "{");
  blank(open, key);
  blank(open, close);
  b_.text(close, "}", end);
  b_.call(key, string(), after_key);
  const StateId colon = b_.text(after_key, ":");
  blank(colon, before_value);
  b_.call(before_value, value(), after_value);
  blank(after_value, close);
  b_.text(after_value, ",", comma);
  blank(comma, key);
  return r;
}

RuleId JsonRules::array() {
  const auto [it, fresh] = rules_.emplace("array", -1);
  if (!fresh) return it->second;
  const RuleId r = it->second = b_.rule();
  const StateId close = b_.state(), end = b_.state(), item = b_.state(), after = b_.state(), comma = b_.state();
  b_.accept(end);
  const StateId open = b_.text(b_.start(r), "[");
  blank(open, item);
  blank(open, close);
  b_.text(close, "]", end);
  b_.call(item, value(), after);
  blank(after, close);
  b_.text(after, ",", comma);
  blank(comma, item);
  return r;
}

}  // namespace qengine::structured
