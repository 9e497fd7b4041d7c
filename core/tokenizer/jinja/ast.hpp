// What the parser makes of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tokenizer/jinja/value.hpp"

namespace qengine::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr rest, named_rest;  // *args, **kwargs
};

struct FilterFn;  // filters.hpp
struct TestFn;

struct Expr {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList, kTuple,  // children
    kDict,       // children: key, value, key, value
    kAttribute,  // children[0] . name
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ], null where left out
    kCall,       // children[0] ( args )
    kFilter,     // children[0] | name ( args ); children[0] null in {% filter %}: the block's text
    kTest,       // children[0] is name ( args )
    kNot, kNegative, kPositive,
    kAnd, kOr,
    kCondition,  // children[1] if children[0] else children[2] (may be null)
    kConcat,     // children joined by ~
    kBinary,     // children[0] name children[1]
    kCompare,    // children[0] names[0] children[1] names[1] children[2] ...
  };
  Kind kind;
  Pos pos;
  std::string name;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  CallArgs args;
  const FilterFn* filter = nullptr;  // null in a kFilter: unknown, an error once it is reached
  const TestFn* test = nullptr;      // the same
  int depth = 1;
};

// Where a value goes: a name, `namespace.attribute`, or several of them.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;  // not empty: unpack into these
};

struct Stmt {
  enum class Kind {
    kText,       // text
    kPrint,      // expr
    kIf,         // branches; the last condition is null for else
    kFor,        // target in expr (if condition): body, else orelse
    kSet,        // target = expr, or the text of body (through expr, a filter) when expr's input is it
    kSetBlock,
    kMacro,      // name(params): body
    kCallBlock,  // expr is the call; params, body is the caller
    kFilterBlock,  // expr is the filter; body
    kWith,       // targets, expressions, body
    kScope,      // body, nothing else (generation)
    kBreak, kContinue,
  };
  struct Branch {
    ExprPtr condition;
    Body body;
  };
  struct Param {
    std::string name;
    ExprPtr otherwise;  // default value, null when there is none
  };
  Kind kind;
  Pos pos;
  std::string text, name;
  Target target;
  ExprPtr expr, condition;
  Body body, orelse;
  std::vector<Branch> branches;
  std::vector<Param> params;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  bool recursive = false;
  bool wants_rest = false, wants_named = false, wants_caller = false;  // a macro's body names varargs, kwargs, caller
};

// Throws Failure with a position.
Body parse(const std::string& source);

// Throws Failure for a filter or test that does not exist at a place that every rendering reaches. Elsewhere,
// templates may name what only another renderer has: it fails when it is reached.
void check_names(const Body& body);
[[noreturn]] void unknown_name(const Expr& e);  // of a kFilter or kTest

}  // namespace qengine::jinja
