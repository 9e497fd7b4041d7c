#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/tokenizer/regex.hpp"

#include <pcre2.h>

#include <algorithm>
#include <vector>

#include "core/base/error.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

// Steps one search may take before it is given up: a pattern that backtracks over a megabyte needs a
// few million, one that explodes never ends.
constexpr std::uint32_t kMatchLimit = 50'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr int kMaxClassDepth = 16;

// Positive lists, so that they can stand inside a class too.
constexpr std::string_view kSpace = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// Alphabetic characters, marks, numbers, connectors; the ranges are the circled and squared letters.
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{N}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

[[noreturn]] void reject(std::string_view pattern, const std::string& why) {
  throw Error("E220", "the regular expression " + std::string(pattern) + " " + why);
}

// A character class while it is rewritten: `body` is what PCRE2 may hold between [ and ]; nested
// classes became alternatives of their own, and each && another condition.
class ClassReader {
 public:
  ClassReader(std::string_view text, std::size_t& pos) : text_(text), pos_(pos) {}

  // REQUIRES: text[pos] == '['. Returns an expression that matches one character.
  std::string read(int depth = 0) {
    if (depth > kMaxClassDepth) reject(text_, "nests character classes too deeply");
    ++pos_;
    bool negated = false;
    if (pos_ < text_.size() && text_[pos_] == '^') negated = true, ++pos_;
    std::vector<std::string> operands;  // joined by &&
    std::string body;
    std::vector<std::string> nested;
    bool first = true;
    for (;; first = false) {
      if (pos_ >= text_.size()) reject(text_, "has a character class that does not end");
      const char c = text_[pos_];
      if (c == ']' && !first) {
        ++pos_;
        break;
      }
      if (c == '[' && text_.substr(pos_, 2) == "[:") {
        const std::size_t end = text_.find(":]", pos_);
        if (end == std::string_view::npos) reject(text_, "has a character class that does not end");
        body.append(text_, pos_, end + 2 - pos_);
        pos_ = end + 2;
      } else if (c == '[') {
        nested.push_back(read(depth + 1));
      } else if (c == '&' && text_.substr(pos_, 2) == "&&") {
        pos_ += 2;
        operands.push_back(one(body, nested));
        body.clear(), nested.clear();
      } else if (c == '\\') {
        escape(body);
      } else if (c == ']') {
        body += "\\]";
        ++pos_;
      } else {
        body += c;
        ++pos_;
      }
    }
    if (operands.empty() && nested.empty()) return (negated ? "[^" : "[") + body + "]";
    operands.push_back(one(body, nested));
    std::string all = operands.size() == 1 ? operands[0] : "";
    if (operands.size() > 1) {
      for (std::size_t i = 0; i + 1 < operands.size(); ++i) all += "(?=" + operands[i] + ")";
      all += operands.back();
    }
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  // Rewrites the escape at text[pos] for use inside a class.
  void escape(std::string& out) {
    if (pos_ + 1 >= text_.size()) reject(text_, "ends in a backslash");
    const char e = text_[pos_ + 1];
    switch (e) {
      case 's': out += kSpace; break;
      case 'S': out += kNotSpace; break;
      case 'w': out += kWord; break;
      case 'd': out += "\\p{Nd}"; break;
      case 'D': out += "\\P{Nd}"; break;
      case 'h': out += "0-9a-fA-F"; break;
      case 'W': case 'H': reject(text_, std::string("uses \\") + e + " inside a character class");
      case 'u': hex(out); return;
      default: copy(out); return;
    }
    pos_ += 2;
  }

  // \uHHHH
  void hex(std::string& out) {
    const std::string_view digits = text_.substr(pos_ + 2, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      reject(text_, "has a \\u without four hexadecimal digits");
    out += "\\x{" + std::string(digits) + "}";
    pos_ += 6;
  }

  // Any other escape as it stands; the character behind the backslash may have several bytes.
  void copy(std::string& out) {
    const std::size_t n = 1 + unicode::length(static_cast<unsigned char>(text_[pos_ + 1]));
    out.append(text_, pos_, n);
    pos_ += n;
  }

 private:
  static std::string one(const std::string& body, const std::vector<std::string>& nested) {
    std::string s = body.empty() ? "" : "[" + body + "]";
    for (const std::string& n : nested) s += (s.empty() ? "" : "|") + n;
    return "(?:" + s + ")";
  }

  std::string_view text_;
  std::size_t& pos_;
};

// \b and \B, by the same idea of a word as \w.
std::string boundary(bool at) {
  const std::string w = "[" + std::string(kWord) + "])";
  return at ? "(?:(?<=" + w + "(?!" + w + "|(?<!" + w + "(?=" + w + ")" : "(?:(?<=" + w + "(?=" + w + "|(?<!" + w + "(?!" + w + ")";
}

}  // namespace

std::string Regex::translate(std::string_view pattern) {
  std::string out;
  for (std::size_t pos = 0; pos < pattern.size();) {
    ClassReader reader(pattern, pos);
    const char c = pattern[pos];
    if (c == '[') {
      out += reader.read();
    } else if (c == '\\') {
      const char e = pos + 1 < pattern.size() ? pattern[pos + 1] : '\0';
      switch (e) {
        case '\0': reject(pattern, "ends in a backslash");
        case 's': out += "[" + std::string(kSpace) + "]", pos += 2; break;
        case 'S': out += "[^" + std::string(kSpace) + "]", pos += 2; break;
        case 'w': out += "[" + std::string(kWord) + "]", pos += 2; break;
        case 'W': out += "[^" + std::string(kWord) + "]", pos += 2; break;
        case 'd': out += "\\p{Nd}", pos += 2; break;
        case 'D': out += "\\P{Nd}", pos += 2; break;
        case 'h': out += "[0-9a-fA-F]", pos += 2; break;
        case 'H': out += "[^0-9a-fA-F]", pos += 2; break;
        case 'b': out += boundary(true), pos += 2; break;
        case 'B': out += boundary(false), pos += 2; break;
        case 'u': reader.hex(out); break;
        default: reader.copy(out);
      }
    } else {
      out += c;
      ++pos;
    }
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

namespace {

// What one thread needs to match; made once, since prompts are cut into many small pieces.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, nullptr);
  Scratch() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

std::string message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

Regex::Regex(std::string pattern) : Regex(pattern, translate(pattern), false) {}

Regex Regex::literal(std::string_view text) { return Regex(std::string(text), std::string(text), true); }

Regex::Regex(std::string pattern, std::string translated, bool literal)
    : pattern_(std::move(pattern)), code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_max_pattern_length(context.get(), 1 << 20);
  const std::uint32_t options = literal ? PCRE2_LITERAL | PCRE2_UTF : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &offset, context.get());
  if (code_->code == nullptr) reject(pattern_, "does not compile: " + message(error));
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;  // not everywhere allowed; slower without
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const {
  thread_local Scratch scratch;
  static constexpr char kEmpty[] = "";
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.empty() ? kEmpty : text.data());
  const int rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    throw Error("E220", "the regular expression " + pattern_ + " was given up: " + message(rc))
        .hint("the pattern comes from the tokenizer's file; it needs too many steps on this text");
  const PCRE2_SIZE* v = pcre2_get_ovector_pointer(scratch.data);
  begin = std::max<std::size_t>(v[0], from), end = std::max<std::size_t>(v[1], begin);  // \K can move them about
  return true;
}

std::size_t Regex::step(std::string_view text, std::size_t pos) {
  return pos < text.size() ? unicode::length(static_cast<unsigned char>(text[pos])) : 1;
}

}  // namespace qengine
