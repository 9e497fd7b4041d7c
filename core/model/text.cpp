#include "core/model/text.hpp"

#include <algorithm>

namespace qengine {

std::string printable(std::string_view text, std::size_t limit) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (out.size() >= limit) return out + "...";
    const auto b = static_cast<unsigned char>(c);
    if (b >= 0x20 && b < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[b >> 4];
      out += kHex[b & 15];
    }
  }
  return out;
}

std::size_t utf8_prefix(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t at = 0;
  while (at < text.size()) {
    const unsigned char b = byte(at);
    const std::size_t n = b < 0x80 ? 1 : b >= 0xc2 && b <= 0xdf ? 2 : b >= 0xe0 && b <= 0xef ? 3 : b >= 0xf0 && b <= 0xf4 ? 4 : 0;
    if (n == 0 || n > text.size() - at) return at;
    for (std::size_t i = 1; i < n; ++i)
      if ((byte(at + i) & 0xc0) != 0x80) return at;
    // Overlong forms, surrogates and values beyond U+10FFFF show in the second byte.
    if (n > 2) {
      const unsigned char c = byte(at + 1);
      if ((b == 0xe0 && c < 0xa0) || (b == 0xed && c > 0x9f) || (b == 0xf0 && c < 0x90) || (b == 0xf4 && c > 0x8f)) return at;
    }
    at += n;
  }
  return at;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t n = utf8_prefix(text);
    out += text.substr(0, n);
    if (n == text.size()) return out;
    out += "\xef\xbf\xbd";
    text.remove_prefix(n + 1);
  }
}

std::string mistaken_hint(std::string_view head, const std::string& otherwise) {
  const auto begins = [&](std::string_view with) { return head.starts_with(with); };
  if (begins("version https://git-lfs"))
    return "it is a pointer of Git LFS, and the file itself was not downloaded: git lfs pull, or download it again";
  if (begins("<!DOCTYPE") || begins("<!doctype") || begins("<html") || begins("<?xml"))
    return "it is a web page: the address of the download was wrong, or needs a login";
  if (begins("PK\3\4") || begins("\x80"))
    return "it looks like a pickle file (torch.save) under another name, and those are not opened: export the model as "
           "safetensors with its own tools";
  if (begins("GGUF")) return "it is a GGUF file under another name: name it .gguf, and give its path";
  if (head.size() > 8 && head[8] == '{' && head.substr(5, 3) == std::string_view("\0\0\0", 3))
    return "it is a .safetensors file under another name: give it its name, and the folder that holds it";
  const std::string_view line = head.substr(0, std::min(head.find('\n'), std::size_t{60}));
  const auto letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  if (line.size() > 7 && letter(line[0]) && std::all_of(line.begin(), line.end(), [](char c) { return c >= 0x20 && c < 0x7f; }))
    return "it is text and begins with \"" + std::string(line) + "\": the download failed";
  return otherwise;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (const std::int64_t n : shape) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(n);
  }
  return out + "]";
}

}  // namespace qengine
