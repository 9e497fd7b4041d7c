// RopeRows: cos and sin of the tokens of one step, computed once and read by every layer.
//
// angle = position * inv_freq rounded to float32, as the reference implementations take it; the
// attention factor of yarn is already in both (formats.md 2.3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qengine {

class RopeRows {
 public:
  RopeRows(std::vector<float> inv_freq, float attention_factor, std::int64_t max_rows);

  void fill(std::span<const std::int32_t> positions);  // REQUIRES: at most max_rows
  std::int64_t half() const { return static_cast<std::int64_t>(inv_freq_.size()); }
  const float* cos(std::int64_t row) const { return cos_.data() + row * half(); }
  const float* sin(std::int64_t row) const { return sin_.data() + row * half(); }
  std::uint64_t bytes() const { return (cos_.size() + sin_.size()) * sizeof(float); }

 private:
  std::vector<float> inv_freq_;
  float factor_;
  std::vector<float> cos_, sin_;  // [max_rows][half]
};

}  // namespace qengine
