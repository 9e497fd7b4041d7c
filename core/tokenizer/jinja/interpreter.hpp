// Runs a parsed template. One Interpreter renders once.
//
// Templates are untrusted. Bounds: output, steps (every node, and every 16 bytes a value is made of),
// nesting of calls, size and nesting of values. Nothing reaches outside: no files, no other templates.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tokenizer/jinja/ast.hpp"

namespace qengine::jinja {

inline constexpr std::size_t kMaxOutput = 1 << 20;
inline constexpr std::uint64_t kMaxSteps = 5'000'000;
inline constexpr int kMaxCalls = 64;    // macros and recursive loops inside one another
inline constexpr int kMaxStack = 1000;  // nodes inside one another, over all calls

// Variables of one place. Owned by the interpreter.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;
  bool captured = false;  // a macro defined here may still look
};

class Interpreter {
 public:
  explicit Interpreter(std::vector<std::pair<std::string, Value>> globals);
  ~Interpreter();

  std::string render(const Body& body);

  // ---- for filters, methods and objects ----
  void charge(std::uint64_t steps);
  Value text(std::string s);  // a string, paid for
  Value list(std::vector<Value> items, bool tuple = false);
  std::vector<Value> iterate(const Value& v);
  std::string str(const Value& v);  // as printed, paid for
  Value attribute(const Value& base, const std::string& name);  // base.name
  Value item(const Value& base, const Value& key);              // base[key]
  Value path(const Value& base, const Value& attribute);        // "a.b.0" of map, sort, selectattr
  Value call(const Value& callee, const Args& args);
  Value own(std::unique_ptr<Object> object);
  std::string call_macro(const Stmt& macro, Scope* closure, const Args& args, const Value* caller);
  std::string loop_again(const Stmt& loop, Scope* closure, const Value& over, int depth);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct Deeper;
  struct Captured;
  struct Entered;

  Value eval(const Expr& e);
  Value eval_node(const Expr& e);
  Value eval_name(const std::string& name);
  Value eval_call(const Expr& e);
  Value eval_filter(const Expr& e, const Value* in);
  Value eval_slice(const Expr& e);
  Value eval_binary(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_dict(const Expr& e);
  Args eval_args(const CallArgs& a);
  bool truthy(const Expr& e) { return eval(e).truthy(); }

  Flow exec(const Body& body);
  Flow exec(const Stmt& s);
  Flow exec_for(const Stmt& s, const Value& over, int depth);
  void write(std::string_view s);
  void assign(const Target& target, const Value& v);
  void set(const std::string& name, Value v);

  Scope root_;
  Scope* scope_ = &root_;
  std::vector<std::unique_ptr<Scope>> kept_;  // scopes that macros captured
  std::vector<std::unique_ptr<Object>> objects_;
  std::string* out_ = nullptr;
  std::uint64_t steps_ = 0;
  int stack_ = 0, calls_ = 0;
};

}  // namespace qengine::jinja
