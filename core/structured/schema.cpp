#include "core/structured/schema.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "core/structured/json_rules.hpp"
#include "core/structured/regex.hpp"
#include "core/structured/schema_view.hpp"

namespace qengine::structured {
namespace {

constexpr std::int64_t kMaxChain = 200000;  // positions of a counted string, array or object

class SchemaCompiler {
 public:
  SchemaCompiler(GrammarBuilder& b, const Json& document, const SchemaOptions& options) : b_(b), view_(document, b.budget()), rules_(b, options.blanks, options.blank_pattern) {}

  RuleId compile(const Json& schema, bool object) {
    static const Json any_object = {{"type", "object"}};
    Conjunction all = {{&schema, ""}};
    if (object) all.push_back({&any_object, ""});
    const RuleId root = rule(std::move(all));
    while (!todo_.empty()) {  // not by recursion: schemas refer to each other in circles
      const auto [r, all] = std::move(todo_.front());
      todo_.pop_front();
      const StateId end = b_.state();
      b_.accept(end);
      for (const Conjunction& plain : view_.alternatives(all)) alternative(plain, b_.start(r), end);
    }
    return root;
  }

 private:
  // The rule of a value to which all of `all` applies.
  RuleId rule(Conjunction all) {
    std::erase_if(all, [](const SchemaRef& r) { return r.schema->is_boolean() ? r.schema->get<bool>() : r.schema->empty(); });
    if (all.empty()) return rules_.value();
    std::vector<std::string> texts;
    for (const SchemaRef& r : all) texts.push_back(text_of(r.schema));
    std::ranges::sort(texts);
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    std::string key;
    for (const std::string& t : texts) key += t + "\n";
    b_.budget().charge(key.size());
    const auto [it, fresh] = made_.emplace(std::move(key), -1);
    if (fresh) {
      it->second = b_.rule();
      todo_.emplace_back(it->second, std::move(all));
    }
    return it->second;
  }

  const std::string& text_of(const Json* schema) {
    const auto [it, fresh] = texts_.emplace(schema, "");
    if (fresh) it->second = schema->dump();
    return it->second;
  }

  void alternative(const Conjunction& plain, StateId from, StateId to) {
    b_.budget().place = plain.empty() ? "" : plain.front().place;
    if (!SchemaView::asserts(plain)) return b_.call(from, rules_.value(), to);
    if (const auto values = view_.listed(plain)) {
      for (const Json& v : *values) b_.text(from, literal(v), to);
      return;
    }
    const unsigned types = view_.types(plain);
    if (types & kNull) b_.text(from, "null", to);
    if (types & kBoolean) b_.text(from, "true", to), b_.text(from, "false", to);
    if (types & kNumber) {
      // "number" without "integer" cannot be asked for; a fraction's rule covers whole numbers too.
      b_.call(from, rules_.number(view_.number(plain, !(types & kFraction))), to);
    }
    if (types & kString) string(plain, from, to);
    if (types & kArray) array(plain, from, to);
    if (types & kObject) object(plain, from, to);
  }

  static std::string literal(const Json& v) { return v.dump(-1, ' ', false, Json::error_handler_t::replace); }

  void limit(std::int64_t n, const Conjunction& plain, const char* keyword) {
    if (n > kMaxChain) throw GrammarError(plain.front().place + "/" + keyword, "is larger than what is supported (" + std::to_string(kMaxChain) + ")");
  }

  void string(const Conjunction& plain, StateId from, StateId to) {
    const SchemaView::Count n = view_.count(plain, "minLength", "maxLength");
    limit(std::max(n.least, n.most), plain, n.most > n.least ? "maxLength" : "minLength");
    if (n.most >= 0 && n.most < n.least) return;
    if (const auto d = view_.text(plain)) {
      b_.budget().place = plain.front().place;
      const StateId open = b_.text(from, "\""), close = b_.state();
      b_.dfa(open, with_length(*d, n.least, n.most, b_.budget()), close, /*as_json_string=*/true);
      return b_.text(close, "\"", to);
    }
    if (n.least == 0 && n.most < 0) return b_.call(from, rules_.string(), to);
    StateId at = b_.text(from, "\"");
    const StateId close = b_.state();
    b_.text(close, "\"", to);
    for (std::int64_t i = 0; i < std::max(n.least, n.most); ++i) {
      if (i >= n.least) b_.jump(at, close);
      const StateId next = b_.state();
      b_.call(at, rules_.character(), next);
      at = next;
    }
    b_.jump(at, close);
    if (n.most < 0) b_.call(at, rules_.character(), at);
  }

  void array(const Conjunction& plain, StateId from, StateId to) {
    SchemaView::Count n = view_.count(plain, "minItems", "maxItems");
    limit(std::max(n.least, n.most), plain, n.most > n.least ? "maxItems" : "minItems");
    if (n.most >= 0 && n.most < n.least) return;
    const StateId open = b_.text(from, "["), close = b_.state();
    b_.text(close, "]", to);
    const auto own = static_cast<std::int64_t>(view_.prefix_items(plain));
    std::int64_t chain = std::max({n.least, n.most, own});
    if (n.most >= 0) chain = std::min(chain, n.most);
    StateId at = open;  // after i items
    for (std::int64_t i = 0; i < chain; ++i) {
      if (i >= n.least) rules_.blank(at, close);
      const StateId next = b_.state();
      member(i == 0 ? at : b_.text(at, ","), rule(view_.item(plain, static_cast<std::size_t>(i))), next);
      at = next;
    }
    rules_.blank(at, close);
    if (n.most >= 0) return;
    const RuleId rest = rule(view_.item(plain, static_cast<std::size_t>(std::max(own, chain))));
    if (chain > 0) return member(b_.text(at, ","), rest, at);
    const StateId after = b_.state();
    member(at, rest, after);
    rules_.blank(after, close);
    member(b_.text(after, ","), rest, after);
  }

  void member(StateId from, RuleId r, StateId to) { b_.call(rules_.blank(from), r, to); }

  // Keys that are written without escapes, within `allowed` and outside `taken`.
  Dfa free_keys(const std::optional<Dfa>& allowed, const std::vector<std::string_view>& taken) {
    Budget& budget = b_.budget();
    Dfa keys = compile_regex("[^\\u0000-\\u001f\"\\\\]*", RegexMode::kWhole, budget);
    if (allowed) keys = both(keys, *allowed, budget);
    return without(keys, one_of(taken, budget), budget);
  }

  void object(const Conjunction& plain, StateId from, StateId to) {
    Budget& budget = b_.budget();
    const std::string place = plain.front().place;
    // Names in the order of the schemas, then those that are only required.
    std::vector<std::string> names;
    std::set<std::string> known, required;
    for (const SchemaRef& r : plain)
      if (const auto p = r.schema->find("properties"); p != r.schema->end())
        for (const auto& [name, v] : p->items())
          if (known.insert(name).second) names.push_back(name);
    for (const SchemaRef& r : plain)
      if (const auto q = r.schema->find("required"); q != r.schema->end())
        for (const Json& n : *q) {
          required.insert(n.get<std::string>());
          if (known.insert(n.get<std::string>()).second) names.push_back(n.get<std::string>());
        }
    const std::optional<Dfa> allowed = view_.names(plain);
    std::vector<RuleId> values;  // -1: the name may not appear
    for (const std::string& name : names) {
      budget.charge(name.size() + 64);
      values.push_back(!allowed || allowed->matches(name) ? rule(view_.property(plain, name)) : -1);
    }
    budget.place = place;

    // Further properties: those that match a pattern, and the rest.
    struct Further {
      Dfa keys;
      RuleId value;
    };
    std::vector<Further> further;
    const std::vector<std::string_view> taken(names.begin(), names.end());
    Dfa rest = free_keys(allowed, taken);
    std::map<std::string, std::string> patterns;  // pattern, its place
    for (const SchemaRef& r : plain)
      if (const auto p = r.schema->find("patternProperties"); p != r.schema->end())
        for (const auto& [key, v] : p->items()) patterns.emplace(key, r.place + "/patternProperties");
    for (const auto& [key, where] : patterns) {
      budget.place = where;
      const Dfa& d = view_.pattern(key, where);
      const Dfa keys = both(rest, d, budget);
      if (keys.empty()) continue;
      for (const auto& [other, elsewhere] : patterns)
        if (other != key && !both(keys, view_.pattern(other, elsewhere), budget).empty())
          throw GrammarError(where, "the patterns \"" + key.substr(0, 60) + "\" and \"" + other.substr(0, 60) + "\" match the same names, which is not supported");
      // What applies to such a name, wherever it comes from: a name of this class stands for all.
      further.push_back({keys, rule(view_.property(plain, some_text(keys)))});
    }
    for (const auto& [key, where] : patterns) rest = without(rest, view_.pattern(key, where), budget);
    budget.place = place;
    const bool closed = std::ranges::any_of(plain, [](const SchemaRef& r) { return r.schema->contains("properties"); });
    if (!rest.empty() && (!closed || std::ranges::any_of(plain, [](const SchemaRef& r) { return r.schema->contains("additionalProperties"); }))) further.push_back({rest, rule(view_.additional(plain))});

    const SchemaView::Count n = view_.count(plain, "minProperties", "maxProperties");
    if (n.most >= 0 && n.most < n.least) return;
    // A further name may be written twice and then counts once, so one of them is all that can be
    // relied on.
    const std::int64_t sure = std::ssize(names) + (further.empty() ? 0 : 1);
    if (n.least > sure && n.least > 1)
      throw GrammarError(place + "/minProperties", "is supported up to the number of declared properties (" + std::to_string(names.size()) + ")" + (further.empty() ? "" : " and one more"));

    // States: (names passed, properties that count); 0, 1 when nothing is counted.
    const bool counted = n.least > 1 || n.most >= 0;
    limit(n.most, plain, "maxProperties");
    const std::int64_t top = counted ? std::max(n.least, std::min<std::int64_t>(n.most < 0 ? n.least : n.most, sure + (n.most < 0 ? 0 : n.most))) : 1;
    const StateId open = b_.text(from, "{"), close = b_.state();
    b_.text(close, "}", to);
    std::map<std::pair<std::size_t, std::int64_t>, StateId> states;
    std::deque<std::pair<std::size_t, std::int64_t>> todo;
    const auto state = [&](std::size_t i, std::int64_t c) {
      const auto [it, fresh] = states.emplace(std::pair(i, c), -1);
      if (fresh) {
        it->second = b_.state();
        todo.emplace_back(i, c);
      }
      return it->second;
    };
    b_.jump(open, state(0, 0));
    const auto count_up = [&](std::int64_t c) { return n.most >= 0 ? c + 1 : std::min(c + 1, top); };
    while (!todo.empty()) {
      const auto [i, c] = todo.front();
      todo.pop_front();
      const StateId at = states.at({i, c});
      const bool room = n.most < 0 || c < n.most;
      if (i < names.size()) {
        if (!required.contains(names[i])) b_.jump(at, state(i + 1, c));
        if (values[i] < 0 || !room) continue;
        const StateId key = rules_.blank(c > 0 ? b_.text(at, ",") : at);
        member(b_.text(key, json_string(names[i]) + ":"), values[i], state(i + 1, count_up(c)));
        continue;
      }
      if (c >= n.least) rules_.blank(at, close);
      if (!room || further.empty()) continue;
      // One further property counts for minProperties, more of them only against maxProperties.
      const bool first = c < n.least;
      if (first && c + 1 < n.least) continue;
      const StateId key = rules_.blank(c > 0 ? b_.text(at, ",") : at), quote = b_.text(key, "\"");
      const StateId next = state(i, count_up(c));
      for (const Further& f : further) {
        const StateId end = b_.state();
        b_.dfa(quote, f.keys, end);
        member(b_.text(end, "\":"), f.value, next);
      }
    }
  }

  // Any text of a language that is not empty; the shortest.
  static std::string some_text(const Dfa& d) {
    std::vector<std::pair<std::int32_t, char>> from(d.states.size(), {-2, 0});
    std::deque<std::int32_t> todo = {0};
    from[0] = {-1, 0};
    while (!todo.empty()) {
      const std::int32_t s = todo.front();
      todo.pop_front();
      if (d.states[static_cast<std::size_t>(s)].accept) {
        std::string out;
        for (std::int32_t t = s; t > 0 && from[static_cast<std::size_t>(t)].first >= 0; t = from[static_cast<std::size_t>(t)].first) out += from[static_cast<std::size_t>(t)].second;
        return {out.rbegin(), out.rend()};
      }
      for (int b = 0; b < 256; ++b)
        if (const std::int32_t t = d.states[static_cast<std::size_t>(s)].next[static_cast<std::size_t>(b)]; t != Dfa::kDead && from[static_cast<std::size_t>(t)].first == -2) {
          from[static_cast<std::size_t>(t)] = {s, static_cast<char>(b)};
          todo.push_back(t);
        }
    }
    return {};
  }

  GrammarBuilder& b_;
  SchemaView view_;
  JsonRules rules_;
  std::map<std::string, RuleId> made_;
  std::map<const Json*, std::string> texts_;
  std::deque<std::pair<RuleId, Conjunction>> todo_;
};

}  // namespace

std::string json_string(std::string_view text) { return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace); }

RuleId add_schema(GrammarBuilder& builder, const Json& schema, const SchemaOptions& options) {
  if (!schema.is_object() && !schema.is_boolean()) throw GrammarError("", "must be a JSON schema: an object or a boolean");
  return SchemaCompiler(builder, schema, options).compile(schema, options.object);
}

RuleId add_any_object(GrammarBuilder& builder, const SchemaOptions& options) { return JsonRules(builder, options.blanks, options.blank_pattern).object(); }

}  // namespace qengine::structured
