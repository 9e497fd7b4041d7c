// Whether a model can be cut for several devices, and into how many parts.
#include "core/plugin_host/format_planner.hpp"

#include <algorithm>
#include <cstring>

namespace qengine {

// Why this model cannot be cut into `size`; "" when it can.
std::string FormatPlanner::illegal_cut(int size) {
  const ModelConfig& c = s_.config;
  const std::string first = s_.layers[0].parts[0].name;
  if (c.num_heads % size) return "does not divide the " + std::to_string(c.num_heads) + " heads of " + first;
  if (c.num_kv_heads % size && size % c.num_kv_heads) return "does not divide the " + std::to_string(c.num_kv_heads) + " kv heads of " + first;
  for (const auto& layer : s_.units)
    for (const Unit& u : layer) {
      const LayerSpec& spec = s_.layers[u.layer];
      if (spec.index < 0) continue;
      const PartSpec& part = spec.parts[u.part];
      const bool inputs = part.role == QE_ROLE_O || part.role == QE_ROLE_DOWN;
      if (!inputs && (part.role == QE_ROLE_GATE || part.role == QE_ROLE_UP) && part.n % size) return "does not divide the " + std::to_string(part.n) + " outputs of " + part.name;
      if (inputs) {
        // A group as long as the row is a scale for each output: it can be cut anywhere.
        const std::int64_t k = spec.k, multiple = u.plan.k_multiple >= k ? 1 : std::max<std::int64_t>(1, u.plan.k_multiple);
        if (k % size || (k / size) % multiple)
          return "cuts " + part.name + " (K " + std::to_string(k) + (multiple > 1 ? ", group " + std::to_string(multiple) + ") inside a group" : ") unevenly");
      }
      const LayerView view(s_, u, size - 1, size);
      qe_plan plan{};
      plan.struct_size = sizeof plan;
      qe_error error{};
      const qe_status status = ask(*u.plugin, "plan", view.name(), [&] { return u.plugin->weight->plan(&s_.options.device, &s_.models.at(u.plugin)->model, view.get(), &plan, &error); });
      if (status || plan.claim == 0) return "cuts " + part.name + ": " + u.plugin->name + ": " + (status ? plugin_text(std::string_view(error.message, strnlen(error.message, sizeof error.message))) : reason_text(plan.reason));
    }
  return {};
}

void FormatPlanner::check_cut() {
  const int size = s_.options.tensor_parallel;
  if (size <= 1) return;
  if (const std::string why = illegal_cut(size); !why.empty()) {
    std::string legal = "1";
    for (int other = 2; other <= std::min(64, s_.config.num_heads); ++other)
      if (illegal_cut(other).empty()) legal += ", " + std::to_string(other);
    throw Error("E205", "--tensor-parallel-size " + std::to_string(size) + " " + why).hint("legal sizes for this checkpoint: " + legal);
  }
  throw Error("E101", "--tensor-parallel-size " + std::to_string(size) + ": a model runs on one device in this release")
      .hint("leave it out; if the model does not fit, choose a smaller format with --plugin or --kv-cache-dtype fp8");
}

}  // namespace qengine
