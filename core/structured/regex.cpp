#include "core/structured/regex.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/structured/code_points.hpp"

namespace qengine::structured {
namespace {

constexpr std::uint32_t kLast = kLastCodePoint;
constexpr int kUnbounded = -1;
constexpr int kMaxRepeat = 100000, kMaxDepth = 200;

struct Range {
  std::uint32_t lo, hi;
};
using Set = std::vector<Range>;  // code points

// Sorted, merged, without surrogates.
Set tidy(Set s) {
  std::ranges::sort(s, {}, &Range::lo);
  Set merged;
  for (const Range r : s) {
    if (!merged.empty() && r.lo <= merged.back().hi + 1) merged.back().hi = std::max(merged.back().hi, r.hi);
    else merged.push_back(r);
  }
  Set out;
  for (const Range r : merged) {
    if (r.lo < 0xD800) out.push_back({r.lo, std::min(r.hi, 0xD7FFu)});
    if (r.hi > 0xDFFF) out.push_back({std::max(r.lo, 0xE000u), r.hi});
  }
  return out;
}

Set complement(const Set& s) {
  Set out;
  std::uint32_t at = 0;
  for (const Range r : tidy(s)) {
    if (r.lo > at) out.push_back({at, r.lo - 1});
    at = r.hi + 1;
  }
  if (at <= kLast) out.push_back({at, kLast});
  return tidy(std::move(out));
}

struct Node {
  enum class Kind { kEmpty, kSet, kCat, kAlt, kRepeat, kBegin, kEnd } kind = Kind::kEmpty;
  Set set;
  std::vector<std::unique_ptr<Node>> parts;
  int least = 0, most = 0;  // kRepeat
};
using NodePtr = std::unique_ptr<Node>;

NodePtr node(Node::Kind kind) {
  auto n = std::make_unique<Node>();
  n->kind = kind;
  return n;
}

class Parser {
 public:
  Parser(std::string_view text, Budget& budget) : s_(text), budget_(budget) {}

  NodePtr parse() {
    NodePtr n = alternatives(0);
    if (at_ < s_.size()) fail("has a ) without its (");
    return n;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw GrammarError(budget_.place, "the regular expression " + what + " (at byte " + std::to_string(std::min(at_, s_.size())) + ")");
  }
  bool more() const { return at_ < s_.size(); }
  bool take(char c) {
    if (!more() || s_[at_] != c) return false;
    ++at_;
    return true;
  }

  NodePtr alternatives(int depth) {
    if (depth > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " groups");
    NodePtr first = sequence(depth);
    if (!more() || s_[at_] != '|') return first;
    NodePtr alt = node(Node::Kind::kAlt);
    alt->parts.push_back(std::move(first));
    while (take('|')) alt->parts.push_back(sequence(depth));
    return alt;
  }

  NodePtr sequence(int depth) {
    NodePtr cat = node(Node::Kind::kCat);
    while (more() && s_[at_] != '|' && s_[at_] != ')') {
      budget_.charge(sizeof(Node));
      cat->parts.push_back(quantified(depth));
    }
    return cat;
  }

  NodePtr quantified(int depth) {
    NodePtr atom = one(depth);
    for (bool repeated = false; more(); repeated = true) {
      int least = 0, most = kUnbounded;
      if (take('*')) {
      } else if (take('+')) {
        least = 1;
      } else if (take('?')) {
        most = 1;
      } else if (s_[at_] != '{' || !counts(least, most)) {
        break;
      }
      if (repeated) fail("has a quantifier behind a quantifier");
      if (atom->kind == Node::Kind::kBegin || atom->kind == Node::Kind::kEnd) fail("repeats an anchor");
      if (more() && s_[at_] == '+') fail("has a possessive quantifier, which is not supported");
      take('?');
      NodePtr repeat = node(Node::Kind::kRepeat);
      repeat->least = least;
      repeat->most = most;
      repeat->parts.push_back(std::move(atom));
      atom = std::move(repeat);
    }
    return atom;
  }

  // {n}, {n,}, {n,m}; anything else is a literal brace.
  bool counts(int& least, int& most) {
    std::size_t i = at_ + 1;
    const auto number = [&](int& out) {
      if (i >= s_.size() || s_[i] < '0' || s_[i] > '9') return false;
      long long n = 0;
      for (; i < s_.size() && s_[i] >= '0' && s_[i] <= '9'; ++i) n = std::min<long long>(n * 10 + (s_[i] - '0'), 1'000'000'000);
      if (n > kMaxRepeat) fail("repeats more than " + std::to_string(kMaxRepeat) + " times");
      out = static_cast<int>(n);
      return true;
    };
    int a = 0, b = 0;
    if (!number(a)) return false;
    b = a;
    if (i < s_.size() && s_[i] == ',') {
      ++i;
      if (!number(b)) b = kUnbounded;
    }
    if (i >= s_.size() || s_[i] != '}') return false;
    if (b != kUnbounded && b < a) fail("has a quantifier whose bounds are the wrong way round");
    at_ = i + 1;
    least = a;
    most = b;
    return true;
  }

  NodePtr of(Set s) {
    NodePtr n = node(Node::Kind::kSet);
    n->set = std::move(s);
    return n;
  }

  NodePtr one(int depth) {
    const char c = s_[at_];
    switch (c) {
      case '(': {
        ++at_;
        if (take('?')) {
          if (take(':')) {
          } else if (more() && (s_[at_] == '=' || s_[at_] == '!')) {
            fail("has a lookahead, which is not supported");
          } else if (s_.substr(at_).starts_with("<=") || s_.substr(at_).starts_with("<!")) {
            fail("has a lookbehind, which is not supported");
          } else if (s_.substr(at_).starts_with("<") || s_.substr(at_).starts_with("P<")) {
            const auto end = s_.find('>', at_);
            if (end == std::string_view::npos) fail("has a group name without its >");
            at_ = end + 1;
          } else {
            fail("has flags or a group of a kind that is not supported");
          }
        }
        NodePtr inside = alternatives(depth + 1);
        if (!take(')')) fail("has a ( without its )");
        return inside;
      }
      case '[': return of(tidy(klass()));
      case '.': ++at_; return of(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '^': ++at_; return node(Node::Kind::kBegin);
      case '$': ++at_; return node(Node::Kind::kEnd);
      case '*': case '+': case '?': fail(std::string("has a ") + c + " with nothing to repeat");
      case '\\': {
        Set set;
        escape(set, false);
        return of(tidy(std::move(set)));
      }
      default: {
        const std::uint32_t cp = code_point();
        return of({{cp, cp}});
      }
    }
  }

  std::uint32_t code_point() {
    const auto cp = read_utf8(s_, at_);
    if (!cp) fail("is not UTF-8");
    return *cp;
  }

  std::uint32_t hex(int digits) {
    const auto v = read_hex(s_, at_, digits);
    if (!v) fail("has an escape with too few hexadecimal digits");
    return *v;
  }

  // After a backslash: adds what it stands for. True when that is a single code point (in `cp`).
  bool escape(Set& out, bool in_class, std::uint32_t* cp = nullptr) {
    ++at_;
    if (!more()) fail("ends in a backslash");
    const char c = s_[at_++];
    const Set digit = {{'0', '9'}}, word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, space = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const auto add = [&](const Set& s) { out.insert(out.end(), s.begin(), s.end()); };
    std::uint32_t single = 0;
    switch (c) {
      case 'd': add(digit); return false;
      case 'D': add(complement(digit)); return false;
      case 'w': add(word); return false;
      case 'W': add(complement(word)); return false;
      case 's': add(space); return false;
      case 'S': add(complement(space)); return false;
      case 'n': single = '\n'; break;
      case 'r': single = '\r'; break;
      case 't': single = '\t'; break;
      case 'f': single = '\f'; break;
      case 'v': single = '\v'; break;
      case '0': single = 0; break;
      case 'x': single = hex(2); break;
      case 'u':
        if (take('{')) {
          single = 0;
          while (more() && s_[at_] != '}' && single <= kLast) single = single * 16 + hex(1);
          if (!take('}') || single > kLast) fail("has a \\u{...} that is no code point");
        } else {
          single = hex(4);
          if (single >= 0xD800 && single < 0xDC00 && s_.substr(at_).starts_with("\\u")) {
            at_ += 2;
            const std::uint32_t low = hex(4);
            if (low < 0xDC00 || low > 0xDFFF) fail("has half a surrogate pair");
            single = 0x10000 + ((single - 0xD800) << 10) + (low - 0xDC00);
          }
        }
        if (is_surrogate(single)) fail("has half a surrogate pair");
        break;
      case 'b':
        if (in_class) {
          single = '\b';
          break;
        }
        [[fallthrough]];
      case 'B': fail("has a word boundary (\\b, \\B), which is not supported");
      case 'p': case 'P': fail("has a Unicode property (\\p), which is not supported");
      case 'A': case 'Z': case 'z': case 'G': fail(std::string("has \\") + c + ", which is not supported; use ^ and $");
      case 'k': fail("has a back reference, which is not supported");
      default:
        if (c >= '1' && c <= '9') fail("has a back reference, which is not supported");
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) fail(std::string("has \\") + c + ", which is not known");
        --at_;
        single = code_point();
    }
    out.push_back({single, single});
    if (cp) *cp = single;
    return true;
  }

  Set klass() {
    ++at_;
    const bool negated = take('^');
    Set set;
    for (bool first = true;; first = false) {
      if (!more()) fail("has a [ without its ]");
      if (s_[at_] == ']' && !first) break;
      if (s_[at_] == ']' && first) {  // ECMA-262: the empty class
        break;
      }
      budget_.charge(sizeof(Range));
      const auto single = [&](std::uint32_t& cp) {
        if (s_[at_] == '\\') return escape(set, true, &cp);
        cp = code_point();
        set.push_back({cp, cp});
        return true;
      };
      std::uint32_t lo = 0, hi = 0;
      if (!single(lo)) continue;
      if (at_ + 1 < s_.size() && s_[at_] == '-' && s_[at_ + 1] != ']') {
        ++at_;
        if (!single(hi)) fail("has a range that ends in a class");
        if (hi < lo) fail("has a range whose ends are the wrong way round");
        set.push_back({lo, hi});
      }
    }
    ++at_;
    return negated ? complement(set) : set;
  }

  std::string_view s_;
  std::size_t at_ = 0;
  Budget& budget_;
};

// ---- Thompson's construction ---------------------------------------------------------------------

struct Nfa {
  struct Edge {
    std::uint8_t lo, hi;
    std::int32_t to;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<std::int32_t> free, at_begin, at_end;
  };
  std::vector<State> states;
};

class Builder {
 public:
  explicit Builder(Budget& budget) : budget_(budget) {}

  std::int32_t state() {
    budget_.charge(sizeof(Nfa::State) + 24);
    nfa.states.emplace_back();
    return static_cast<std::int32_t>(nfa.states.size()) - 1;
  }
  Nfa::State& operator[](std::int32_t s) { return nfa.states[static_cast<std::size_t>(s)]; }

  void edge(std::int32_t from, std::uint32_t lo, std::uint32_t hi, std::int32_t to) {
    budget_.charge(sizeof(Nfa::Edge));
    (*this)[from].edges.push_back({static_cast<std::uint8_t>(lo), static_cast<std::uint8_t>(hi), to});
  }

  // Code points lo to hi as UTF-8: cut where the length or a leading byte changes (Cox, "Regular
  // Expression Matching in the Wild").
  void utf8(std::int32_t from, std::uint32_t lo, std::uint32_t hi, std::int32_t to) {
    for (const std::uint32_t top : {0x7Fu, 0x7FFu, 0xFFFFu})
      if (lo <= top && hi > top) {
        utf8(from, lo, top, to);
        return utf8(from, top + 1, hi, to);
      }
    if (hi < 0x80) return edge(from, lo, hi, to);
    const int n = hi < 0x800 ? 2 : hi < 0x10000 ? 3 : 4;
    for (int i = 1; i < n; ++i) {
      const std::uint32_t m = (1u << (6 * i)) - 1;
      if ((lo & ~m) == (hi & ~m)) continue;
      if (lo & m) {
        utf8(from, lo, lo | m, to);
        return utf8(from, (lo | m) + 1, hi, to);
      }
      if ((hi & m) != m) {
        utf8(from, lo, (hi & ~m) - 1, to);
        return utf8(from, hi & ~m, hi, to);
      }
    }
    std::int32_t at = from;
    for (int i = n - 1; i >= 0; --i) {
      const auto byte = [&](std::uint32_t cp) {
        const std::uint32_t bits = cp >> (6 * i);
        return i == n - 1 ? (n == 2 ? 0xC0u : n == 3 ? 0xE0u : 0xF0u) | bits : 0x80u | (bits & 0x3F);
      };
      const std::int32_t next = i == 0 ? to : state();
      edge(at, byte(lo), byte(hi), next);
      at = next;
    }
  }

  void jump(std::int32_t from, std::int32_t to) {
    budget_.charge(sizeof to * 2);
    (*this)[from].free.push_back(to);
  }

  void set(std::int32_t from, const Set& s, std::int32_t to) {
    for (const Range r : s) utf8(from, r.lo, r.hi, to);
  }

  std::int32_t add(std::int32_t from, const Node& n) {
    switch (n.kind) {
      case Node::Kind::kEmpty: return from;
      case Node::Kind::kSet: {
        const std::int32_t to = state();
        set(from, n.set, to);
        return to;
      }
      case Node::Kind::kCat:
        for (const NodePtr& p : n.parts) from = add(from, *p);
        return from;
      case Node::Kind::kAlt: {
        const std::int32_t to = state();
        for (const NodePtr& p : n.parts) {
          const std::int32_t begin = state();
          jump(from, begin);
          jump(add(begin, *p), to);
        }
        return to;
      }
      case Node::Kind::kRepeat: {
        for (int i = 0; i < n.least; ++i) {
          budget_.charge(1);  // what is repeated may be empty
          from = add(from, *n.parts[0]);
        }
        const std::int32_t end = state();
        if (n.most == kUnbounded) {
          const std::int32_t loop = state();
          jump(from, loop);
          jump(add(loop, *n.parts[0]), loop);
          jump(loop, end);
        } else {
          for (int i = n.least; i < n.most; ++i) {
            jump(from, end);
            from = add(from, *n.parts[0]);
          }
          jump(from, end);
        }
        return end;
      }
      case Node::Kind::kBegin: {
        const std::int32_t to = state();
        (*this)[from].at_begin.push_back(to);
        return to;
      }
      case Node::Kind::kEnd: {
        const std::int32_t to = state();
        (*this)[from].at_end.push_back(to);
        return to;
      }
    }
    return from;
  }

  Nfa nfa;

 private:
  Budget& budget_;
};

// ---- subset construction -------------------------------------------------------------------------

class Determinizer {
 public:
  Determinizer(const Nfa& nfa, std::int32_t accept, Budget& budget) : nfa_(nfa), accept_(accept), budget_(budget), mark_(nfa.states.size()) {}

  Dfa run(std::int32_t start) {
    id(closure({start}, true, false), true);
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      const std::vector<std::int32_t> set = todo_[i];
      edges_.clear();
      cuts_.assign(257, 0);
      for (const std::int32_t s : set)
        for (const Nfa::Edge& e : nfa_.states[static_cast<std::size_t>(s)].edges) {
          edges_.push_back(e);
          cuts_[e.lo] = 1;
          cuts_[e.hi + 1u] = 1;
        }
      budget_.charge(edges_.size());
      for (int lo = 0; lo < 256;) {
        int hi = lo + 1;
        while (hi < 256 && !cuts_[static_cast<std::size_t>(hi)]) ++hi;
        std::vector<std::int32_t> to;
        for (const Nfa::Edge& e : edges_)
          if (e.lo <= lo && lo <= e.hi) to.push_back(e.to);
        if (!to.empty()) {
          const std::int32_t t = id(closure(std::move(to), false, false), false);
          for (int b = lo; b < hi; ++b) dfa_.states[i].next[static_cast<std::size_t>(b)] = t;
        }
        lo = hi;
      }
    }
    dfa_.trim();
    return std::move(dfa_);
  }

 private:
  std::vector<std::int32_t> closure(std::vector<std::int32_t> set, bool begin, bool end) {
    ++round_;
    std::vector<std::int32_t> out;
    while (!set.empty()) {
      const std::int32_t s = set.back();
      set.pop_back();
      if (mark_[static_cast<std::size_t>(s)] == round_) continue;
      mark_[static_cast<std::size_t>(s)] = round_;
      out.push_back(s);
      const Nfa::State& state = nfa_.states[static_cast<std::size_t>(s)];
      set.insert(set.end(), state.free.begin(), state.free.end());
      if (begin) set.insert(set.end(), state.at_begin.begin(), state.at_begin.end());
      if (end) set.insert(set.end(), state.at_end.begin(), state.at_end.end());
    }
    std::ranges::sort(out);
    budget_.charge(out.size());
    return out;
  }

  std::int32_t id(std::vector<std::int32_t> set, bool begin) {
    const auto [it, fresh] = ids_.emplace(std::move(set), static_cast<std::int32_t>(ids_.size()));
    if (fresh) {
      budget_.charge(sizeof(Dfa::State) + it->first.size() * 8 + 64);
      dfa_.states.emplace_back();
      const std::vector<std::int32_t> ends = closure(it->first, begin, true);
      dfa_.states.back().accept = std::ranges::binary_search(ends, accept_);
      todo_.push_back(it->first);
    }
    return it->second;
  }

  const Nfa& nfa_;
  std::int32_t accept_;
  Budget& budget_;
  std::vector<int> mark_;
  int round_ = 0;
  std::map<std::vector<std::int32_t>, std::int32_t> ids_;
  std::vector<std::vector<std::int32_t>> todo_;
  std::vector<Nfa::Edge> edges_;
  std::vector<char> cuts_;
  Dfa dfa_;
};

}  // namespace

Dfa compile_regex(std::string_view pattern, RegexMode mode, Budget& budget) {
  const NodePtr tree = Parser(pattern, budget).parse();
  Builder b(budget);
  const Set anything = tidy({{0, kLast}});
  std::int32_t start = b.state(), body = start;
  if (mode == RegexMode::kSearch) {  // the match may begin after any character ...
    b.set(start, anything, start);
    body = b.state();
    b[start].free.push_back(body);
  }
  const std::int32_t matched = b.add(body, *tree), end = b.state();
  b[matched].free.push_back(end);
  if (mode == RegexMode::kSearch) b.set(end, anything, end);  // ... and anything may follow it
  // The start state is at the beginning once; later visits come through its own loop.
  return Determinizer(b.nfa, end, budget).run(start);
}

Dfa any_text(Budget& budget) { return compile_regex("[^]*", RegexMode::kWhole, budget); }

}  // namespace qengine::structured
