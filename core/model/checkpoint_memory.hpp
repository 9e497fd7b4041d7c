// A checkpoint out of bytes in memory: for tests and fuzzing.
#pragma once

#include "core/model/checkpoint.hpp"

namespace qengine {

// As opening a .gguf file that holds `bytes`, which must outlive the checkpoint.
std::shared_ptr<const Checkpoint> gguf_from_memory(std::span<const std::byte> bytes, const std::string& name = "memory.gguf");

}  // namespace qengine
