// Characters in the source of a pattern or grammar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qengine::structured {

inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;
inline bool is_surrogate(std::uint32_t cp) { return cp >= 0xD800 && cp <= 0xDFFF; }

// The code point at `at`, which moves behind it; nullopt: that is not UTF-8. REQUIRES: at < s.size().
inline std::optional<std::uint32_t> read_utf8(std::string_view s, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(s[at]);
  const std::size_t n = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if ((lead >= 0x80 && (lead < 0xC2 || lead > 0xF4)) || at + n > s.size()) return std::nullopt;
  std::uint32_t cp = n == 1 ? lead : lead & (0x7Fu >> n);
  for (std::size_t i = 1; i < n; ++i) {
    const auto b = static_cast<unsigned char>(s[at + i]);
    if ((b & 0xC0) != 0x80) return std::nullopt;
    cp = cp << 6 | (b & 0x3Fu);
  }
  if (cp > kLastCodePoint || is_surrogate(cp) || (n == 3 && cp < 0x800) || (n == 4 && cp < 0x10000)) return std::nullopt;
  at += n;
  return cp;
}

// `digits` hexadecimal digits at `at`, which moves behind them; nullopt: there are fewer. REQUIRES: digits <= 8.
inline std::optional<std::uint32_t> read_hex(std::string_view s, std::size_t& at, int digits) {
  std::uint32_t v = 0;
  for (int i = 0; i < digits; ++i, ++at) {
    const char c = at < s.size() ? s[at] : ' ';
    const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (d < 0) return std::nullopt;
    v = v << 4 | static_cast<std::uint32_t>(d);
  }
  return v;
}

inline void append_utf8(std::string& out, std::uint32_t cp) {
  const auto put = [&](std::uint32_t b) { out += static_cast<char>(b); };
  if (cp < 0x80) return put(cp);
  if (cp < 0x800) put(0xC0 | cp >> 6);
  else if (cp < 0x10000) put(0xE0 | cp >> 12), put(0x80 | (cp >> 6 & 0x3F));
  else put(0xF0 | cp >> 18), put(0x80 | (cp >> 12 & 0x3F)), put(0x80 | (cp >> 6 & 0x3F));
  put(0x80 | (cp & 0x3F));
}

}  // namespace qengine::structured
