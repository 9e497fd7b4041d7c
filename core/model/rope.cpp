// Inverse frequencies of rotary embedding with the scalings of formats.md 2.3, in double and rounded once.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/model/config.hpp"

namespace qengine {
namespace {

double yarn_mscale(double factor, double mscale) { return factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1; }

}  // namespace

std::vector<float> rope_inv_freq(const ModelConfig& config, float* attention_factor, std::int64_t length) {
  const RopeConfig& rope = config.rope;
  const int d = rope.rot_dim;
  const double original = static_cast<double>(rope.original_max_position > 0 ? rope.original_max_position : config.max_position);
  double base = rope.theta;
  if (rope.kind == "dynamic" && d > 2 && length > config.max_position && config.max_position > 0) {
    const double stretch = rope.factor * static_cast<double>(length) / static_cast<double>(config.max_position);
    base *= std::pow(stretch - (rope.factor - 1), d / (d - 2.0));
  }

  std::vector<float> out(static_cast<std::size_t>(d / 2));
  double attention = 1;
  double low = 0, high = 0;
  if (rope.kind == "yarn") {
    // The dimension whose wave turns `rotations` times within the original length.
    const auto correction = [&](double rotations) {
      return d * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
    };
    low = correction(rope.beta_fast);
    high = correction(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1.0);
    if (low == high) high += 0.001;
    attention = rope.attention_factor;
    if (attention == 0 && rope.mscale != 0 && rope.mscale_all_dim != 0)
      attention = yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
    if (attention == 0) attention = yarn_mscale(rope.factor, 1);
  }

  for (std::size_t i = 0; i < out.size(); ++i) {
    double f = std::pow(base, -2.0 * static_cast<double>(i) / d);
    if (rope.kind == "linear") {
      f /= rope.factor;
    } else if (rope.kind == "llama3") {
      const double wave = 2 * std::numbers::pi / f;
      if (wave > original / rope.low_freq_factor) {
        f /= rope.factor;
      } else if (wave >= original / rope.high_freq_factor) {
        const double s = (original / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        f = (1 - s) * f / rope.factor + s * f;
      }
    } else if (rope.kind == "yarn") {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      f = ramp * f / rope.factor + (1 - ramp) * f;
    }
    if (!rope.freq_divisors.empty()) f /= rope.freq_divisors[i];
    out[i] = static_cast<float>(f);
  }
  if (attention_factor != nullptr) *attention_factor = static_cast<float>(attention);
  return out;
}

}  // namespace qengine
