#include "core/plugin_host/ledger.hpp"

#include <algorithm>
#include <cctype>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"

namespace qengine {
namespace {

// What may be left over without a word from the user: values that are computed here anyway, and the
// parts of multimodal models that text generation does not use.
std::string_view core_rule(std::string_view name) {
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.cos_cached") || name.ends_with("rotary_emb.sin_cached") ||
      name.ends_with("rope_freqs.weight"))
    return "rotary table, computed from the config";
  if (name.ends_with("attn.masked_bias") || name.ends_with("self_attn.causal_mask")) return "mask, computed here";
  for (const std::string_view prefix : {"model.", ""}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    for (const std::string_view tower : {"vision_tower.", "vision_model.", "multi_modal_projector.", "visual.", "audio_tower.", "embed_audio.", "embed_vision."})
      if (rest.starts_with(tower)) return "vision or audio tower, not used for text";
  }
  return {};
}

std::string last_component(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

}  // namespace

bool scale_like(std::string_view name) {
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : {"scale", "zero", "absmax", "amax", "quant", "qweight", "packed", "g_idx", "scb", "weight_shape", "codebook"})
    if (lower.find(word) != std::string::npos) return true;
  return false;
}

Ledger::Result Ledger::close(const Checkpoint& checkpoint, std::span<const std::string> ignore_rules) const {
  Result result;
  const Matcher matcher;
  std::vector<bool> rule_used(ignore_rules.size());
  for (const Tensor& t : checkpoint.tensors()) {
    if (used.contains(t.name)) continue;
    if (const std::string_view rule = core_rule(t.name); !rule.empty()) {
      result.ignored.push_back(t.name + " (" + std::string(rule) + ")");
      continue;
    }
    bool ignored = false;
    for (std::size_t i = 0; i < ignore_rules.size() && !ignored; ++i) {
      std::string problem;
      ignored = matcher.matches(ignore_rules[i], t.name, &problem);
      if (!problem.empty()) throw Error("E101", "--ignore-tensor " + ignore_rules[i] + " is no valid pattern: " + problem).hint("exact names, globs and re: followed by a regular expression are read");
      if (ignored) {
        rule_used[i] = true;
        result.ignored.push_back(t.name + " (--ignore-tensor " + ignore_rules[i] + ")");
      }
    }
    if (ignored) continue;
    const auto dot = t.name.rfind('.');
    const bool beside = dot != std::string::npos && t.name.substr(dot) != ".weight" && quantized.contains(std::string_view(t.name).substr(0, dot));
    if (!beside && !scale_like(t.name)) {
      result.left_over.push_back(t.name);
      continue;
    }
    const std::vector<std::string> names(expected.begin(), expected.end());
    const std::string closest = nearest(t.name, names, 24);
    Error e("E203", "tensor " + t.name + " is used by nothing");
    if (static_cast<std::size_t>(t.file) < checkpoint.files().size()) e.in(checkpoint.files()[t.file].path.filename().string());
    e.from(std::string(scale_like(t.name) ? "scale-like name" : "it lies beside the tensors of a quantized matrix") + (closest.empty() ? "" : "; closest expected: " + closest));
    throw e.hint("a misread scale gives wrong text; if it is meant to be unused: --ignore-tensor 're:.*" + last_component(t.name) + "'");
  }
  for (std::size_t i = 0; i < ignore_rules.size(); ++i)
    if (!rule_used[i]) result.unused_rules.push_back(ignore_rules[i]);
  return result;
}

}  // namespace qengine
