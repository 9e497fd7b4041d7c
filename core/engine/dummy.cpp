#include "core/engine/dummy.hpp"

#include "core/base/error.hpp"

namespace qengine {
namespace {

// The first type that the plugin reads, 16-bit floats before others: what checkpoints mostly hold.
std::int32_t dtype_of(std::uint64_t allowed) {
  for (const std::int32_t d : {QE_BF16, QE_F16})
    if (allowed >> d & 1) return d;
  for (std::int32_t d = 1; d < 64; ++d)
    if (allowed >> d & 1) return d;
  return QE_BF16;
}

}  // namespace

std::shared_ptr<const Checkpoint> make_dummy(const DummyModel& model, const PluginHost& host, FormatOptions options) {
  const auto bare = Checkpoint::from_config(model.config, model.quant_config);
  const ModelConfig config = read_model_config(*bare);
  options.fallback = Fallback::kAllow;  // the real plan says it
  const auto plan = FormatPlan::make(host, bare, config, options);

  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, std::int32_t dtype, std::vector<std::int64_t> shape) {
    for (const Tensor& t : tensors)
      if (t.name == name) return;  // two products of one module
    Tensor t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.shape = std::move(shape);
    tensors.push_back(std::move(t));
  };
  for (const TensorWish& w : plan->wishes()) {
    if (!w.required) continue;
    if (w.shape.empty()) throw Error("E101", "dummy weights cannot be made in this format: " + w.name + " may have any shape").hint("choose another --format; qengine plan --compare lists those that there are");
    add(w.name, dtype_of(w.dtypes), w.shape);
  }
  for (const LayerSpec& l : plan->layers())
    for (const PartSpec& p : l.parts)
      if (p.bias) add(p.name + ".bias", QE_BF16, {p.n});
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", QE_BF16, {config.hidden_size});
    add(layer + "post_attention_layernorm.weight", QE_BF16, {config.hidden_size});
    if (!config.qk_norm) continue;
    add(layer + "self_attn.q_norm.weight", QE_BF16, {config.head_dim});
    add(layer + "self_attn.k_norm.weight", QE_BF16, {config.head_dim});
  }
  add("model.norm.weight", QE_BF16, {config.hidden_size});
  return dummy_checkpoint(model.config, model.quant_config, std::move(tensors), model.folder, model.fills);
}

}  // namespace qengine
