#include "core/layers/rope.hpp"

#include <cmath>
#include <utility>

namespace qengine {

RopeRows::RopeRows(std::vector<float> inv_freq, float attention_factor, std::int64_t max_rows)
    : inv_freq_(std::move(inv_freq)), factor_(attention_factor) {
  cos_.resize(inv_freq_.size() * static_cast<std::size_t>(max_rows));
  sin_.resize(cos_.size());
}

void RopeRows::fill(std::span<const std::int32_t> positions) {
  std::size_t k = 0;
  for (const std::int32_t p : positions)
    for (const float f : inv_freq_) {
      const float angle = static_cast<float>(p) * f;
      cos_[k] = std::cos(angle) * factor_;
      sin_[k] = std::sin(angle) * factor_;
      ++k;
    }
}

}  // namespace qengine
