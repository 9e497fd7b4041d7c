#include "config.hpp"

#include <algorithm>

namespace qengine::gptq {
namespace {

using packed::ConfigView;
using packed::lower;

// Reads bits, group_size, sym and desc_act at `prefix` over what is there already.
void read_parameters(const ConfigView& view, const std::string& prefix, Parameters& p, std::string& problem) {
  const auto integer = [&](std::initializer_list<const char*> spellings, const char* supported) -> std::optional<std::int64_t> {
    for (const char* key : spellings) {
      if (!view.has(prefix + key)) continue;
      const auto v = view.whole(prefix + key);
      if (!v && problem.empty()) problem = key + (" is " + view.shown(prefix + key)) + "; supported: " + supported;
      return v;
    }
    return std::nullopt;
  };
  if (const auto bits = integer({"bits", "w_bit", "wbits"}, "2 to 8")) {
    if ((*bits < 2 || *bits > 8) && problem.empty()) problem = qe::format("bits is %lld; supported: 2 to 8", static_cast<long long>(*bits));
    p.bits = static_cast<int>(std::clamp<std::int64_t>(*bits, 0, 64));
  }
  if (const auto group = integer({"group_size", "q_group_size"}, "-1 and positive numbers")) {
    if ((*group == 0 || *group < -1) && problem.empty())
      problem = qe::format("group_size is %lld; supported: -1 and positive numbers", static_cast<long long>(*group));
    p.group_size = *group;
  }
  if (view.has(prefix + "sym")) p.sym = view.flag(prefix + "sym", true), p.sym_given = true;
  p.desc_act = view.flag(prefix + "desc_act", p.desc_act);
}

// AutoRound matches its extra_config by exact name, and by search where the name holds regex characters.
std::string autoround_pattern(const std::string& key) {
  return key.find_first_of("*+?^$()[]{}|\\") == std::string::npos ? key : "re:.*(?:" + key + ")";
}

// What AutoRound packed for: packing_format, or in files of before that key `backend`, which else is a reader's wish.
std::string autoround_packing(const ConfigView& view) {
  if (const auto packing = view.text("packing_format")) return lower(*packing);
  const std::string backend = lower(view.text("backend").value_or(""));
  const auto names = [&](const char* text) { return backend.starts_with(text); };
  return names("auto_round:") || names("auto-round:") || names("autoround:") ? backend : "auto_round:auto_gptq";
}

}  // namespace

const char* disk_format_text(DiskFormat f) {
  switch (f) {
    case DiskFormat::kGptq: return "gptq";
    case DiskFormat::kGptqV2: return "gptq_v2";
    case DiskFormat::kPlanar: return "gptq_p";
    case DiskFormat::kMarlin: return "marlin";
  }
  return "?";
}

Config Config::read(qe_cfg cfg) {
  const ConfigView view(cfg);
  Config c;
  const auto complain = [&](std::string text) {
    if (c.problem.empty()) c.problem = std::move(text);
  };
  const std::string method = lower(view.text("quant_method").value_or(view.text("method").value_or("gptq")));
  c.dialect = method.ends_with("auto-round") ? Dialect::kAutoRound : Dialect::kGptq;
  read_parameters(view, "", c.base, c.problem);

  std::string label = lower(view.text("checkpoint_format").value_or(view.text("format").value_or("gptq")));
  if (c.dialect == Dialect::kAutoRound) {
    const std::string packing = autoround_packing(view);
    const auto packs = [&](const char* kind) { return packing.find(kind) != std::string::npos; };
    const bool own = packing == "auto_round" || packs("exllamav2") || packs("triton");
    if (!packs("gptq") && !own) complain("packing_format is " + packing + "; supported: auto_round, auto_round:auto_gptq, auto_round:gptqmodel");
    if (const auto type = view.text("data_type"); type && lower(*type) != "int") complain("data_type is " + *type + "; supported: int");
    // Its own packing and GPTQModel's keep zero points as they are, AutoGPTQ's one less.
    if (label.starts_with("auto_round") || (!view.has("checkpoint_format") && !view.has("format")))
      label = packs("gptqmodel") || !packs("gptq") ? "gptq_v2" : "gptq";
  }
  if (method == "marlin" || view.flag("is_marlin_format", false)) label = "marlin";
  if (label == "gptq") {
    c.format = DiskFormat::kGptq;
  } else if (label == "gptq_v2") {
    c.format = DiskFormat::kGptqV2;
  } else if (label == "gptq_p") {
    c.format = DiskFormat::kPlanar;
  } else if (label == "marlin") {
    c.format = DiskFormat::kMarlin;
    if (c.base.bits == 0) c.base.bits = 4;  // the first Marlin files give the group size only
  } else {
    complain("checkpoint_format is " + label + "; supported: gptq, gptq_v2, gptq_p, marlin");
  }

  if (c.base.bits == 0) complain("bits is absent; supported: 2 to 8");
  if (c.base.group_size == 0) complain("group_size is absent; supported: -1 and positive numbers");
  if (const auto type = view.text("pack_dtype"); type && lower(*type) != "int32" && lower(*type) != "torch.int32")
    complain("pack_dtype is " + *type + "; supported: int32");
  for (const char* key : {"rotation", "adapter"})
    if (view.has(key) && view.text(key).value_or("given") != "")
      complain(std::string(key) + " is " + view.text(key).value_or("given") + ", which adds arithmetic to the product; supported: null");

  c.lm_head = view.flag("lm_head", false);
  for (const char* key : {"modules_in_block_to_quantize", "modules_to_quantize_inside_block"})
    for (std::int64_t i = 0; i < view.size(key); ++i) {
      const std::string path = std::string(key) + ".#" + std::to_string(i);
      if (const auto name = view.text(path)) c.only.push_back(*name);
      for (std::int64_t j = 0; j < view.size(path); ++j)
        if (const auto name = view.text(path + ".#" + std::to_string(j))) c.only.push_back(*name);
    }

  // Negative rules are asked first, whatever their place.
  for (bool negative : {true, false})
    for (std::int64_t i = 0; i < view.size("dynamic"); ++i) {
      const std::string key = view.key("dynamic", i);
      if (key.starts_with("-:") != negative) continue;
      const std::string pattern = key.starts_with("-:") || key.starts_with("+:") ? key.substr(2) : key;
      c.rules.push_back({"re:" + pattern, key, "dynamic.#" + std::to_string(i) + ".", negative});
    }
  // An exact name of extra_config is asked before a pattern.
  for (bool exact : {true, false})
    for (std::int64_t i = 0; i < view.size("extra_config"); ++i) {
      const std::string key = view.key("extra_config", i), pattern = autoround_pattern(key);
      if ((pattern == key) == exact) c.rules.push_back({pattern, key, "extra_config.#" + std::to_string(i) + ".", false});
    }
  return c;
}

Config::Answer Config::module(qe_cfg cfg, std::string_view name, int role) const {
  const ConfigView view(cfg);
  Answer a{base, {}, {}};
  for (const Rule& rule : rules) {
    if (!qe::match(rule.pattern, name)) continue;
    if (rule.negative) {
      a.not_quantized = "listed in dynamic as " + rule.written;
      return a;
    }
    // AutoRound writes bits of 16 and more for a module that it left alone.
    if (const auto bits = view.whole(rule.path + "bits"); dialect == Dialect::kAutoRound && bits && *bits >= 16) {
      a.not_quantized = "listed in extra_config with " + std::to_string(*bits) + " bits";
      return a;
    }
    read_parameters(view, rule.path, a.parameters, a.problem);
    if (!a.problem.empty()) a.problem += " (rule " + rule.written + ")";
    return a;  // the first rule that matches wins
  }
  if (role == QE_ROLE_EMBED) {
    a.not_quantized = "an embedding";
  } else if (role == QE_ROLE_LM_HEAD && !lm_head) {
    a.not_quantized = "lm_head is false";
  } else if (role != QE_ROLE_LM_HEAD && !only.empty() &&
             std::none_of(only.begin(), only.end(), [&](const std::string& m) { return name.ends_with("." + m) || name == m; })) {
    a.not_quantized = "not listed in modules_in_block_to_quantize";
  }
  return a;
}

}  // namespace qengine::gptq
