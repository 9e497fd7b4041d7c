// Weights: everything a decoder model multiplies with, loaded. Matrices belong to plugins; norms and
// biases, 16- or 32-bit in every checkpoint, are core's and held as float32.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/model/config.hpp"
#include "core/plugin_host/format_plan.hpp"

namespace qengine {

struct Weights {
  struct Layer {
    std::vector<float> input_norm, post_norm;  // [hidden]
    std::vector<float> q_norm, k_norm;         // [head_dim]; empty: none
    std::vector<float> qkv_bias, o_bias, gate_up_bias, down_bias;  // [n]; empty: none
    std::unique_ptr<Linear> qkv, o, gate_up, down;
  };
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  std::unique_ptr<Linear> embed;  // null: tied, head has the rows
  std::unique_ptr<Linear> head;

  const Linear& embedding() const { return embed ? *embed : *head; }
  std::uint64_t bytes() const;  // resident

  // Loads what the plan describes, in file order. Throws Error E2xx, E3xx, E309.
  static Weights load(const FormatPlan& plan, const ModelConfig& config, ThreadPool& pool,
                      const std::function<void(double)>& progress);
};

}  // namespace qengine
