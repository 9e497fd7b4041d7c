// How coarse a loaded model's numbers are: what the gates of an evaluation go by.
#pragma once

#include <cstdint>

#include "core/engine/engine.hpp"

namespace qengine {

struct FormatClass {
  double weight_bits = 16;  // a weight of the decoder layers takes, scales included: embedding and head are often left at 16
  std::int64_t parameters = 0;
  double kv_bits = 16;
};

FormatClass format_class(const Engine& engine);

}  // namespace qengine
