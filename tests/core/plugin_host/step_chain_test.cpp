// What surrounds each product, as plugins are told.
#include "core/plugin_host/step_chain.hpp"

#include <gtest/gtest.h>

#include <map>

namespace qengine {
namespace {

ModelConfig config() {
  ModelConfig c;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.vocab_size = 100;
  c.num_layers = 1;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 16;
  c.rms_eps = 1e-6f;
  c.q_bias = c.k_bias = c.v_bias = true;
  return c;
}

std::vector<int> kinds(const std::vector<const qe_step*>& steps) {
  std::vector<int> out;
  for (const qe_step* s : steps) out.push_back(s->kind);
  return out;
}

TEST(StepChain, EndsAtTheProductAndStartsThere) {
  const ModelConfig c = config();
  const auto specs = layer_specs(c);
  std::map<int, std::pair<std::vector<int>, std::vector<int>>> got;
  for (const LayerSpec& l : specs) {
    const StepChain chain(l, c);
    got[l.parts.front().role] = {kinds(chain.before), kinds(chain.after)};
  }
  using V = std::vector<int>;
  EXPECT_EQ(got[QE_ROLE_Q], std::make_pair(V{QE_STEP_RMS_NORM}, V{QE_STEP_BIAS}));
  EXPECT_EQ(got[QE_ROLE_O], std::make_pair(V{}, V{QE_STEP_RESIDUAL}));
  EXPECT_EQ(got[QE_ROLE_GATE], std::make_pair(V{QE_STEP_RMS_NORM}, V{QE_STEP_ACT_MUL}));
  EXPECT_EQ(got[QE_ROLE_DOWN], std::make_pair(V{}, V{QE_STEP_RESIDUAL}));
  EXPECT_EQ(got[QE_ROLE_LM_HEAD], std::make_pair(V{QE_STEP_RMS_NORM}, V{}));
}

TEST(StepChain, StepsSayTheirSizesAndWhatTheyAreOf) {
  ModelConfig c = config();
  c.activation = Activation::kGeluTanh;
  const auto specs = layer_specs(c);
  const StepChain qkv(specs[0], c), o(specs[1], c), gate(specs[2], c);
  EXPECT_EQ(qkv.norm.head.struct_size, sizeof(qe_step_norm));
  EXPECT_EQ(qkv.norm.weight.dim[0], 64);
  EXPECT_EQ(qkv.norm.eps, 1e-6f);
  EXPECT_EQ(qkv.bias.value.dim[0], (4 + 2 + 2) * 16);
  EXPECT_EQ(qkv.bias.value.dtype, QE_F32);
  EXPECT_EQ(qkv.bias.value.data, nullptr) << "a plan sees no memory";
  EXPECT_EQ(o.residual.value.dtype, QE_BF16);
  EXPECT_EQ(gate.act.variant, 1);
}

TEST(StepChain, AnActivationThatNoStepNamesIsCores) {
  ModelConfig c = config();
  c.activation = Activation::kGelu;
  const StepChain gate(layer_specs(c)[2], c);
  EXPECT_TRUE(gate.after.empty());
}

}  // namespace
}  // namespace qengine
