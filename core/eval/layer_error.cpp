#include "core/eval/layer_error.hpp"

#include <cmath>
#include <limits>

namespace qengine {

void LayerErrors::add(int layer, std::span<const float> base, std::span<const float> quantized) {
  double b2 = 0, q2 = 0, bq = 0, e2 = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double b = base[i], q = quantized[i];
    b2 += b * b;
    q2 += q * q;
    bq += b * q;
    e2 += (q - b) * (q - b);
  }
  Sums& s = sums_[static_cast<std::size_t>(layer)];
  ++s.tokens;
  s.base2 += b2;
  s.error2 += e2;
  s.relative += b2 > 0 ? std::sqrt(e2 / b2) : e2 > 0 ? 1 : 0;
  s.cosine += e2 == 0 ? 1 : b2 > 0 && q2 > 0 ? bq / std::sqrt(b2 * q2) : 0;
}

LayerError LayerErrors::of(int layer) const {
  const Sums& s = sums_[static_cast<std::size_t>(layer)];
  if (s.tokens == 0) return {};
  const double n = static_cast<double>(s.tokens);
  // An exact copy has no noise; JSON has no infinity.
  return {s.tokens, s.relative / n, s.cosine / n, s.error2 > 0 ? 10 * std::log10(s.base2 / s.error2) : 999};
}

}  // namespace qengine
