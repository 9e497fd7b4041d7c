// ModelConfig: the hyperparameters of a decoder model, checked, from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"

namespace qengine {

// Rotary embedding (formats.md 2.3). `kind`: default linear dynamic llama3 yarn.
struct RopeConfig {
  std::string kind = "default";
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_position = 0;  // 0: max_position
  double beta_fast = 32.0, beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: derived
  double mscale = 0.0, mscale_all_dim = 0.0;
  bool truncate = true;
  std::int32_t rot_dim = 0;             // rotated dimensions of a head
  std::vector<float> freq_divisors;     // [rot_dim/2], GGUF rope_freqs.weight; empty: none
};

enum class Activation { kSilu, kGeluTanh, kGelu };

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  std::string dtype;         // "bfloat16", "float16", "float32": the compute dtype the files name; "" unknown
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t max_position = 0;
  float rms_eps = 0;
  bool tied = false;  // lm_head is embed_tokens
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  Activation activation = Activation::kSilu;
  float attention_scale = 0;             // head_dim^-0.5
  std::vector<std::int32_t> window;      // [num_layers]; 0 = full attention
  RopeConfig rope;
  std::vector<std::int32_t> eos_ids;     // config.json and generation_config.json, united
  std::int32_t bos_id = -1, pad_id = -1;
  std::vector<std::string> warnings;     // to be logged once by whoever loads

  std::int64_t q_size() const { return std::int64_t{num_heads} * head_dim; }
  std::int64_t kv_size() const { return std::int64_t{num_kv_heads} * head_dim; }
};

// Throws Error E2xx naming the field, what it holds and what was expected. `tied` follows config.json
// and, in GGUF, the absence of output.weight. Does not look at weight shapes.
ModelConfig read_model_config(const Checkpoint& checkpoint);

// Inverse frequencies [rot_dim/2] after scaling; *attention_factor multiplies cos and sin (1 but for yarn).
// `dynamic` depends on how long the sequence is: up to max_position nothing is scaled. Sequences end there
// (--max-model-len is at most max_position), so that the runners ask for one table, with length 0.
std::vector<float> rope_inv_freq(const ModelConfig& config, float* attention_factor, std::int64_t length = 0);

}  // namespace qengine
