// Element types of the two containers: names, and how many bytes a tensor of each takes. Nothing
// about what the bytes mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace qengine {

struct SafetensorsType {
  std::string_view name;
  std::int32_t dtype;  // QE_* or kDtype*
  int bits;
};
const SafetensorsType* safetensors_type(std::string_view name);  // nullptr: unknown

struct GgmlType {
  std::int32_t id;
  std::string_view name;
  std::int64_t block;  // elements
  std::uint64_t bytes;  // of a block
};
const GgmlType* ggml_type(std::int32_t id);  // nullptr: unknown or retired

}  // namespace qengine
