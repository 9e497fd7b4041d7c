#include "core/plugin_host/step_chain.hpp"

#include <algorithm>

namespace qengine {

StepChain::StepChain(const LayerSpec& layer, const ModelConfig& config) {
  const int role = layer.parts.front().role;
  const bool whole_stream = role == QE_ROLE_O || role == QE_ROLE_DOWN, head = role == QE_ROLE_LM_HEAD;
  std::int64_t n = 0;
  for (const PartSpec& p : layer.parts) n += p.n;
  if (role == QE_ROLE_Q || role == QE_ROLE_GATE || head) {
    norm.head = {sizeof norm, QE_STEP_RMS_NORM};
    norm.weight = {QE_F32, 1, {layer.k, 0, 0, 0}, {1, 0, 0, 0}, nullptr};
    norm.eps = config.rms_eps;
    before.push_back(&norm.head);
  }
  if (!head && std::ranges::any_of(layer.parts, &PartSpec::bias)) {
    bias.head = {sizeof bias, QE_STEP_BIAS};
    bias.value = {QE_F32, 1, {n, 0, 0, 0}, {1, 0, 0, 0}, nullptr};
    after.push_back(&bias.head);
  }
  if (whole_stream) {
    residual.head = {sizeof residual, QE_STEP_RESIDUAL};
    residual.value = {QE_BF16, 2, {0, n, 0, 0}, {n, 1, 0, 0}, nullptr};
    after.push_back(&residual.head);
  }
  if (role == QE_ROLE_GATE && layer.parts.size() == 2 && config.activation != Activation::kGelu) {
    act.head = {sizeof act, QE_STEP_ACT_MUL};
    act.variant = config.activation == Activation::kGeluTanh ? 1 : 0;
    after.push_back(&act.head);
  }
}

}  // namespace qengine
