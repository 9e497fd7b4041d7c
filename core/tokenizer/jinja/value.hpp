// Values of a template: Python's, as far as templates see them. Immutable but for namespaces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/model/checkpoint.hpp"  // Json
#include "core/tokenizer/jinja/lexer.hpp"  // Failure

namespace qengine::jinja {

class Interpreter;
class Object;
class Value;

// Values beyond these are refused when they are made: nothing recurses deeper, and writing or comparing
// one is bounded even where its parts are shared.
inline constexpr int kMaxNesting = 100;
inline constexpr std::uint64_t kMaxWeight = 8u << 20;  // bytes, about

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Value {
 public:
  enum class Kind : std::uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict, kRange, kObject };
  using Pair = std::pair<Value, Value>;
  struct ListData;
  struct DictData;
  struct RangeData {
    std::int64_t start, step, size;
  };

  Value() = default;  // undefined
  static Value undefined(std::string why);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b) { Value v(Kind::kBool); return v.number_.i = b, v; }
  static Value integer(std::int64_t i) { Value v(Kind::kInt); return v.number_.i = i, v; }
  static Value real(double d) { Value v(Kind::kFloat); return v.number_.d = d, v; }
  static Value string(std::string s);
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value dict(std::vector<Pair> items);  // keys are distinct
  static Value range(std::int64_t start, std::int64_t stop, std::int64_t step);
  static Value object(Object* o) { Value v(Kind::kObject); return v.number_.o = o, v; }  // owned by the interpreter
  static Value from_json(const Json& json, int depth = 0);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_integral() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_list() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_range() const { return kind_ == Kind::kRange; }
  bool is_object() const { return kind_ == Kind::kObject; }

  std::int64_t integer() const { return number_.i; }  // of a bool too
  double real() const { return kind_ == Kind::kFloat ? number_.d : static_cast<double>(number_.i); }
  const std::string& string() const { return *static_cast<const std::string*>(data_.get()); }
  const std::vector<Value>& items() const;  // of a list or tuple
  const std::vector<Pair>& pairs() const;   // of a dict, in order of insertion
  const RangeData& range() const { return *static_cast<const RangeData*>(data_.get()); }
  Object& object() const { return *number_.o; }
  const std::string& why() const;           // of an undefined: whose absence it is

  const Value* find(const Value& key) const;       // in a dict; nullptr when absent
  const Value* find(std::string_view key) const;

  bool truthy() const;
  std::uint64_t weight() const;  // bytes that writing it out takes, about
  std::int64_t length() const;  // throws Failure where Python has no len()
  bool equals(const Value& o) const;
  int compare(const Value& o) const;      // < 0, 0, > 0; throws Failure for what cannot be ordered
  bool contains(const Value& item) const;  // `item in this`
  std::vector<Value> iterate() const;     // what a for loop sees; throws Failure for what cannot be iterated

  std::string str() const;   // as {{ }} prints it
  std::string repr() const;
  // json.dumps without ASCII escaping. `indent` < 0: one line.
  std::string json(int indent = -1, std::string_view item_separator = {}, std::string_view key_separator = ": ", bool sort_keys = false) const;
  std::string_view type_name() const;  // Python's

 private:
  explicit Value(Kind k) : kind_(k) {}
  void write_repr(std::string& out) const;
  struct JsonStyle;
  void write_json(std::string& out, const JsonStyle& style, int depth) const;
  int depth() const;

  Kind kind_ = Kind::kUndefined;
  union {
    std::int64_t i;
    double d;
    Object* o;
  } number_{0};
  std::shared_ptr<const void> data_;
};

struct Value::ListData {
  std::vector<Value> items;
  int depth;
  std::uint64_t weight;
};
struct Value::DictData {
  std::vector<Pair> pairs;
  int depth;
  std::uint64_t weight;
};

// Something with behavior: functions, macros, namespaces, `loop`. Lives as long as the rendering.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual Value attribute(Interpreter&, const std::string& name);  // undefined when there is none
  virtual Value call(Interpreter&, const Args&);                   // throws Failure: not callable
  // A method called at once: base.name(args). nullopt: look at attribute(name) instead.
  virtual std::optional<Value> method(Interpreter&, const std::string&, const Args&) { return std::nullopt; }
  virtual bool assign(const std::string&, const Value&) { return false; }  // {% set base.name = v %}
  virtual bool callable() const { return false; }
  virtual void drop() {}  // lets go of what it holds
};

}  // namespace qengine::jinja
