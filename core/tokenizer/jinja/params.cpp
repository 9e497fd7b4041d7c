#include "core/tokenizer/jinja/filters.hpp"

namespace qengine::jinja {

Params::Params(std::string_view function, const Args& args, std::initializer_list<std::string_view> names) : function_(function) {
  if (args.positional.size() > names.size())
    throw Failure(std::string(function) + "() takes at most " + std::to_string(names.size()) + " argument(s), " + std::to_string(args.positional.size()) + " given");
  for (std::size_t i = 0; i < args.positional.size(); ++i) found_[i] = &args.positional[i];
  for (const auto& [name, v] : args.named) {
    std::size_t i = 0;
    while (i < names.size() && *(names.begin() + i) != name) ++i;
    if (i == names.size()) throw Failure(std::string(function) + "() has no argument called '" + name + "'");
    if (found_[i]) throw Failure(std::string(function) + "() got two values for '" + name + "'");
    found_[i] = &v;
  }
}

std::int64_t Params::integer(std::size_t i, std::int64_t otherwise) const {
  const Value* v = found_[i];
  if (!v || v->is_none()) return otherwise;
  if (v->is_undefined()) throw Failure(v->why());
  if (!v->is_integral()) throw Failure(std::string(function_) + "() needs an integer, not " + std::string(v->type_name()));
  return v->integer();
}

std::string Params::string(std::size_t i, std::string otherwise) const {
  const Value* v = found_[i];
  if (!v || v->is_none()) return otherwise;
  if (v->is_undefined()) throw Failure(v->why());
  if (!v->is_string()) throw Failure(std::string(function_) + "() needs a string, not " + std::string(v->type_name()));
  return v->string();
}

}  // namespace qengine::jinja
