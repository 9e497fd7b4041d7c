#include "core/structured/schema_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "core/base/nearest.hpp"
#include "core/structured/formats.hpp"
#include "core/structured/regex.hpp"

namespace qengine::structured {
namespace {

constexpr std::size_t kMaxAlternatives = 2048;
constexpr int kMaxDepth = 100;  // of references and combinations within one value

std::string under(const std::string& place, std::string_view key) {
  std::string out = place + "/";
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

const Json* get(const SchemaRef& ref, const char* key) {
  const auto it = ref.schema->find(key);
  return it == ref.schema->end() ? nullptr : &*it;
}

// Every known keyword: 1 enforced, 0 without an assertion.
const std::map<std::string, int, std::less<>>& keywords() {
  static const std::map<std::string, int, std::less<>> all = {
      {"type", 1}, {"enum", 1}, {"const", 1}, {"properties", 1}, {"required", 1}, {"additionalProperties", 1}, {"patternProperties", 1}, {"propertyNames", 1},
      {"minProperties", 1}, {"maxProperties", 1}, {"items", 1}, {"prefixItems", 1}, {"additionalItems", 1}, {"minItems", 1}, {"maxItems", 1}, {"uniqueItems", 1},
      {"minLength", 1}, {"maxLength", 1}, {"pattern", 1}, {"format", 1}, {"minimum", 1}, {"maximum", 1}, {"exclusiveMinimum", 1}, {"exclusiveMaximum", 1},
      {"multipleOf", 1}, {"anyOf", 1}, {"oneOf", 1}, {"allOf", 1}, {"$ref", 1},
      {"$defs", 0}, {"definitions", 0}, {"$anchor", 0}, {"$id", 0}, {"$schema", 0}, {"$comment", 0}, {"title", 0}, {"description", 0}, {"default", 0}, {"examples", 0},
      {"example", 0}, {"deprecated", 0}, {"readOnly", 0}, {"writeOnly", 0}, {"contentEncoding", 0}, {"contentMediaType", 0}, {"contentSchema", 0}};
  return all;
}

unsigned type_bit(const std::string& name) {
  return name == "null" ? kNull : name == "boolean" ? kBoolean : name == "integer" ? kInteger : name == "number" ? kNumber : name == "string" ? kString : name == "array" ? kArray : name == "object" ? kObject : 0u;
}

bool whole(const Json& v) {
  return v.is_number_integer() || (v.is_number_float() && std::isfinite(v.get<double>()) && v.get<double>() == std::floor(v.get<double>()));
}

unsigned type_of(const Json& v) {
  if (v.is_null()) return kNull;
  if (v.is_boolean()) return kBoolean;
  if (v.is_number()) return whole(v) ? kInteger : kFraction;
  if (v.is_string()) return kString;
  return v.is_array() ? kArray : kObject;
}

// Equality of JSON Schema: 1 and 1.0 are equal, the order of properties does not matter.
bool equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return compare_decimal(decimal_text(a), decimal_text(b)) == 0;
  if (a.type() != b.type()) return false;
  if (a.is_array()) return std::ranges::equal(a, b, equal);
  if (a.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [k, v] : a.items())
      if (const auto it = b.find(k); it == b.end() || !equal(v, *it)) return false;
    return true;
  }
  return a == b;
}

std::int64_t code_points(const std::string& s) {
  return std::ranges::count_if(s, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

[[noreturn]] void wrong(const std::string& place, const std::string& expected) { throw GrammarError(place, "must be " + expected); }

bool is_schema(const Json& v) { return v.is_object() || v.is_boolean(); }

}  // namespace

// ---- one schema ----------------------------------------------------------------------------------

void SchemaView::check(const SchemaRef& ref) {
  if (!checked_.insert(ref.schema).second) return;
  budget_.place = ref.place;
  budget_.charge(256);
  const Json& s = *ref.schema;
  for (const auto& item : s.items()) {
    const std::string& key = item.key();  // names that lambdas may hold: clang 14 has no captures of bindings
    const Json& v = item.value();
    const std::string at = under(ref.place, key);
    const auto known = keywords().find(key);
    if (known == keywords().end()) {
      std::string message = "the keyword \"" + key.substr(0, 60) + "\" is not supported";
      std::vector<std::string> names;
      for (const auto& [name, enforced] : keywords()) names.push_back(name);
      if (const auto near = nearest(key, names); !near.empty()) message += "; did you mean " + near + "?";
      throw GrammarError(at, message);
    }
    const auto count = [&] {
      if (!(v.is_number() && whole(v) && v.get<double>() >= 0)) wrong(at, "a whole number that is not negative");
      if (v.get<double>() > 1e9) throw GrammarError(at, "is larger than what is supported (1e9)");
    };
    if (key == "type") {
      const auto one = [&](const Json& t, const std::string& where) {
        if (!t.is_string() || !type_bit(t.get<std::string>())) wrong(where, "one of null, boolean, integer, number, string, array, object");
      };
      if (v.is_array()) {
        if (v.empty()) wrong(at, "a type or a list of types");
        for (std::size_t i = 0; i < v.size(); ++i) one(v[i], at + "/" + std::to_string(i));
      } else {
        one(v, at);
      }
    } else if (key == "enum") {
      if (!v.is_array()) wrong(at, "a list");
    } else if (key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions") {
      if (!v.is_object()) wrong(at, "an object of schemas");
      for (const auto& [name, sub] : v.items())
        if (!is_schema(sub)) wrong(under(at, name), "a schema");
    } else if (key == "required") {
      if (!v.is_array() || !std::ranges::all_of(v, [](const Json& x) { return x.is_string(); })) wrong(at, "a list of strings");
    } else if (key == "additionalProperties" || key == "propertyNames" || key == "additionalItems") {
      if (!is_schema(v)) wrong(at, "a schema");
    } else if (key == "items") {
      if (v.is_array() ? !std::ranges::all_of(v, is_schema) : !is_schema(v)) wrong(at, "a schema");
    } else if (key == "prefixItems" || key == "anyOf" || key == "oneOf" || key == "allOf") {
      if (!v.is_array() || v.empty() || !std::ranges::all_of(v, is_schema)) wrong(at, "a list of schemas that is not empty");
    } else if (key == "minProperties" || key == "maxProperties" || key == "minItems" || key == "maxItems" || key == "minLength" || key == "maxLength") {
      count();
    } else if (key == "uniqueItems") {
      if (!v.is_boolean()) wrong(at, "a boolean");
      if (v.get<bool>()) throw GrammarError(at, "uniqueItems: true is not supported");
    } else if (key == "pattern" || key == "format" || key == "$ref") {
      if (!v.is_string()) wrong(at, "a string");
    } else if (key == "minimum" || key == "maximum") {
      if (!v.is_number()) wrong(at, "a number");
    } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
      if (!v.is_number() && !v.is_boolean()) wrong(at, "a number");
    } else if (key == "multipleOf") {
      if (!v.is_number() || v.get<double>() <= 0) wrong(at, "a number greater than 0");
      if (!whole(v) || v.get<double>() > 10000) throw GrammarError(at, "multipleOf is supported for whole numbers up to 10000");
    }
  }
}

SchemaRef SchemaView::resolve(const std::string& ref, const std::string& place) {
  if (!ref.starts_with('#')) throw GrammarError(place, "$ref is supported within the schema itself (\"#/...\"), not to \"" + ref.substr(0, 80) + "\"");
  const std::string target = ref.substr(1);
  if (target.empty()) return {&document_, ""};
  if (target[0] == '/') {
    const Json* at = &document_;
    std::string path;
    for (std::size_t i = 0; i < target.size();) {
      const std::size_t end = std::min(target.find('/', i + 1), target.size());
      std::string key;
      for (std::size_t j = i + 1; j < end; ++j) {
        if (target[j] == '~' && j + 1 < end) key += target[++j] == '1' ? '/' : '~';
        else if (target[j] == '%' && j + 2 < end) key += static_cast<char>(std::strtol(target.substr(j + 1, 2).c_str(), nullptr, 16)), j += 2;
        else key += target[j];
      }
      const Json* next = nullptr;
      if (at->is_object()) {
        if (const auto it = at->find(key); it != at->end()) next = &*it;
      } else if (at->is_array() && !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos) {
        if (const auto n = static_cast<std::size_t>(std::stoul(key)); n < at->size()) next = &(*at)[n];
      }
      if (!next) throw GrammarError(place, "$ref \"" + ref.substr(0, 80) + "\" points to nothing");
      path = under(path, key);
      at = next;
      i = end;
    }
    if (!is_schema(*at)) throw GrammarError(place, "$ref \"" + ref.substr(0, 80) + "\" points to something that is no schema");
    return {at, path};
  }
  std::vector<SchemaRef> todo = {{&document_, ""}};
  while (!todo.empty()) {
    const SchemaRef here = todo.back();
    todo.pop_back();
    budget_.charge(16);
    if (here.schema->is_object()) {
      if (const Json* a = get(here, "$anchor"); a && *a == target) return here;
      for (const auto& [k, v] : here.schema->items()) todo.push_back({&v, under(here.place, k)});
    } else if (here.schema->is_array()) {
      for (std::size_t i = 0; i < here.schema->size(); ++i) todo.push_back({&(*here.schema)[i], here.place + "/" + std::to_string(i)});
    }
  }
  throw GrammarError(place, "$ref \"" + ref.substr(0, 80) + "\" points to nothing");
}

// ---- conjunctions --------------------------------------------------------------------------------

void SchemaView::expand(Conjunction todo, Conjunction plain, std::vector<const Json*> seen, std::vector<Conjunction>& out, int depth) {
  if (depth > kMaxDepth) throw GrammarError(todo.empty() ? "" : todo.back().place, "combines schemas more than " + std::to_string(kMaxDepth) + " levels deep");
  while (!todo.empty()) {
    const SchemaRef ref = todo.back();
    todo.pop_back();
    budget_.place = ref.place;
    budget_.charge(64);
    if (ref.schema->is_boolean()) {
      if (!ref.schema->get<bool>()) return;  // nothing satisfies false
      continue;
    }
    if (std::ranges::find(seen, ref.schema) != seen.end()) continue;
    seen.push_back(ref.schema);
    check(ref);
    plain.push_back(ref);
    if (const Json* r = get(ref, "$ref")) todo.push_back(resolve(r->get<std::string>(), under(ref.place, "$ref")));
    if (const Json* all = get(ref, "allOf"))
      for (std::size_t i = 0; i < all->size(); ++i) todo.push_back({&(*all)[i], ref.place + "/allOf/" + std::to_string(i)});
    const Json* any = get(ref, "anyOf");
    const Json* one = get(ref, "oneOf");
    if (one && one_checked_.insert(one).second) {
      const std::string at = ref.place + "/oneOf/";
      for (std::size_t i = 0; i < one->size(); ++i)
        for (std::size_t j = i + 1; j < one->size(); ++j)
          if (!exclusive({{&(*one)[i], at + std::to_string(i)}}, {{&(*one)[j], at + std::to_string(j)}}, 0))
            throw GrammarError(ref.place + "/oneOf", "alternatives " + std::to_string(i) + " and " + std::to_string(j) + " do not visibly exclude each other (by type, or by const or enum of a required property); use anyOf");
    }
    if (any || one) {
      const Json& first = any ? *any : *one;
      const std::string at = ref.place + (any ? "/anyOf/" : "/oneOf/");
      for (std::size_t i = 0; i < first.size(); ++i) {
        Conjunction rest = todo;
        rest.push_back({&first[i], at + std::to_string(i)});
        if (!any || !one) {
          expand(std::move(rest), plain, seen, out, depth + 1);
          continue;
        }
        for (std::size_t j = 0; j < one->size(); ++j) {
          Conjunction both = rest;
          both.push_back({&(*one)[j], ref.place + "/oneOf/" + std::to_string(j)});
          expand(std::move(both), plain, seen, out, depth + 1);
        }
      }
      return;
    }
  }
  if (out.size() >= kMaxAlternatives) throw GrammarError(budget_.place, "has more than " + std::to_string(kMaxAlternatives) + " alternatives for one value");
  out.push_back(std::move(plain));
}

std::vector<Conjunction> SchemaView::alternatives(const Conjunction& all) {
  std::vector<Conjunction> out;
  expand(Conjunction(all.rbegin(), all.rend()), {}, {}, out, 0);
  return out;
}

bool SchemaView::asserts(const Conjunction& plain) {
  for (const SchemaRef& r : plain)
    for (const auto& [key, v] : r.schema->items())
      if (const auto k = keywords().find(key); k != keywords().end() && k->second && key != "anyOf" && key != "oneOf" && key != "allOf" && key != "$ref") return true;
  return false;
}

unsigned SchemaView::types(const Conjunction& plain) {
  unsigned bits = kAllTypes;
  bool said = false;
  for (const SchemaRef& r : plain)
    if (const Json* t = get(r, "type")) {
      said = true;
      unsigned these = 0;
      if (t->is_string()) these = type_bit(t->get<std::string>());
      else
        for (const Json& x : *t) these |= type_bit(x.get<std::string>());
      bits &= these;
    }
  if (said) return bits;
  // No type is named: the types that the keywords speak about.
  unsigned meant = 0;
  for (const SchemaRef& r : plain)
    for (const auto& [key, v] : r.schema->items()) {
      if (key == "properties" || key == "required" || key == "additionalProperties" || key == "patternProperties" || key == "propertyNames" || key == "minProperties" || key == "maxProperties") meant |= kObject;
      if (key == "items" || key == "prefixItems" || key == "additionalItems" || key == "minItems" || key == "maxItems") meant |= kArray;
      if (key == "minLength" || key == "maxLength" || key == "pattern" || key == "format") meant |= kString;
      if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum" || key == "multipleOf") meant |= kNumber;
    }
  return meant ? meant : bits;
}

std::optional<std::vector<Json>> SchemaView::listed(const Conjunction& plain) {
  for (const SchemaRef& r : plain) {
    std::vector<Json> values;
    if (const Json* c = get(r, "const")) values.push_back(*c);
    else if (const Json* e = get(r, "enum")) values.assign(e->begin(), e->end());
    else continue;
    std::vector<Json> kept;
    for (Json& v : values) {
      budget_.charge(64);
      if (holds_plain(v, plain) && std::ranges::none_of(kept, [&](const Json& k) { return equal(k, v); })) kept.push_back(std::move(v));
    }
    return kept;
  }
  return std::nullopt;
}

NumberBounds SchemaView::number(const Conjunction& plain, bool integer) {
  NumberBounds b;
  b.integer = integer;
  for (const SchemaRef& r : plain) {
    const Json* xmin = get(r, "exclusiveMinimum");
    const Json* xmax = get(r, "exclusiveMaximum");
    const auto old_style = [](const Json* x) { return x && x->is_boolean() && x->get<bool>(); };  // draft 4
    if (const Json* v = get(r, "minimum")) b.at_least(*v, old_style(xmin));
    if (const Json* v = get(r, "maximum")) b.at_most(*v, old_style(xmax));
    if (xmin && xmin->is_number()) b.at_least(*xmin, true);
    if (xmax && xmax->is_number()) b.at_most(*xmax, true);
    if (const Json* v = get(r, "multipleOf")) {
      const auto m = static_cast<std::int64_t>(v->get<double>());
      b.multiple_of = b.multiple_of == 0 ? m : std::lcm(b.multiple_of, m);
      if (b.multiple_of > 10000) throw GrammarError(under(r.place, "multipleOf"), "together the multiples are larger than what is supported (10000)");
    }
  }
  return b;
}

const Dfa& SchemaView::pattern(const std::string& text, const std::string& place) {
  const auto it = patterns_.find(text);
  if (it != patterns_.end()) return it->second;
  budget_.place = place;
  return patterns_.emplace(text, compile_regex(text, RegexMode::kSearch, budget_)).first->second;
}

std::optional<Dfa> SchemaView::text(const Conjunction& plain) {
  std::optional<Dfa> all;
  const auto add = [&](const Dfa& d) { all = all ? both(*all, d, budget_) : d; };
  std::set<std::string> done;
  for (const SchemaRef& r : plain) {
    if (const Json* v = get(r, "pattern"); v && done.insert(v->get<std::string>()).second) add(pattern(v->get<std::string>(), under(r.place, "pattern")));
    if (const Json* v = get(r, "format"); v && done.insert("format " + v->get<std::string>()).second) {
      const std::string place = under(r.place, "format"), name = v->get<std::string>();
      const char* p = format_pattern(name);
      if (!p) throw GrammarError(place, "format \"" + name.substr(0, 40) + "\" is not supported; supported: " + format_names());
      add(pattern("^(?:" + std::string(p) + ")$", place));
    }
  }
  return all;
}

SchemaView::Count SchemaView::count(const Conjunction& plain, const char* least, const char* most) {
  Count c;
  for (const SchemaRef& r : plain) {
    if (const Json* v = get(r, least)) c.least = std::max(c.least, static_cast<std::int64_t>(v->get<double>()));
    if (const Json* v = get(r, most)) {
      const auto n = static_cast<std::int64_t>(v->get<double>());
      c.most = c.most < 0 ? n : std::min(c.most, n);
    }
  }
  return c;
}

std::optional<Dfa> SchemaView::names(const Conjunction& plain) {
  std::optional<Dfa> all;
  for (const SchemaRef& r : plain) {
    const Json* v = get(r, "propertyNames");
    if (!v) continue;
    const std::string place = under(r.place, "propertyNames");
    std::optional<Dfa> one;
    for (const Conjunction& a : alternatives({{v, place}})) {
      if (!(types(a) & kString)) continue;
      Dfa d;
      if (const auto values = listed(a)) {
        std::vector<std::string> texts;
        for (const Json& x : *values)
          if (x.is_string()) texts.push_back(x.get<std::string>());
        d = one_of({texts.begin(), texts.end()}, budget_);
      } else {
        const Count c = count(a, "minLength", "maxLength");
        auto t = text(a);
        d = with_length(t ? *t : any_text(budget_), c.least, c.most, budget_);
      }
      one = one ? either(*one, d, budget_) : d;
    }
    if (!one) one = Dfa{};
    all = all ? both(*all, *one, budget_) : std::move(*one);
  }
  return all;
}

Conjunction SchemaView::property(const Conjunction& plain, const std::string& name) {
  Conjunction out;
  for (const SchemaRef& r : plain) {
    bool known = false;
    if (const Json* p = get(r, "properties"))
      if (const auto it = p->find(name); it != p->end()) {
        out.push_back({&*it, under(under(r.place, "properties"), name)});
        known = true;
      }
    if (const Json* p = get(r, "patternProperties"))
      for (const auto& [key, v] : p->items()) {
        const std::string place = under(under(r.place, "patternProperties"), key);
        if (!pattern(key, place).matches(name)) continue;
        out.push_back({&v, place});
        known = true;
      }
    if (known) continue;
    if (const Json* a = get(r, "additionalProperties")) out.push_back({a, under(r.place, "additionalProperties")});
  }
  return out;
}

Conjunction SchemaView::additional(const Conjunction& plain) {
  Conjunction out;
  for (const SchemaRef& r : plain) {
    if (const Json* a = get(r, "additionalProperties")) out.push_back({a, under(r.place, "additionalProperties")});
  }
  return out;
}

std::size_t SchemaView::prefix_items(const Conjunction& plain) {
  std::size_t n = 0;
  for (const SchemaRef& r : plain) {
    if (const Json* p = get(r, "prefixItems")) n = std::max(n, p->size());
    if (const Json* i = get(r, "items"); i && i->is_array()) n = std::max(n, i->size());
  }
  return n;
}

Conjunction SchemaView::item(const Conjunction& plain, std::size_t index) {
  Conjunction out;
  for (const SchemaRef& r : plain) {
    const Json* items = get(r, "items");
    const bool old = items && items->is_array();  // before 2020-12
    const Json* prefix = old ? items : get(r, "prefixItems");
    const Json* rest = old ? get(r, "additionalItems") : items;
    if (prefix && index < prefix->size()) out.push_back({&(*prefix)[index], under(r.place, old ? "items" : "prefixItems") + "/" + std::to_string(index)});
    else if (rest) out.push_back({rest, under(r.place, old ? "additionalItems" : "items")});
  }
  return out;
}

// ---- exclusion -----------------------------------------------------------------------------------

// Surely no value satisfies both. False: not known.
bool SchemaView::exclusive(const Conjunction& a, const Conjunction& b, int depth) {
  if (depth > 4) return false;
  for (const Conjunction& x : alternatives(a))
    for (const Conjunction& y : alternatives(b)) {
      budget_.charge(128);
      // types() guesses where no type is named; that is no ground for exclusion.
      const auto surely = [](const Conjunction& c) {
        return std::ranges::any_of(c, [](const SchemaRef& r) { return get(r, "type") != nullptr; }) ? types(c) : static_cast<unsigned>(kAllTypes);
      };
      if ((surely(x) & surely(y)) == 0) continue;
      Conjunction together = x;
      together.insert(together.end(), y.begin(), y.end());
      if (const auto values = listed(together); values && values->empty()) continue;
      // A property that both require and that cannot have one value for both.
      const auto required = [](const Conjunction& c) {
        std::set<std::string> names;
        for (const SchemaRef& r : c)
          if (const Json* q = get(r, "required"))
            for (const Json& n : *q) names.insert(n.get<std::string>());
        return names;
      };
      bool apart = false;
      if ((surely(x) & surely(y)) == kObject) {
        const auto rx = required(x), ry = required(y);
        for (const std::string& n : rx) {
          if (apart) break;
          const Conjunction px = property(x, n), py = property(y, n);
          if (ry.contains(n)) apart = exclusive(px, py, depth + 1);
          // Required here, forbidden there.
          if (!apart) apart = alternatives(py).empty();
        }
        for (const std::string& n : ry)
          if (!apart) apart = alternatives(property(x, n)).empty();
      }
      if (!apart) return false;
    }
  return true;
}

// ---- validation ----------------------------------------------------------------------------------

bool SchemaView::holds(const Json& value, const Conjunction& all) {
  if (++depth_ > kMaxDepth) throw GrammarError(all.empty() ? "" : all[0].place, "lists values that are nested too deeply");
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{depth_};
  const auto choices = alternatives(all);
  return std::ranges::any_of(choices, [&](const Conjunction& plain) { return holds_plain(value, plain); });
}

bool SchemaView::holds_plain(const Json& value, const Conjunction& plain) {
  budget_.charge(64);
  const unsigned type = type_of(value);
  for (const SchemaRef& r : plain) {
    if (const Json* t = get(r, "type"); t && !(types({r}) & type)) return false;
    if (const Json* c = get(r, "const"); c && !equal(*c, value)) return false;
    if (const Json* e = get(r, "enum"); e && std::ranges::none_of(*e, [&](const Json& v) { return equal(v, value); })) return false;
  }
  if (value.is_number()) {
    const NumberBounds b = number(plain, false);
    const std::string text = decimal_text(value);
    if (b.least && (compare_decimal(text, *b.least) < (b.least_excluded ? 1 : 0))) return false;
    if (b.most && (compare_decimal(text, *b.most) > (b.most_excluded ? -1 : 0))) return false;
    if (b.multiple_of && (type != kInteger || std::fmod(value.get<double>(), static_cast<double>(b.multiple_of)) != 0)) return false;
  } else if (value.is_string()) {
    const std::string& s = value.get_ref<const std::string&>();
    const Count c = count(plain, "minLength", "maxLength");
    const std::int64_t n = code_points(s);
    if (n < c.least || (c.most >= 0 && n > c.most)) return false;
    if (const auto d = text(plain); d && !d->matches(s)) return false;
  } else if (value.is_array()) {
    const Count c = count(plain, "minItems", "maxItems");
    if (std::ssize(value) < c.least || (c.most >= 0 && std::ssize(value) > c.most)) return false;
    for (std::size_t i = 0; i < value.size(); ++i)
      if (!holds(value[i], item(plain, i))) return false;
  } else if (value.is_object()) {
    const Count c = count(plain, "minProperties", "maxProperties");
    if (std::ssize(value) < c.least || (c.most >= 0 && std::ssize(value) > c.most)) return false;
    for (const SchemaRef& r : plain)
      if (const Json* q = get(r, "required"))
        for (const Json& n : *q)
          if (!value.contains(n.get<std::string>())) return false;
    const auto allowed = names(plain);
    for (const auto& [k, v] : value.items()) {
      if (allowed && !allowed->matches(k)) return false;
      if (!holds(v, property(plain, k))) return false;
    }
  }
  return true;
}

}  // namespace qengine::structured
