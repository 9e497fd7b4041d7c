// Rules of the user and of the checkpoint: which layers they mean, and those that mean none.
#include "core/plugin_host/format_planner.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "core/base/nearest.hpp"

namespace qengine {
namespace {

// The letters of a pattern, for "closest name".
std::string letters(const std::string& pattern) {
  std::string out = pattern.starts_with("re:") ? pattern.substr(3) : pattern;
  std::erase_if(out, [](char c) { return std::strchr("*?[]()^$\\+|", c); });
  while (!out.empty() && out[0] == '.') out.erase(0, 1);
  return out;
}

}  // namespace

void FormatPlanner::resolve_rules() {
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

bool FormatPlanner::matches(const std::string& pattern, const std::string& name, const std::string& where) const {
  std::string problem;
  const bool hit = matcher_.matches(pattern, name, &problem);
  if (!problem.empty()) throw Error("E102", "\"" + pattern + "\" is no valid pattern: " + problem).in(where).hint("exact names, globs and re: followed by a regular expression are read");
  return hit;
}

// The names that a part answers to.
std::vector<std::string> FormatPlanner::aliases_of(const LayerSpec& layer, const PartSpec& part) const {
  std::vector<std::string> names{part.name};
  if (layer.name != part.name) names.push_back(layer.name);
  if (!part.stored.empty() && part.stored != layer.name && part.stored != part.name) names.push_back(part.stored);
  return names;
}

const FormatPlanner::Rule* FormatPlanner::rule_for(const LayerSpec& layer, const PartSpec& part) {
  const Rule* last = nullptr;
  for (Rule& r : rules_)
    for (const std::string& name : aliases_of(layer, part))
      if (matches(r.match, name, r.offer.origin)) {
        r.used = true;
        last = &r;
      }
  return last;
}

void FormatPlanner::check_required_formats() {
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

std::vector<std::string> FormatPlanner::module_names() const {
  std::set<std::string> out{"lm_head", "model.embed_tokens"};
  for (const LayerSpec& l : s_.layers)
    for (const PartSpec& p : l.parts) out.insert({p.name, p.module()});
  for (const std::string& t : names_)
    if (const auto dot = t.rfind('.'); dot != std::string::npos) out.insert(t.substr(0, dot));
  return {out.begin(), out.end()};
}

void FormatPlanner::no_match(const std::string& rule, const std::string& where) {
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

void FormatPlanner::report_rules() {
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

}  // namespace qengine
