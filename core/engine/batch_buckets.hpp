// Batch sizes for which a decode step is captured: a step runs the smallest that holds it, padded.
#pragma once

#include <cstdint>
#include <vector>

namespace qengine {

// 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, ... up to the first that is at least `most`, which
// is replaced by `most` itself.
inline std::vector<std::int64_t> batch_buckets(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = 1, step = 1; n < most; n += step) {
    out.push_back(n);
    step = n < 2 ? 1 : n < 4 ? 2 : n < 8 ? 4 : n < 32 ? 8 : n < 64 ? 16 : n < 128 ? 32 : n < 256 ? 64 : 128;
  }
  if (most > 0) out.push_back(most);
  return out;
}

}  // namespace qengine
