// The chain around a product: what the model does right before and right after it, as plugins see it
// (plugin.h, steps). In a plan the pointers are null; a runner fills them in.
#pragma once

#include <qe/plugin.h>

#include <vector>

#include "core/model/config.hpp"
#include "core/plugin_host/format_plan.hpp"

namespace qengine {

// Stays where it is: `before` and `after` point into it.
//
//   qkv       before RMS_NORM   after [BIAS]
//   o, down                     after [BIAS] RESIDUAL
//   gate_up   before RMS_NORM   after [BIAS] ACT_MUL
//   lm_head   before RMS_NORM
//
// Norm weights and biases are float32, the residual stream is bf16. Norm, rotation and append of q and k
// are core's for now.
struct StepChain {
  StepChain() = default;
  StepChain(const LayerSpec& layer, const ModelConfig& config);
  StepChain(const StepChain&) = delete;

  std::vector<const qe_step*> before, after;
  qe_step_norm norm{};
  qe_step_simple bias{}, residual{}, act{};
};

}  // namespace qengine
