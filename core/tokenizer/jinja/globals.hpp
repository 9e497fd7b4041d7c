// Functions that every template finds: range, dict, namespace, joiner, cycler, raise_exception, strftime_now.
#pragma once

#include <memory>
#include <string_view>

#include "core/tokenizer/jinja/value.hpp"

namespace qengine::jinja {

std::unique_ptr<Object> make_global(std::string_view name);  // nullptr when there is none

}  // namespace qengine::jinja
