// The largest key and value of every layer and head over a text: what the scales of an FP8 cache follow from.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/engine/run_observer.hpp"

namespace qengine {

class KvRanges final : public RunObserver {
 public:
  KvRanges(int layers, int heads, int head_dim)
      : heads_(heads), head_dim_(head_dim), k_(static_cast<std::size_t>(layers * heads)), v_(k_.size()) {}

  void keys_values(int layer, const float* k, const float* v, std::int64_t rows, std::int64_t stride) override {
    for (std::int64_t r = 0; r < rows; ++r)
      for (int h = 0; h < heads_; ++h)
        for (int i = 0; i < head_dim_; ++i) {
          const auto at = static_cast<std::size_t>(layer * heads_ + h);
          k_[at] = std::max(k_[at], std::fabs(k[r * stride + h * head_dim_ + i]));
          v_[at] = std::max(v_[at], std::fabs(v[r * stride + h * head_dim_ + i]));
        }
  }

  float k(int layer, int head) const { return k_[static_cast<std::size_t>(layer * heads_ + head)]; }
  float v(int layer, int head) const { return v_[static_cast<std::size_t>(layer * heads_ + head)]; }
  float k(int layer) const { return most(k_, layer); }  // of all heads
  float v(int layer) const { return most(v_, layer); }

 private:
  float most(const std::vector<float>& of, int layer) const {
    float m = 0;
    for (int h = 0; h < heads_; ++h) m = std::max(m, of[static_cast<std::size_t>(layer * heads_ + h)]);
    return m;
  }
  int heads_, head_dim_;
  std::vector<float> k_, v_;  // [layers * heads]
};

}  // namespace qengine
