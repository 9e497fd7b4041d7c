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
//
// One object for one FormatPlan::make(). Its parts, a file each:
//
//   format_planner.cpp          what plugins see, the winner; afterwards what is said about the result
//   format_planner_tensors.cpp  layers as the tensors say, and that every tensor is accounted for
//   format_planner_rules.cpp    rules that name plugins for layers, and rules without effect
//   format_planner_offers.cpp   one layer, offered around
//   format_planner_cuts.cpp     cuts for several devices
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/ledger.hpp"
#include "core/plugin_host/plan_state.hpp"
#include "core/plugin_host/plugin_error.hpp"

namespace qengine {

inline constexpr int kMayWin = 600;  // scores below are for plugins that want to be asked for by name

inline std::string reason_text(const qe_reason& reason) { return plugin_text(std::string_view(reason, strnlen(reason, sizeof reason)), sizeof reason); }

// "a, b, c and 4 more".
std::string join(const std::vector<std::string>& words, const char* by = ", ", std::size_t most = 8);

// A plugin that a layer is offered to.
struct Offer {
  const Plugin* plugin = nullptr;
  std::string method;
  bool named = false;   // by a rule for this layer
  bool winner = false;  // its findings about tensors are errors, not reasons
  std::string origin;   // of the rule
};

class FormatPlanner {
 public:
  FormatPlanner(const PluginHost& host, PlanState& state) : host_(host), s_(state) {}

  void run();  // fills the state and what follows; throws E1xx to E4xx

  std::vector<PluginScore> scores;
  std::string choice;
  std::vector<std::string> ignored, unused, warnings;

  // Which scheme a unit is in, as --plugin would name it.
  static std::string scheme_of(const Unit& u);
  std::string tier_of(const Unit& u) const;
  std::string name_of(const Unit& u) const;

 private:
  struct Rule {
    Offer offer;
    std::string match;
    bool used;
  };
  struct Answer {
    std::optional<Unit> unit;
    bool split = false;
    std::string declined;
  };

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

  // format_planner.cpp
  void view_models();
  int score_of(const Plugin& p, const qe_model& model, std::string& why);
  void detect();
  const PluginScore* score_for(const Plugin* p) const;
  void choose();
  void explain();
  // Whether a plugin said that it reads at least parts of this checkpoint.
  bool claims(const Plugin* plugin) const;
  void apply_fallback_policy();

  // format_planner_tensors.cpp
  std::vector<std::string> tensors_of(const std::string& module) const;
  bool equal(const Tensor& a, const Tensor& b) const;
  void prepare_layers();
  void find_stored_together();
  void find_padded_vocabulary();
  void need_dense(const std::string& name, std::int64_t n) { dense_.emplace_back(name, n); }
  Error missing_tensor(const std::string& name, const std::string& from) const;
  void check_dense(const std::string& name, std::int64_t n) const;
  void settle_ledger();

  // format_planner_rules.cpp
  void resolve_rules();
  bool matches(const std::string& pattern, const std::string& name, const std::string& where) const;
  // The names that a part answers to.
  std::vector<std::string> aliases_of(const LayerSpec& layer, const PartSpec& part) const;
  const Rule* rule_for(const LayerSpec& layer, const PartSpec& part);
  void check_required_formats();
  std::vector<std::string> module_names() const;
  void no_match(const std::string& rule, const std::string& where);
  void report_rules();

  // format_planner_offers.cpp
  std::vector<Offer> offers_for(const LayerSpec& layer, const PartSpec& part);
  int flags_for(bool named) const;
  Answer offer(const Offer& o, std::size_t layer, std::size_t part, std::size_t n_parts);
  // "" when all is there. A reason to decline when a part has none of the tensors, or when the plugin
  // was only one of the possible ones; an error when the winner's tensors are damaged.
  std::string check_tensors(const Offer& o, const Unit& unit);
  std::string present(const std::string& module) const;
  // A module of which the checkpoint holds nothing: whoever would have got it says what it looked for.
  Error absent(const Plugin& p, std::size_t layer, std::size_t part, const std::string& why);
  void plan_layer(std::size_t i);
  // False: nobody takes these parts together. Throws when a single part finds nobody.
  bool plan_unit(std::size_t i, std::size_t part, std::size_t n_parts);

  // format_planner_cuts.cpp
  // Why this model cannot be cut into `size`; "" when it can.
  std::string illegal_cut(int size);
  void check_cut();

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

}  // namespace qengine
