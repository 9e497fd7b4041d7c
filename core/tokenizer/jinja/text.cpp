#include "core/tokenizer/jinja/text.hpp"

#include <unicode/uchar.h>
#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/tokenizer/unicode.hpp"

namespace qengine::jinja {
namespace {

std::string from_icu(const icu::UnicodeString& u) {
  std::string s;
  u.toUTF8String(s);
  return s;
}
icu::UnicodeString to_icu(std::string_view s) { return icu::UnicodeString::fromUTF8(icu::StringPiece(s.data(), static_cast<int32_t>(s.size()))); }

bool is_ascii(std::string_view s) {
  for (const char c : s)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}
char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

template <class F>
std::string ascii_map(std::string_view s, F f) {
  std::string out(s);
  for (char& c : out) c = f(c);
  return out;
}

}  // namespace

bool is_space(char32_t c) { return unicode::is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view lstrip(std::string_view s) {
  for (std::size_t pos = 0, start; (start = pos) < s.size();)
    if (!is_space(unicode::next(s, pos))) return s.substr(start);
  return {};
}

std::string_view rstrip(std::string_view s) {
  for (std::size_t start = 0; !s.empty(); s = s.substr(0, start))
    if (!is_space(unicode::previous(s, s.size(), start))) break;
  return s;
}

std::string_view strip(std::string_view s) { return lstrip(rstrip(s)); }

std::string_view strip(std::string_view s, std::string_view set, bool left, bool right) {
  const auto in_set = [&](std::string_view c) { return set.find(c) != std::string_view::npos; };
  while (left && !s.empty()) {
    std::size_t pos = 0;
    unicode::next(s, pos);
    if (!in_set(s.substr(0, pos))) break;
    s = s.substr(pos);
  }
  while (right && !s.empty()) {
    std::size_t start = 0;
    unicode::previous(s, s.size(), start);
    if (!in_set(s.substr(start))) break;
    s = s.substr(0, start);
  }
  return s;
}

std::int64_t length(std::string_view s) {
  std::int64_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

std::vector<std::string_view> characters(std::string_view s) {
  std::vector<std::string_view> out;
  for (std::size_t pos = 0; pos < s.size();) {
    const std::size_t start = pos;
    unicode::next(s, pos);
    out.push_back(s.substr(start, pos - start));
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view s) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < s.size();) {
    const std::size_t start = pos;
    const char32_t c = unicode::next(s, pos);
    if (!((c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    out.push_back(s.substr(begin, start - begin));
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    begin = pos;
  }
  if (begin < s.size()) out.push_back(s.substr(begin));
  return out;
}

std::string upper(std::string_view s) { return is_ascii(s) ? ascii_map(s, ascii_upper) : from_icu(to_icu(s).toUpper(icu::Locale::getRoot())); }
std::string lower(std::string_view s) { return is_ascii(s) ? ascii_map(s, ascii_lower) : from_icu(to_icu(s).toLower(icu::Locale::getRoot())); }

std::string capitalize(std::string_view s) {
  if (s.empty()) return {};
  std::size_t pos = 0;
  unicode::next(s, pos);
  return upper(s.substr(0, pos)) + lower(s.substr(pos));
}

std::string title(std::string_view s) {
  std::string out;
  bool inside = false;
  for (const std::string_view c : characters(s)) {
    std::size_t pos = 0;
    const bool letter = u_isalpha(static_cast<UChar32>(unicode::next(c, pos)));
    out += !letter ? std::string(c) : inside ? lower(c) : upper(c);
    inside = letter;
  }
  return out;
}

std::string title_words(std::string_view s) {
  std::string out;
  bool start = true;
  for (const std::string_view c : characters(s)) {
    std::size_t pos = 0;
    const char32_t code = unicode::next(c, pos);
    const bool gap = is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    out += start ? upper(c) : lower(c);
    start = gap;
  }
  return out;
}

std::string repr(std::string_view s) {
  const bool single = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  char buffer[16];
  for (std::size_t pos = 0; pos < s.size();) {
    const std::size_t start = pos;
    const char32_t c = unicode::next(s, pos);
    if (c == '\\' || c == static_cast<unsigned char>(quote)) out += '\\', out += static_cast<char>(c);
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c != ' ' && (U_MASK(u_charType(static_cast<UChar32>(c))) & (U_GC_C_MASK | U_GC_Z_MASK))) {
      std::snprintf(buffer, sizeof buffer, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", static_cast<unsigned>(c));
      out += buffer;
    } else {
      out.append(s, start, pos - start);
    }
  }
  return out + quote;
}

std::string repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto r = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string s(buffer, r.ptr);  // -d.ddde+XX, shortest
  const std::size_t e = s.find('e');
  const int exponent = std::stoi(s.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return s;
  std::string digits = s.substr(0, e);
  const std::string sign = digits[0] == '-' ? "-" : "";
  digits.erase(0, sign.size());
  std::erase(digits, '.');
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace qengine::jinja
