#include "core/model/text.hpp"

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

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (const std::int64_t n : shape) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(n);
  }
  return out + "]";
}

}  // namespace qengine
