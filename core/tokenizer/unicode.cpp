#include "core/tokenizer/unicode.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include "core/base/error.hpp"

namespace qengine::unicode {
namespace {

struct ByteTable {
  std::array<char16_t, 256> to_char{};
  std::array<std::int16_t, 0x144> to_byte{};
  constexpr ByteTable() {
    to_byte.fill(-1);
    int next = 0;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int c = printable ? b : 0x100 + next++;
      to_char[b] = static_cast<char16_t>(c);
      to_byte[c] = static_cast<std::int16_t>(b);
    }
  }
};
constexpr ByteTable kBytes;
static_assert(kBytes.to_char[0x20] == 0x120 && kBytes.to_char[0x7F] == 0x121 && kBytes.to_char[0xA0] == 0x142 &&
              kBytes.to_char[0xAD] == 0x143);

bool in_mask(char32_t c, std::uint32_t mask) { return (U_MASK(u_charType(static_cast<UChar32>(c))) & mask) != 0; }

}  // namespace

char32_t previous(std::string_view text, std::size_t end, std::size_t& start) {
  start = end - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  std::size_t pos = start;
  return next(text, pos);
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

Sequence classify(std::string_view text, std::size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) return {1, true, false};
  const std::size_t n = length(lead);
  if (n == 1) return {1, false, false};
  // The first continuation byte has a narrower range after E0, ED, F0 and F4 (no overlong forms, no
  // surrogates, nothing above U+10FFFF).
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < n; ++i) {
    if (pos + i >= text.size()) return {i, false, true};
    const auto b = static_cast<unsigned char>(text[pos + i]);
    if (b < low || b > high) return {i, false, false};
    low = 0x80, high = 0xBF;
  }
  return {n, true, false};
}

bool is_valid(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    const Sequence s = classify(text, pos);
    if (!s.valid) return false;
    pos += s.size;
  }
  return true;
}

std::string sanitize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const Sequence s = classify(text, pos);
    if (s.valid) out.append(text, pos, s.size);
    else append(out, kReplacement);
    pos += s.size;
  }
  return out;
}

char32_t byte_to_char(unsigned char byte) { return kBytes.to_char[byte]; }

int char_to_byte(char32_t c) { return c < kBytes.to_byte.size() ? kBytes.to_byte[c] : -1; }

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char b : bytes) append(out, byte_to_char(static_cast<unsigned char>(b)));
  return out;
}

bool is_whitespace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }
bool is_numeric(char32_t c) { return in_mask(c, U_GC_N_MASK); }
bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  return in_mask(c, U_GC_P_MASK);
}
bool is_mark(char32_t c) { return in_mask(c, U_GC_M_MASK); }
bool is_nonspacing_mark(char32_t c) { return in_mask(c, U_GC_MN_MASK); }
bool is_word(char32_t c) {
  return u_isUAlphabetic(static_cast<UChar32>(c)) || in_mask(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         c == 0x200C || c == 0x200D;
}
bool is_control(char32_t c) { return in_mask(c, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK); }
bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}
int script(char32_t c) {
  UErrorCode status = U_ZERO_ERROR;
  return uscript_getScript(static_cast<UChar32>(c), &status);
}
char32_t lower(char32_t c, char32_t& second) {
  second = 0;
  if (c == 0x130) return second = 0x307, U'i';
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
}

std::string normalize(std::string_view text, Form form) {
  bool ascii = true;
  for (const char c : text) ascii &= static_cast<unsigned char>(c) < 0x80;
  if (ascii) return std::string(text);
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* n = form == Form::kNfc    ? icu::Normalizer2::getNFCInstance(status)
                              : form == Form::kNfd  ? icu::Normalizer2::getNFDInstance(status)
                              : form == Form::kNfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                    : icu::Normalizer2::getNFKDInstance(status);
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  if (U_SUCCESS(status)) {
    icu::StringByteSink<std::string> sink(&out);
    n->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
  }
  if (U_FAILURE(status)) throw Error("E000", std::string("Unicode normalization failed: ") + u_errorName(status));
  return out;
}

}  // namespace qengine::unicode
