#include "core/tokenizer/jinja/filters.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/tokenizer/jinja/interpreter.hpp"
#include "core/tokenizer/jinja/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine::jinja {
namespace {

using In = Interpreter;

std::string soft(In& in, const Value& v) { return in.str(v); }

Value text_filter(In& in, const Value& v, std::string (*f)(std::string_view)) { return in.text(f(soft(in, v))); }

Value upper_filter(In& in, const Value& v, const Args&) { return text_filter(in, v, upper); }
Value lower_filter(In& in, const Value& v, const Args&) { return text_filter(in, v, lower); }
Value capitalize_filter(In& in, const Value& v, const Args&) { return text_filter(in, v, capitalize); }
Value title_filter(In& in, const Value& v, const Args&) { return text_filter(in, v, title_words); }
Value string_filter(In& in, const Value& v, const Args&) { return in.text(soft(in, v)); }

Value trim_filter(In& in, const Value& v, const Args& a) {
  const Params p("trim", a, {"chars"});
  const std::string s = soft(in, v);
  if (!p[0] || p[0]->is_none()) return in.text(std::string(strip(s)));
  return in.text(std::string(strip(s, p.string(0, ""), true, true)));
}

Value escape_filter(In& in, const Value& v, const Args&) {
  std::string out;
  for (const char c : soft(in, v)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return in.text(std::move(out));
}

Value center_filter(In& in, const Value& v, const Args& a) { return *call_method(in, in.text(soft(in, v)), "center", Args{{Value::integer(Params("center", a, {"width"}).integer(0, 80))}, {}}); }

Value replace_filter(In& in, const Value& v, const Args& a) {
  const Params p("replace", a, {"old", "new", "count"});
  if (!p[0] || !p[1]) throw Failure("replace() needs old and new");
  return *call_method(in, in.text(soft(in, v)), "replace", Args{{in.text(soft(in, *p[0])), in.text(soft(in, *p[1])), Value::integer(p.integer(2, -1))}, {}});
}

Value indent_filter(In& in, const Value& v, const Args& a) {
  const Params p("indent", a, {"width", "first", "blank"});
  const bool spelled = p[0] && p[0]->is_string();
  const std::int64_t width = spelled ? 0 : p.integer(0, 4);
  if (width > 1000) throw Failure("indent() by more than 1000");
  const std::string by = spelled ? p[0]->string() : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  if (v.is_undefined()) throw Failure(v.why());
  if (!v.is_string()) throw Failure("indent() needs a string, not " + std::string(v.type_name()));
  const std::string s = v.string() + "\n";
  const auto lines = split_lines(s);
  in.charge(lines.size() * (1 + by.size() / 16));
  std::string out = p.flag(1) ? by : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (p.flag(2) || !lines[i].empty())) out += by;
    out += lines[i];
  }
  return in.text(std::move(out));
}

Value truncate_filter(In& in, const Value& v, const Args& a) {
  const Params p("truncate", a, {"length", "killwords", "end", "leeway"});
  const std::string end = p.string(2, "...");
  const std::int64_t size = p.integer(0, 255), leeway = p.integer(3, 5);
  if (size < length(end) || leeway < 0) throw Failure("truncate() to less than the length of its end");
  if (!v.is_string()) {
    if (!v.is_undefined() && v.length() > size + leeway) throw Failure("truncate() needs a string, not " + std::string(v.type_name()));
    return v;
  }
  const std::string& s = v.string();
  const auto c = characters(s);
  if (static_cast<std::int64_t>(c.size()) <= size + leeway) return in.text(s);
  std::string cut;
  for (std::int64_t i = 0; i < size - length(end); ++i) cut += c[static_cast<std::size_t>(i)];
  if (!p.flag(1))
    if (const auto space = cut.rfind(' '); space != std::string::npos) cut.resize(space);
  return in.text(cut + end);
}

Value wordcount_filter(In& in, const Value& v, const Args&) {
  const std::string s = soft(in, v);
  std::int64_t n = 0;
  bool inside = false;
  for (std::size_t pos = 0; pos < s.size();) {
    const bool word = unicode::is_word(unicode::next(s, pos));
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value format_filter(In& in, const Value& v, const Args& a) {
  if (!a.positional.empty() && !a.named.empty()) throw Failure("format() takes positional or keyword arguments, not both");
  if (a.named.empty()) return in.text(format_percent(soft(in, v), Value::list(a.positional, true)));
  std::vector<Value::Pair> pairs;
  for (const auto& [name, x] : a.named) pairs.emplace_back(Value::string(name), x);
  return in.text(format_percent(soft(in, v), Value::dict(std::move(pairs))));
}

// ---- numbers ----

Value abs_filter(In&, const Value& v, const Args&) {
  if (v.is_float()) return Value::real(std::fabs(v.real()));
  if (!v.is_integral() || v.integer() == INT64_MIN) throw Failure("bad operand type for abs(): '" + std::string(v.type_name()) + "'");
  return Value::integer(std::abs(v.integer()));
}

std::optional<double> parse_real(std::string_view s) {
  s = strip(s);
  if (s.starts_with('+')) s = s.substr(1);
  double d = 0;
  const auto r = std::from_chars(s.data(), s.data() + s.size(), d);
  if (s.empty() || r.ptr != s.data() + s.size() || r.ec == std::errc::invalid_argument) return std::nullopt;
  return d;
}

Value int_filter(In&, const Value& v, const Args& a) {
  const Params p("int", a, {"default", "base"});
  if (v.is_undefined()) throw Failure(v.why());
  const Value otherwise = p[0] ? *p[0] : Value::integer(0);
  if (v.is_integral()) return Value::integer(v.integer());
  std::optional<double> d;
  if (v.is_float()) d = v.real();
  if (v.is_string()) {
    std::string_view s = strip(v.string());
    const bool negative = s.starts_with('-');
    if (negative || s.starts_with('+')) s = s.substr(1);
    const std::int64_t base = p.integer(1, 10);
    if (base < 2 || base > 36) throw Failure("int() base must be 2 to 36");
    if (s.size() > 2 && s[0] == '0') {
      const char c = static_cast<char>(s[1] | 0x20);
      if ((base == 16 && c == 'x') || (base == 8 && c == 'o') || (base == 2 && c == 'b')) s = s.substr(2);
    }
    std::int64_t i = 0;
    const auto r = std::from_chars(s.data(), s.data() + s.size(), i, static_cast<int>(base));
    if (!s.empty() && s[0] != '-' && r.ec == std::errc() && r.ptr == s.data() + s.size()) return Value::integer(negative ? -i : i);
    d = parse_real(v.string());
  }
  if (!d || !(std::fabs(*d) < 9.2e18)) return otherwise;
  return Value::integer(static_cast<std::int64_t>(*d));
}

Value float_filter(In&, const Value& v, const Args& a) {
  const Params p("float", a, {"default"});
  if (v.is_undefined()) throw Failure(v.why());
  if (v.is_number()) return Value::real(v.real());
  if (v.is_string())
    if (const auto d = parse_real(v.string())) return Value::real(*d);
  return p[0] ? *p[0] : Value::real(0);
}

Value round_filter(In&, const Value& v, const Args& a) {
  const Params p("round", a, {"precision", "method"});
  if (!v.is_number()) throw Failure("round() needs a number, not " + std::string(v.type_name()));
  const std::string method = p.string(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") throw Failure("round() method must be common, ceil or floor");
  const std::int64_t precision = p.integer(0, 0);
  if (precision < -300 || precision > 300) throw Failure("round() to " + std::to_string(precision) + " places");
  if (v.is_integral() && method == "common" && precision >= 0) return Value::integer(v.integer());
  const double scale = std::pow(10.0, static_cast<double>(precision)), x = v.real() * scale;
  const double r = method == "ceil" ? std::ceil(x) : method == "floor" ? std::floor(x) : std::nearbyint(x);
  return Value::real(std::isfinite(x) ? r / scale : v.real());
}

// ---- sequences ----

Value length_filter(In& in, const Value& v, const Args&) {
  if (v.is_string()) in.charge(v.string().size() / 16);
  return Value::integer(v.length());
}
Value list_filter(In& in, const Value& v, const Args&) { return in.list(in.iterate(v)); }

Value first_filter(In& in, const Value& v, const Args&) {
  const auto items = in.iterate(v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value last_filter(In& in, const Value& v, const Args&) {
  const auto items = in.iterate(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse_filter(In& in, const Value& v, const Args&) {
  if (v.is_string()) {
    std::string s;
    auto c = characters(v.string());
    for (auto it = c.rbegin(); it != c.rend(); ++it) s += *it;
    return in.text(std::move(s));
  }
  auto items = in.iterate(v);
  std::reverse(items.begin(), items.end());
  return in.list(std::move(items));
}

Value join_filter(In& in, const Value& v, const Args& a) {
  const Params p("join", a, {"d", "attribute"});
  const std::string by = p[0] ? soft(in, *p[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : in.iterate(v)) {
    if (!first) out += by;
    first = false;
    out += soft(in, p[1] ? in.path(item, *p[1]) : item);
    if (out.size() > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
    in.charge(1 + by.size() / 16);
  }
  return in.text(std::move(out));
}

Value items_filter(In& in, const Value& v, const Args&) {
  if (v.is_undefined()) return Value::list({});
  if (!v.is_dict()) throw Failure("Can only get item pairs from a mapping.");
  return *call_method(in, v, "items", {});
}

Value fold_case(In& in, const Value& v, bool case_sensitive) { return !case_sensitive && v.is_string() ? in.text(lower(v.string())) : v; }

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

void sort_keyed(In& in, std::vector<Keyed>& all, bool reverse, bool listed = false) {
  const auto less = [&](const Keyed& a, const Keyed& b) {
    in.charge(1);
    for (std::size_t i = 0; i < a.keys.size(); ++i) {
      in.charge(std::min(a.keys[i].weight(), b.keys[i].weight()) / 16);
      if (listed && a.keys[i].equals(b.keys[i])) continue;  // lists of keys: equal ones are not ordered, undefined ones neither
      if (const int c = a.keys[i].compare(b.keys[i])) return reverse ? c > 0 : c < 0;
    }
    return false;
  };
  std::stable_sort(all.begin(), all.end(), less);
}

Value dictsort_filter(In& in, const Value& v, const Args& a) {
  const Params p("dictsort", a, {"case_sensitive", "by", "reverse"});
  const std::string by = p.string(1, "key");
  if (by != "key" && by != "value") throw Failure("You can only sort by either \"key\" or \"value\"");
  if (v.is_undefined()) throw Failure(v.why());
  if (!v.is_dict()) throw Failure("dictsort needs a mapping, not " + std::string(v.type_name()));
  std::vector<Keyed> all;
  for (const Value::Pair& pair : v.pairs())
    all.push_back({{fold_case(in, by == "key" ? pair.first : pair.second, p.flag(0))}, Value::list({pair.first, pair.second}, true)});
  sort_keyed(in, all, p.flag(2));
  std::vector<Value> out;
  for (Keyed& k : all) out.push_back(std::move(k.item));
  return in.list(std::move(out));
}

Value sort_filter(In& in, const Value& v, const Args& a) {
  const Params p("sort", a, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> attributes;
  if (p[2] && p[2]->is_string()) {
    std::string_view rest = p[2]->string();
    for (;;) {
      const std::size_t comma = rest.find(',');
      attributes.push_back(Value::string(std::string(rest.substr(0, comma))));
      if (comma == std::string_view::npos) break;
      rest = rest.substr(comma + 1);
    }
  } else if (p[2] && !p[2]->is_none()) {
    attributes.push_back(*p[2]);
  }
  std::vector<Keyed> all;
  for (const Value& item : in.iterate(v)) {
    Keyed k{{}, item};
    if (attributes.empty()) k.keys.push_back(fold_case(in, item, p.flag(1)));
    for (const Value& attribute : attributes) k.keys.push_back(fold_case(in, in.path(item, attribute), p.flag(1)));
    all.push_back(std::move(k));
  }
  sort_keyed(in, all, p.flag(0), !attributes.empty());
  std::vector<Value> out;
  for (Keyed& k : all) out.push_back(std::move(k.item));
  return in.list(std::move(out));
}

Value unique_filter(In& in, const Value& v, const Args& a) {
  const Params p("unique", a, {"case_sensitive", "attribute"});
  std::vector<Value> seen, out;
  for (const Value& item : in.iterate(v)) {
    const Value key = fold_case(in, p[1] && !p[1]->is_none() ? in.path(item, *p[1]) : item, p.flag(0));
    in.charge(seen.size());
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return s.equals(key); })) continue;
    in.charge(key.weight() / 16);
    seen.push_back(key);
    out.push_back(item);
  }
  return in.list(std::move(out));
}

Value extreme(In& in, std::string_view name, const Value& v, const Args& a, int sign) {
  const Params p(name, a, {"case_sensitive", "attribute"});
  Value best, best_key;
  bool any = false;
  for (const Value& item : in.iterate(v)) {
    Value key = fold_case(in, p[1] && !p[1]->is_none() ? in.path(item, *p[1]) : item, p.flag(0));
    if (any && sign * key.compare(best_key) <= 0) continue;
    best = item, best_key = std::move(key), any = true;
  }
  return any ? best : Value::undefined("No aggregated item, sequence was empty.");
}
Value min_filter(In& in, const Value& v, const Args& a) { return extreme(in, "min", v, a, -1); }
Value max_filter(In& in, const Value& v, const Args& a) { return extreme(in, "max", v, a, 1); }

Value sum_filter(In& in, const Value& v, const Args& a) {
  const Params p("sum", a, {"attribute", "start"});
  bool real = p[1] && p[1]->is_float();
  std::int64_t whole = p[1] && p[1]->is_integral() ? p[1]->integer() : 0;
  double total = p[1] && p[1]->is_number() ? p[1]->real() : 0;
  for (const Value& item : in.iterate(v)) {
    const Value n = p[0] && !p[0]->is_none() ? in.path(item, *p[0]) : item;
    if (n.is_undefined()) throw Failure(n.why());
    if (!n.is_number()) throw Failure("sum() needs numbers, found " + std::string(n.type_name()));
    real |= n.is_float();
    total += n.real();
    if (n.is_integral() && __builtin_add_overflow(whole, n.integer(), &whole)) real = true;
  }
  return real ? Value::real(total) : Value::integer(whole);
}

Value batch_filter(In& in, const Value& v, const Args& a) {
  const Params p("batch", a, {"linecount", "fill_with"});
  const std::int64_t n = p.integer(0, 0);
  if (n < 1) throw Failure("batch() needs a positive line count");
  std::vector<Value> out, row;
  for (const Value& item : in.iterate(v)) {
    row.push_back(item);
    if (static_cast<std::int64_t>(row.size()) == n) out.push_back(in.list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    for (; p[1] && !p[1]->is_none() && static_cast<std::int64_t>(row.size()) < n; in.charge(1)) row.push_back(*p[1]);
    out.push_back(in.list(std::move(row)));
  }
  return in.list(std::move(out));
}

Value slice_filter(In& in, const Value& v, const Args& a) {
  const Params p("slice", a, {"slices", "fill_with"});
  const std::int64_t n = p.integer(0, 0);
  if (n < 1) throw Failure("slice() needs a positive number of slices");
  const auto items = in.iterate(v);
  in.charge(static_cast<std::uint64_t>(n));
  const std::int64_t each = static_cast<std::int64_t>(items.size()) / n, longer = static_cast<std::int64_t>(items.size()) % n;
  std::vector<Value> out;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t size = static_cast<std::size_t>(each + (i < longer));
    std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(at), items.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (p[1] && !p[1]->is_none() && i >= longer) row.push_back(*p[1]);
    out.push_back(in.list(std::move(row)));
  }
  return in.list(std::move(out));
}

Value groupby_filter(In& in, const Value& v, const Args& a) {
  const Params p("groupby", a, {"attribute", "default", "case_sensitive"});
  if (!p[0]) throw Failure("groupby() needs an attribute");
  std::vector<Keyed> all;
  std::vector<Value> shown;
  for (const Value& item : in.iterate(v)) {
    Value key = in.path(item, *p[0]);
    if (key.is_undefined() && p[1]) key = *p[1];
    all.push_back({{fold_case(in, key, p.flag(2))}, Value::list({key, item}, true)});
  }
  sort_keyed(in, all, false);
  std::vector<Value> out;
  for (std::size_t i = 0, j; i < all.size(); i = j) {
    std::vector<Value> members;
    for (j = i; j < all.size() && all[j].keys[0].equals(all[i].keys[0]); ++j) members.push_back(all[j].item.items()[1]);
    out.push_back(Value::list({all[i].item.items()[0], in.list(std::move(members))}, true));
  }
  return in.list(std::move(out));
}

// ---- filters that take filters and tests ----

Args without_first(const Args& a, std::size_t n) { return {{a.positional.begin() + static_cast<std::ptrdiff_t>(n), a.positional.end()}, a.named}; }

// Of nothing (none, undefined, '', 0) these make nothing and look at no argument, as Python's do.
Value map_filter(In& in, const Value& v, const Args& a) {
  std::vector<Value> out;
  if (!v.truthy()) return in.list({});
  if (a.positional.empty()) {
    const Params p("map", a, {"attribute", "default"});
    if (!p[0]) throw Failure("map requires a filter argument");
    for (const Value& item : in.iterate(v)) {
      Value x = in.path(item, *p[0]);
      out.push_back(x.is_undefined() && p[1] ? *p[1] : std::move(x));
    }
    return in.list(std::move(out));
  }
  if (!a.positional[0].is_string()) throw Failure("map requires the name of a filter");
  const FilterFn* filter = find_filter(a.positional[0].string());
  if (!filter) throw Failure("there is no filter called '" + a.positional[0].string() + "'");
  const Args rest = without_first(a, 1);
  for (const Value& item : in.iterate(v)) {
    in.charge(1);
    out.push_back(filter->run(in, item, rest));
  }
  return in.list(std::move(out));
}

Value choose(In& in, const Value& v, const Args& a, bool by_attribute, bool keep) {
  if (!v.truthy()) return in.list({});
  std::size_t at = 0;
  if (by_attribute && a.positional.empty()) throw Failure("Missing parameter for attribute name");
  const Value* attribute = by_attribute ? &a.positional[at++] : nullptr;
  const TestFn* test = nullptr;
  if (a.positional.size() > at) {
    if (!a.positional[at].is_string()) throw Failure("the name of a test must be a string");
    test = find_test(a.positional[at].string());
    if (!test) throw Failure("there is no test called '" + a.positional[at].string() + "'");
    ++at;
  }
  const Args rest = without_first(a, at);
  std::vector<Value> out;
  for (const Value& item : in.iterate(v)) {
    in.charge(1);
    const Value x = attribute ? in.path(item, *attribute) : item;
    if ((test ? test->run(in, x, rest) : x.truthy()) == keep) out.push_back(item);
  }
  return in.list(std::move(out));
}
Value select_filter(In& in, const Value& v, const Args& a) { return choose(in, v, a, false, true); }
Value reject_filter(In& in, const Value& v, const Args& a) { return choose(in, v, a, false, false); }
Value selectattr_filter(In& in, const Value& v, const Args& a) { return choose(in, v, a, true, true); }
Value rejectattr_filter(In& in, const Value& v, const Args& a) { return choose(in, v, a, true, false); }

// ---- others ----

Value default_filter(In&, const Value& v, const Args& a) {
  const Params p("default", a, {"default_value", "boolean"});
  if (v.is_undefined() || (p.flag(1) && !v.truthy())) return p[0] ? *p[0] : Value::string("");
  return v;
}

Value attr_filter(In& in, const Value& v, const Args& a) {
  const Params p("attr", a, {"name"});
  const std::string name = p.string(0, "");
  if (v.is_object() || v.is_undefined() || has_method(v, name)) return in.attribute(v, name);
  return Value::undefined("'" + std::string(v.type_name()) + " object' has no attribute '" + name + "'");
}

Value tojson_filter(In& in, const Value& v, const Args& a) {
  const Params p("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  std::string item, key = ": ";
  if (p[2] && !p[2]->is_none()) {
    if (!p[2]->is_list() || p[2]->items().size() != 2 || !p[2]->items()[0].is_string() || !p[2]->items()[1].is_string())
      throw Failure("tojson() separators must be a pair of strings");
    item = p[2]->items()[0].string(), key = p[2]->items()[1].string();
  }
  const std::int64_t indent = p.integer(1, -1);
  if (indent > 64) throw Failure("tojson() indent above 64");
  in.charge(v.weight() / 8 * static_cast<std::uint64_t>(indent > 0 ? indent : 1));
  std::string s = v.json(static_cast<int>(std::max<std::int64_t>(indent, -1)), item, key, p.flag(3));
  if (p.flag(0)) {
    std::string ascii;
    char buffer[16];
    for (std::size_t pos = 0; pos < s.size();) {
      const char32_t c = unicode::next(s, pos);
      if (c < 0x80) ascii += static_cast<char>(c);
      else if (c < 0x10000) std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c)), ascii += buffer;
      else std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", static_cast<unsigned>(0xD800 + ((c - 0x10000) >> 10)), static_cast<unsigned>(0xDC00 + ((c - 0x10000) & 0x3FF))), ascii += buffer;
    }
    s.swap(ascii);
  }
  return in.text(std::move(s));
}

constexpr FilterFn kFilters[] = {
    {"abs", abs_filter}, {"attr", attr_filter}, {"batch", batch_filter}, {"capitalize", capitalize_filter}, {"center", center_filter},
    {"count", length_filter}, {"d", default_filter}, {"default", default_filter}, {"dictsort", dictsort_filter}, {"e", escape_filter},
    {"escape", escape_filter}, {"first", first_filter}, {"float", float_filter}, {"format", format_filter}, {"groupby", groupby_filter},
    {"indent", indent_filter}, {"int", int_filter}, {"items", items_filter}, {"join", join_filter}, {"last", last_filter},
    {"length", length_filter}, {"list", list_filter}, {"lower", lower_filter}, {"map", map_filter}, {"max", max_filter},
    {"min", min_filter}, {"reject", reject_filter}, {"rejectattr", rejectattr_filter}, {"replace", replace_filter}, {"reverse", reverse_filter},
    {"round", round_filter}, {"safe", string_filter}, {"select", select_filter}, {"selectattr", selectattr_filter}, {"slice", slice_filter},
    {"sort", sort_filter}, {"string", string_filter}, {"sum", sum_filter}, {"title", title_filter}, {"tojson", tojson_filter},
    {"trim", trim_filter}, {"truncate", truncate_filter}, {"unique", unique_filter}, {"upper", upper_filter}, {"wordcount", wordcount_filter},
};

}  // namespace

const FilterFn* find_filter(std::string_view name) {
  for (const FilterFn& f : kFilters)
    if (f.name == name) return &f;
  return nullptr;
}

}  // namespace qengine::jinja
