#include "core/tokenizer/jinja/interpreter.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/tokenizer/jinja/filters.hpp"
#include "core/tokenizer/jinja/globals.hpp"
#include "core/tokenizer/jinja/text.hpp"

namespace qengine::jinja {
namespace {

using Kind = Value::Kind;

// A macro, or the body of a {% call %} as `caller`.
class Macro : public Object {
 public:
  Macro(const Stmt& stmt, Scope* closure) : stmt_(stmt), closure_(closure) {}
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value attribute(Interpreter& in, const std::string& name) override {
    return name == "name" ? Value::string(stmt_.name) : Object::attribute(in, name);
  }
  Value call(Interpreter& in, const Args& args) override {
    // `caller` travels as a named argument.
    const Value* caller = nullptr;
    Args own = args;
    for (auto it = own.named.begin(); it != own.named.end(); ++it)
      if (it->first == "caller") {
        own.named.erase(it);
        for (const auto& a : args.named)
          if (a.first == "caller") caller = &a.second;
        break;
      }
    if (caller && !stmt_.wants_caller) throw Failure("macro '" + stmt_.name + "' was called with a body but does not use caller");
    return in.text(in.call_macro(stmt_, closure_, own, caller));
  }

 private:
  const Stmt& stmt_;
  Scope* closure_;
};

// A method taken from its value without being called.
class Method : public Object {
 public:
  Method(Value self, std::string name) : self_(std::move(self)), name_(std::move(name)) {}
  std::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Interpreter& in, const Args& args) override { return *call_method(in, self_, name_, args); }
  void drop() override { self_ = Value(); }

 private:
  Value self_;
  std::string name_;
};

// `loop` inside a for. Items that the loop's condition rejects are skipped when they are come to.
class Loop : public Object {
 public:
  Loop(std::vector<Value> items, int depth) : items_(std::move(items)), depth_(depth) {}

  std::function<bool(const Value&)> passes;  // null: all
  const Stmt* stmt = nullptr;                // of a recursive loop
  Scope* closure = nullptr;

  // The next item; false at the end.
  bool advance() {
    if (!settle()) return false;
    previous_ = current_;
    current_ = items_[ahead_++];
    settled_ = false;
    ++index_;
    return true;
  }
  const Value& current() const { return current_; }

  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return stmt != nullptr; }
  Value call(Interpreter& in, const Args& args) override {
    if (!stmt) throw Failure("loop() needs {% for ... recursive %}");
    if (args.positional.size() != 1) throw Failure("loop() takes one argument");
    return in.text(in.loop_again(*stmt, closure, args.positional[0], depth_ + 1));
  }
  Value attribute(Interpreter& in, const std::string& name) override {
    if (name == "index") return Value::integer(index_ + 1);
    if (name == "index0") return Value::integer(index_);
    if (name == "first") return Value::boolean(index_ == 0);
    if (name == "last") return Value::boolean(!settle());
    if (name == "length") return Value::integer(count());
    if (name == "revindex") return Value::integer(count() - index_);
    if (name == "revindex0") return Value::integer(count() - index_ - 1);
    if (name == "previtem") return index_ == 0 ? Value::undefined("there is no previous item") : previous_;
    if (name == "nextitem") return settle() ? items_[ahead_] : Value::undefined("there is no next item");
    if (name == "depth") return Value::integer(depth_ + 1);
    if (name == "depth0") return Value::integer(depth_);
    return Object::attribute(in, name);
  }
  std::optional<Value> method(Interpreter&, const std::string& name, const Args& args) override {
    if (name == "cycle") {
      if (args.positional.empty()) throw Failure("no items for cycling given");
      return args.positional[static_cast<std::size_t>(index_) % args.positional.size()];
    }
    if (name == "changed") {
      const Value now = Value::list(args.positional, true);
      const bool changed = !seen_any_ || !now.equals(seen_);
      seen_ = now, seen_any_ = true;
      return Value::boolean(changed);
    }
    return std::nullopt;
  }
  void drop() override { items_.clear(), current_ = previous_ = seen_ = Value(), passes = nullptr; }

 private:
  // Moves ahead_ to the next item that passes; false when there is none.
  bool settle() {
    while (!settled_ && ahead_ < items_.size()) {
      if (!passes || passes(items_[ahead_])) settled_ = true;
      else ++ahead_;
    }
    return settled_;
  }
  std::int64_t count() {  // looks at all that is left
    std::size_t from = ahead_;
    if (passes) {
      std::vector<Value> rest;
      if (settled_) rest.push_back(items_[from++]);
      for (; from < items_.size(); ++from)
        if (passes(items_[from])) rest.push_back(items_[from]);
      items_.resize(ahead_);
      items_.insert(items_.end(), rest.begin(), rest.end());
      passes = nullptr;
    }
    return index_ + 1 + static_cast<std::int64_t>(items_.size() - ahead_);
  }

  std::vector<Value> items_;
  std::size_t ahead_ = 0;
  bool settled_ = false;  // items_[ahead_] passes
  std::int64_t index_ = -1;
  int depth_;
  Value current_, previous_, seen_;
  bool seen_any_ = false;
};

std::int64_t plus(std::int64_t x, std::int64_t y) {
  std::int64_t r = 0;
  if (__builtin_add_overflow(x, y, &r)) throw Failure("an integer of more than 64 bits");
  return r;
}
std::int64_t minus(std::int64_t x, std::int64_t y) {
  std::int64_t r = 0;
  if (__builtin_sub_overflow(x, y, &r)) throw Failure("an integer of more than 64 bits");
  return r;
}
std::int64_t times(std::int64_t x, std::int64_t y) {
  std::int64_t r = 0;
  if (__builtin_mul_overflow(x, y, &r)) throw Failure("an integer of more than 64 bits");
  return r;
}

Value add(Interpreter& in, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return in.text(a.string() + b.string());
  if (a.is_list() && a.kind() == b.kind()) {
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return in.list(std::move(items), a.kind() == Kind::kTuple);
  }
  if (a.is_string()) throw Failure("can only concatenate str (not \"" + std::string(b.type_name()) + "\") to str");
  throw Failure("unsupported operand types for +: '" + std::string(a.type_name()) + "' and '" + std::string(b.type_name()) + "'");
}

Value repeat(Interpreter& in, const Value& what, std::int64_t count) {
  count = std::max<std::int64_t>(count, 0);
  const std::uint64_t weight = std::max<std::uint64_t>(what.weight(), 1);
  if (static_cast<std::uint64_t>(count) > kMaxWeight / weight + 1) throw Failure("a value of more than " + std::to_string(kMaxWeight >> 20) + " MiB");
  if (what.is_string()) {
    std::string s;
    for (std::int64_t i = 0; i < count; ++i) s += what.string();
    return in.text(std::move(s));
  }
  std::vector<Value> items;
  for (std::int64_t i = 0; i < count; ++i) items.insert(items.end(), what.items().begin(), what.items().end());
  return in.list(std::move(items), what.kind() == Kind::kTuple);
}

Value power(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral() && b.integer() >= 0) {
    std::int64_t result = 1, base = a.integer();
    for (std::int64_t e = b.integer(); e > 0; e >>= 1) {
      if (e & 1) result = times(result, base);
      if (e > 1) base = times(base, base);
    }
    return Value::integer(result);
  }
  if (a.real() == 0 && b.real() < 0) throw Failure("0.0 cannot be raised to a negative power");
  return Value::real(std::pow(a.real(), b.real()));
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "**") return power(a, b);
  if (op == "/") {
    if (b.real() == 0) throw Failure("division by zero");
    return Value::real(a.real() / b.real());
  }
  if (a.is_integral() && b.is_integral()) {
    const std::int64_t x = a.integer(), y = b.integer();
    if (op == "+") return Value::integer(plus(x, y));
    if (op == "-") return Value::integer(minus(x, y));
    if (op == "*") return Value::integer(times(x, y));
    if (y == 0) throw Failure("integer division or modulo by zero");
    if (y == -1) return op == "%" ? Value::integer(0) : Value::integer(minus(0, x));
    const std::int64_t quotient = x / y - (x % y != 0 && (x % y < 0) != (y < 0));  // towards minus infinity
    return Value::integer(op == "//" ? quotient : x - quotient * y);
  }
  const double x = a.real(), y = b.real();
  if (op == "+") return Value::real(x + y);
  if (op == "-") return Value::real(x - y);
  if (op == "*") return Value::real(x * y);
  if (y == 0) throw Failure("float division or modulo by zero");
  if (op == "//") return Value::real(std::floor(x / y));
  const double m = std::fmod(x, y);
  return Value::real(m != 0 && (m < 0) != (y < 0) ? m + y : m);
}

bool changes_its_value(const std::string& name) {
  static constexpr std::string_view kNames[] = {"append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "sort", "reverse"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

struct Interpreter::Deeper {
  Interpreter& in;
  explicit Deeper(Interpreter& i) : in(i) {
    if (++in.stack_ > kMaxStack) {
      --in.stack_;
      throw Failure("the template nests too deeply while it runs");
    }
  }
  ~Deeper() { --in.stack_; }
};

// Output goes to a string of its own for a while.
struct Interpreter::Captured {
  Interpreter& in;
  std::string text;
  std::string* before;
  explicit Captured(Interpreter& i) : in(i), before(std::exchange(i.out_, &text)) {}
  ~Captured() { in.out_ = before; }
};

struct Interpreter::Entered {
  Interpreter& in;
  std::unique_ptr<Scope> own;
  Scope* before;
  Entered(Interpreter& i, Scope* parent) : in(i), own(std::make_unique<Scope>()), before(i.scope_) {
    own->parent = parent;
    in.scope_ = own.get();
  }
  ~Entered() {
    in.scope_ = before;
    if (own->captured) in.kept_.push_back(std::move(own));
  }
};

Interpreter::Interpreter(std::vector<std::pair<std::string, Value>> globals) { root_.variables = std::move(globals); }

Interpreter::~Interpreter() {
  for (const auto& o : objects_) o->drop();  // they refer to each other by address
}

std::string Interpreter::render(const Body& body) {
  std::string out;
  out_ = &out;
  exec(body);
  return out;
}

void Interpreter::charge(std::uint64_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) throw Failure("the template takes more than " + std::to_string(kMaxSteps) + " steps");
}

Value Interpreter::text(std::string s) {
  charge(s.size() / 16);
  return Value::string(std::move(s));
}

Value Interpreter::list(std::vector<Value> items, bool tuple) {
  charge(items.size());
  return Value::list(std::move(items), tuple);
}

std::vector<Value> Interpreter::iterate(const Value& v) {
  charge(v.is_string() ? v.string().size() * 2 : v.is_list() || v.is_dict() || v.is_range() ? static_cast<std::uint64_t>(v.length()) * 2 : 1);
  return v.iterate();
}

std::string Interpreter::str(const Value& v) {
  charge(v.weight() / 16);
  return v.str();
}

Value Interpreter::own(std::unique_ptr<Object> object) {
  charge(50);
  objects_.push_back(std::move(object));
  return Value::object(objects_.back().get());
}

// ---- looking things up ----

Value Interpreter::eval_name(const std::string& name) {
  for (const Scope* s = scope_; s; s = s->parent) {
    charge(s->variables.size() / 8);
    for (auto it = s->variables.rbegin(); it != s->variables.rend(); ++it)
      if (it->first == name) return it->second;
  }
  if (auto function = make_global(name)) {
    Value v = own(std::move(function));
    root_.variables.emplace_back(name, v);
    return v;
  }
  return Value::undefined("'" + name + "' is undefined");
}

void Interpreter::set(const std::string& name, Value v) {
  charge(scope_->variables.size() / 8);
  for (auto& [known, value] : scope_->variables)
    if (known == name) {
      value = std::move(v);
      return;
    }
  scope_->variables.emplace_back(name, std::move(v));
}

Value Interpreter::attribute(const Value& base, const std::string& name) {
  if (base.is_undefined()) throw Failure(base.why());
  if (base.is_object()) return base.object().attribute(*this, name);
  if (has_method(base, name)) return own(std::make_unique<Method>(base, name));
  if (base.is_dict()) {
    charge(base.pairs().size() / 8);
    if (const Value* v = base.find(std::string_view(name))) return *v;
    if (!changes_its_value(name)) return Value::undefined("'dict object' has no attribute '" + name + "'");
  }
  if ((base.is_dict() || base.kind() == Kind::kList) && changes_its_value(name))
    return Value::undefined(std::string(base.type_name()) + "." + name + " changes its value, which templates may not do");
  if (base.is_none()) return Value::undefined("'None' has no attribute '" + name + "'");
  return Value::undefined("'" + std::string(base.type_name()) + " object' has no attribute '" + name + "'");
}

Value Interpreter::item(const Value& base, const Value& key) {
  if (base.is_undefined()) throw Failure(base.why());
  if (base.is_dict()) {
    charge(base.pairs().size() / 8);
    if (!key.is_list() && !key.is_dict())
      if (const Value* v = base.find(key)) return *v;
  } else if (key.is_integral() && (base.is_list() || base.is_string() || base.is_range())) {
    std::int64_t i = key.integer();
    if (base.is_string()) charge(base.string().size() / 16);
    const std::int64_t n = base.length();
    if (i < 0) i += n;
    if (i < 0 || i >= n) return Value::undefined("'" + std::string(base.type_name()) + " object' has no element " + key.str());
    if (base.is_list()) return base.items()[static_cast<std::size_t>(i)];
    if (base.is_range()) return Value::integer(base.range().start + i * base.range().step);
    return Value::string(std::string(characters(base.string())[static_cast<std::size_t>(i)]));
  }
  if (key.is_string()) return attribute(base, key.string());
  return Value::undefined("'" + std::string(base.is_none() ? "None" : base.type_name()) + (base.is_none() ? "'" : " object'") + " has no element " + key.repr());
}

Value Interpreter::path(const Value& base, const Value& attribute) {
  if (!attribute.is_string()) return item(base, attribute);
  Value v = base;
  std::string_view rest = attribute.string();
  for (;;) {
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    v = item(v, number ? Value::integer(std::stol(part)) : Value::string(part));
    if (dot == std::string_view::npos) return v;
    rest = rest.substr(dot + 1);
  }
}

Value Interpreter::call(const Value& callee, const Args& args) {
  if (callee.is_undefined()) throw Failure(callee.why());
  if (!callee.is_object()) throw Failure("'" + std::string(callee.type_name()) + "' object is not callable");
  return callee.object().call(*this, args);
}

// ---- expressions ----

Value Interpreter::eval(const Expr& e) {
  const Deeper deeper(*this);
  charge(1);
  try {
    return eval_node(e);
  } catch (Failure& f) {
    if (f.pos.line == 0) f.pos = e.pos;
    throw;
  }
}

Value Interpreter::eval_node(const Expr& e) {
  using K = Expr::Kind;
  switch (e.kind) {
    case K::kConstant: return e.value;
    case K::kName: return eval_name(e.name);
    case K::kList: case K::kTuple: {
      std::vector<Value> items;
      items.reserve(e.children.size());
      for (const ExprPtr& c : e.children) items.push_back(eval(*c));
      return list(std::move(items), e.kind == K::kTuple);
    }
    case K::kDict: return eval_dict(e);
    case K::kAttribute: return attribute(eval(*e.children[0]), e.name);
    case K::kItem: {
      const Value base = eval(*e.children[0]);
      return item(base, eval(*e.children[1]));
    }
    case K::kSlice: return eval_slice(e);
    case K::kCall: return eval_call(e);
    case K::kFilter: return eval_filter(e, nullptr);
    case K::kTest: {
      const Value in = eval(*e.children[0]);
      if (!e.test) unknown_name(e);
      return Value::boolean(e.test->run(*this, in, eval_args(e.args)));
    }
    case K::kNot: return Value::boolean(!truthy(*e.children[0]));
    case K::kNegative: case K::kPositive: {
      const Value v = eval(*e.children[0]);
      if (v.is_undefined()) throw Failure(v.why());
      if (!v.is_number()) throw Failure("bad operand type for unary " + std::string(e.kind == K::kNegative ? "-" : "+") + ": '" + std::string(v.type_name()) + "'");
      if (v.is_float()) return Value::real(e.kind == K::kNegative ? -v.real() : v.real());  // -0.0 too
      return arithmetic(e.kind == K::kNegative ? "-" : "+", Value::integer(0), v);
    }
    case K::kAnd: {
      Value v = eval(*e.children[0]);
      return v.truthy() ? eval(*e.children[1]) : v;
    }
    case K::kOr: {
      Value v = eval(*e.children[0]);
      return v.truthy() ? v : eval(*e.children[1]);
    }
    case K::kCondition:
      if (truthy(*e.children[0])) return eval(*e.children[1]);
      return e.children[2] ? eval(*e.children[2]) : Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    case K::kConcat: {
      std::string s;
      for (const ExprPtr& c : e.children) s += str(eval(*c));
      return text(std::move(s));
    }
    case K::kBinary: return eval_binary(e);
    case K::kCompare: return eval_compare(e);
  }
  return Value();
}

Value Interpreter::eval_dict(const Expr& e) {
  std::vector<Value::Pair> pairs;
  for (std::size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = eval(*e.children[i]);
    if (key.is_list() || key.is_dict()) throw Failure("unhashable type: '" + std::string(key.type_name()) + "'");
    Value v = eval(*e.children[i + 1]);
    charge(pairs.size() / 8);
    const auto same = std::find_if(pairs.begin(), pairs.end(), [&](const Value::Pair& p) { return p.first.equals(key); });
    if (same != pairs.end()) same->second = std::move(v);
    else pairs.emplace_back(std::move(key), std::move(v));
  }
  return Value::dict(std::move(pairs));
}

Args Interpreter::eval_args(const CallArgs& a) {
  Args args;
  for (const ExprPtr& p : a.positional) args.positional.push_back(eval(*p));
  for (const auto& [name, p] : a.named) args.named.emplace_back(name, eval(*p));
  if (a.rest)
    for (Value& v : iterate(eval(*a.rest))) args.positional.push_back(std::move(v));
  if (a.named_rest) {
    const Value v = eval(*a.named_rest);
    if (!v.is_dict()) throw Failure("the argument behind ** must be a mapping, not " + std::string(v.type_name()));
    for (const Value::Pair& p : v.pairs()) {
      if (!p.first.is_string()) throw Failure("keywords must be strings");
      args.named.emplace_back(p.first.string(), p.second);
    }
  }
  for (std::size_t i = 0; i < args.named.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (args.named[i].first == args.named[j].first) throw Failure("the argument '" + args.named[i].first + "' is given twice");
  return args;
}

Value Interpreter::eval_call(const Expr& e) {
  const Expr& callee = *e.children[0];
  if (callee.kind != Expr::Kind::kAttribute) {
    const Value f = eval(callee);
    return call(f, eval_args(e.args));
  }
  const Value base = eval(*callee.children[0]);
  if (base.is_object()) {
    const Args args = eval_args(e.args);
    if (auto v = base.object().method(*this, callee.name, args)) return *v;
    return call(attribute(base, callee.name), args);
  }
  if (has_method(base, callee.name)) return *call_method(*this, base, callee.name, eval_args(e.args));
  const Value f = attribute(base, callee.name);
  return call(f, eval_args(e.args));
}

Value Interpreter::eval_filter(const Expr& e, const Value* in) {
  // In a chain of a {% filter %} or {% set %} block the innermost filter takes the block's text.
  const Value input = !e.children[0] ? *in : in && e.children[0]->kind == Expr::Kind::kFilter ? eval_filter(*e.children[0], in) : eval(*e.children[0]);
  if (!e.filter) unknown_name(e);
  return e.filter->run(*this, input, eval_args(e.args));
}

Value Interpreter::eval_slice(const Expr& e) {
  const Value base = eval(*e.children[0]);
  const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
    if (!e.children[i]) return std::nullopt;
    const Value v = eval(*e.children[i]);
    if (v.is_none()) return std::nullopt;
    if (!v.is_integral()) throw Failure("slice indices must be integers or None, not " + std::string(v.type_name()));
    return v.integer();
  };
  const auto start = bound(1), stop = bound(2);
  const std::int64_t step = bound(3).value_or(1);
  if (step == 0) throw Failure("slice step cannot be zero");
  if (base.is_undefined()) throw Failure(base.why());
  if (!base.is_string() && !base.is_list() && !base.is_range()) throw Failure("'" + std::string(base.type_name()) + "' object cannot be sliced");
  if (base.is_string()) charge(base.string().size() / 8);
  const std::int64_t n = base.length();
  const auto clamp = [&](std::int64_t i) { return std::clamp(i < 0 ? i + n : i, std::int64_t{step < 0 ? -1 : 0}, step < 0 ? n - 1 : n); };
  const std::int64_t from = start ? clamp(*start) : step < 0 ? n - 1 : 0;
  const std::int64_t to = stop ? clamp(*stop) : step < 0 ? -1 : n;
  if (base.is_range()) {
    const auto& r = base.range();
    std::int64_t size = step < 0 ? (from - to - step - 1) / -step : (to - from + step - 1) / step;
    size = std::max<std::int64_t>(size, 0);
    return Value::range(plus(r.start, times(from, r.step)), plus(r.start, times(plus(from, times(size, step)), r.step)), times(r.step, step));
  }
  std::vector<std::int64_t> picks;
  for (std::int64_t i = from; step < 0 ? i > to : i < to;) {
    picks.push_back(i);
    charge(1);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (base.is_string()) {
    const auto c = characters(base.string());
    std::string s;
    for (const std::int64_t i : picks) s += c[static_cast<std::size_t>(i)];
    return text(std::move(s));
  }
  std::vector<Value> items;
  for (const std::int64_t i : picks) items.push_back(item(base, Value::integer(i)));
  return list(std::move(items), base.kind() == Kind::kTuple);
}

Value Interpreter::eval_binary(const Expr& e) {
  const Value a = eval(*e.children[0]), b = eval(*e.children[1]);
  if (a.is_number() && b.is_number()) return arithmetic(e.name, a, b);
  if (e.name == "%" && a.is_string()) {
    charge(b.weight() / 16);
    return text(format_percent(a.string(), b));
  }
  if (a.is_undefined()) throw Failure(a.why());
  if (b.is_undefined()) throw Failure(b.why());
  if (e.name == "+") return add(*this, a, b);
  if (e.name == "*" && b.is_integral() && (a.is_string() || a.is_list())) return repeat(*this, a, b.integer());
  if (e.name == "*" && a.is_integral() && (b.is_string() || b.is_list())) return repeat(*this, b, a.integer());
  throw Failure("unsupported operand types for " + e.name + ": '" + std::string(a.type_name()) + "' and '" + std::string(b.type_name()) + "'");
}

Value Interpreter::eval_compare(const Expr& e) {
  Value left = eval(*e.children[0]);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = eval(*e.children[i + 1]);
    const std::string& op = e.operators[i];
    charge(std::min(left.weight(), right.weight()) / 16);
    bool holds;
    if (op == "==") holds = left.equals(right);
    else if (op == "!=") holds = !left.equals(right);
    else if (op == "in" || op == "not in") charge(right.weight() / 16), holds = right.contains(left) == (op == "in");
    else {
      const int c = left.compare(right);
      holds = op == "<" ? c < 0 : op == "<=" ? c <= 0 : op == ">" ? c > 0 : c >= 0;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

// ---- statements ----

void Interpreter::write(std::string_view s) {
  charge(s.size() / 16);
  if (out_->size() + s.size() > kMaxOutput) throw Failure("the rendered text is longer than " + std::to_string(kMaxOutput) + " bytes");
  *out_ += s;
}

void Interpreter::assign(const Target& t, const Value& v) {
  if (!t.parts.empty()) {
    const std::vector<Value> values = iterate(v);
    if (values.size() != t.parts.size()) throw Failure("cannot unpack " + std::to_string(values.size()) + " values into " + std::to_string(t.parts.size()) + " names");
    for (std::size_t i = 0; i < values.size(); ++i) assign(t.parts[i], values[i]);
    return;
  }
  if (t.attribute.empty()) return set(t.name, v);
  const Value base = eval_name(t.name);
  if (!base.is_object() || !base.object().assign(t.attribute, v)) throw Failure("cannot assign attribute on non-namespace object '" + t.name + "'");
}

Interpreter::Flow Interpreter::exec(const Body& body) {
  for (const auto& s : body) {
    try {
      if (const Flow f = exec(*s); f != Flow::kNext) return f;
    } catch (Failure& f) {
      if (f.pos.line == 0) f.pos = s->pos;
      throw;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec(const Stmt& s) {
  using K = Stmt::Kind;
  const Deeper deeper(*this);
  charge(1);
  switch (s.kind) {
    case K::kText: write(s.text); break;
    case K::kPrint: write(str(eval(*s.expr))); break;
    case K::kIf:
      for (const Stmt::Branch& b : s.branches)
        if (!b.condition || truthy(*b.condition)) return exec(b.body);
      break;
    case K::kFor: return exec_for(s, eval(*s.expr), 0);
    case K::kSet: assign(s.target, eval(*s.expr)); break;
    case K::kSetBlock: {
      Captured captured(*this);
      {
        const Entered entered(*this, scope_);
        exec(s.body);
      }
      out_ = captured.before;
      const Value v = text(std::move(captured.text));
      assign(s.target, s.expr ? eval_filter(*s.expr, &v) : v);
      break;
    }
    case K::kMacro:
      for (Scope* scope = scope_; scope; scope = scope->parent) scope->captured = true;
      set(s.name, own(std::make_unique<Macro>(s, scope_)));
      break;
    case K::kCallBlock: {
      for (Scope* scope = scope_; scope; scope = scope->parent) scope->captured = true;
      const Value f = eval(*s.expr->children[0]);
      Args args = eval_args(s.expr->args);
      args.named.emplace_back("caller", own(std::make_unique<Macro>(s, scope_)));
      write(str(call(f, args)));
      break;
    }
    case K::kFilterBlock: {
      Captured captured(*this);
      {
        const Entered entered(*this, scope_);
        exec(s.body);
      }
      out_ = captured.before;
      const Value v = text(std::move(captured.text));
      write(str(eval_filter(*s.expr, &v)));
      break;
    }
    case K::kWith: {
      std::vector<Value> values;
      for (const auto& a : s.assignments) values.push_back(eval(*a.second));
      const Entered entered(*this, scope_);
      for (std::size_t i = 0; i < values.size(); ++i) assign(s.assignments[i].first, values[i]);
      return exec(s.body);
    }
    case K::kScope: {
      const Entered entered(*this, scope_);
      return exec(s.body);
    }
    case K::kBreak: return Flow::kBreak;
    case K::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec_for(const Stmt& s, const Value& over, int depth) {
  Scope* const outside = scope_;
  const Value handle = own(std::make_unique<Loop>(iterate(over), depth));
  auto& loop = static_cast<Loop&>(handle.object());
  if (s.condition)
    loop.passes = [this, &s, outside](const Value& v) {
      const Entered entered(*this, outside);
      assign(s.target, v);
      return truthy(*s.condition);
    };
  if (s.recursive) loop.stmt = &s, loop.closure = outside;
  if (s.recursive)
    for (Scope* scope = outside; scope; scope = scope->parent) scope->captured = true;
  bool any = false;
  while (loop.advance()) {
    any = true;
    charge(1);
    const Entered entered(*this, outside);
    assign(s.target, loop.current());
    scope_->variables.emplace_back("loop", handle);
    if (exec(s.body) == Flow::kBreak) break;
  }
  loop.drop();
  if (any) return Flow::kNext;
  const Entered entered(*this, outside);
  return exec(s.orelse);
}

std::string Interpreter::loop_again(const Stmt& s, Scope* closure, const Value& over, int depth) {
  if (++calls_ > kMaxCalls) throw Failure("calls inside one another deeper than " + std::to_string(kMaxCalls));
  Captured captured(*this);
  Scope* const before = std::exchange(scope_, closure);
  exec_for(s, over, depth);
  scope_ = before;
  --calls_;
  return std::move(captured.text);
}

std::string Interpreter::call_macro(const Stmt& m, Scope* closure, const Args& args, const Value* caller) {
  if (++calls_ > kMaxCalls) throw Failure("calls inside one another deeper than " + std::to_string(kMaxCalls));
  const Entered entered(*this, closure);
  std::vector<bool> used(args.named.size());
  for (std::size_t i = 0; i < m.params.size(); ++i) {
    const Stmt::Param& p = m.params[i];
    std::optional<Value> v;
    if (i < args.positional.size()) v = args.positional[i];
    for (std::size_t n = 0; n < args.named.size(); ++n)
      if (args.named[n].first == p.name) {
        if (v) throw Failure("macro '" + m.name + "' got two values for '" + p.name + "'");
        v = args.named[n].second;
        used[n] = true;
      }
    if (!v) v = p.otherwise ? eval(*p.otherwise) : Value::undefined("parameter '" + p.name + "' was not provided");
    scope_->variables.emplace_back(p.name, std::move(*v));
  }
  std::vector<Value> rest;
  for (std::size_t i = m.params.size(); i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
  std::vector<Value::Pair> named;
  for (std::size_t n = 0; n < args.named.size(); ++n)
    if (!used[n]) named.emplace_back(Value::string(args.named[n].first), args.named[n].second);
  if (!rest.empty() && !m.wants_rest) throw Failure("macro '" + m.name + "' takes not more than " + std::to_string(m.params.size()) + " argument(s)");
  if (!named.empty() && !m.wants_named) throw Failure("macro '" + m.name + "' takes no keyword argument '" + named[0].first.string() + "'");
  if (m.wants_rest) scope_->variables.emplace_back("varargs", list(std::move(rest), true));
  if (m.wants_named) scope_->variables.emplace_back("kwargs", Value::dict(std::move(named)));
  if (m.wants_caller && m.kind == Stmt::Kind::kMacro) scope_->variables.emplace_back("caller", caller ? *caller : Value::undefined("No caller defined"));
  Captured captured(*this);
  exec(m.body);
  --calls_;
  return std::move(captured.text);
}

}  // namespace qengine::jinja
