#include "core/plugin_host/model_view.hpp"

namespace qengine {

qe_model shape_of_model(const ModelConfig& config) {
  qe_model m{};
  m.struct_size = sizeof m;
  m.layers = config.num_layers;
  m.q_heads = config.num_heads;
  m.kv_heads = config.num_kv_heads;
  m.head_dim = config.head_dim;
  m.compute = config.dtype == "float32" ? QE_F32 : config.dtype == "float16" ? QE_F16 : QE_BF16;
  m.model_type = {config.model_type.data(), config.model_type.size()};
  return m;
}

void view_model(PluginModel& out, const Checkpoint& c, const ModelConfig& config, const PluginHostOptions& options, const Plugin& plugin) {
  out.cfg.quant = c.quant_config().is_null() ? nullptr : &c.quant_config();
  out.cfg.model = &c.config();
  out.cfg.gguf = c.gguf_metadata().is_null() ? nullptr : &c.gguf_metadata();
  for (const std::string& name : {plugin.name, plugin.id})
    if (const auto it = options.plugin_options.find(name); it != options.plugin_options.end()) out.cfg.options = &it->second;
  out.ckpt.checkpoint = &c;
  qe_model& m = out.model;
  m = shape_of_model(config);
  m.cfg = &out.cfg;
  m.ckpt = c.kind() == Checkpoint::Kind::kConfigOnly ? nullptr : &out.ckpt;
}

void view_unquantized(PluginModel& out, const PluginModel& model) {
  out.cfg = model.cfg;
  out.cfg.quant = nullptr;
  out.model = model.model;
  out.model.cfg = &out.cfg;
  out.model.ckpt = nullptr;
}

}  // namespace qengine
