#include "core/plugin_host/format_plan.hpp"

namespace qengine {

std::vector<LayerSpec> layer_specs(const ModelConfig& c) {
  std::vector<LayerSpec> out;
  out.reserve(static_cast<std::size_t>(c.num_layers) * 4 + 2);
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".", attn = layer + "self_attn.", mlp = layer + "mlp.";
    out.push_back({attn + "qkv_proj", i, c.hidden_size,
                   {{QE_ROLE_Q, attn + "q_proj", c.q_size(), c.q_bias},
                    {QE_ROLE_K, attn + "k_proj", c.kv_size(), c.k_bias},
                    {QE_ROLE_V, attn + "v_proj", c.kv_size(), c.v_bias}}});
    out.push_back({attn + "o_proj", i, c.q_size(), {{QE_ROLE_O, attn + "o_proj", c.hidden_size, c.o_bias}}});
    out.push_back({mlp + "gate_up_proj", i, c.hidden_size,
                   {{QE_ROLE_GATE, mlp + "gate_proj", c.intermediate_size, c.mlp_bias},
                    {QE_ROLE_UP, mlp + "up_proj", c.intermediate_size, c.mlp_bias}}});
    out.push_back({mlp + "down_proj", i, c.intermediate_size, {{QE_ROLE_DOWN, mlp + "down_proj", c.hidden_size, c.mlp_bias}}});
  }
  if (!c.tied) out.push_back({"model.embed_tokens", -1, c.hidden_size, {{QE_ROLE_EMBED, "model.embed_tokens", c.vocab_size, false}}});
  out.push_back({"lm_head", -1, c.hidden_size, {{QE_ROLE_LM_HEAD, c.tied ? "model.embed_tokens" : "lm_head", c.vocab_size, false}}});
  return out;
}

}  // namespace qengine
