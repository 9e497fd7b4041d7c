// The header of one safetensors file: parsed in one pass, every check made before any tensor is used.
#pragma once

#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/file_bytes.hpp"

namespace qengine {

struct SafetensorsFile {
  std::vector<Tensor> tensors;  // by offset (from the start of the file); `file` is 0
  std::string format;           // __metadata__ "format": "pt", "mlx", ...; "" when absent
};

// Throws Error E207 naming the file and the tensor. Memory follows the size of the header that is
// really there, never a number written in it.
SafetensorsFile parse_safetensors(const FileBytes& file);

}  // namespace qengine
