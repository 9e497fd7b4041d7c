// An arm of a plan: one model with its weights and its cache in one pair of formats, in bytes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/thread_pool.hpp"
#include "core/plan/plan.hpp"

namespace qengine {

struct ArmName {
  std::string format;  // "" = as the checkpoint is, 16 bits for a shape
  std::string kv;      // a --kv-cache-dtype
};

struct Arm {
  ArmName name;
  std::string kv_dtype;  // what `name.kv` came to
  WeightBytes weights;
  bool kv_narrow = false;  // fewer than 16 bits a value
  std::int64_t kv_bytes_per_token = 0, kv_block_bytes = 0;
  bool stored = false;
  std::string math;    // what the weights' math needs natively: "fp8", "fp4" or ""
  int bits = 0;        // of a code; 0: unknown
  Json by_owner, by_plugin, layers;
  std::vector<std::string> notes;

  std::string label() const { return (name.format.empty() ? "as it is" : name.format) + " + " + kv_dtype; }
};

// What is planned: a checkpoint, or a shape of the table.
class PlanSource {
 public:
  explicit PlanSource(const Invocation& in);  // throws Error

  const Shape& shape() const { return shape_; }
  std::int64_t max_model_len() const { return shape_.max_position; }
  const std::string& architecture() const { return architecture_; }
  bool quantized() const;  // the checkpoint is

  // Throws Error when no formula (`stored`) or no plugin makes this arm.
  Arm arm(const ArmName& name, const Card& card, bool stored) const;

 private:
  const PluginHost& host() const;
  void add_stored(Arm& a) const;
  void add_resident(Arm& a, const Card& card) const;

  const Invocation& in_;
  Shape shape_;
  std::string architecture_;
  std::shared_ptr<const Checkpoint> checkpoint_;  // as given; config alone for a shape; null: experts, formulas only
  Json plain_config_;                             // without its quantization
  mutable std::unique_ptr<PluginHost> host_;
  mutable std::unique_ptr<ThreadPool> pool_;
};

}  // namespace qengine
