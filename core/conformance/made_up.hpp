// A small made-up model: its configuration, and tensors for whatever a plugin says it needs.
#pragma once

#include <qe/plugin.h>

#include <string>

#include "core/conformance/kit_host.hpp"
#include "core/model/config.hpp"

namespace qengine::conformance {

// Two layers of 256 channels and 384 inner ones, 4 heads of 32 over 2 for keys, 320 tokens.
ModelConfig made_up_config();
Json made_up_config_json();

// Codes: any bits. Floats: small positive numbers, or both signs for a matrix of a value each (`k` inputs).
// The same name always gives the same numbers. Throws Failed for a shape or a type that is left open.
KitTensors::Entry made_up_tensor(const std::string& name, const qe_want& want, std::int64_t k);

// A tensor of F32 values stored as `dtype` (F32, F16, BF16).
KitTensors::Entry tensor_of(std::int32_t dtype, std::vector<std::int64_t> shape, const std::vector<float>& values);

std::size_t element_bytes(std::int32_t dtype);  // 0: GGUF blocks

}  // namespace qengine::conformance
