// A checkpoint of made-up tensors: the names, types and shapes of a real one, numbers from a generator.
//
// The same name, type and shape give the same bytes in every process. Values are such that a model made
// of them computes finite numbers: codes are random bits, 8-bit floats stay away from NaN, scales are
// small and positive, norms are near 1. Tensors whose codes must have one value, such as the zero points
// of symmetric weights, get it from a Fill.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"

namespace qengine {

// Every tensor whose last name is `name` is a stream of codes of `bits` bits, lowest first, all equal `code`.
struct Fill {
  std::string name;
  std::uint32_t code = 0;
  int bits = 8;  // 1 .. 32
};

// `folder` is where a tokenizer may lie; may be empty. Throws Error E101 for a type of raw blocks, whose
// bytes mean something only to a plugin.
std::shared_ptr<const Checkpoint> dummy_checkpoint(Json config, Json quant_config, std::vector<Tensor> tensors, std::filesystem::path folder, std::vector<Fill> fills = {});

}  // namespace qengine
