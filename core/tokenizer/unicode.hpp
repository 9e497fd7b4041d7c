// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qengine::unicode {

inline constexpr char32_t kReplacement = 0xFFFD;

// The code point that starts at text[pos]; pos moves behind it. REQUIRES: well-formed UTF-8, pos < size.
inline char32_t next(std::string_view text, std::size_t& pos) {
  const auto b = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = b(pos);
  if (c < 0x80) return pos += 1, c;
  if (c < 0xE0) {
    pos += 2;
    return (c & 0x1Fu) << 6 | (b(pos - 1) & 0x3Fu);
  }
  if (c < 0xF0) {
    pos += 3;
    return (c & 0x0Fu) << 12 | (b(pos - 2) & 0x3Fu) << 6 | (b(pos - 1) & 0x3Fu);
  }
  pos += 4;
  return (c & 0x07u) << 18 | (b(pos - 3) & 0x3Fu) << 12 | (b(pos - 2) & 0x3Fu) << 6 | (b(pos - 1) & 0x3Fu);
}

// The code point that ends at text[end); REQUIRES: well-formed UTF-8, end > 0. `start` gets where it begins.
char32_t previous(std::string_view text, std::size_t end, std::size_t& start);

// Bytes of the character whose first byte is `lead`, 1 for anything that cannot lead.
inline std::size_t length(unsigned char lead) { return lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1; }

void append(std::string& out, char32_t code_point);

// How the bytes at text[pos..] start: a whole character (`size` bytes), the beginning of one that the
// text cuts off (`cut`), or bytes that can start none (`size` of them, to become one U+FFFD).
struct Sequence {
  std::size_t size;
  bool valid, cut;
};
Sequence classify(std::string_view text, std::size_t pos);

bool is_valid(std::string_view text);
// Ill-formed parts become one U+FFFD for each maximal subpart, as WHATWG decoders do.
std::string sanitize(std::string_view text);

// GPT-2's table: each byte as a printable character (formats.md 2.7).
char32_t byte_to_char(unsigned char byte);
// The byte behind a character of that table, -1 for others.
int char_to_byte(char32_t c);
std::string bytes_to_chars(std::string_view bytes);

bool is_whitespace(char32_t c);   // White_Space
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_punctuation(char32_t c);  // P*, and the ASCII symbols
bool is_mark(char32_t c);         // M*
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_word(char32_t c);         // Alphabetic, M, Nd, Pc, Join_Control
bool is_control(char32_t c);      // Cc, Cf, Co
bool is_cjk(char32_t c);          // the ideograph blocks that BERT separates
int script(char32_t c);           // ICU's script code
char32_t lower(char32_t c, char32_t& second);  // `second` is 0 but for U+0130

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize(std::string_view text, Form form);

}  // namespace qengine::unicode
