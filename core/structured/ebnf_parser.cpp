#include "core/structured/ebnf_parser.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/structured/code_points.hpp"

namespace qengine::structured {
namespace {

constexpr int kMaxDepth = 100, kMaxRepeat = 100000;

std::string quoted(std::string_view s) { return "\"" + std::string(s.substr(0, 60)) + "\""; }

class Parser {
 public:
  Parser(std::string_view text, Budget& budget) : s_(text), budget_(budget) {}

  EbnfRules parse() {
    EbnfRules rules;
    for (skip(); more(); skip()) {
      const std::size_t at = at_;
      const std::string name(word());
      if (name.empty()) fail("expects the name of a rule");
      skip();
      if (!s_.substr(at_).starts_with("::="))
        fail("expects ::= after the name of a rule" + std::string(more() && (s_[at_] == ':' || s_[at_] == '=') ? " (Lark and other forms are not supported)" : ""));
      at_ += 3;
      const auto [it, fresh] = rules.try_emplace(name);
      if (!fresh) fail("the rule " + quoted(name) + " is there twice", at);
      it->second.place = place(at);
      it->second.parts = alternatives(0);
      if (more() && s_[at_] == ')') fail("has a ) without its (");
    }
    if (!rules.contains("root")) fail("has no rule called root, where the text begins", s_.size());
    for (const auto& [name, at] : used_)
      if (!rules.contains(name)) fail("the rule " + quoted(name) + " is not defined", at);
    return rules;
  }

 private:
  // Lines count from 1, and so do the characters of a line. Places of rules are asked for in order, so that all of them cost one pass.
  std::string place(std::size_t at) {
    if (at < cursor_.at) cursor_ = {};
    for (; cursor_.at < at; ++cursor_.at) {
      if (s_[cursor_.at] == '\n') ++cursor_.line, cursor_.column = 1;
      else if ((static_cast<unsigned char>(s_[cursor_.at]) & 0xC0) != 0x80) ++cursor_.column;
    }
    return "line " + std::to_string(cursor_.line) + ", column " + std::to_string(cursor_.column);
  }

  [[noreturn]] void fail(const std::string& what, std::size_t at) { throw GrammarError(place(at), what); }
  [[noreturn]] void fail(const std::string& what) { fail(what, std::min(at_, s_.size())); }
  bool more() const { return at_ < s_.size(); }
  bool take(char c) {
    if (!more() || s_[at_] != c) return false;
    ++at_;
    return true;
  }

  void skip() {  // blanks and comments
    while (more()) {
      if (s_[at_] == '#') at_ = std::min(s_.find('\n', at_), s_.size());
      else if (s_[at_] == ' ' || s_[at_] == '\t' || s_[at_] == '\r' || s_[at_] == '\n') ++at_;
      else return;
    }
  }

  std::string_view word() {
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    const auto inside = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.'; };
    const std::size_t begin = at_;
    if (more() && letter(s_[at_]))
      while (more() && inside(s_[at_])) ++at_;
    return s_.substr(begin, at_ - begin);
  }

  int id(const std::string& key) {
    budget_.charge(key.size() + 64);
    return ids_.emplace(key, static_cast<int>(ids_.size())).first->second;
  }

  EbnfAlternatives alternatives(int depth) {
    if (depth > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " groups");
    EbnfAlternatives out;
    do out.push_back(sequence(depth));
    while (take('|'));
    return out;
  }

  EbnfSequence sequence(int depth) {
    EbnfSequence out;
    for (;;) {
      skip();
      if (!more() || s_[at_] == '|' || s_[at_] == ')') break;
      if (const std::size_t here = at_; !word().empty()) {  // the next rule?
        skip();
        const bool ends = s_.substr(at_).starts_with("::=");
        at_ = here;
        if (ends) break;
      }
      budget_.charge(sizeof(EbnfNode) * 2);
      out.push_back(repeated(one(depth)));
    }
    if (out.empty()) fail("expects a text, a class, a name or a group (\"\" is the empty text)");
    return out;
  }

  EbnfNode repeated(EbnfNode n) {
    skip();
    int least = 0, most = kUnbounded;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (take('{')) {
      counts(least, most);
    } else {
      return n;
    }
    skip();
    if (more() && (s_[at_] == '*' || s_[at_] == '+' || s_[at_] == '?' || s_[at_] == '{')) fail("repeats a repetition; put the inner one in ( )");
    EbnfNode r;
    r.kind = EbnfNode::Kind::kRepeat;
    r.least = least;
    r.most = most;
    r.id = id("r" + std::to_string(least) + "," + std::to_string(most) + "," + std::to_string(n.id));
    r.parts.emplace_back().push_back(std::move(n));
    return r;
  }

  void counts(int& least, int& most) {
    const auto number = [&] {
      skip();
      if (!more() || s_[at_] < '0' || s_[at_] > '9') fail("expects a count");
      int n = 0;
      for (; more() && s_[at_] >= '0' && s_[at_] <= '9'; ++at_)
        if ((n = n * 10 + (s_[at_] - '0')) > kMaxRepeat) fail("repeats more than " + std::to_string(kMaxRepeat) + " times");
      skip();
      return n;
    };
    least = most = number();
    if (take(',')) {
      skip();
      most = more() && s_[at_] == '}' ? kUnbounded : number();
    }
    if (!take('}')) fail("has a { without its }");
    if (most != kUnbounded && most < least) fail("has a count whose bounds are the wrong way round");
  }

  EbnfNode one(int depth) {
    EbnfNode n;
    const std::size_t begin = at_;
    switch (s_[at_]) {
      case '(':
        ++at_;
        if (more() && s_[at_] == '=') fail("has a lookahead (= ...), which is not supported");
        n.kind = EbnfNode::Kind::kGroup;
        n.parts = alternatives(depth + 1);
        if (!take(')')) fail("has a ( without its )", begin);
        break;
      case '"':
        ++at_;
        while (more() && s_[at_] != '"' && s_[at_] != '\n') append_utf8(n.text, character());
        if (!take('"')) fail("has a text without its closing quote", begin);
        break;
      case '[':
        n.kind = EbnfNode::Kind::kSet;
        n.text = klass();
        break;
      case '.':
        ++at_;
        n.kind = EbnfNode::Kind::kSet;
        n.text = "[^]";
        break;
      case '<': case '!': fail("has a token <...>, which is not supported; write its text");
      case '*': case '+': case '?': case '{': fail(std::string("has a ") + s_[at_] + " with nothing to repeat");
      default:
        n.kind = EbnfNode::Kind::kName;
        n.text = word();
        if (n.text.empty()) fail("expects a text, a class, a name or a group");
        used_.emplace(n.text, begin);
    }
    std::string key = std::to_string(static_cast<int>(n.kind)) + n.text;
    for (const EbnfSequence& s : n.parts) {
      for (const EbnfNode& p : s) key += std::to_string(p.id) + " ";
      key += "|";
    }
    n.id = id(key);
    return n;
  }

  std::uint32_t character() {  // one, or an escape
    if (s_[at_] == '\\') return escape();
    const auto cp = read_utf8(s_, at_);
    if (!cp) fail("is not UTF-8");
    return *cp;
  }

  std::uint32_t escape() {
    const std::size_t begin = at_++;
    const char c = more() ? s_[at_++] : ' ';
    const auto hex = [&](int digits) {
      const auto v = read_hex(s_, at_, digits);
      if (!v) fail("has an escape with too few hexadecimal digits", begin);
      if (*v > kLastCodePoint || is_surrogate(*v)) fail("has an escape that is no character", begin);
      return *v;
    };
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'a': return '\a';
      case 'b': return '\b';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'e': return 0x1B;
      case '0': return 0;
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'U': return hex(8);
      case '"': case '\'': case '?': case '\\': case '/': case '[': case ']': case '-': case '^': case '.': return static_cast<std::uint32_t>(c);
      default: fail("has an escape that is not known", begin);
    }
  }

  // As a regular expression of code points alone.
  std::string klass() {
    const std::size_t begin = at_++;
    std::string out = take('^') ? "[^" : "[";
    const auto add = [&](std::uint32_t cp) {
      char buffer[16];
      std::snprintf(buffer, sizeof buffer, "\\u{%X}", cp);
      out += buffer;
    };
    if (more() && s_[at_] == ']') fail("has an empty class", begin);
    while (more() && s_[at_] != ']' && s_[at_] != '\n') {
      budget_.charge(32);
      const std::uint32_t lo = character();
      add(lo);
      if (at_ + 1 >= s_.size() || s_[at_] != '-' || s_[at_ + 1] == ']') continue;
      ++at_;
      const std::uint32_t hi = character();
      if (hi < lo) fail("has a range whose ends are the wrong way round", begin);
      out += '-';
      add(hi);
    }
    if (!take(']')) fail("has a [ without its ]", begin);
    return out + "]";
  }

  std::string_view s_;
  std::size_t at_ = 0;
  Budget& budget_;
  std::map<std::string, int> ids_;
  std::map<std::string, std::size_t> used_;  // where a name is used first
  struct {
    std::size_t at = 0, line = 1, column = 1;
  } cursor_;
};

}  // namespace

EbnfRules parse_ebnf(std::string_view text, Budget& budget) { return Parser(text, budget).parse(); }

}  // namespace qengine::structured
