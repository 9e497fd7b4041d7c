// Recursive descent over the tokens, one function a level of precedence. Depth is bounded twice: while
// descending (brackets, statements), and by the height of the tree (long chains lean to the left).
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "core/tokenizer/jinja/ast.hpp"
#include "core/tokenizer/jinja/filters.hpp"

namespace qengine::jinja {
namespace {

using Type = Token::Type;
using EKind = Expr::Kind;
using SKind = Stmt::Kind;

constexpr int kMaxDescent = 200, kMaxHeight = 400;

class Parser {
 public:
  explicit Parser(const std::string& source) : tokens_(lex(source)) {}

  Body run() {
    Body body = statements({});
    if (now().type != Type::kEnd) fail("the template goes on after its end");
    return body;
  }

 private:
  // ---- tokens ----
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  const Token& take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is(std::string_view op) const { return now().type == Type::kOperator && now().text == op; }
  bool is_name(std::string_view name) const { return now().type == Type::kName && now().text == name; }
  bool skip(std::string_view op) { return is(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect(std::string_view op) {
    if (!skip(op)) fail("expected '" + std::string(op) + "', found " + shown());
  }
  std::string expect_name() {
    if (now().type != Type::kName) fail("expected a name, found " + shown());
    return take().text;
  }
  void expect_end(Type type) {
    if (now().type != type) fail(std::string("expected '") + (type == Type::kBlockEnd ? "%}" : "}}") + "', found " + shown());
    take();
  }
  std::string shown() const {
    switch (now().type) {
      case Type::kEnd: return "the end of the template";
      case Type::kBlockEnd: return "'%}'";
      case Type::kVariableEnd: return "'}}'";
      case Type::kString: return "a string";
      default: return "'" + now().text.substr(0, 40) + "'";
    }
  }
  [[noreturn]] void fail(const std::string& what) const { throw Failure(what, now().pos); }

  struct Descent {
    Parser& p;
    explicit Descent(Parser& parser) : p(parser) {
      if (++p.descent_ > kMaxDescent) p.fail("the template nests deeper than " + std::to_string(kMaxDescent) + " levels");
    }
    ~Descent() { --p.descent_; }
  };

  // ---- building ----
  ExprPtr make(EKind kind, Pos pos) {
    auto e = std::make_unique<Expr>();
    e->kind = kind, e->pos = pos;
    return e;
  }
  ExprPtr grow(ExprPtr e) const {  // after its children are in place
    int depth = 0;
    const auto see = [&](const ExprPtr& c) {
      if (c) depth = std::max(depth, c->depth);
    };
    for (const auto& c : e->children) see(c);
    for (const auto& c : e->args.positional) see(c);
    for (const auto& c : e->args.named) see(c.second);
    see(e->args.rest), see(e->args.named_rest);
    e->depth = depth + 1;
    if (e->depth > kMaxHeight) throw Failure("an expression of more than " + std::to_string(kMaxHeight) + " nested steps", e->pos);
    return e;
  }
  template <class... C>
  ExprPtr node(EKind kind, Pos pos, std::string name, C... children) {
    ExprPtr e = make(kind, pos);
    e->name = std::move(name);
    (e->children.push_back(std::move(children)), ...);
    return grow(std::move(e));
  }
  ExprPtr constant(Value v, Pos pos) {
    ExprPtr e = make(EKind::kConstant, pos);
    e->value = std::move(v);
    return e;
  }

  // ---- expressions ----
  ExprPtr expression() { return condition(); }

  ExprPtr condition() {
    const Descent d(*this);
    const Pos pos = now().pos;
    ExprPtr e = disjunction();
    while (skip_name("if")) {
      ExprPtr test = disjunction(), otherwise;
      if (skip_name("else")) otherwise = condition();
      e = node(EKind::kCondition, pos, "", std::move(test), std::move(e), std::move(otherwise));
    }
    return e;
  }
  ExprPtr disjunction() {
    ExprPtr e = conjunction();
    while (is_name("or")) {
      const Pos pos = take().pos;
      e = node(EKind::kOr, pos, "", std::move(e), conjunction());
    }
    return e;
  }
  ExprPtr conjunction() {
    ExprPtr e = negation();
    while (is_name("and")) {
      const Pos pos = take().pos;
      e = node(EKind::kAnd, pos, "", std::move(e), negation());
    }
    return e;
  }
  ExprPtr negation() {
    if (!is_name("not")) return comparison();
    const Descent d(*this);
    const Pos pos = take().pos;
    return node(EKind::kNot, pos, "", negation());
  }
  ExprPtr comparison() {
    const Pos pos = now().pos;
    ExprPtr first = sum();
    ExprPtr e;
    for (;;) {
      std::string op;
      for (const std::string_view c : {"==", "!=", "<", "<=", ">", ">="})
        if (is(c)) op = c;
      if (is_name("in")) op = "in";
      else if (is_name("not") && ahead(1).type == Type::kName && ahead(1).text == "in") op = "not in", take();
      if (op.empty()) break;
      take();
      if (!e) {
        e = make(EKind::kCompare, pos);
        e->children.push_back(std::move(first));
      }
      e->operators.push_back(op);
      e->children.push_back(sum());
    }
    return e ? grow(std::move(e)) : std::move(first);
  }
  ExprPtr sum() {
    ExprPtr e = concat();
    while (is("+") || is("-")) {
      const Token& op = take();
      e = node(EKind::kBinary, op.pos, op.text, std::move(e), concat());
    }
    return e;
  }
  ExprPtr concat() {
    const Pos pos = now().pos;
    ExprPtr first = product();
    if (!is("~")) return first;
    ExprPtr e = make(EKind::kConcat, pos);
    e->children.push_back(std::move(first));
    while (skip("~")) e->children.push_back(product());
    return grow(std::move(e));
  }
  ExprPtr product() {
    ExprPtr e = power();
    while (is("*") || is("/") || is("//") || is("%")) {
      const Token& op = take();
      e = node(EKind::kBinary, op.pos, op.text, std::move(e), power());
    }
    return e;
  }
  ExprPtr power() {
    ExprPtr e = unary(true);
    while (is("**")) {
      const Token& op = take();
      e = node(EKind::kBinary, op.pos, op.text, std::move(e), unary(true));
    }
    return e;
  }
  ExprPtr unary(bool with_filter) {
    ExprPtr e;
    if (is("-") || is("+")) {
      const Descent d(*this);
      const Token& op = take();
      e = node(op.text == "-" ? EKind::kNegative : EKind::kPositive, op.pos, "", unary(false));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    return with_filter ? filters(std::move(e)) : std::move(e);
  }

  ExprPtr primary() {
    const Pos pos = now().pos;
    switch (now().type) {
      case Type::kName: {
        const std::string name = take().text;
        if (name == "true" || name == "True") return constant(Value::boolean(true), pos);
        if (name == "false" || name == "False") return constant(Value::boolean(false), pos);
        if (name == "none" || name == "None") return constant(Value::none(), pos);
        return node(EKind::kName, pos, name);
      }
      case Type::kString: {
        std::string s;
        while (now().type == Type::kString) s += take().text;  // adjacent strings are one
        return constant(Value::string(std::move(s)), pos);
      }
      case Type::kInteger: {
        std::int64_t v = 0;
        const std::string& t = now().text;
        if (std::from_chars(t.data(), t.data() + t.size(), v).ec != std::errc()) fail("the number " + t.substr(0, 40) + " is too large");
        take();
        return constant(Value::integer(v), pos);
      }
      case Type::kFloat: return constant(Value::real(std::stod(take().text)), pos);
      default: break;
    }
    if (skip("(")) {
      ExprPtr e = tuple({}, true);
      expect(")");
      return e;
    }
    if (is("[")) {
      const Descent d(*this);
      take();
      ExprPtr e = make(EKind::kList, pos);
      while (!is("]")) {
        e->children.push_back(expression());
        if (!skip(",")) break;
      }
      expect("]");
      return grow(std::move(e));
    }
    if (is("{")) {
      const Descent d(*this);
      take();
      ExprPtr e = make(EKind::kDict, pos);
      while (!is("}")) {
        e->children.push_back(expression());
        expect(":");
        e->children.push_back(expression());
        if (!skip(",")) break;
      }
      expect("}");
      return grow(std::move(e));
    }
    fail("expected an expression, found " + shown());
  }

  // a, b, c without brackets. `ends` are names that end it; `in_brackets` allows ().
  ExprPtr tuple(std::initializer_list<std::string_view> ends, bool in_brackets, bool with_condition = true) {
    const Pos pos = now().pos;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    for (;;) {
      const bool ended = now().type == Type::kBlockEnd || now().type == Type::kVariableEnd || is(")") ||
                         std::any_of(ends.begin(), ends.end(), [&](std::string_view n) { return is_name(n); });
      if (ended) break;
      items.push_back(with_condition ? expression() : disjunction_descended());
      if (!skip(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && items.size() == 1) return std::move(items[0]);
    if (items.empty() && !in_brackets) fail("expected an expression, found " + shown());
    ExprPtr e = make(EKind::kTuple, pos);
    e->children = std::move(items);
    return grow(std::move(e));
  }
  ExprPtr disjunction_descended() {
    const Descent d(*this);
    return disjunction();
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      if (is(".")) {
        const Pos pos = take().pos;
        if (now().type == Type::kInteger) {
          ExprPtr index = primary();
          e = node(EKind::kItem, pos, "", std::move(e), std::move(index));
        } else {
          std::string name = expect_name();
          e = node(EKind::kAttribute, pos, std::move(name), std::move(e));
        }
      } else if (is("[")) {
        e = subscript(std::move(e));
      } else if (is("(")) {
        e = call(std::move(e));
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr e) {
    const Descent d(*this);
    const Pos pos = take().pos;
    ExprPtr parts[3];
    int colons = 0;
    std::vector<ExprPtr> items;
    while (!is("]")) {
      if (skip(":")) {
        if (++colons > 2) fail("a slice has at most two colons");
        continue;
      }
      if (parts[colons]) break;
      parts[colons] = expression();
      if (colons == 0 && is(",")) {  // x[a, b]: a tuple
        items.push_back(std::move(parts[0]));
        while (skip(",") && !is("]")) items.push_back(expression());
        break;
      }
    }
    expect("]");
    if (!items.empty()) {
      ExprPtr key = make(EKind::kTuple, pos);
      key->children = std::move(items);
      return node(EKind::kItem, pos, "", std::move(e), grow(std::move(key)));
    }
    if (colons > 0) return node(EKind::kSlice, pos, "", std::move(e), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
    if (!parts[0]) fail("expected an expression, found ']'");
    return node(EKind::kItem, pos, "", std::move(e), std::move(parts[0]));
  }

  CallArgs arguments() {
    const Descent d(*this);
    expect("(");
    CallArgs a;
    while (!is(")")) {
      if (skip("**")) {
        if (a.named_rest) fail("more than one ** in a call");
        a.named_rest = expression();
      } else if (skip("*")) {
        if (a.rest || a.named_rest) fail("a * that is not the first in a call");
        a.rest = expression();
      } else if (now().type == Type::kName && ahead(1).type == Type::kOperator && ahead(1).text == "=") {
        std::string name = take().text;
        take();
        a.named.emplace_back(std::move(name), expression());
      } else {
        if (!a.named.empty() || a.named_rest) fail("a positional argument after a named one");
        a.positional.push_back(expression());
      }
      if (!skip(",")) break;
    }
    expect(")");
    return a;
  }

  ExprPtr call(ExprPtr callee) {
    ExprPtr e = make(EKind::kCall, now().pos);
    e->children.push_back(std::move(callee));
    e->args = arguments();
    return grow(std::move(e));
  }

  ExprPtr filter(ExprPtr in) {  // behind the |
    ExprPtr e = make(EKind::kFilter, now().pos);
    e->name = expect_name();
    while (skip(".")) e->name += "." + expect_name();
    e->filter = find_filter(e->name);
    e->children.push_back(std::move(in));
    if (is("(")) e->args = arguments();
    return grow(std::move(e));
  }

  ExprPtr test(ExprPtr in) {  // behind the `is`
    const bool negated = skip_name("not");
    ExprPtr e = make(EKind::kTest, now().pos);
    e->name = expect_name();
    while (skip(".")) e->name += "." + expect_name();
    e->test = find_test(e->name);
    e->children.push_back(std::move(in));
    if (is("(")) {
      e->args = arguments();
    } else if (const Type t = now().type; (t == Type::kName && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if") && !is_name("in") && !is_name("not")) ||
                                          t == Type::kString || t == Type::kInteger || t == Type::kFloat || is("[") || is("{")) {
      if (is_name("is")) fail("tests cannot be chained with is");
      e->args.positional.push_back(postfix(primary()));
    }
    const Pos pos = e->pos;
    ExprPtr done = grow(std::move(e));
    return negated ? node(EKind::kNot, pos, "", std::move(done)) : std::move(done);
  }

  ExprPtr filters(ExprPtr e) {
    for (;;) {
      if (skip("|")) e = filter(std::move(e));
      else if (skip_name("is")) e = test(std::move(e));
      else if (is("(")) e = call(std::move(e));
      else return e;
    }
  }

  // ---- statements ----
  std::unique_ptr<Stmt> stmt(SKind kind, Pos pos) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind, s->pos = pos;
    return s;
  }

  // Up to a tag that begins with one of `ends`; that name is the next token then.
  Body statements(std::initializer_list<std::string_view> ends) {
    const Descent d(*this);
    Body body;
    for (;;) {
      const Token& t = now();
      if (t.type == Type::kEnd) {
        if (ends.size() > 0) fail("the template ends inside a block; expected {% " + std::string(*(ends.end() - 1)) + " %}");
        return body;
      }
      if (t.type == Type::kData) {
        auto s = stmt(SKind::kText, t.pos);
        s->text = take().text;
        body.push_back(std::move(s));
      } else if (t.type == Type::kVariableBegin) {
        auto s = stmt(SKind::kPrint, take().pos);
        s->expr = tuple({}, false);
        expect_end(Type::kVariableEnd);
        body.push_back(std::move(s));
      } else {
        const Pos pos = take().pos;
        for (const std::string_view e : ends)
          if (is_name(e)) return body;
        body.push_back(tag(pos));
      }
    }
  }
  // The end tag that statements() stopped at.
  void close(std::string_view name) {
    if (!skip_name(name)) fail("expected " + std::string(name) + ", found " + shown());
    expect_end(Type::kBlockEnd);
  }

  std::unique_ptr<Stmt> tag(Pos pos) {
    const std::string name = expect_name();
    if (name == "if") return if_tag(pos);
    if (name == "for") return for_tag(pos);
    if (name == "set") return set_tag(pos);
    if (name == "macro") return macro_tag(pos);
    if (name == "call") return call_tag(pos);
    if (name == "filter") {
      auto s = stmt(SKind::kFilterBlock, pos);
      s->expr = block_filter();
      while (skip("|")) s->expr = filter(std::move(s->expr));
      expect_end(Type::kBlockEnd);
      s->body = statements({"endfilter"});
      close("endfilter");
      return s;
    }
    if (name == "with") {
      auto s = stmt(SKind::kWith, pos);
      while (now().type != Type::kBlockEnd) {
        Target t = target({});
        expect("=");
        s->assignments.emplace_back(std::move(t), expression());
        if (!skip(",")) break;
      }
      expect_end(Type::kBlockEnd);
      s->body = statements({"endwith"});
      close("endwith");
      return s;
    }
    if (name == "generation") {  // marks what the assistant wrote; nothing to render
      auto s = stmt(SKind::kScope, pos);
      expect_end(Type::kBlockEnd);
      s->body = statements({"endgeneration"});
      close("endgeneration");
      return s;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw Failure(name + " outside a loop", pos);
      expect_end(Type::kBlockEnd);
      return stmt(name == "break" ? SKind::kBreak : SKind::kContinue, pos);
    }
    if (name == "include" || name == "import" || name == "from" || name == "extends" || name == "block")
      throw Failure("{% " + name + " %} reaches for other templates, of which there are none", pos);
    throw Failure("unknown tag '" + name + "'", pos);
  }

  ExprPtr block_filter() { return filter(nullptr); }

  std::unique_ptr<Stmt> if_tag(Pos pos) {
    auto s = stmt(SKind::kIf, pos);
    ExprPtr condition = tuple({}, false);
    for (;;) {
      expect_end(Type::kBlockEnd);
      Body body = statements({"elif", "else", "endif"});
      s->branches.push_back({std::move(condition), std::move(body)});
      if (skip_name("elif")) {
        condition = tuple({}, false);
        continue;
      }
      if (skip_name("else")) {
        expect_end(Type::kBlockEnd);
        Body otherwise = statements({"endif"});
        s->branches.push_back({nullptr, std::move(otherwise)});
      }
      close("endif");
      return s;
    }
  }

  std::unique_ptr<Stmt> for_tag(Pos pos) {
    auto s = stmt(SKind::kFor, pos);
    s->target = target({"in"});
    if (!skip_name("in")) fail("expected in, found " + shown());
    s->expr = tuple({"recursive"}, false, /*with_condition=*/false);
    if (skip_name("if")) s->condition = expression();
    s->recursive = skip_name("recursive");
    expect_end(Type::kBlockEnd);
    ++loops_;
    s->body = statements({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      expect_end(Type::kBlockEnd);
      s->orelse = statements({"endfor"});
    }
    close("endfor");
    return s;
  }

  std::unique_ptr<Stmt> set_tag(Pos pos) {
    auto s = stmt(SKind::kSet, pos);
    s->target = target({}, true);
    if (skip("=")) {
      s->expr = tuple({}, false);
      expect_end(Type::kBlockEnd);
      return s;
    }
    s->kind = SKind::kSetBlock;
    while (skip("|")) s->expr = filter(std::move(s->expr));
    expect_end(Type::kBlockEnd);
    s->body = statements({"endset"});
    close("endset");
    return s;
  }

  void parameters(Stmt& s) {
    expect("(");
    while (!is(")")) {
      Stmt::Param p;
      p.name = assignable(expect_name());
      if (skip("=")) p.otherwise = expression();
      else if (!s.params.empty() && s.params.back().otherwise) fail("a parameter without a default after one with");
      s.params.push_back(std::move(p));
      if (!skip(",")) break;
    }
    expect(")");
  }

  std::unique_ptr<Stmt> macro_tag(Pos pos) {
    auto s = stmt(SKind::kMacro, pos);
    s->name = assignable(expect_name());
    parameters(*s);
    expect_end(Type::kBlockEnd);
    macro_body(*s, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> call_tag(Pos pos) {
    auto s = stmt(SKind::kCallBlock, pos);
    s->name = "caller";
    if (is("(")) parameters(*s);
    s->expr = expression();
    if (s->expr->kind != EKind::kCall) throw Failure("{% call %} needs a call", pos);
    expect_end(Type::kBlockEnd);
    macro_body(*s, "endcall");
    return s;
  }

  // A macro is its own place: loops around it are not its own. What it calls its surplus arguments is
  // found by name.
  void macro_body(Stmt& s, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const std::size_t from = at_;
    s.body = statements({end});
    for (std::size_t i = from; i < at_; ++i)
      if (tokens_[i].type == Type::kName) {
        s.wants_rest |= tokens_[i].text == "varargs";
        s.wants_named |= tokens_[i].text == "kwargs";
        s.wants_caller |= tokens_[i].text == "caller";
      }
    close(end);
    loops_ = loops;
  }

  std::string assignable(std::string name) const {
    for (const std::string_view fixed : {"true", "false", "none", "True", "False", "None"})
      if (name == fixed) throw Failure("cannot assign to '" + name + "'", now().pos);
    return name;
  }

  Target target(std::initializer_list<std::string_view> ends, bool attributes = false) {
    std::vector<Target> parts;
    bool several = false;
    for (;;) {
      if (now().type == Type::kBlockEnd || is("=") || is(")") || std::any_of(ends.begin(), ends.end(), [&](std::string_view n) { return is_name(n); })) break;
      if (is("(")) {
        const Descent d(*this);
        take();
        Target inner = target({}, attributes);
        expect(")");
        parts.push_back(std::move(inner));
      } else {
        Target t;
        t.name = assignable(expect_name());
        if (attributes && skip(".")) t.attribute = expect_name();
        parts.push_back(std::move(t));
      }
      if (!skip(",")) break;
      several = true;
    }
    if (parts.empty()) fail("expected a name to assign to, found " + shown());
    if (!several) return std::move(parts[0]);
    Target t;
    t.parts = std::move(parts);
    return t;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int descent_ = 0, loops_ = 0;
};

}  // namespace

Body parse(const std::string& source) {
  Body body = Parser(source).run();
  check_names(body);
  return body;
}

}  // namespace qengine::jinja
