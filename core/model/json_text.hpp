// JSON files of a model folder: small, untrusted, read whole.
//
// Unlike the library's own parser: duplicate keys are errors, depth and the number of values are
// bounded, large objects are built in linear time, and the error text names the file and the place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/model/checkpoint.hpp"

namespace qengine {

struct JsonLimits {
  std::size_t bytes = 8u << 20;
  std::size_t values = 1'000'000;
  int depth = 64;
};

// `name` is for error texts. Throws Error E208.
Json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});

// E208 when it is not valid JSON or not an object, E201 when it cannot be opened.
Json read_json_object(const std::filesystem::path& file, const JsonLimits& limits = {});

// What a parser of the library says, without its tag, short and printable.
std::string json_complaint(std::string_view what);

}  // namespace qengine
