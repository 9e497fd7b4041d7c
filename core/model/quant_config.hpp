// Where a checkpoint says how it is quantized. Finds the object and its `quant_method`; what they
// mean is the plugins' business.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"

namespace qengine {

struct QuantConfig {
  Json config;         // null: not quantized
  std::string source;  // "config.json quantization_config", "quantize_config.json"
};

// `folder` may be empty (no files to look in); `tensors` empty (none known). Throws Error E211.
QuantConfig find_quant_config(const Json& config, const std::filesystem::path& folder, std::span<const Tensor> tensors);

}  // namespace qengine
