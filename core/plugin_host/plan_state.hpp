// What FormatPlan and the Linears that it loaded share: the decided units, each plugin's view of the
// model, the open devices and the workspace.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/model/text.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "core/plugin_host/model_view.hpp"
#include "core/plugin_host/step_chain.hpp"

namespace qengine {

// A tensor that a plugin's tensors() asked for.
struct Want {
  std::string name;
  bool required = false;
  int rank = -1;
  std::uint64_t dtypes = 0;
  std::int64_t dim[4] = {-1, -1, -1, -1};
};

// One product of one plugin: all parts of a layer, or one of them.
struct Unit {
  const Plugin* plugin = nullptr;
  std::size_t layer = 0, part = 0, n_parts = 0;
  std::string method;  // "" = the plugin's own choice
  int flags = 0;       // QE_LAYER_*
  qe_plan plan{};
  std::vector<Want> wants;
  std::string why;     // for the table
};

struct PlanState {
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelConfig config;
  FormatOptions options;
  std::vector<LayerSpec> layers;
  std::vector<std::vector<Unit>> units;  // by layer
  std::map<const Plugin*, std::unique_ptr<PluginModel>> models;
  std::map<std::string, int, std::less<>> bias_roles;  // bias tensor -> role of its matrix
  struct Inside {
    std::string tensor;
    std::int64_t n, first;
  };
  std::map<std::string, Inside, std::less<>> biases_inside;  // bias of a part that lies in a larger module

  std::mutex mutex;
  std::map<const Plugin*, qe_dev> devices;
  std::shared_ptr<std::byte[]> workspace;
  std::uint64_t workspace_bytes = 0;

  PlanState() = default;
  ~PlanState();

  bool has_tensors() const { return checkpoint->kind() != Checkpoint::Kind::kConfigOnly; }
  qe_dev device_of(const Plugin& plugin);  // opened on first use; throws
  // "blk.0.attn_q.weight (model.layers.0.self_attn.q_proj.weight)", or just the name.
  std::string spelled(const std::string& name) const;
  std::string file_of(const Tensor& tensor) const;
};

// A qe_layer and what it points to.
class LayerView {
 public:
  // With tp_size above 1: cut for one rank, outputs of q, k, v, gate and up, inputs of o and down.
  LayerView(const PlanState& state, const Unit& unit, int tp_rank = 0, int tp_size = 1);
  LayerView(const LayerView&) = delete;
  const qe_layer* get() const { return &layer_; }
  std::int64_t n() const { return n_; }
  const std::string& name() const { return name_; }  // the layer's, or the part's when it stands alone

 private:
  std::string name_;
  std::vector<qe_part> parts_;
  std::vector<const qe_part*> pointers_;
  qe_layer layer_{};
  std::unique_ptr<StepChain> chain_;  // on a GPU, for whole layers
  std::int64_t n_ = 0;
};

std::unique_ptr<Linear> load_layer(const std::shared_ptr<PlanState>& state, std::size_t i, ThreadPool& pool);
std::vector<float> load_dense(const PlanState& state, const std::string& name, std::span<const std::int64_t> shape);

// How a tensor differs from what is wanted: "has shape [16, 32], expected [32, 32]"; "" when it does not.
std::string mismatch(const Tensor& tensor, const Want& want);

}  // namespace qengine
