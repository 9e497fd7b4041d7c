#include "core/plugin_host/format_planner.hpp"

#include <algorithm>
#include <memory>

#include "core/base/log.hpp"

namespace qengine {
namespace {

constexpr int kMaxLayers = 4096;  // far above any model, far below what would hurt

void by_score(std::vector<PluginScore>& scores) {
  std::sort(scores.begin(), scores.end(), [](const PluginScore& a, const PluginScore& b) {
    return a.score != b.score ? a.score > b.score : a.plugin->id < b.plugin->id;
  });
}

}  // namespace

void FormatPlanner::run() {
  host_.check_options();
  if (s_.config.num_layers > kMaxLayers) throw Error("E208", "num_hidden_layers is " + std::to_string(s_.config.num_layers) + "; at most " + std::to_string(kMaxLayers) + " are read");
  for (const Tensor& t : s_.checkpoint->tensors()) names_.insert(t.name);
  view_models();
  detect();
  choose();
  prepare_layers();
  resolve_rules();
  s_.units.resize(s_.layers.size());
  for (std::size_t i = 0; i < s_.layers.size(); ++i) plan_layer(i);
  explain();
  check_cut();
  settle_ledger();
  check_required_formats();
  apply_fallback_policy();
  report_rules();
  log("plugins").info("{}", choice);  // once, whatever was tried before
  for (const std::string& w : warnings) log("plugins").warn("{}", w);
}

void FormatPlanner::view_models() {
  const Checkpoint& c = *s_.checkpoint;
  const std::string method = quant_method_of(c);
  for (const auto& p : host_.plugins()) {
    if (!p->opened()) continue;
    auto m = std::make_unique<PluginModel>();
    view_model(*m, c, s_.config, host_.options(), *p);
    s_.models.emplace(p.get(), std::move(m));
  }
  // Another tool's quant_method that a manifest translates: its plugin is shown its own.
  for (const auto& p : host_.plugins()) {
    if (!p->data_only()) continue;
    for (const PluginMethod& m : p->methods) {
      if (method == "none" || m.quant_method != method) continue;
      const PluginChoice to = host_.choose(m.replacement, "method " + m.name + " of " + p->id);
      std::string own;
      for (const PluginMethod& t : to.plugin->methods)
        if ((to.scheme.empty() || t.name == to.scheme) && own.empty() && t.quant_method != "none") own = t.quant_method;
      if (own.empty() || own == method) continue;
      PluginModel& view = *s_.models.at(to.plugin);
      view.quant = c.quant_config();
      view.quant["quant_method"] = own;
      view.cfg.quant = &view.quant;
      log("plugins").info("quant_method {} is read as {} by {} ({} {})", method, own, to.plugin->name, p->id, p->version);
    }
  }
}

int FormatPlanner::score_of(const Plugin& p, const qe_model& model, std::string& why) {
  qe_reason reason{};
  const std::int32_t score = ask(p, "detect", "", [&] { return p.descriptor->detect(&model, reason); });
  why = reason_text(reason);
  return std::clamp(score, 0, 1000);
}

void FormatPlanner::detect() {
  for (auto& [p, m] : s_.models) {
    if (!p->weight) continue;
    PluginScore score{p, 0, {}};
    score.score = score_of(*p, m->model, score.why);
    scores.push_back(std::move(score));

    PluginModel plain;
    view_unquantized(plain, *m);
    PluginScore unquantized{p, 0, {}};
    unquantized.score = score_of(*p, plain.model, unquantized.why);
    if (unquantized.score >= kMayWin) for_plain_.push_back(std::move(unquantized));
  }
  by_score(scores);
  by_score(for_plain_);
  patterns_.clear();  // rules are about layers
}

const PluginScore* FormatPlanner::score_for(const Plugin* p) const {
  for (const PluginScore& s : scores)
    if (s.plugin == p) return &s;
  return nullptr;
}

void FormatPlanner::choose() {
  const FormatOptions& o = s_.options;
  PluginChoice by_plugin, by_quantization;
  if (!o.plugin.empty()) by_plugin = host_.choose(o.plugin);
  if (!o.quantization.empty()) by_quantization = host_.choose_quantization(o.quantization, *s_.checkpoint);
  if (by_plugin.plugin && by_quantization.plugin &&
      (by_plugin.plugin != by_quantization.plugin ||
       (!by_plugin.scheme.empty() && !by_quantization.scheme.empty() && by_plugin.scheme != by_quantization.scheme)))
    throw Error("E104", "--plugin " + o.plugin + " and --quantization " + o.quantization + " disagree").from(by_quantization.how).hint("leave one of them out");
  PluginChoice c = by_plugin.plugin ? by_plugin : by_quantization;
  if (c.scheme.empty()) c.scheme = by_quantization.scheme;

  if (c.plugin) {
    if (!c.plugin->weight) throw Error("E104", c.plugin->name + " is not for weights").from(c.how).hint("qengine plugin info " + c.plugin->name + " says what it does");
    const PluginScore* score = score_for(c.plugin);
    if (score->score == 0) {
      const bool quantized = s_.checkpoint->quant_config().is_object();
      Error e(quantized ? "E104" : "E105", c.plugin->name + " does not match the checkpoint, which is " + describe_quantization(*s_.checkpoint));
      if (quantized) e.in(s_.checkpoint->quant_config_source());
      e.from(c.how);
      e.line(c.plugin->name, score->why.empty() ? "gave no reason" : score->why);
      throw e.hint(scores[0].score >= kMayWin ? "leave the flag out, or use --plugin " + scores[0].plugin->name : "qengine plugin explain MODEL shows what each plugin says");
    }
    winner_ = c.plugin;
    method_ = c.scheme;
    choice = c.how;
    return;
  }
  if (scores.empty() || scores[0].score < kMayWin) {
    Error e("E304", "no plugin accepts this checkpoint: it is " + describe_quantization(*s_.checkpoint));
    if (s_.checkpoint->quant_config().is_object()) e.in(s_.checkpoint->quant_config_source() + ", quant_method " + quant_method_of(*s_.checkpoint));
    for (const PluginScore& s : scores) e.line(s.plugin->name, s.why.empty() ? "gave no reason" : s.why);
    for (const RefusedPlugin& r : host_.refused()) e.line(r.name.empty() ? r.path.filename().string() : r.name, "was not loaded: " + r.reason.substr(0, r.reason.find('\n')));
    if (host_.plugins().empty()) throw e.hint("no plugin is installed where the program looks; qengine plugin list shows where that is");
    throw e.hint("a plugin that reads it can be added with --plugin-path");
  }
  // Claims for parts of a model may be equal: each layer is offered to all of them.
  if (scores.size() > 1 && scores[1].score == scores[0].score && scores[0].score > kMayWin) {
    std::vector<std::string> tied;
    for (const PluginScore& s : scores)
      if (s.score == scores[0].score) tied.push_back(s.plugin->name + " " + s.plugin->version);
    throw Error("E303", (tied.size() == 2 ? "two" : std::to_string(tied.size())) + " plugins claim this checkpoint with score " + std::to_string(scores[0].score) + ": " + join(tied)).hint("choose with --plugin");
  }
  winner_ = scores[0].plugin;
  choice = winner_->name + ": " + (scores[0].why.empty() ? "score " + std::to_string(scores[0].score) : scores[0].why);
}

void FormatPlanner::explain() {
  std::size_t by_winner = 0, all = 0;
  for (auto& layer : s_.units)
    for (Unit& u : layer) {
      ++all;
      by_winner += u.plugin == winner_ || claims(u.plugin);
      const std::string own = reason_text(u.plan.reason);
      if (u.why.empty()) u.why = own;
    }
  if (by_winner == 0 && s_.checkpoint->quant_config().is_object())
    warnings.push_back("W201 " + s_.checkpoint->quant_config_source() + " says " + describe_quantization(*s_.checkpoint) + ", but no layer has quantized tensors: " +
                       std::to_string(all) + " products run unquantized");
}

// Whether a plugin said that it reads at least parts of this checkpoint.
bool FormatPlanner::claims(const Plugin* plugin) const {
  return std::any_of(scores.begin(), scores.end(), [&](const PluginScore& s) { return s.plugin == plugin && s.score >= kMayWin; });
}

// Which scheme a unit is in, as --plugin would name it.
std::string FormatPlanner::scheme_of(const Unit& u) {
  const std::string own = plugin_text(std::string_view(u.plan.scheme, strnlen(u.plan.scheme, sizeof u.plan.scheme)), sizeof u.plan.scheme);
  if (!own.empty()) return own;
  if (!u.method.empty()) return u.method;
  return u.plugin->methods.size() == 1 ? u.plugin->methods[0].name : "";
}

std::string FormatPlanner::tier_of(const Unit& u) const {
  if (u.plan.claim == 2) return "native";
  const std::string scheme = scheme_of(u);
  for (const bool exact : {true, false})
    for (const PluginMethod& m : u.plugin->methods) {
      if (exact && m.name != scheme && m.name != u.method) continue;
      for (const qe_capability& c : m.rows)
        if (c.kind == s_.options.device.kind && c.tier > 1 && s_.options.device.sm >= c.sm_min && (c.sm_max == 0 || s_.options.device.sm <= c.sm_max))
          return c.tier == 2 ? "weight-only" : "reference";
    }
  return "reference";
}

std::string FormatPlanner::name_of(const Unit& u) const {
  const LayerSpec& layer = s_.layers[u.layer];
  return u.n_parts == layer.parts.size() ? layer.name : layer.parts[u.part].name;
}

void FormatPlanner::apply_fallback_policy() {
  struct Row {
    std::string plugin, scheme, tier, reason;
    int n = 0;
  };
  std::vector<Row> rows;
  int n = 0;
  for (const auto& layer : s_.units)
    for (const Unit& u : layer) {
      if (u.plan.claim == 2) continue;
      ++n;
      Row row{u.plugin->name, scheme_of(u), tier_of(u), reason_text(u.plan.reason), 0};
      auto it = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.plugin == row.plugin && r.scheme == row.scheme && r.tier == row.tier && r.reason == row.reason; });
      if (it == rows.end()) it = rows.insert(rows.end(), row);
      ++it->n;
    }
  if (rows.empty() || s_.options.fallback == Fallback::kAllow) return;
  const auto layers = [](int count) { return std::to_string(count) + (count == 1 ? " layer" : " layers"); };
  if (s_.options.fallback == Fallback::kError) {
    const std::string where = s_.options.device.kind == QE_CPU ? "this CPU" : "this GPU (sm" + std::to_string(s_.options.device.sm) + ")";
    Error e("E401", layers(n) + (n == 1 ? " has" : " have") + " no native kernel on " + where + " and --fallback is error");
    for (const Row& r : rows) e.from(r.plugin + ": " + (r.reason.empty() ? r.tier : r.reason) + " (" + layers(r.n) + ")");
    throw e.hint("--fallback warn runs them on the " + rows[0].tier + " path");
  }
  for (const Row& r : rows) {
    Error w("W302", layers(r.n) + (r.n == 1 ? " is " : " are ") + (r.tier == "reference" ? "on the reference path" : r.tier) + (r.reason.empty() ? "" : ": " + r.reason));
    w.from(r.plugin + (r.scheme.empty() ? "" : ":" + r.scheme)).hint("--fallback error stops here, allow hides this line");
    warnings.push_back(w.what());
  }
}

std::string join(const std::vector<std::string>& words, const char* by, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i == most) return out + " and " + std::to_string(words.size() - most) + " more";
    out += (i ? by : "") + words[i];
  }
  return out;
}

}  // namespace qengine
