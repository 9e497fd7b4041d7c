#include "core/config/setting.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace qengine {

bool is_list(Kind k) { return k == Kind::kList || k == Kind::kTexts || k == Kind::kPaths; }
bool is_path(Kind k) { return k == Kind::kPath || k == Kind::kPaths; }

std::string env_name(const Setting& s) {
  std::string name = "QENGINE_";
  for (const char* p = s.name; *p; ++p) name += *p == '-' ? '_' : static_cast<char>(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
  return name;
}

std::vector<std::string> words(const Setting& s) {
  std::vector<std::string> out;
  std::string_view rest = s.value;
  while (!rest.empty()) {
    const auto bar = rest.find('|');
    const std::string_view word = rest.substr(0, bar);
    if (word != "N" && word != "F" && word != "BYTES" && word != "DIR") out.emplace_back(word);
    rest = bar == rest.npos ? std::string_view{} : rest.substr(bar + 1);
  }
  return out;
}

std::span<const SettingGroup* const> profile_groups() {
  static const SettingGroup* const groups[] = {&model_settings(),    &engine_settings(), &plugin_settings(),
                                               &sampling_settings(), &chat_settings(), &server_settings(), &canary_settings(), &gate_settings(),
                                               &output_settings()};
  return groups;
}

const Setting* setting_of_key(std::string_view key) {
  static const auto by_key = [] {
    std::map<std::string, const Setting*, std::less<>> m;
    for (const SettingGroup* g : profile_groups())
      for (const Setting& s : g->settings)
        if (*s.key) m.emplace(s.key, &s);
    return m;
  }();
  const auto it = by_key.find(key);
  return it == by_key.end() ? nullptr : it->second;
}

// ---- values --------------------------------------------------------------------------------------

std::optional<long long> parse_integer(std::string_view text, bool bytes) {
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  long long n = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc() || end == text.data() || n < 0) return std::nullopt;
  const std::string_view suffix(end, text.data() + text.size() - end);
  long long unit = 0;
  if (suffix.empty()) unit = 1;
  else if (suffix == "k") unit = 1000;
  else if (suffix == "m") unit = 1000'000;
  else if (suffix == "g") unit = 1000'000'000;
  else if (suffix == "K" || (bytes && suffix == "KiB")) unit = 1LL << 10;
  else if (suffix == "M" || (bytes && suffix == "MiB")) unit = 1LL << 20;
  else if (suffix == "G" || (bytes && suffix == "GiB")) unit = 1LL << 30;
  long long value;
  if (unit == 0 || __builtin_mul_overflow(n, unit, &value)) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> parse_number(std::string_view text) {
  double x = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (ec != std::errc() || end != text.data() + text.size() || !std::isfinite(x)) return std::nullopt;
  return x;
}

std::optional<bool> parse_bool(std::string_view text) {
  for (const char* t : {"true", "1", "yes", "on"})
    if (text == t) return true;
  for (const char* f : {"false", "0", "no", "off"})
    if (text == f) return false;
  return std::nullopt;
}

namespace {

std::string plain(double x) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return std::string(buffer, end);
}

std::string joined(const std::vector<std::string>& list, const char* last) {
  std::string out;
  for (std::size_t i = 0; i < list.size(); ++i) out += (i == 0 ? "" : i + 1 == list.size() ? last : ", ") + list[i];
  return out;
}

std::string range(const Setting& s) {
  const bool low = std::isfinite(s.least), high = std::isfinite(s.most);
  if (low && high) return " from " + plain(s.least) + " to " + plain(s.most);
  if (low) return " of at least " + plain(s.least);
  if (high) return " of at most " + plain(s.most);
  return "";
}

}  // namespace

std::optional<std::string> normalize(const Setting& s, std::string_view text, std::string* expected) {
  const auto fail = [&](std::string what) {
    *expected = std::move(what);
    return std::nullopt;
  };
  const auto inside = [&](double x) { return x >= s.least && x <= s.most; };
  switch (s.kind) {
    case Kind::kBool: {
      const auto b = parse_bool(text);
      if (!b) return fail("true or false");
      return *b ? "true" : "false";
    }
    case Kind::kInt:
    case Kind::kBytes: {
      const auto extra = words(s);
      if (std::find(extra.begin(), extra.end(), text) != extra.end()) return std::string(text);
      const bool bytes = s.kind == Kind::kBytes;
      const auto n = parse_integer(text, bytes);
      if (n && inside(static_cast<double>(*n))) return std::to_string(*n);
      std::string what = bytes ? "a size" + range(s) + " such as 512MiB or 4GiB" : "an integer" + range(s);
      if (!n && !bytes) what += " (4k is 4000, 4K is 4096)";
      return fail(extra.empty() ? what : what + ", or " + joined(extra, " or "));
    }
    case Kind::kNumber: {
      const auto extra = words(s);
      if (std::find(extra.begin(), extra.end(), text) != extra.end()) return std::string(text);
      const auto x = parse_number(text);
      if (!x || !inside(*x)) return fail("a number" + range(s));
      return plain(*x);
    }
    case Kind::kChoice: {
      const auto all = words(s);
      if (std::find(all.begin(), all.end(), text) == all.end()) return fail(joined(all, " or "));
      return std::string(text);
    }
    case Kind::kPath:
    case Kind::kPaths:
    case Kind::kList:
      if (text.empty()) return fail("something other than an empty text");
      return std::string(text);
    case Kind::kText:
    case Kind::kTexts:
      return std::string(text);
  }
  return std::nullopt;
}

}  // namespace qengine
