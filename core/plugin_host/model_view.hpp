// The model as one plugin sees it: the handles of the ABI, and what they point into.
#pragma once

#include "core/model/config.hpp"
#include "core/plugin_host/host_table.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

// Stays where it is: `model` points into it.
struct PluginModel {
  PluginModel() = default;
  PluginModel(const PluginModel&) = delete;
  PluginModel& operator=(const PluginModel&) = delete;

  Json quant;  // a copy, when the plugin is shown another quant_method than the file's
  qe_cfg_s cfg;
  qe_ckpt_s ckpt;
  qe_model model{};
};

// The numbers of a model, without its handles. Borrows config.model_type.
qe_model shape_of_model(const ModelConfig& config);

// Everything borrowed: checkpoint, config and options must outlive `out`.
void view_model(PluginModel& out, const Checkpoint& checkpoint, const ModelConfig& config, const PluginHostOptions& options, const Plugin& plugin);
// The same model as if it were not quantized, known by its config alone.
void view_unquantized(PluginModel& out, const PluginModel& model);

}  // namespace qengine
