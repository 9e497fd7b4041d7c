#include "core/engine/weights.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

namespace qengine {
namespace {

std::vector<float> vector_of(const FormatPlan& plan, const std::string& name, std::int64_t n) {
  return plan.dense(name, std::array<std::int64_t, 1>{n});
}

// Biases of the parts side by side; zeros where a part has none, empty where nobody has one.
std::vector<float> biases(const FormatPlan& plan, const LayerSpec& spec) {
  if (std::ranges::none_of(spec.parts, &PartSpec::bias)) return {};
  std::vector<float> all;
  for (const PartSpec& part : spec.parts) {
    if (!part.bias) {
      all.insert(all.end(), static_cast<std::size_t>(part.n), 0.0f);
      continue;
    }
    const std::vector<float> bias = vector_of(plan, part.name + ".bias", part.n);
    all.insert(all.end(), bias.begin(), bias.end());
  }
  return all;
}

}  // namespace

std::uint64_t Weights::bytes() const {
  std::uint64_t sum = final_norm.size() * sizeof(float);
  const auto matrix = [&](const std::unique_ptr<Linear>& m) {
    if (m) sum += m->bytes(QE_MEM_WEIGHT) + m->bytes(QE_MEM_PERSIST);
  };
  for (const Layer& l : layers) {
    for (const auto* v : {&l.input_norm, &l.post_norm, &l.q_norm, &l.k_norm, &l.qkv_bias, &l.o_bias, &l.gate_up_bias, &l.down_bias})
      sum += v->size() * sizeof(float);
    for (const auto* m : {&l.qkv, &l.o, &l.gate_up, &l.down}) matrix(*m);
  }
  matrix(embed);
  matrix(head);
  return sum;
}

Weights Weights::load(const FormatPlan& plan, const ModelConfig& config, ThreadPool& pool,
                      const std::function<void(double)>& progress) {
  Weights w;
  w.layers.resize(static_cast<std::size_t>(config.num_layers));
  const std::int64_t hidden = config.hidden_size, head_dim = config.head_dim;
  for (std::size_t l = 0; l < w.layers.size(); ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    w.layers[l].input_norm = vector_of(plan, p + "input_layernorm.weight", hidden);
    w.layers[l].post_norm = vector_of(plan, p + "post_attention_layernorm.weight", hidden);
    if (config.qk_norm) {
      w.layers[l].q_norm = vector_of(plan, p + "self_attn.q_norm.weight", head_dim);
      w.layers[l].k_norm = vector_of(plan, p + "self_attn.k_norm.weight", head_dim);
    }
  }
  w.final_norm = vector_of(plan, "model.norm.weight", hidden);

  const std::vector<LayerSpec>& specs = plan.layers();
  double total = 0, done = 0;
  const auto cost = [](const LayerSpec& s) {
    std::int64_t n = 0;
    for (const PartSpec& p : s.parts) n += p.n;
    return static_cast<double>(n) * static_cast<double>(s.k);
  };
  for (const LayerSpec& s : specs) total += cost(s);
  // Embedding and head first: they are the largest, and while one loads both its file pages and its
  // packed form are in memory. GGUF files begin with them, too.
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_partition(order, [&](std::size_t i) { return specs[i].index < 0; });
  for (const std::size_t i : order) {
    const LayerSpec& s = specs[i];
    std::unique_ptr<Linear> m = plan.load(i, pool);
    const int role = s.parts.front().role;
    if (role == QE_ROLE_EMBED) {
      w.embed = std::move(m);
    } else if (role == QE_ROLE_LM_HEAD) {
      w.head = std::move(m);
    } else {
      Layer& l = w.layers[static_cast<std::size_t>(s.index)];
      std::vector<float> bias = biases(plan, s);
      switch (role) {
        case QE_ROLE_Q: l.qkv = std::move(m), l.qkv_bias = std::move(bias); break;
        case QE_ROLE_O: l.o = std::move(m), l.o_bias = std::move(bias); break;
        case QE_ROLE_GATE: l.gate_up = std::move(m), l.gate_up_bias = std::move(bias); break;
        default: l.down = std::move(m), l.down_bias = std::move(bias); break;
      }
    }
    done += cost(s);
    if (progress) progress(done / total);
  }
  return w;
}

}  // namespace qengine
