// How far the residual stream of a quantized model is from its reference's, layer by layer.
//
// Accumulated in double over tokens: relative error is the mean over tokens of |q - b| / |b|, cosine the mean over tokens of
// the angle's cosine, SQNR 10 log10(sum b^2 / sum (q - b)^2) over all values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qengine {

struct LayerError {
  std::int64_t tokens = 0;
  double relative_error = 0, cosine = 0, sqnr_db = 0;
};

class LayerErrors {
 public:
  explicit LayerErrors(int layers) : sums_(static_cast<std::size_t>(layers)) {}
  // One token behind one layer. REQUIRES: equal sizes.
  void add(int layer, std::span<const float> base, std::span<const float> quantized);
  LayerError of(int layer) const;
  int layers() const { return static_cast<int>(sums_.size()); }

 private:
  struct Sums {
    std::int64_t tokens = 0;
    double relative = 0, cosine = 0, base2 = 0, error2 = 0;
  };
  std::vector<Sums> sums_;
};

}  // namespace qengine
