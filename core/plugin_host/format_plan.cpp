// Which plugin gets which matrix. The order in which a layer is offered:
//
//   1. to the plugin that a rule or flag names for this very layer, and to nobody else;
//   2. to the plugin that the user chose, or that detects this checkpoint best;
//   3. if that one declines: to the others that detect the checkpoint with 600 or more, best first;
//   4. then to those that would detect it with 600 or more if it were not quantized, best first.
//
// Equal scores go by id. In 3 and 4 a native kernel goes before a fallback. A plugin whose tensors are
// not there has declined, whatever it claimed: tensors beat config. A fused layer that nobody takes
// whole is offered part by part.
#include "core/plugin_host/format_plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/base/nearest.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/ledger.hpp"
#include "core/plugin_host/plan_state.hpp"
#include "core/plugin_host/plugin_error.hpp"

namespace qengine {
namespace {

constexpr int kMayWin = 600;      // scores below are for plugins that want to be asked for by name
constexpr int kMaxLayers = 4096;  // far above any model, far below what would hurt

std::string reason_text(const qe_reason& reason) { return plugin_text(std::string_view(reason, strnlen(reason, sizeof reason)), sizeof reason); }

std::string join(const std::vector<std::string>& words, const char* by = ", ", std::size_t most = 8) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i == most) return out + " and " + std::to_string(words.size() - most) + " more";
    out += (i ? by : "") + words[i];
  }
  return out;
}

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

// A plugin that a layer is offered to.
struct Offer {
  const Plugin* plugin = nullptr;
  std::string method;
  bool named = false;   // by a rule for this layer
  bool winner = false;  // its findings about tensors are errors, not reasons
  std::string origin;   // of the rule
};

class Planner {
 public:
  Planner(const PluginHost& host, PlanState& state) : host_(host), s_(state) {}

  std::vector<PluginScore> scores;
  std::string choice;
  std::vector<std::string> ignored, unused, warnings;

  void run() {
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
    for (const std::string& w : warnings) log("plugins").warn("{}", w);
  }

 private:
  // ---- what plugins see --------------------------------------------------------------------------------

  void view_models() {
    const Checkpoint& c = *s_.checkpoint;
    const std::string method = quant_method_of(c);
    for (const auto& p : host_.plugins()) {
      if (p->data_only()) continue;
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

  // Calls into a plugin, with its findings about patterns kept and a bad one turned into an error.
  template <class F>
  auto ask(const Plugin& p, const char* what, const std::string& layer, F&& f) {
    CallFindings findings;
    Call call{p.name.c_str(), what, layer.c_str(), nullptr, s_.options.cancel, &findings};
    const auto result = [&] {
      const CallScope scope(call);
      return f();
    }();
    for (const auto& [pattern, hit] : findings.patterns) patterns_[pattern] |= hit;
    if (!findings.bad_pattern.empty())
      throw Error("E211", "\"" + findings.bad_pattern + "\" is no valid pattern: " + findings.bad_pattern_why)
          .in(s_.checkpoint->quant_config_source())
          .from("names are matched exactly, as globs, or by a regular expression behind re:")
          .hint("correct the rule; backslashes are doubled in JSON");
    return result;
  }

  int score_of(const Plugin& p, const qe_model& model, std::string& why) {
    qe_reason reason{};
    const std::int32_t score = ask(p, "detect", "", [&] { return p.descriptor->detect(&model, reason); });
    why = reason_text(reason);
    return std::clamp(score, 0, 1000);
  }

  static void by_score(std::vector<PluginScore>& scores) {
    std::sort(scores.begin(), scores.end(), [](const PluginScore& a, const PluginScore& b) {
      return a.score != b.score ? a.score > b.score : a.plugin->id < b.plugin->id;
    });
  }

  void detect() {
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

  // ---- the winner ---------------------------------------------------------------------------------------

  const PluginScore* score_for(const Plugin* p) const {
    for (const PluginScore& s : scores)
      if (s.plugin == p) return &s;
    return nullptr;
  }

  void choose() {
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
      log("plugins").info("{}", choice);
      return;
    }
    if (scores.empty() || scores[0].score < kMayWin) {
      Error e("E304", "no plugin accepts this checkpoint: it is " + describe_quantization(*s_.checkpoint));
      if (s_.checkpoint->quant_config().is_object()) e.in(s_.checkpoint->quant_config_source() + ", quant_method " + quant_method_of(*s_.checkpoint));
      for (const PluginScore& s : scores) e.line(s.plugin->name, s.why.empty() ? "gave no reason" : s.why);
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
    log("plugins").info("{}", choice);
  }

  // ---- layers, as the tensors say -----------------------------------------------------------------------

  std::vector<std::string> tensors_of(const std::string& module) const {
    std::vector<std::string> out;
    const std::string prefix = module + ".";
    for (auto it = names_.lower_bound(prefix); it != names_.end() && it->starts_with(prefix); ++it) out.push_back(*it);
    return out;
  }

  bool equal(const Tensor& a, const Tensor& b) const {
    if (a.dtype != b.dtype || a.shape != b.shape || a.bytes != b.bytes) return false;
    const auto x = s_.checkpoint->data(a), y = s_.checkpoint->data(b);
    const bool same = std::memcmp(x.data(), y.data(), x.size()) == 0;
    s_.checkpoint->release(a);
    s_.checkpoint->release(b);
    return same;
  }

  void prepare_layers() {
    s_.layers = layer_specs(s_.config);
    const auto own_table = [&] {  // lookups and head are two matrices
      const LayerSpec& head = s_.layers.back();
      LayerSpec table{"model.embed_tokens", -1, head.k, {{QE_ROLE_EMBED, "model.embed_tokens", head.parts[0].n, false}}};
      s_.layers.insert(s_.layers.end() - 1, std::move(table));
    };
    const bool new_head = s_.config.tied && !s_.options.quantize_lm_head.empty();  // made from the table, which stays as it is
    if (!s_.has_tensors()) {
      if (new_head) own_table();
      return;
    }
    const Checkpoint& c = *s_.checkpoint;

    if (s_.config.tied) {
      const std::string embed = "model.embed_tokens";
      bool own_head = false;
      for (const std::string& t : tensors_of("lm_head")) own_head |= t != "lm_head.weight" && t != "lm_head.bias";
      const Tensor* copy = c.find("lm_head.weight");
      if (new_head && !own_head && !tensors_of(embed).empty()) own_table();
      if (tensors_of(embed).empty() && (copy || own_head)) {
        s_.layers.back().parts[0].name = "lm_head";
      } else if (own_head) {  // tied in the unquantized model; here the head has codes and scales of its own
        s_.layers.back().parts[0].name = "lm_head";
        own_table();
      } else if (copy) {
        ledger_.used.insert(copy->name);
        const Tensor* table = c.find(embed + ".weight");
        if (table && equal(*table, *copy)) {
          ignored.push_back(copy->name + " (equal to " + embed + ".weight, tied)");
        } else {
          ignored.push_back(copy->name + " (tied: " + embed + ".weight is used)");
          warnings.push_back("W204 " + copy->name + " differs from " + embed + ".weight and is not used: tie_word_embeddings is true");
        }
      }
    }

    for (LayerSpec& layer : s_.layers)
      for (PartSpec& part : layer.parts) {
        const std::string name = part.name + ".bias";
        if (part.role != QE_ROLE_EMBED && part.role != QE_ROLE_LM_HEAD) {
          if (!part.bias && c.find(name)) part.bias = true;  // some quantizers write one, of zeros
          if (part.bias) need_dense(name, part.n), s_.bias_roles.emplace(name, part.role);
        }
      }
    for (int i = 0; i < s_.config.num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      need_dense(layer + "input_layernorm.weight", s_.config.hidden_size);
      need_dense(layer + "post_attention_layernorm.weight", s_.config.hidden_size);
      if (!s_.config.qk_norm) continue;
      need_dense(layer + "self_attn.q_norm.weight", s_.config.head_dim);
      need_dense(layer + "self_attn.k_norm.weight", s_.config.head_dim);
    }
    need_dense("model.norm.weight", s_.config.hidden_size);
  }

  void need_dense(const std::string& name, std::int64_t n) { dense_.emplace_back(name, n); }

  // ---- rules ----------------------------------------------------------------------------------------------

  void resolve_rules() {
    for (const OverrideRule& rule : s_.options.overrides) {
      const PluginChoice c = host_.choose(rule.plugin, rule.origin.empty() ? "[[quant.override]]" : rule.origin);
      if (!c.plugin->weight) throw Error("E104", c.plugin->name + " is not for weights").from(rule.origin);
      rules_.push_back({{c.plugin, c.scheme, true, true, rule.origin.empty() ? "[[quant.override]]" : rule.origin}, rule.match, false});
    }
    if (!s_.options.quantize_lm_head.empty()) {
      const PluginChoice c = host_.choose_value("quantize-lm-head", s_.options.quantize_lm_head);
      head_ = Offer{c.plugin, c.scheme, true, true, c.how};
    }
  }

  struct Rule {
    Offer offer;
    std::string match;
    bool used;
  };

  bool matches(const std::string& pattern, const std::string& name, const std::string& where) const {
    std::string problem;
    const bool hit = matcher_.matches(pattern, name, &problem);
    if (!problem.empty()) throw Error("E102", "\"" + pattern + "\" is no valid pattern: " + problem).in(where).hint("exact names, globs and re: followed by a regular expression are read");
    return hit;
  }

  // The names that a part answers to.
  std::vector<std::string> aliases_of(const LayerSpec& layer, const PartSpec& part) const {
    std::vector<std::string> names{part.name};
    if (layer.name != part.name) names.push_back(layer.name);
    return names;
  }

  const Rule* rule_for(const LayerSpec& layer, const PartSpec& part) {
    const Rule* last = nullptr;
    for (Rule& r : rules_)
      for (const std::string& name : aliases_of(layer, part))
        if (matches(r.match, name, r.offer.origin)) {
          r.used = true;
          last = &r;
        }
    return last;
  }

  std::vector<Offer> offers_for(const LayerSpec& layer, const PartSpec& part) {
    if (const Rule* r = rule_for(layer, part)) return {r->offer};
    if (part.role == QE_ROLE_LM_HEAD && head_) return {*head_};
    std::vector<Offer> out{{winner_, method_, false, true, {}}};
    std::set<const Plugin*> seen{winner_};
    for (const auto* list : {&scores, &for_plain_})
      for (const PluginScore& s : *list)
        if (s.score >= kMayWin && seen.insert(s.plugin).second) out.push_back({s.plugin, "", false, false, {}});
    return out;
  }

  // ---- one layer --------------------------------------------------------------------------------------------

  struct Answer {
    std::optional<Unit> unit;
    bool split = false;
    std::string declined;
  };

  int flags_for(bool named) const {
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

  Answer offer(const Offer& o, std::size_t layer, std::size_t part, std::size_t n_parts) {
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
  std::string check_tensors(const Offer& o, const Unit& unit) {
    const LayerSpec& layer = s_.layers[unit.layer];
    for (std::size_t i = 0; i < unit.n_parts; ++i) {
      const std::string prefix = layer.parts[unit.part + i].name + ".";
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

  std::string present(const std::string& module) const {
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

  Error missing_tensor(const std::string& name, const std::string& from) const {
    return Error("E202", "missing tensor " + s_.spelled(name)).from(from).hint("the download may be incomplete, or config.json belongs to another model");
  }

  // A module of which the checkpoint holds nothing: whoever would have got it says what it looked for.
  Error absent(const Plugin& p, std::size_t layer, std::size_t part, const std::string& why) {
    Unit unit;
    unit.plugin = &p;
    unit.layer = layer;
    unit.part = part;
    unit.n_parts = 1;
    const LayerView view(s_, unit);
    const std::string& name = s_.layers[layer].parts[part].name;
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

  void plan_layer(std::size_t i) {
    const LayerSpec& layer = s_.layers[i];
    const std::size_t n = layer.parts.size();
    // Rules for single parts take the group apart.
    bool together = true;
    for (std::size_t part = 1; part < n; ++part) together &= rule_for(layer, layer.parts[part]) == rule_for(layer, layer.parts[0]);
    if (together && plan_unit(i, 0, n)) return;
    for (std::size_t part = 0; part < n; ++part) plan_unit(i, part, 1);
  }

  // False: nobody takes these parts together. Throws when a single part finds nobody.
  bool plan_unit(std::size_t i, std::size_t part, std::size_t n_parts) {
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

    const std::string& name = layer.parts[part].name;
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

  // ---- afterwards ---------------------------------------------------------------------------------------------

  void explain() {
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
  bool claims(const Plugin* plugin) const {
    return std::any_of(scores.begin(), scores.end(), [&](const PluginScore& s) { return s.plugin == plugin && s.score >= kMayWin; });
  }

  void settle_ledger() {
    if (!s_.has_tensors()) return;
    for (const auto& [name, n] : dense_) {
      check_dense(name, n);
      ledger_.used.insert(name);
      ledger_.expected.insert(name);
    }
    for (const auto& layer : s_.units)
      for (const Unit& u : layer)
        for (const Want& w : u.wants) {
          ledger_.used.insert(w.name);
          ledger_.expected.insert(w.name);
          const auto dot = w.name.rfind('.');
          if (dot != std::string::npos && w.name.substr(dot) != ".weight" && s_.checkpoint->find(w.name)) ledger_.quantized.insert(w.name.substr(0, dot));
        }
    // What a plugin for the KV cache looks at while it plans belongs to the cache.
    for (auto& entry : s_.models) {
      const Plugin* p = entry.first;
      PluginModel* m = entry.second.get();
      if (!p->kv) continue;
      m->ckpt.record = true;
      qe_kv_plan plan{};
      plan.struct_size = sizeof plan;
      qe_error error{};
      ask(*p, "plan", "kv cache", [&] { return p->kv->plan(&s_.options.device, &m->model, 16, &plan, &error); });
      m->ckpt.record = false;
      ledger_.used.insert(m->ckpt.found.begin(), m->ckpt.found.end());
      ledger_.expected.insert(m->ckpt.found.begin(), m->ckpt.found.end());
      ledger_.expected.insert(m->ckpt.missed.begin(), m->ckpt.missed.end());
      m->ckpt.found.clear();
      m->ckpt.missed.clear();
    }
    Ledger::Result r = ledger_.close(*s_.checkpoint, s_.options.ignore_tensors);
    ignored.insert(ignored.end(), r.ignored.begin(), r.ignored.end());
    if (!r.left_over.empty())
      warnings.push_back("W203 " + std::to_string(r.left_over.size()) + (r.left_over.size() == 1 ? " tensor is" : " tensors are") + " used by nothing: " + join(r.left_over, ", ", 16));
    for (const std::string& rule : r.unused_rules) {
      unused.push_back(rule);
      warnings.push_back("W205 rule \"" + rule + "\" in --ignore-tensor matches no tensor");
    }
  }

  void check_dense(const std::string& name, std::int64_t n) const {
    const Tensor* t = s_.checkpoint->find(name);
    if (!t) throw missing_tensor(name, s_.config.architecture + " needs it");
    const std::uint64_t floats = 1ull << QE_F32 | 1ull << QE_F16 | 1ull << QE_BF16;
    const std::uint64_t blocks = 1ull << (QE_GGML + 0) | 1ull << (QE_GGML + 1) | 1ull << (QE_GGML + 30);  // the same three
    Want w{name, true, 1, floats | blocks, {n, -1, -1, -1}};
    if (t->dtype < 64 && (w.dtypes >> t->dtype & 1)) w.dtypes = 0;
    else w.dtypes = floats;
    const std::string what = mismatch(*t, w);
    if (what.empty()) return;
    throw Error("E204", s_.spelled(name) + " " + what).in(s_.file_of(*t)).from(s_.config.architecture).hint("config.json and the tensors do not belong together");
  }

  // Which scheme a unit is in, as --plugin would name it.
 public:
  static std::string scheme_of(const Unit& u) {
    const std::string own = plugin_text(std::string_view(u.plan.scheme, strnlen(u.plan.scheme, sizeof u.plan.scheme)), sizeof u.plan.scheme);
    if (!own.empty()) return own;
    if (!u.method.empty()) return u.method;
    return u.plugin->methods.size() == 1 ? u.plugin->methods[0].name : "";
  }

  std::string tier_of(const Unit& u) const {
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

  std::string name_of(const Unit& u) const {
    const LayerSpec& layer = s_.layers[u.layer];
    return u.n_parts == layer.parts.size() ? layer.name : layer.parts[u.part].name;
  }

 private:
  // ---- cuts for several devices ------------------------------------------------------------------------------

  // Why this model cannot be cut into `size`; "" when it can.
  std::string illegal_cut(int size) {
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

  void check_cut() {
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

  void check_required_formats() {
    for (const auto& [pattern, scheme] : s_.options.require_format) {
      const std::string written = "--require-format " + (pattern.empty() ? "" : pattern + "=") + scheme;
      bool used = false;
      for (const auto& layer : s_.units)
        for (const Unit& u : layer) {
          const LayerSpec& spec = s_.layers[u.layer];
          bool hit = (pattern.empty() || pattern == "linear") && spec.index >= 0;
          for (std::size_t i = 0; i < u.n_parts && !hit && !pattern.empty(); ++i)
            for (const std::string& name : aliases_of(spec, spec.parts[u.part + i])) hit |= matches(pattern, name, written);
          if (!hit) continue;
          used = true;
          const std::string own = scheme_of(u);
          if (scheme == u.plugin->name || scheme == u.plugin->id || scheme == own || scheme == u.plugin->name + ":" + own || scheme == u.plugin->id + ":" + own) continue;
          throw Error("E401", name_of(u) + " is " + u.plugin->name + (own.empty() ? "" : ":" + own) + ", and " + written + " asks for " + scheme)
              .from(u.why.empty() ? "this is what the checkpoint holds" : u.why)
              .hint("leave the flag out, or use a checkpoint in which that layer is " + scheme);
        }
      if (!used) no_match(pattern.empty() ? scheme : pattern, written);
    }
  }

  void apply_fallback_policy() {
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

  // ---- rules without effect ----------------------------------------------------------------------------------

  // The letters of a pattern, for "closest name".
  static std::string letters(const std::string& pattern) {
    std::string out = pattern.starts_with("re:") ? pattern.substr(3) : pattern;
    std::erase_if(out, [](char c) { return std::strchr("*?[]()^$\\+|", c); });
    while (!out.empty() && out[0] == '.') out.erase(0, 1);
    return out;
  }

  std::vector<std::string> module_names() const {
    std::set<std::string> out{"lm_head", "model.embed_tokens"};
    for (const LayerSpec& l : s_.layers)
      for (const PartSpec& p : l.parts) out.insert(p.name);
    for (const std::string& t : names_)
      if (const auto dot = t.rfind('.'); dot != std::string::npos) out.insert(t.substr(0, dot));
    return {out.begin(), out.end()};
  }

  void no_match(const std::string& rule, const std::string& where) {
    unused.push_back(rule);
    std::set<std::string> candidates;
    for (const std::string& m : module_names()) {
      candidates.insert(m);
      candidates.insert(std::string(strip_model_prefix(m)));
      candidates.insert(m.substr(m.rfind('.') == std::string::npos ? 0 : m.rfind('.') + 1));
    }
    const std::string near = nearest(letters(rule), std::vector<std::string>(candidates.begin(), candidates.end()), 3);
    Error w("W205", "rule \"" + rule + "\" in " + where + " matches no layer");
    if (!near.empty()) w.hint("closest name: " + near);
    warnings.push_back(w.what());
  }

  void report_rules() {
    for (const Rule& r : rules_)
      if (!r.used) no_match(r.match, r.offer.origin.find("quant.override") == std::string::npos ? "[[quant.override]] (" + r.offer.origin + ")" : "[[quant.override]]");
    const std::vector<std::string> modules = module_names();
    for (const auto& entry : patterns_) {
      const std::string& pattern = entry.first;
      if (entry.second) continue;
      // A class name ("Linear") is no rule about names.
      if (!pattern.empty() && std::isupper(static_cast<unsigned char>(pattern[0])) && pattern.find_first_of(".:*") == std::string::npos) continue;
      if (std::any_of(modules.begin(), modules.end(), [&](const std::string& m) { return matcher_.matches(pattern, m); })) continue;
      no_match(pattern, s_.checkpoint->quant_config_source());
    }
  }

  const PluginHost& host_;
  PlanState& s_;
  std::set<std::string> names_;  // of all tensors
  std::vector<PluginScore> for_plain_;  // would take unquantized weights
  const Plugin* winner_ = nullptr;
  std::string method_;
  std::vector<Rule> rules_;
  std::optional<Offer> head_;
  std::map<std::string, bool> patterns_;
  std::vector<std::pair<std::string, std::int64_t>> dense_;
  Ledger ledger_;
  Matcher matcher_;
};

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
  Planner planner(host, s);
  planner.run();
  for (const auto& layer : s.units)
    for (const Unit& u : layer) {
      LayerReport r;
      r.name = planner.name_of(u);
      r.plugin = u.plugin->name;
      r.scheme = Planner::scheme_of(u);
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
