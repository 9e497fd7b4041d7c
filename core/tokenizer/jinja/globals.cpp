#include "core/tokenizer/jinja/globals.hpp"

#include <ctime>
#include <optional>

#include "core/tokenizer/jinja/filters.hpp"
#include "core/tokenizer/jinja/interpreter.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine::jinja {
namespace {

// What dict() and namespace() make of their arguments.
std::vector<Value::Pair> pairs_of(std::string_view function, const Args& args) {
  std::vector<Value::Pair> pairs;
  const auto put = [&](const Value& key, const Value& v) {
    for (Value::Pair& p : pairs)
      if (p.first.equals(key)) {
        p.second = v;
        return;
      }
    pairs.emplace_back(key, v);
  };
  if (args.positional.size() > 1) throw Failure(std::string(function) + "() takes one argument at most");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) pairs = from.pairs();
    else
      for (const Value& pair : from.iterate()) {
        if (!pair.is_list() || pair.items().size() != 2) throw Failure(std::string(function) + "() needs a mapping or a list of pairs");
        put(pair.items()[0], pair.items()[1]);
      }
  }
  for (const auto& [name, v] : args.named) put(Value::string(name), v);
  return pairs;
}

class Namespace : public Object {
 public:
  explicit Namespace(std::vector<Value::Pair> pairs) : pairs_(std::move(pairs)) {}
  std::string_view type_name() const override { return "Namespace"; }
  Value attribute(Interpreter& in, const std::string& name) override {
    in.charge(pairs_.size() / 8);
    for (const Value::Pair& p : pairs_)
      if (p.first.is_string() && p.first.string() == name) return p.second;
    return Object::attribute(in, name);
  }
  bool assign(const std::string& name, const Value& v) override {
    for (Value::Pair& p : pairs_)
      if (p.first.is_string() && p.first.string() == name) {
        p.second = v;
        return true;
      }
    if (pairs_.size() >= 1000) throw Failure("a namespace of more than 1000 attributes");
    pairs_.emplace_back(Value::string(name), v);
    return true;
  }
  void drop() override { pairs_.clear(); }

 private:
  std::vector<Value::Pair> pairs_;
};

class Joiner : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interpreter&, const Args&) override { return Value::string(std::exchange(used_, true) ? separator_ : ""); }

 private:
  std::string separator_;
  bool used_ = false;
};

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  Value attribute(Interpreter& in, const std::string& name) override { return name == "current" ? items_[at_] : Object::attribute(in, name); }
  std::optional<Value> method(Interpreter&, const std::string& name, const Args&) override {
    if (name == "next") {
      Value v = items_[at_];
      at_ = (at_ + 1) % items_.size();
      return v;
    }
    if (name == "reset") return at_ = 0, Value::none();
    return std::nullopt;
  }
  void drop() override { items_.assign(1, Value()), at_ = 0; }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

Value range(Interpreter&, const Args& args) {
  if (!args.named.empty()) throw Failure("range() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 3) throw Failure("range() takes one to three arguments");
  for (const Value& v : args.positional)
    if (v.is_undefined()) throw Failure(v.why());
    else if (!v.is_integral()) throw Failure("'" + std::string(v.type_name()) + "' object cannot be interpreted as an integer");
  const auto at = [&](std::size_t i) { return args.positional[i].integer(); };
  if (args.positional.size() == 1) return Value::range(0, at(0), 1);
  return Value::range(at(0), at(1), args.positional.size() == 3 ? at(2) : 1);
}

Value dict(Interpreter& in, const Args& args) {
  auto pairs = pairs_of("dict", args);
  in.charge(pairs.size());
  return Value::dict(std::move(pairs));
}

Value name_space(Interpreter& in, const Args& args) { return in.own(std::make_unique<Namespace>(pairs_of("namespace", args))); }

Value joiner(Interpreter& in, const Args& args) { return in.own(std::make_unique<Joiner>(Params("joiner", args, {"sep"}).string(0, ", "))); }

Value cycler(Interpreter& in, const Args& args) {
  if (args.positional.empty()) throw Failure("at least one item has to be provided");
  return in.own(std::make_unique<Cycler>(args.positional));
}

Value raise_exception(Interpreter& in, const Args& args) {
  const Params p("raise_exception", args, {"message"});
  Failure f(p[0] ? in.str(*p[0]) : "");
  f.raised = true;
  throw f;
}

Value strftime_now(Interpreter&, const Args& args) {
  const Params p("strftime_now", args, {"format"});
  const std::string format = p.string(0, "%Y-%m-%d");
  if (format.empty() || format.size() > 200) return Value::string("");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[2048];
  const std::size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return Value::string(unicode::sanitize({buffer, n}));
}

class Function : public Object {
 public:
  using Run = Value (*)(Interpreter&, const Args&);
  explicit Function(Run run) : run_(run) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Interpreter& in, const Args& args) override { return run_(in, args); }

 private:
  Run run_;
};

struct Entry {
  std::string_view name;
  Function::Run run;
};
constexpr Entry kGlobals[] = {{"range", range}, {"dict", dict}, {"namespace", name_space}, {"joiner", joiner},
                              {"cycler", cycler}, {"raise_exception", raise_exception}, {"strftime_now", strftime_now}};

}  // namespace

std::unique_ptr<Object> make_global(std::string_view name) {
  for (const Entry& e : kGlobals)
    if (e.name == name) return std::make_unique<Function>(e.run);
  return nullptr;
}

}  // namespace qengine::jinja
