// One layer, offered to one plugin after the other until one takes it.
#include "core/plugin_host/format_planner.hpp"

#include <algorithm>

namespace qengine {
namespace {

std::string dtype_list(std::uint64_t mask) {
  std::vector<std::string> names;
  for (int d = 0; d < 64; ++d)
    if (mask >> d & 1) names.push_back(dtype_name(d));
  if (names.size() < 2) return join(names);
  const std::string last = names.back();
  names.pop_back();
  return join(names, ", ", 64) + " or " + last;
}

void collect_want(void* arg, const qe_want* w) {
  auto& wants = *static_cast<std::vector<Want>*>(arg);
  if (!w || !QE_HAS(w, dim) || !w->name.p || wants.size() > 4096) return;
  Want out;
  out.name.assign(w->name.p, std::min<std::size_t>(w->name.n, 1024));
  out.required = w->required != 0;
  out.rank = w->rank;
  out.dtypes = w->dtypes;
  std::copy_n(w->dim, 4, out.dim);
  wants.push_back(std::move(out));
}

}  // namespace

std::vector<Offer> FormatPlanner::offers_for(const LayerSpec& layer, const PartSpec& part) {
  if (const Rule* r = rule_for(layer, part)) return {r->offer};
  if (part.role == QE_ROLE_LM_HEAD && head_) return {*head_};
  std::vector<Offer> out{{winner_, method_, false, true, {}}};
  std::set<const Plugin*> seen{winner_};
  for (const auto* list : {&scores, &for_plain_})
    for (const PluginScore& s : *list)
      if (s.score >= kMayWin && seen.insert(s.plugin).second) out.push_back({s.plugin, "", false, false, {}});
  return out;
}

int FormatPlanner::flags_for(bool named) const {
  int flags = named ? QE_LAYER_NAMED : 0;
  if (s_.options.exact) flags |= QE_LAYER_EXACT;
  switch (s_.options.activation_quant) {
    case ActivationQuant::kOff: break;
    case ActivationQuant::kCheckpoint: flags |= QE_LAYER_ACT_QUANT; break;
    case ActivationQuant::kDynamic: flags |= QE_LAYER_ACT_QUANT | QE_LAYER_ACT_TOKEN; break;
    case ActivationQuant::kAuto: flags |= QE_LAYER_ACT_QUANT | QE_LAYER_ACT_TOKEN | QE_LAYER_ACT_AUTO; break;
  }
  return flags;
}

FormatPlanner::Answer FormatPlanner::offer(const Offer& o, std::size_t layer, std::size_t part, std::size_t n_parts) {
  const Plugin& p = *o.plugin;
  PluginModel& m = *s_.models.at(o.plugin);
  Unit unit;
  unit.plugin = o.plugin;
  unit.layer = layer;
  unit.part = part;
  unit.n_parts = n_parts;
  unit.method = o.method;
  unit.flags = flags_for(o.named);
  const LayerView view(s_, unit);
  const PluginCall at{&p, "plan", view.name(), s_.checkpoint.get()};

  unit.plan.struct_size = sizeof unit.plan;
  qe_error error{};
  qe_status status = ask(p, "plan", view.name(), [&] { return p.weight->plan(&s_.options.device, &m.model, view.get(), &unit.plan, &error); });
  if (status == QE_E_UNSUPPORTED || (status && !o.winner)) return {{}, false, plugin_error(status, error, at).message()};
  if (status) throw plugin_error(status, error, at);
  if (unit.plan.claim != 1 && unit.plan.claim != 2) {
    const std::string why = reason_text(unit.plan.reason);
    return {{}, false, why.empty() ? "declined without a reason" : why};
  }
  if (unit.plan.n_regimes < 0 || unit.plan.n_regimes > 4)
    throw Error("E309", p.name + " " + p.version + " broke its contract: plan of " + view.name() + " has " + std::to_string(unit.plan.n_regimes) + " regimes, at most 4 are allowed").in("plan");
  if (n_parts > 1 && unit.plan.fuse_parts == 0) return {{}, true, {}};

  error = {};
  status = ask(p, "tensors", view.name(), [&] { return p.weight->tensors(&m.model, view.get(), collect_want, &unit.wants, &error); });
  if (status == QE_E_UNSUPPORTED || (status && !o.winner)) return {{}, false, plugin_error(status, error, at).message()};
  if (status) throw plugin_error(status, error, {&p, "tensors", view.name(), s_.checkpoint.get()});
  if (s_.has_tensors())
    if (std::string why = check_tensors(o, unit); !why.empty()) return {{}, false, std::move(why)};
  return {std::move(unit), false, {}};
}

// "" when all is there. A reason to decline when a part has none of the tensors, or when the plugin
// was only one of the possible ones; an error when the winner's tensors are damaged.
std::string FormatPlanner::check_tensors(const Offer& o, const Unit& unit) {
  const LayerSpec& layer = s_.layers[unit.layer];
  for (std::size_t i = 0; i < unit.n_parts; ++i) {
    const std::string prefix = layer.parts[unit.part + i].module() + ".";
    std::vector<std::string> needed, missing;
    for (const Want& w : unit.wants) {
      if (!w.required || !w.name.starts_with(prefix)) continue;
      needed.push_back(w.name.substr(prefix.size()));
      if (!s_.checkpoint->find(w.name)) missing.push_back(w.name);
    }
    if (missing.empty()) continue;
    const std::string needs = "needs " + join(needed);
    if (missing.size() == needed.size()) {
      return "no " + join(needed, " or ") + " of " + prefix.substr(0, prefix.size() - 1) + " in the checkpoint";
    }
    if (!o.winner) return needs + "; missing: " + join(missing);
    throw missing_tensor(missing[0], o.plugin->name + " " + needs + "; present: " + present(prefix.substr(0, prefix.size() - 1)));
  }
  std::vector<std::pair<const Tensor*, std::string>> wrong;
  for (const Want& w : unit.wants) {
    const Tensor* t = s_.checkpoint->find(w.name);
    if (!t) {
      if (!w.required) continue;
      if (!o.winner) return "needs " + w.name;
      throw missing_tensor(w.name, o.plugin->name + " needs it for " + layer.name);
    }
    const std::string what = mismatch(*t, w);
    if (what.empty()) continue;
    if (!o.winner) return w.name + " " + what;
    wrong.emplace_back(t, what);
  }
  if (!wrong.empty()) {
    Error e("E204", s_.spelled(wrong[0].first->name) + " " + wrong[0].second);
    e.in(s_.file_of(*wrong[0].first)).from(o.plugin->name + ", for " + layer.name);
    for (std::size_t i = 1; i < std::min<std::size_t>(wrong.size(), 4); ++i) e.line("also", s_.spelled(wrong[i].first->name) + " " + wrong[i].second);
    throw e.hint(s_.checkpoint->quant_config().is_object()
                     ? "bits or group_size in quantization_config do not match the tensors, or the sizes in config.json; compare with qengine inspect --layers"
                     : "config.json and the tensors do not belong together; compare with qengine inspect --layers");
  }
  return {};
}

std::string FormatPlanner::present(const std::string& module) const {
  std::vector<std::string> out;
  for (const std::string& t : tensors_of(module)) out.push_back(t.substr(module.size() + 1));
  if (!out.empty()) return join(out);
  // The nearest there is: what lies beside it under another name, such as a fused gate_up_proj.
  const std::string parent = module.substr(0, module.rfind('.') == std::string::npos ? 0 : module.rfind('.'));
  std::set<std::string> beside;
  if (!parent.empty())
    for (const std::string& t : tensors_of(parent)) beside.insert(t.substr(0, t.rfind('.')));
  return beside.empty() ? "nothing" : "nothing of it; beside it " + join({beside.begin(), beside.end()});
}

// A module of which the checkpoint holds nothing: whoever would have got it says what it looked for.
Error FormatPlanner::absent(const Plugin& p, std::size_t layer, std::size_t part, const std::string& why) {
  Unit unit;
  unit.plugin = &p;
  unit.layer = layer;
  unit.part = part;
  unit.n_parts = 1;
  const LayerView view(s_, unit);
  const std::string& name = s_.layers[layer].parts[part].module();
  qe_error error{};
  const qe_status status = ask(p, "tensors", name, [&] { return p.weight->tensors(&s_.models.at(&p)->model, view.get(), collect_want, &unit.wants, &error); });
  std::vector<std::string> needed;
  if (status == QE_OK)
    for (const Want& w : unit.wants)
      if (w.required && w.name.starts_with(name + ".")) needed.push_back(w.name);
  if (needed.empty()) return missing_tensor(name + ".weight", p.name + ": " + why + "; present: " + present(name));
  const std::string first = needed[0];
  for (std::string& n : needed) n.erase(0, name.size() + 1);
  return missing_tensor(first, p.name + " needs " + join(needed) + "; present: " + present(name));
}

void FormatPlanner::plan_layer(std::size_t i) {
  const LayerSpec& layer = s_.layers[i];
  const std::size_t n = layer.parts.size();
  // Rules for single parts take the group apart.
  bool together = true;
  for (std::size_t part = 1; part < n; ++part) together &= rule_for(layer, layer.parts[part]) == rule_for(layer, layer.parts[0]);
  if (together && plan_unit(i, 0, n)) return;
  for (std::size_t part = 0; part < n; ++part) plan_unit(i, part, 1);
}

// False: nobody takes these parts together. Throws when a single part finds nobody.
bool FormatPlanner::plan_unit(std::size_t i, std::size_t part, std::size_t n_parts) {
  const LayerSpec& layer = s_.layers[i];
  const std::vector<Offer> offers = offers_for(layer, layer.parts[part]);
  std::vector<std::pair<const Offer*, std::string>> declined;
  std::optional<Unit> fallback;
  for (const Offer& o : offers) {
    Answer a = offer(o, i, part, n_parts);
    if (a.split) return false;
    if (!a.unit) {
      declined.emplace_back(&o, std::move(a.declined));
      continue;
    }
    if (!declined.empty() && o.plugin != offers[0].plugin) a.unit->why = declined[0].first->plugin->name + ": " + declined[0].second;
    if (o.winner || a.unit->plan.claim == 2) {
      s_.units[i].push_back(std::move(*a.unit));
      return true;
    }
    if (!fallback) fallback = std::move(a.unit);
  }
  if (fallback) {
    s_.units[i].push_back(std::move(*fallback));
    return true;
  }
  if (n_parts > 1) return false;

  const std::string& name = layer.parts[part].module();
  if (s_.has_tensors()) {
    std::vector<std::string> there = tensors_of(name);
    std::erase(there, name + ".bias");
    if (there.empty()) throw absent(*offers[0].plugin, i, part, declined[0].second);
  }
  std::string what = describe_quantization(*s_.checkpoint);  // "gptq (4-bit, group 96)" -> "gptq, 4-bit, group 96"
  if (const auto at = what.find(" ("); at != std::string::npos) what.replace(at, 2, ", ");
  std::erase(what, ')');
  Error e("E304", "no plugin accepts " + name + " (" + what + ")");
  if (offers[0].named) e.from(offers[0].origin + " names " + offers[0].plugin->name + " for it");
  for (const auto& [o, why] : declined) e.line(o->plugin->name, why);
  if (s_.has_tensors()) {
    std::vector<std::string> there;
    for (const std::string& t : tensors_of(name)) {
      const Tensor* tensor = s_.checkpoint->find(t);
      there.push_back(s_.spelled(t) + " " + dtype_name(tensor->dtype) + " " + shape_text(tensor->shape));
    }
    if (!there.empty()) e.line("tensors", join(there));
  }
  throw e.hint("qengine plugin explain MODEL shows what every installed plugin says");
}

std::string mismatch(const Tensor& t, const Want& w) {
  if (w.dtypes && (t.dtype < 0 || t.dtype >= 64 || !(w.dtypes >> t.dtype & 1))) return "has dtype " + dtype_name(t.dtype) + ", expected " + dtype_list(w.dtypes);
  if (w.rank < 0) return {};
  bool same = t.shape.size() == static_cast<std::size_t>(w.rank);
  std::string expected = "[";
  for (int i = 0; i < w.rank && i < 4; ++i) {
    same = same && (w.dim[i] < 0 || t.shape[i] == w.dim[i]);
    expected += (i ? ", " : "") + (w.dim[i] < 0 ? "any" : std::to_string(w.dim[i]));
  }
  return same ? "" : "has shape " + shape_text(t.shape) + ", expected " + expected + "]";
}

}  // namespace qengine
