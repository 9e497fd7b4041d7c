// Where a checkpoint says how it is quantized. Finds the object and its `quant_method`; what they
// mean, and where else than under quantization_config a tool puts them, is the plugins' business.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/quant_dialect.hpp"

namespace qengine {

struct QuantConfig {
  Json config;         // null: not quantized
  std::string source;  // "config.json quantization_config", "quantize_config.json"
};

// `folder` may be empty (no files to look in); `tensors` empty (none known). Throws Error E211, also where
// two dialects fit and name different methods.
QuantConfig find_quant_config(const Json& config, const std::filesystem::path& folder, std::span<const Tensor> tensors, std::span<const QuantDialect> dialects);

}  // namespace qengine
