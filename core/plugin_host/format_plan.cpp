#include "core/plugin_host/format_plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/plugin_host/format_planner.hpp"

namespace qengine {
namespace {

std::string kernels_of(const qe_plan& plan) {
  std::string out;
  std::set<std::string> seen;
  for (int i = 0; i < plan.n_regimes; ++i) {
    const std::string k = plugin_text(std::string_view(plan.regime[i].kernel, strnlen(plan.regime[i].kernel, sizeof plan.regime[i].kernel)), 48);
    if (!k.empty() && seen.insert(k).second) out += (out.empty() ? "" : ", ") + k;
  }
  return out;
}

}  // namespace

qe_device cpu_device() {
  qe_device d{};
  d.struct_size = sizeof d;
  d.kind = QE_CPU;
  d.sm_count = static_cast<std::int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  d.mem_bytes = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  d.l2_bytes = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
  return d;
}

struct FormatPlan::Impl {
  std::shared_ptr<PlanState> state = std::make_shared<PlanState>();
  std::vector<LayerReport> report;
  std::vector<PluginScore> scores;
  std::string choice;
  std::vector<std::string> ignored, unused, warnings;
};

FormatPlan::FormatPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FormatPlan::~FormatPlan() = default;

std::unique_ptr<FormatPlan> FormatPlan::make(const PluginHost& host, std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config, const FormatOptions& options) {
  auto impl = std::make_unique<Impl>();
  PlanState& s = *impl->state;
  s.checkpoint = std::move(checkpoint);
  s.config = config;
  s.options = options;
  FormatPlanner planner(host, s);
  planner.run();
  for (const auto& layer : s.units)
    for (const Unit& u : layer) {
      LayerReport r;
      r.name = planner.name_of(u);
      r.plugin = u.plugin->name;
      r.scheme = FormatPlanner::scheme_of(u);
      r.kernel = kernels_of(u.plan);
      r.tier = planner.tier_of(u);
      r.bytes = u.plan.weight_bytes;
      r.persist_bytes = u.plan.persist_bytes;
      r.load_temp_bytes = u.plan.load_temp_bytes;
      r.reason = u.why;
      r.index = s.layers[u.layer].index;
      r.tied = s.layers[u.layer].parts[u.part].role == QE_ROLE_LM_HEAD && config.tied &&
               std::none_of(s.layers.begin(), s.layers.end(), [](const LayerSpec& l) { return l.parts[0].role == QE_ROLE_EMBED; });
      impl->report.push_back(std::move(r));
    }
  impl->scores = std::move(planner.scores);
  impl->choice = std::move(planner.choice);
  impl->ignored = std::move(planner.ignored);
  impl->unused = std::move(planner.unused);
  impl->warnings = std::move(planner.warnings);
  return std::unique_ptr<FormatPlan>(new FormatPlan(std::move(impl)));
}

const std::vector<LayerSpec>& FormatPlan::layers() const { return impl_->state->layers; }
const std::vector<LayerReport>& FormatPlan::report() const { return impl_->report; }
const std::vector<PluginScore>& FormatPlan::scores() const { return impl_->scores; }
const std::string& FormatPlan::choice() const { return impl_->choice; }
std::vector<std::string> FormatPlan::ignored_tensors() const { return impl_->ignored; }
std::vector<std::string> FormatPlan::unused_rules() const { return impl_->unused; }
std::vector<std::string> FormatPlan::warnings() const { return impl_->warnings; }

std::vector<TensorWish> FormatPlan::wishes() const {
  std::vector<TensorWish> out;
  for (const auto& layer : impl_->state->units)
    for (const Unit& u : layer)
      for (const Want& w : u.wants) {
        TensorWish wish{w.name, w.required, w.dtypes, {}};
        bool said = w.rank >= 0;
        for (int i = 0; i < w.rank && i < 4; ++i) said = said && w.dim[i] >= 0, wish.shape.push_back(w.dim[i]);
        if (!said) wish.shape.clear();
        out.push_back(std::move(wish));
      }
  return out;
}

std::uint64_t FormatPlan::weight_bytes() const {
  std::uint64_t sum = 0;
  for (const LayerReport& r : impl_->report) sum += r.bytes + r.persist_bytes;
  return sum;
}

std::uint64_t FormatPlan::load_temp_bytes() const {
  std::uint64_t most = 0;
  for (const LayerReport& r : impl_->report) most = std::max(most, r.load_temp_bytes);
  return most;
}

std::unique_ptr<Linear> FormatPlan::load(std::size_t i, ThreadPool& pool) const { return load_layer(impl_->state, i, pool); }
std::vector<float> FormatPlan::dense(const std::string& name, std::span<const std::int64_t> shape) const { return load_dense(*impl_->state, name, shape); }

}  // namespace qengine
