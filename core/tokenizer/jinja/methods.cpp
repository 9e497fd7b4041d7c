// Methods of str, list and dict, and the two ways of formatting a string.
#include <unicode/uchar.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/tokenizer/jinja/filters.hpp"
#include "core/tokenizer/jinja/interpreter.hpp"
#include "core/tokenizer/jinja/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine::jinja {
namespace {

using In = Interpreter;

// Each method is given the value it belongs to.
struct Method {
  std::string_view name;
  Value (*run)(In&, const Value& self, const Args& args);
};

std::string required(const Params& p, std::size_t i, std::string_view what) {
  if (!p[i]) throw Failure(std::string(what) + "() misses an argument");
  return p.string(i, "");
}

Value strip_method(In& in, const Value& self, const Args& a, std::string_view name, bool left, bool right) {
  const Params p(name, a, {"chars"});
  std::string_view s = self.string();
  if (p[0] && !p[0]->is_none()) return in.text(std::string(strip(s, p.string(0, ""), left, right)));
  if (left) s = lstrip(s);
  if (right) s = rstrip(s);
  return in.text(std::string(s));
}

Value pieces(In& in, const std::vector<std::string_view>& parts) {
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const std::string_view s : parts) out.push_back(in.text(std::string(s)));
  return in.list(std::move(out));
}

Value split_method(In& in, const Value& self, const Args& a) {
  const Params p("split", a, {"sep", "maxsplit"});
  std::string_view s = self.string();
  in.charge(s.size() / 16);
  std::int64_t left = p.integer(1, -1);
  std::vector<std::string_view> parts;
  if (!p[0] || p[0]->is_none()) {
    for (s = lstrip(s); !s.empty(); s = lstrip(s)) {
      if (left-- == 0) {
        parts.push_back(s);
        break;
      }
      std::size_t pos = 0, start = 0;
      while ((start = pos) < s.size() && !is_space(unicode::next(s, pos))) {}
      parts.push_back(s.substr(0, start));
      s = s.substr(start);
    }
    return pieces(in, parts);
  }
  const std::string by = p.string(0, "");
  if (by.empty()) throw Failure("empty separator");
  for (std::size_t at; left-- != 0 && (at = s.find(by)) != std::string_view::npos; s = s.substr(at + by.size())) parts.push_back(s.substr(0, at));
  parts.push_back(s);
  return pieces(in, parts);
}

Value rsplit_method(In& in, const Value& self, const Args& a) {
  const Params p("rsplit", a, {"sep", "maxsplit"});
  std::string_view s = self.string();
  in.charge(s.size() / 16);
  std::int64_t left = p.integer(1, -1);
  std::vector<std::string_view> parts;
  if (!p[0] || p[0]->is_none()) {
    for (s = rstrip(s); !s.empty(); s = rstrip(s)) {
      if (left-- == 0) {
        parts.push_back(s);
        break;
      }
      std::size_t end = s.size(), start = 0;
      while (end > 0 && !is_space(unicode::previous(s, end, start))) end = start;
      parts.push_back(s.substr(end));
      s = s.substr(0, end);
    }
  } else {
    const std::string by = p.string(0, "");
    if (by.empty()) throw Failure("empty separator");
    for (std::size_t at; left-- != 0 && (at = s.rfind(by)) != std::string_view::npos; s = s.substr(0, at)) parts.push_back(s.substr(at + by.size()));
    parts.push_back(s);
  }
  std::reverse(parts.begin(), parts.end());
  return pieces(in, parts);
}

Value partition_method(In& in, const Value& self, const Args& a, bool last) {
  const Params p(last ? "rpartition" : "partition", a, {"sep"});
  const std::string& s = self.string();
  const std::string by = required(p, 0, "partition");
  if (by.empty()) throw Failure("empty separator");
  const std::size_t at = last ? s.rfind(by) : s.find(by);
  std::vector<Value> out;
  if (at == std::string::npos) {
    out = {last ? Value::string("") : self, Value::string(""), last ? self : Value::string("")};
  } else {
    out = {in.text(s.substr(0, at)), in.text(by), in.text(s.substr(at + by.size()))};
  }
  return in.list(std::move(out), true);
}

bool affix(const Value& self, const Args& a, std::string_view name, bool (*has)(std::string_view, std::string_view)) {
  const Params p(name, a, {"prefix"});
  if (!p[0]) throw Failure(std::string(name) + "() misses an argument");
  if (!p[0]->is_list()) return has(self.string(), required(p, 0, name));
  return std::any_of(p[0]->items().begin(), p[0]->items().end(), [&](const Value& v) {
    if (!v.is_string()) throw Failure(std::string(name) + "() needs strings");
    return has(self.string(), v.string());
  });
}
bool starts(std::string_view s, std::string_view a) { return s.starts_with(a); }
bool ends(std::string_view s, std::string_view a) { return s.ends_with(a); }

Value replace_method(In& in, const Value& self, const Args& a) {
  const Params p("replace", a, {"old", "new", "count"});
  const std::string old = required(p, 0, "replace"), with = required(p, 1, "replace");
  const std::string& s = self.string();
  in.charge(s.size() / 16);
  std::int64_t left = p.integer(2, -1);
  std::string out;
  const auto guard = [&] {
    if (out.size() > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
  };
  if (old.empty()) {
    for (const std::string_view c : characters(s)) {
      if (left-- != 0) out += with;
      else left = 0;
      out += c;
      guard();
    }
    if (left != 0) out += with;
    return in.text(std::move(out));
  }
  std::size_t done = 0;
  for (std::size_t at; left-- != 0 && (at = s.find(old, done)) != std::string::npos; done = at + old.size()) {
    out.append(s, done, at - done).append(with);
    guard();
  }
  out.append(s, done);
  return in.text(std::move(out));
}

Value find_method(In& in, const Value& self, const Args& a, std::string_view name, bool last, bool must) {
  const Params p(name, a, {"sub", "start"});
  const std::string sub = required(p, 0, name);
  const std::string& s = self.string();
  in.charge(s.size() / 16);
  std::size_t from = 0;
  if (const std::int64_t start = p.integer(1, 0); start != 0) {
    const std::int64_t n = length(s);
    for (std::int64_t i = std::max<std::int64_t>(start < 0 ? start + n : start, 0); i > 0 && from < s.size(); --i) unicode::next(s, from);
  }
  std::size_t at = last ? s.rfind(sub) : s.find(sub, from);
  if (last && at != std::string::npos && at < from) at = std::string::npos;
  if (at == std::string::npos && must) throw Failure("substring not found");
  return Value::integer(at == std::string::npos ? -1 : length(std::string_view(s).substr(0, at)));
}

Value count_method(In& in, const Value& self, const Args& a) {
  const std::string sub = required(Params("count", a, {"sub"}), 0, "count");
  in.charge(self.string().size() / 16);
  if (sub.empty()) return Value::integer(length(self.string()) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = self.string().find(sub, at)) != std::string::npos; at += sub.size()) ++n;
  return Value::integer(n);
}

Value join_method(In& in, const Value& self, const Args& a) {
  const Params p("join", a, {"iterable"});
  if (!p[0]) throw Failure("join() misses an argument");
  std::string out;
  std::size_t i = 0;
  for (const Value& v : in.iterate(*p[0])) {
    if (!v.is_string()) throw Failure("sequence item " + std::to_string(i) + ": expected str instance, " + std::string(v.type_name()) + " found");
    if (i++ > 0) out += self.string();
    out += v.string();
    if (out.size() > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
  }
  return in.text(std::move(out));
}

// Every character fulfils `f`, and there is one.
bool all(const Value& self, bool (*f)(char32_t)) {
  const std::string& s = self.string();
  for (std::size_t pos = 0; pos < s.size();)
    if (!f(unicode::next(s, pos))) return false;
  return !s.empty();
}
bool is_alpha(char32_t c) { return u_isalpha(static_cast<UChar32>(c)); }
bool is_digit(char32_t c) { return u_charDigitValue(static_cast<UChar32>(c)) >= 0 || u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) == U_NT_DIGIT; }
bool is_alnum(char32_t c) { return is_alpha(c) || unicode::is_numeric(c); }

Value pad(In& in, const Value& self, const Args& a, std::string_view name, int side) {
  const Params p(name, a, {"width", "fillchar"});
  if (!p[0]) throw Failure(std::string(name) + "() misses an argument");
  const std::string fill = p.string(1, " ");
  if (length(fill) != 1) throw Failure("The fill character must be exactly one character long");
  const std::int64_t width = p.integer(0, 0), n = length(self.string()), room = std::max<std::int64_t>(width - n, 0);
  if (room > 1'000'000) throw Failure(std::string(name) + "() to more than a million characters");
  const std::int64_t left = side < 0 ? 0 : side > 0 ? room : room / 2 + (room & width & 1);
  std::string out;
  for (std::int64_t i = 0; i < left; ++i) out += fill;
  out += self.string();
  for (std::int64_t i = left; i < room; ++i) out += fill;
  return in.text(std::move(out));
}

// "{} {0} {name}" without format specifications.
Value format_method(In& in, const Value& self, const Args& a) {
  const std::string& f = self.string();
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < f.size(); ++i) {
    if (f[i] == '}' && i + 1 < f.size() && f[i + 1] == '}') {
      out += '}', ++i;
    } else if (f[i] == '{' && i + 1 < f.size() && f[i + 1] == '{') {
      out += '{', ++i;
    } else if (f[i] == '{') {
      const std::size_t end = f.find('}', i);
      if (end == std::string::npos) throw Failure("expected '}' before end of string");
      const std::string field = f.substr(i + 1, end - i - 1);
      i = end;
      if (field.find_first_of(":!.[") != std::string::npos) throw Failure("format() with a specification ('{" + field + "}') is not supported");
      const Value* v = nullptr;
      if (field.empty() || field.find_first_not_of("0123456789") == std::string::npos) {
        const std::size_t index = field.empty() ? next++ : field.size() > 6 ? a.positional.size() : std::stoul(field);
        if (index < a.positional.size()) v = &a.positional[index];
      } else {
        for (const auto& [name, x] : a.named)
          if (name == field) v = &x;
      }
      if (!v) throw Failure("format() has no argument for '{" + field + "}'");
      out += in.str(*v);
      if (out.size() > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
    } else if (f[i] == '}') {
      throw Failure("Single '}' encountered in format string");
    } else {
      out += f[i];
    }
  }
  return in.text(std::move(out));
}

constexpr Method kStringMethods[] = {
    {"strip", [](In& in, const Value& s, const Args& a) { return strip_method(in, s, a, "strip", true, true); }},
    {"lstrip", [](In& in, const Value& s, const Args& a) { return strip_method(in, s, a, "lstrip", true, false); }},
    {"rstrip", [](In& in, const Value& s, const Args& a) { return strip_method(in, s, a, "rstrip", false, true); }},
    {"split", split_method},
    {"rsplit", rsplit_method},
    {"splitlines",
     [](In& in, const Value& s, const Args& a) {
       const Params p("splitlines", a, {"keepends"});
       if (p.flag(0)) throw Failure("splitlines(keepends=true) is not supported");
       in.charge(s.string().size() / 16);
       return pieces(in, split_lines(s.string()));
     }},
    {"partition", [](In& in, const Value& s, const Args& a) { return partition_method(in, s, a, false); }},
    {"rpartition", [](In& in, const Value& s, const Args& a) { return partition_method(in, s, a, true); }},
    {"startswith", [](In&, const Value& s, const Args& a) { return Value::boolean(affix(s, a, "startswith", starts)); }},
    {"endswith", [](In&, const Value& s, const Args& a) { return Value::boolean(affix(s, a, "endswith", ends)); }},
    {"removeprefix",
     [](In& in, const Value& s, const Args& a) {
       const std::string x = required(Params("removeprefix", a, {"prefix"}), 0, "removeprefix");
       return s.string().starts_with(x) ? in.text(s.string().substr(x.size())) : s;
     }},
    {"removesuffix",
     [](In& in, const Value& s, const Args& a) {
       const std::string x = required(Params("removesuffix", a, {"suffix"}), 0, "removesuffix");
       return !x.empty() && s.string().ends_with(x) ? in.text(s.string().substr(0, s.string().size() - x.size())) : s;
     }},
    {"replace", replace_method},
    {"find", [](In& in, const Value& s, const Args& a) { return find_method(in, s, a, "find", false, false); }},
    {"rfind", [](In& in, const Value& s, const Args& a) { return find_method(in, s, a, "rfind", true, false); }},
    {"index", [](In& in, const Value& s, const Args& a) { return find_method(in, s, a, "index", false, true); }},
    {"rindex", [](In& in, const Value& s, const Args& a) { return find_method(in, s, a, "rindex", true, true); }},
    {"count", count_method},
    {"join", join_method},
    {"format", format_method},
    {"upper", [](In& in, const Value& s, const Args&) { return in.text(upper(s.string())); }},
    {"lower", [](In& in, const Value& s, const Args&) { return in.text(lower(s.string())); }},
    {"casefold", [](In& in, const Value& s, const Args&) { return in.text(lower(s.string())); }},
    {"capitalize", [](In& in, const Value& s, const Args&) { return in.text(capitalize(s.string())); }},
    {"title", [](In& in, const Value& s, const Args&) { return in.text(title(s.string())); }},
    {"swapcase",
     [](In& in, const Value& s, const Args&) {
       std::string out;
       for (const std::string_view c : characters(s.string())) out += upper(c) == c ? lower(c) : upper(c);
       return in.text(std::move(out));
     }},
    {"isalpha", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, is_alpha)); }},
    {"isdigit", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, is_digit)); }},
    {"isdecimal", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, [](char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER; })); }},
    {"isnumeric", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, [](char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE; })); }},
    {"isalnum", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, is_alnum)); }},
    {"isspace", [](In&, const Value& s, const Args&) { return Value::boolean(all(s, is_space)); }},
    {"islower", [](In&, const Value& s, const Args&) { return Value::boolean(s.string() == lower(s.string()) && s.string() != upper(s.string())); }},
    {"isupper", [](In&, const Value& s, const Args&) { return Value::boolean(s.string() == upper(s.string()) && s.string() != lower(s.string())); }},
    {"center", [](In& in, const Value& s, const Args& a) { return pad(in, s, a, "center", 0); }},
    {"ljust", [](In& in, const Value& s, const Args& a) { return pad(in, s, a, "ljust", -1); }},
    {"rjust", [](In& in, const Value& s, const Args& a) { return pad(in, s, a, "rjust", 1); }},
    {"zfill",
     [](In& in, const Value& s, const Args& a) {
       const bool sign = s.string().starts_with('-') || s.string().starts_with('+');
       const Params p("zfill", a, {"width"});
       const Value digits = sign ? in.text(s.string().substr(1)) : s;
       const Value padded = pad(in, digits, Args{{Value::integer(p.integer(0, 0) - sign), Value::string("0")}, {}}, "zfill", 1);
       return sign ? in.text(s.string().substr(0, 1) + padded.string()) : padded;
     }},
};

Value keys(In& in, const Value& d, const Args&) { return in.list(in.iterate(d)); }

constexpr Method kDictMethods[] = {
    {"get",
     [](In& in, const Value& d, const Args& a) {
       const Params p("get", a, {"key", "default"});
       if (!p[0]) throw Failure("get() misses an argument");
       in.charge(d.pairs().size() / 8);
       const Value* v = d.find(*p[0]);
       return v ? *v : p[1] ? *p[1] : Value::none();
     }},
    {"items",
     [](In& in, const Value& d, const Args&) {
       std::vector<Value> out;
       in.charge(d.pairs().size() * 2);
       for (const Value::Pair& p : d.pairs()) out.push_back(Value::list({p.first, p.second}, true));
       return in.list(std::move(out));
     }},
    {"keys", keys},
    {"values",
     [](In& in, const Value& d, const Args&) {
       std::vector<Value> out;
       for (const Value::Pair& p : d.pairs()) out.push_back(p.second);
       return in.list(std::move(out));
     }},
    {"copy", [](In&, const Value& d, const Args&) { return d; }},
};

constexpr Method kListMethods[] = {
    {"index",
     [](In& in, const Value& l, const Args& a) {
       const Params p("index", a, {"value"});
       if (!p[0]) throw Failure("index() misses an argument");
       in.charge(l.weight() / 16);
       for (std::size_t i = 0; i < l.items().size(); ++i)
         if (l.items()[i].equals(*p[0])) return Value::integer(static_cast<std::int64_t>(i));
       throw Failure(p[0]->repr() + " is not in list");
     }},
    {"count",
     [](In& in, const Value& l, const Args& a) {
       const Params p("count", a, {"value"});
       if (!p[0]) throw Failure("count() misses an argument");
       in.charge(l.weight() / 16);
       return Value::integer(std::count_if(l.items().begin(), l.items().end(), [&](const Value& v) { return v.equals(*p[0]); }));
     }},
    {"copy", [](In&, const Value& l, const Args&) { return l; }},
};

template <std::size_t N>
const Method* find(const Method (&table)[N], std::string_view name) {
  for (const Method& m : table)
    if (m.name == name) return &m;
  return nullptr;
}

const Method* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) return find(kStringMethods, name);
  if (self.is_dict()) return find(kDictMethods, name);
  if (self.is_list()) return self.kind() == Value::Kind::kTuple && name == "copy" ? nullptr : find(kListMethods, name);
  return nullptr;
}

}  // namespace

bool has_method(const Value& self, const std::string& name) { return find_method(self, name) != nullptr; }

std::optional<Value> call_method(Interpreter& in, const Value& self, const std::string& name, const Args& args) {
  const Method* m = find_method(self, name);
  if (!m) return std::nullopt;
  in.charge(1);
  return m->run(in, self, args);
}

std::string format_percent(const std::string& f, const Value& values) {
  std::string out;
  std::size_t next = 0;
  const bool mapping = values.is_dict();
  const auto take = [&]() -> const Value& {
    if (values.kind() != Value::Kind::kTuple) {
      if (next++ > 0) throw Failure("not enough arguments for format string");
      return values;
    }
    if (next >= values.items().size()) throw Failure("not enough arguments for format string");
    return values.items()[next++];
  };
  for (std::size_t i = 0; i < f.size(); ++i) {
    if (f[i] != '%') {
      out += f[i];
      continue;
    }
    std::optional<Value> named;
    if (++i < f.size() && f[i] == '(') {
      const std::size_t end = f.find(')', i);
      if (!mapping || end == std::string::npos) throw Failure("format requires a mapping");
      const Value* v = values.find(std::string_view(f).substr(i + 1, end - i - 1));
      if (!v) throw Failure("the mapping has no key '" + f.substr(i + 1, end - i - 1) + "'");
      named = *v;
      i = end + 1;
    }
    std::string spec = "%";
    while (i < f.size() && std::string_view("-+ #0").find(f[i]) != std::string_view::npos && spec.size() < 8) spec += f[i++];
    int width = 0, precision = -1;
    while (i < f.size() && f[i] >= '0' && f[i] <= '9' && width < 1000) width = width * 10 + (f[i++] - '0');
    if (i < f.size() && f[i] == '.') {
      precision = 0;
      for (++i; i < f.size() && f[i] >= '0' && f[i] <= '9' && precision < 100;) precision = precision * 10 + (f[i++] - '0');
    }
    if (i >= f.size()) throw Failure("incomplete format");
    if (width > 1000 || precision > 100) throw Failure("a format that is too wide");
    const char type = f[i];
    if (type == '%') {
      out += '%';
      continue;
    }
    const Value& v = named ? *named : take();
    char buffer[2048];
    if (type == 's' || type == 'r') {
      std::string s = type == 's' ? v.str() : v.repr();
      if (precision >= 0) {
        std::string cut;
        for (const std::string_view c : characters(s)) {
          if (precision-- == 0) break;
          cut += c;
        }
        s.swap(cut);
      }
      const std::int64_t room = width - length(s);
      const std::string spaces(static_cast<std::size_t>(std::max<std::int64_t>(room, 0)), ' ');
      out += spec.find('-') != std::string::npos ? s + spaces : spaces + s;
    } else if (std::string_view("dixX").find(type) != std::string_view::npos) {
      if (v.is_undefined()) throw Failure(v.why());
      if (!v.is_number()) throw Failure(std::string("%") + type + " format: a number is required, not " + std::string(v.type_name()));
      const double whole = v.is_float() ? std::trunc(v.real()) : 0;
      if (!(std::fabs(whole) < 9.2e18)) throw Failure("a number that is too large for %d");
      spec += std::to_string(width) + "ll" + (type == 'i' ? 'd' : type);
      if (width == 0) spec.erase(spec.size() - 4, 1);
      out.append(buffer, static_cast<std::size_t>(std::snprintf(buffer, sizeof buffer, spec.c_str(), v.is_float() ? static_cast<long long>(whole) : static_cast<long long>(v.integer()))));
    } else if (std::string_view("fFeEgG").find(type) != std::string_view::npos) {
      if (v.is_undefined()) throw Failure(v.why());
      if (!v.is_number()) throw Failure("must be real number, not " + std::string(v.type_name()));
      if (width > 0) spec += std::to_string(width);
      spec += "." + std::to_string(precision < 0 ? 6 : precision) + type;
      out.append(buffer, static_cast<std::size_t>(std::snprintf(buffer, sizeof buffer, spec.c_str(), v.real())));
    } else {
      throw Failure(std::string("unsupported format character '") + type + "'");
    }
    if (out.size() > kMaxWeight) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
  }
  if (values.kind() == Value::Kind::kTuple && next < values.items().size()) throw Failure("not all arguments converted during string formatting");
  // What can be asked for an item by key need not be used up: Python counts lists and undefined among it.
  if (!mapping && values.kind() != Value::Kind::kList && !values.is_range() && !values.is_undefined() && values.kind() != Value::Kind::kTuple && next == 0) throw Failure("not all arguments converted during string formatting");
  return out;
}

}  // namespace qengine::jinja
