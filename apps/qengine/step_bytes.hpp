// What a decode step reads: the numerator of every share of the memory bandwidth.
#pragma once

#include <cstdint>

#include "core/engine/engine.hpp"

namespace qengine {

// Bytes of weights that a decode step must read: each matrix as the checkpoint stores it, or as it is
// held where that is less (formats made at load), norms and biases; of an untied embedding only rows
// are read, so it does not count.
std::uint64_t weight_bytes_per_step(const Engine& engine);

// Of the KV cache, over all layers; 0: not known.
double kv_bytes_per_token(const Engine& engine);

}  // namespace qengine
