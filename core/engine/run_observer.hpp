// RunObserver: sees what a forward pass computes on its way: the error of each layer, the range of keys and values.
//
// Called on the engine thread, in the order of the layers; everything is borrowed for the call.
#pragma once

#include <cstdint>

namespace qengine {

class RunObserver {
 public:
  virtual ~RunObserver() = default;

  // Keys (after rotary) and values of the pass's tokens, as they go to the cache: row r at k + r * stride and v + r * stride,
  // one head after another, [kv_heads * head_dim].
  virtual void keys_values(int layer, const float* k, const float* v, std::int64_t rows, std::int64_t stride) {
    (void)layer, (void)k, (void)v, (void)rows, (void)stride;
  }

  // The residual stream behind a layer: x [rows, hidden].
  virtual void after_layer(int layer, const float* x, std::int64_t rows, std::int64_t hidden) { (void)layer, (void)x, (void)rows, (void)hidden; }
};

}  // namespace qengine
