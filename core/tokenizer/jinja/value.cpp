#include "core/tokenizer/jinja/value.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/tokenizer/jinja/text.hpp"

namespace qengine::jinja {
namespace {

using Kind = Value::Kind;

bool order(Kind k) { return k == Kind::kBool || k == Kind::kInt || k == Kind::kFloat; }

// Exact where both are integers; as doubles otherwise.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  return a.real() < b.real() ? -1 : a.real() > b.real();
}

void json_string(std::string& out, std::string_view s) {
  out += '"';
  char buffer[8];
  for (const char c : s) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
          out += buffer;
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string json_number(double d) { return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : repr(d); }

int checked_depth(int depth) {
  if (depth > kMaxNesting) throw Failure("values are nested deeper than " + std::to_string(kMaxNesting) + " levels");
  return depth;
}

std::uint64_t checked_weight(std::uint64_t weight) {
  if (weight > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
  return weight;
}

}  // namespace

Value Object::attribute(Interpreter&, const std::string& name) {
  return Value::undefined("'" + std::string(type_name()) + " object' has no attribute '" + name + "'");
}
Value Object::call(Interpreter&, const Args&) { throw Failure("'" + std::string(type_name()) + "' object is not callable"); }

Value Value::undefined(std::string why) {
  Value v;
  v.data_ = std::make_shared<const std::string>(std::move(why));
  return v;
}
Value Value::string(std::string s) {
  checked_weight(s.size());
  Value v(Kind::kString);
  v.data_ = std::make_shared<const std::string>(std::move(s));
  return v;
}
Value Value::list(std::vector<Value> items, bool tuple) {
  Value v(tuple ? Kind::kTuple : Kind::kList);
  int depth = 0;
  std::uint64_t weight = 16;
  for (const Value& i : items) depth = std::max(depth, i.depth()), weight += i.weight();
  v.data_ = std::make_shared<const ListData>(ListData{std::move(items), checked_depth(depth + 1), checked_weight(weight)});
  return v;
}
Value Value::dict(std::vector<Pair> pairs) {
  Value v(Kind::kDict);
  int depth = 0;
  std::uint64_t weight = 16;
  for (const Pair& p : pairs) depth = std::max({depth, p.first.depth(), p.second.depth()}), weight += p.first.weight() + p.second.weight();
  v.data_ = std::make_shared<const DictData>(DictData{std::move(pairs), checked_depth(depth + 1), checked_weight(weight)});
  return v;
}
Value Value::range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 by = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 size = span <= 0 ? 0 : (span + by - 1) / by;
  if (size > INT64_MAX) throw Failure("range() is too large");
  Value v(Kind::kRange);
  v.data_ = std::make_shared<const RangeData>(RangeData{start, step, static_cast<std::int64_t>(size)});
  return v;
}

Value Value::from_json(const Json& json, int depth) {
  checked_depth(depth);
  switch (json.type()) {
    case Json::value_t::null: return none();
    case Json::value_t::boolean: return boolean(json.get<bool>());
    case Json::value_t::number_integer: return integer(json.get<std::int64_t>());
    case Json::value_t::number_unsigned: {
      const auto u = json.get<std::uint64_t>();
      return u > static_cast<std::uint64_t>(INT64_MAX) ? real(static_cast<double>(u)) : integer(static_cast<std::int64_t>(u));
    }
    case Json::value_t::number_float: return real(json.get<double>());
    case Json::value_t::string: return string(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& j : json) items.push_back(from_json(j, depth + 1));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<Pair> pairs;
      pairs.reserve(json.size());
      for (const auto& [key, j] : json.items()) pairs.emplace_back(string(key), from_json(j, depth + 1));
      return dict(std::move(pairs));
    }
    default: throw Failure("a JSON value of a kind that templates do not have");
  }
}

const std::vector<Value>& Value::items() const { return static_cast<const ListData*>(data_.get())->items; }
const std::vector<Value::Pair>& Value::pairs() const { return static_cast<const DictData*>(data_.get())->pairs; }
int Value::depth() const {
  return is_list() ? static_cast<const ListData*>(data_.get())->depth : is_dict() ? static_cast<const DictData*>(data_.get())->depth : 0;
}
std::uint64_t Value::weight() const {
  return is_string() ? 16 + string().size() : is_list() ? static_cast<const ListData*>(data_.get())->weight : is_dict() ? static_cast<const DictData*>(data_.get())->weight : 16;
}
const std::string& Value::why() const {
  static const std::string kUnknown = "a value is undefined";
  return data_ ? string() : kUnknown;
}

const Value* Value::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.string()));
  if (key.is_list() || key.is_dict()) throw Failure("unhashable type: '" + std::string(key.type_name()) + "'");
  for (const Pair& p : pairs())
    if (p.first.equals(key)) return &p.second;
  return nullptr;
}
const Value* Value::find(std::string_view key) const {
  for (const Pair& p : pairs())
    if (p.first.is_string() && p.first.string() == key) return &p.second;
  return nullptr;
}

bool Value::truthy() const {
  switch (kind_) {
    case Kind::kUndefined: case Kind::kNone: return false;
    case Kind::kBool: case Kind::kInt: return number_.i != 0;
    case Kind::kFloat: return number_.d != 0;
    case Kind::kString: return !string().empty();
    case Kind::kList: case Kind::kTuple: return !items().empty();
    case Kind::kDict: return !pairs().empty();
    case Kind::kRange: return range().size > 0;
    case Kind::kObject: return true;
  }
  return false;
}

std::int64_t Value::length() const {
  switch (kind_) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return jinja::length(string());
    case Kind::kList: case Kind::kTuple: return static_cast<std::int64_t>(items().size());
    case Kind::kDict: return static_cast<std::int64_t>(pairs().size());
    case Kind::kRange: return range().size;
    default: throw Failure("object of type '" + std::string(type_name()) + "' has no len()");
  }
}

bool Value::equals(const Value& o) const {
  if (order(kind_) && order(o.kind_)) return compare_numbers(*this, o) == 0 && real() == real() && o.real() == o.real();
  if (kind_ != o.kind_) return false;
  switch (kind_) {
    case Kind::kUndefined: case Kind::kNone: return true;
    case Kind::kString: return string() == o.string();
    case Kind::kList: case Kind::kTuple:
      return data_ == o.data_ || std::equal(items().begin(), items().end(), o.items().begin(), o.items().end(), [](const Value& a, const Value& b) { return a.equals(b); });
    case Kind::kDict:
      if (data_ == o.data_) return true;
      if (pairs().size() != o.pairs().size()) return false;
      for (const Pair& p : pairs()) {
        const Value* other = o.find(p.first);
        if (!other || !p.second.equals(*other)) return false;
      }
      return true;
    case Kind::kRange: {
      const RangeData &a = range(), &b = o.range();
      return a.size == b.size && (a.size == 0 || (a.start == b.start && (a.size == 1 || a.step == b.step)));
    }
    case Kind::kObject: return number_.o == o.number_.o;
    default: return false;
  }
}

int Value::compare(const Value& o) const {
  if (order(kind_) && order(o.kind_)) return compare_numbers(*this, o);
  if (is_string() && o.is_string()) {
    const int c = string().compare(o.string());  // UTF-8 sorts as its code points do
    return c < 0 ? -1 : c > 0;
  }
  if (is_list() && kind_ == o.kind_) {
    const std::size_t n = std::min(items().size(), o.items().size());
    for (std::size_t i = 0; i < n; ++i)
      if (!items()[i].equals(o.items()[i])) return items()[i].compare(o.items()[i]);
    return items().size() < o.items().size() ? -1 : items().size() > o.items().size();
  }
  if (is_undefined()) throw Failure(why());
  if (o.is_undefined()) throw Failure(o.why());
  throw Failure("'" + std::string(type_name()) + "' and '" + std::string(o.type_name()) + "' cannot be ordered");
}

bool Value::contains(const Value& item) const {
  switch (kind_) {
    case Kind::kUndefined: return false;
    case Kind::kString:
      if (item.is_undefined()) throw Failure(item.why());
      if (!item.is_string()) throw Failure("'in <string>' requires string as left operand, not " + std::string(item.type_name()));
      return string().find(item.string()) != std::string::npos;
    case Kind::kList: case Kind::kTuple: return std::any_of(items().begin(), items().end(), [&](const Value& v) { return v.equals(item); });
    case Kind::kDict: return find(item) != nullptr;
    case Kind::kRange: {
      if (!item.is_integral()) return false;
      const RangeData& r = range();
      const __int128 from = static_cast<__int128>(item.integer()) - r.start;
      return r.size > 0 && from % r.step == 0 && from / r.step >= 0 && from / r.step < r.size;
    }
    default: throw Failure("argument of type '" + std::string(type_name()) + "' is not iterable");
  }
}

std::vector<Value> Value::iterate() const {
  std::vector<Value> out;
  switch (kind_) {
    case Kind::kUndefined: break;
    case Kind::kString:
      for (const std::string_view c : characters(string())) out.push_back(string(std::string(c)));
      break;
    case Kind::kList: case Kind::kTuple: return items();
    case Kind::kDict:
      for (const Pair& p : pairs()) out.push_back(p.first);
      break;
    case Kind::kRange:
      for (std::int64_t i = 0; i < range().size; ++i) out.push_back(integer(range().start + i * range().step));
      break;
    default: throw Failure("'" + std::string(type_name()) + "' object is not iterable");
  }
  return out;
}

std::string Value::str() const {
  if (is_string()) return string();
  if (is_undefined()) return {};
  return repr();
}

std::string Value::repr() const {
  std::string out;
  write_repr(out);
  return out;
}

void Value::write_repr(std::string& out) const {
  switch (kind_) {
    case Kind::kUndefined: out += "Undefined"; break;
    case Kind::kNone: out += "None"; break;
    case Kind::kBool: out += number_.i ? "True" : "False"; break;
    case Kind::kInt: out += std::to_string(number_.i); break;
    case Kind::kFloat: out += jinja::repr(number_.d); break;
    case Kind::kString: out += jinja::repr(string()); break;
    case Kind::kList: case Kind::kTuple: {
      out += kind_ == Kind::kList ? '[' : '(';
      bool first = true;
      for (const Value& v : items()) {
        if (!first) out += ", ";
        first = false;
        v.write_repr(out);
      }
      if (kind_ == Kind::kTuple && items().size() == 1) out += ',';
      out += kind_ == Kind::kList ? ']' : ')';
      break;
    }
    case Kind::kDict: {
      out += '{';
      bool first = true;
      for (const Pair& p : pairs()) {
        if (!first) out += ", ";
        first = false;
        p.first.write_repr(out);
        out += ": ";
        p.second.write_repr(out);
      }
      out += '}';
      break;
    }
    case Kind::kRange: {
      const RangeData& r = range();
      out += "range(" + std::to_string(r.start) + ", " + std::to_string(r.start + r.size * r.step) + (r.step == 1 ? ")" : ", " + std::to_string(r.step) + ")");
      break;
    }
    case Kind::kObject: out += "<" + std::string(number_.o->type_name()) + ">"; break;
  }
}

struct Value::JsonStyle {
  int indent;
  std::string_view item, key;
  bool sort;
  void line(std::string& out, int depth) const {
    if (indent >= 0) out += '\n', out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
  }
};

std::string Value::json(int indent, std::string_view item_separator, std::string_view key_separator, bool sort_keys) const {
  std::string out;
  const std::string_view item = !item_separator.empty() ? item_separator : indent >= 0 ? "," : ", ";
  write_json(out, {indent, item, key_separator, sort_keys}, 0);
  return out;
}

void Value::write_json(std::string& out, const JsonStyle& style, int depth) const {
  switch (kind_) {
    case Kind::kNone: out += "null"; break;
    case Kind::kBool: out += number_.i ? "true" : "false"; break;
    case Kind::kInt: out += std::to_string(number_.i); break;
    case Kind::kFloat: out += json_number(number_.d); break;
    case Kind::kString: json_string(out, string()); break;
    case Kind::kList: case Kind::kTuple: {
      if (items().empty()) {
        out += "[]";
        break;
      }
      out += '[';
      bool first = true;
      for (const Value& v : items()) {
        if (!first) out += style.item;
        first = false;
        style.line(out, depth + 1);
        v.write_json(out, style, depth + 1);
      }
      style.line(out, depth);
      out += ']';
      break;
    }
    case Kind::kDict: {
      if (pairs().empty()) {
        out += "{}";
        break;
      }
      std::vector<const Pair*> order;
      for (const Pair& p : pairs()) order.push_back(&p);
      if (style.sort) std::stable_sort(order.begin(), order.end(), [](const Pair* a, const Pair* b) { return a->first.compare(b->first) < 0; });
      out += '{';
      bool first = true;
      for (const Pair* p : order) {
        if (!first) out += style.item;
        first = false;
        style.line(out, depth + 1);
        const Value& k = p->first;
        if (k.is_string()) json_string(out, k.string());
        else if (k.is_number() || k.is_none()) out += '"', k.write_json(out, style, depth), out += '"';
        else throw Failure("keys must be str, int, float, bool or None, not " + std::string(k.type_name()));
        out += style.key;
        p->second.write_json(out, style, depth + 1);
      }
      style.line(out, depth);
      out += '}';
      break;
    }
    default:
      if (is_undefined() && data_) throw Failure(why());
      throw Failure("Object of type " + std::string(type_name()) + " is not JSON serializable");
  }
}

std::string_view Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kObject: return number_.o->type_name();
  }
  return "object";
}

}  // namespace qengine::jinja
