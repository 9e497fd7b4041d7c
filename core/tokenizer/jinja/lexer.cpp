#include "core/tokenizer/jinja/lexer.hpp"

#include <algorithm>
#include <array>

#include "core/tokenizer/jinja/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine::jinja {
namespace {

using Type = Token::Type;

// One line ending, and none at the end of the template.
std::string normalize_newlines(std::string_view source) {
  std::string s;
  s.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') s += source[i];
    else if (i + 1 >= source.size() || source[i + 1] != '\n') s += '\n';
  }
  if (s.ends_with('\n')) s.pop_back();
  return s;
}

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(Type::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view s, std::size_t at) const { return std::string_view(source_).substr(at).starts_with(s); }
  char peek(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  Pos pos(std::size_t at) {  // `at` only grows
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] == '\n') ++pos_.line, pos_.column = 1;
      else if ((static_cast<unsigned char>(source_[counted_]) & 0xC0) != 0x80) ++pos_.column;
    }
    return pos_;
  }
  void push(Type type, std::string text, std::size_t at) { tokens_.push_back({type, std::move(text), pos(at)}); }
  [[noreturn]] void fail(const std::string& what, std::size_t at) {
    counted_ = 0, pos_ = {};
    throw Failure(what, pos(at));
  }

  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_space(unicode::next(source_, next))) return;
      at_ = next;
    }
  }

  // Text up to the next tag, cut as the tag's sign and lstrip_blocks ask.
  void data(std::size_t end, char sign, bool variable) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = rstrip(text);
    } else if (sign != '+' && !variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_start_) && strip(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) push(Type::kData, std::string(text), at_);
    at_ = end;
  }

  void root() {
    std::size_t tag = at_;
    for (; (tag = source_.find('{', tag)) != std::string::npos; ++tag)
      if (const char c = peek(tag + 1); c == '{' || c == '%' || c == '#') break;
    if (tag == std::string::npos) {
      push(Type::kData, source_.substr(at_), at_);
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? source_[tag + 2] : '\0';
    data(tag, sign, kind == '{');
    at_ = tag + 2 + (sign != '\0');
    if (kind == '#') return comment(tag);
    if (kind == '%' && raw(tag)) return;
    push(kind == '{' ? Type::kVariableBegin : Type::kBlockBegin, "", tag);
    inside(kind == '{' ? "}}" : "%}", tag);
  }

  // Behind a tag's end: "-" takes all whitespace away, else one newline goes (trim_blocks), "+" keeps it.
  void after(char sign, bool trim) {
    const std::size_t from = at_;
    if (sign == '-') skip_space();
    else if (trim && sign != '+' && peek(at_) == '\n') ++at_;
    line_start_ = at_ > from && source_[at_ - 1] == '\n';
  }

  void comment(std::size_t tag) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("the comment does not end", tag);
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    after(sign, true);
  }

  // {% raw %} ... {% endraw %}; false when the tag is another one.
  bool raw(std::size_t tag) {
    std::size_t at = at_;
    const auto spaces = [&] { while (at < source_.size() && is_space(static_cast<unsigned char>(source_[at]))) ++at; };
    spaces();
    if (!starts("raw", at) || is_name(peek(at + 3))) return false;
    at += 3;
    spaces();
    const bool dash = peek(at) == '-';
    if (!starts("%}", at + dash)) return false;
    at_ = at + dash + 2;
    after(dash ? '-' : '+', false);
    for (std::size_t open = source_.find("{%", at_); open != std::string::npos; open = source_.find("{%", open + 1)) {
      const char sign = peek(open + 2) == '-' || peek(open + 2) == '+' ? source_[open + 2] : '\0';
      at = open + 2 + (sign != '\0');
      spaces();
      if (!starts("endraw", at)) continue;
      at += 6;
      spaces();
      const char close = peek(at) == '-' || peek(at) == '+' ? source_[at] : '\0';
      at += close != '\0';
      if (!starts("%}", at)) continue;
      data(open, sign, false);
      at_ = at + 2;
      after(close, true);
      return true;
    }
    fail("the raw block does not end", tag);
  }

  void inside(std::string_view end, std::size_t tag) {
    std::vector<char> open;  // brackets; an end inside of them is none
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) fail(end == "}}" ? "the expression does not end: }} is missing" : "the tag does not end: %} is missing", tag);
      if (open.empty()) {
        const char sign = peek(at_) == '-' || (peek(at_) == '+' && end == "%}") ? source_[at_] : '\0';
        if (starts(end, at_ + (sign != '\0'))) {
          push(end == "}}" ? Type::kVariableEnd : Type::kBlockEnd, "", at_);
          at_ += 2 + (sign != '\0');
          after(sign, end == "%}");
          return;
        }
      }
      one(open);
    }
  }

  void one(std::vector<char>& open) {
    const std::size_t from = at_;
    const char c = source_[at_];
    if (is_name_start(c)) {
      while (at_ < source_.size() && is_name(source_[at_])) ++at_;
      return push(Type::kName, source_.substr(from, at_ - from), from);
    }
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string();
    static constexpr std::array<std::string_view, 7> kTwo = {"//", "**", "==", "!=", ">=", "<=", ""};
    for (const std::string_view op : kTwo)
      if (!op.empty() && starts(op, at_)) {
        at_ += 2;
        return push(Type::kOperator, std::string(op), from);
      }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      std::size_t next = at_;
      unicode::next(source_, next);
      fail("unexpected character '" + source_.substr(at_, next - at_) + "'", at_);
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char want = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != want) fail(std::string("unexpected '") + c + "'", at_);
      open.pop_back();
    }
    ++at_;
    push(Type::kOperator, std::string(1, c), from);
  }

  void number() {
    const std::size_t from = at_;
    std::string digits;
    const auto take = [&](auto is) {
      while (is(peek(at_)) || (peek(at_) == '_' && is(peek(at_ + 1)))) {
        if (source_[at_] != '_') digits += source_[at_];
        ++at_;
      }
    };
    const char base = static_cast<char>(peek(at_ + 1) | 0x20);
    if (source_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      at_ += 2;
      take([&](char c) { return base == 'x' ? is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') : c >= '0' && c < (base == 'o' ? '8' : '2'); });
      try {
        return push(Type::kInteger, std::to_string(std::stoll(digits, nullptr, base == 'x' ? 16 : base == 'o' ? 8 : 2)), from);
      } catch (const std::exception&) {
        fail("a number that is too large or has no digits", from);
      }
    }
    take(is_digit);
    bool real = false;
    if (peek(at_) == '.' && is_digit(peek(at_ + 1))) {
      real = true;
      digits += '.', ++at_;
      take(is_digit);
    }
    if ((peek(at_) | 0x20) == 'e') {
      const bool sign = peek(at_ + 1) == '+' || peek(at_ + 1) == '-';
      if (is_digit(peek(at_ + 1 + sign))) {
        real = true;
        digits.append(source_, at_, 1u + sign);
        at_ += 1u + sign;
        take(is_digit);
      }
    }
    push(real ? Type::kFloat : Type::kInteger, digits, from);
  }

  void string() {
    const std::size_t from = at_;
    const char quote = source_[at_++];
    std::string s;
    for (;; ) {
      if (at_ >= source_.size()) fail("the string does not end", from);
      const char c = source_[at_++];
      if (c == quote) break;
      if (c != '\\') {
        s += c;
        continue;
      }
      if (at_ >= source_.size()) fail("the string does not end", from);
      escape(s, from);
    }
    push(Type::kString, std::move(s), from);
  }

  // Python's escapes; an unknown one keeps its backslash.
  void escape(std::string& s, std::size_t from) {
    const char c = source_[at_++];
    const auto hex = [&](std::size_t n) {
      char32_t v = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const char d = peek(at_), l = static_cast<char>(d | 0x20);
        if (!is_digit(d) && !(l >= 'a' && l <= 'f')) fail("a \\x, \\u or \\U without its hexadecimal digits", from);
        v = v * 16 + static_cast<char32_t>(is_digit(d) ? d - '0' : l - 'a' + 10);
        ++at_;
      }
      if (v > 0x10FFFF) fail("a \\U above U+10FFFF", from);
      unicode::append(s, v >= 0xD800 && v < 0xE000 ? unicode::kReplacement : v);
    };
    switch (c) {
      case '\n': break;
      case '\\': case '\'': case '"': s += c; break;
      case 'a': s += '\a'; break;
      case 'b': s += '\b'; break;
      case 'f': s += '\f'; break;
      case 'n': s += '\n'; break;
      case 'r': s += '\r'; break;
      case 't': s += '\t'; break;
      case 'v': s += '\v'; break;
      case 'x': hex(2); break;
      case 'u': hex(4); break;
      case 'U': hex(8); break;
      case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': {
        char32_t v = static_cast<char32_t>(c - '0');
        for (int i = 0; i < 2 && peek(at_) >= '0' && peek(at_) <= '7'; ++i) v = v * 8 + static_cast<char32_t>(source_[at_++] - '0');
        unicode::append(s, v);
        break;
      }
      default: s += '\\', s += c;
    }
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  bool line_start_ = true;
  std::size_t counted_ = 0;
  Pos pos_;
};

}  // namespace

std::vector<Token> lex(std::string_view source) { return Lexer(source).run(); }

}  // namespace qengine::jinja
