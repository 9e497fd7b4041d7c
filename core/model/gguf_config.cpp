// GGUF names and metadata in Hugging Face terms: formats.md 9.5 read from left to right.
#include <qe/plugin.h>

#include <charconv>
#include <cmath>

#include "core/model/gguf.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

struct Names {
  std::string_view gguf, hf;
};

constexpr Names kModules[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr Names kLayerModules[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// Keys that only change their name. One that begins with a dot lies below the architecture's own name.
constexpr Names kKeys[] = {
    {".block_count", "num_hidden_layers"},
    {".embedding_length", "hidden_size"},
    {".feed_forward_length", "intermediate_size"},
    {".attention.head_count", "num_attention_heads"},
    {".attention.head_count_kv", "num_key_value_heads"},
    {".attention.key_length", "head_dim"},
    {".context_length", "max_position_embeddings"},
    {".attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {".rope.freq_base", "rope_theta"},
    {".vocab_size", "vocab_size"},
    {".expert_count", "num_local_experts"},
    {".attn_logit_softcapping", "attn_logit_softcapping"},
    {".final_logit_softcapping", "final_logit_softcapping"},
    {"tokenizer.ggml.bos_token_id", "bos_token_id"},
    {"tokenizer.ggml.eos_token_id", "eos_token_id"},
    {"tokenizer.ggml.padding_token_id", "pad_token_id"},
};

constexpr Names kScalingKeys[] = {
    {".rope.scaling.type", "rope_type"},
    {".rope.scaling.factor", "factor"},
    {".rope.scaling.original_context_length", "original_max_position_embeddings"},
    {".rope.scaling.yarn_beta_fast", "beta_fast"},
    {".rope.scaling.yarn_beta_slow", "beta_slow"},
};

constexpr Names kArchitectures[] = {
    {"llama", "LlamaForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
};

std::string full_key(std::string_view architecture, std::string_view key) {
  return key.starts_with('.') ? std::string(architecture) + std::string(key) : std::string(key);
}

// Some writers give one number per layer where all are the same.
Json one_value(const GgufPair& pair) {
  if (pair.type != GgufType::kArray || pair.count == 0 || pair.count > 4096) return gguf_json(pair);
  Json all = gguf_json(pair);
  for (const Json& v : all)
    if (v != all.front()) return all;
  return all.front();
}

}  // namespace

std::string hf_name(std::string_view name) {
  const auto dot = name.rfind('.');
  if (dot == name.npos) return std::string(name);
  std::string_view module = name.substr(0, dot);
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::string(name);
  for (const auto& [gguf, hf] : kModules)
    if (module == gguf) return std::string(hf) + std::string(kind);
  if (!module.starts_with("blk.")) return std::string(name);
  module.remove_prefix(4);
  const auto end = module.find('.');
  if (end == module.npos || end == 0 || end > 9 || module.substr(0, end).find_first_not_of("0123456789") != module.npos)
    return std::string(name);
  for (const auto& [gguf, hf] : kLayerModules)
    if (module.substr(end + 1) == gguf)
      return "model.layers." + std::string(module.substr(0, end)) + "." + std::string(hf) + std::string(kind);
  return std::string(name);
}

std::string gguf_name(std::string_view name) {
  const auto dot = name.rfind('.');
  if (dot == name.npos) return std::string(name);
  std::string_view module = name.substr(0, dot);
  const std::string kind(name.substr(dot));
  for (const auto& [gguf, hf] : kModules)
    if (module == hf) return std::string(gguf) + kind;
  if (!module.starts_with("model.layers.")) return std::string(name);
  module.remove_prefix(13);
  const auto end = module.find('.');
  if (end == module.npos) return std::string(name);
  for (const auto& [gguf, hf] : kLayerModules)
    if (module.substr(end + 1) == hf) return "blk." + std::string(module.substr(0, end)) + "." + std::string(gguf) + kind;
  return std::string(name);
}

std::string gguf_key(std::string_view architecture, std::string_view config_key) {
  for (const auto& [gguf, hf] : kKeys)
    if (hf == config_key) return full_key(architecture, gguf);
  for (const auto& [gguf, hf] : kScalingKeys)
    if (hf == config_key) return full_key(architecture, gguf);
  if (config_key == "partial_rotary_factor") return full_key(architecture, ".rope.dimension_count");
  if (config_key == "sliding_window") return full_key(architecture, ".attention.sliding_window");
  if (config_key == "architectures") return "general.architecture";
  return {};
}

Json gguf_config(const GgufFile& file, std::span<const Tensor> tensors, std::vector<std::string>& warnings) {
  const std::string arch(file.string("general.architecture").value_or(""));
  const auto find = [&](std::string_view name) -> const Tensor* {
    for (const Tensor& t : tensors)
      if (t.name == name) return &t;
    return nullptr;
  };
  const auto pair = [&](std::string_view suffix) { return file.find(full_key(arch, suffix)); };

  Json out = Json::object();
  std::string architecture = printable(arch);
  for (const auto& [gguf, hf] : kArchitectures)
    if (arch == gguf) architecture = hf;
  out["architectures"] = Json::array({architecture});
  out["model_type"] = printable(arch);
  for (const auto& [gguf, hf] : kKeys)
    if (const GgufPair* p = pair(gguf)) out[std::string(hf)] = one_value(*p);

  if (!out.contains("vocab_size")) {
    const GgufPair* tokens = file.find("tokenizer.ggml.tokens");
    const Tensor* embedding = find("model.embed_tokens.weight");
    if (tokens != nullptr && tokens->type == GgufType::kArray && tokens->count > 0)
      out["vocab_size"] = tokens->count;
    else if (embedding != nullptr && embedding->shape.size() == 2)
      out["vocab_size"] = embedding->shape[0];
  }
  out["tie_word_embeddings"] = find("lm_head.weight") == nullptr;
  out["hidden_act"] = "silu";

  // Head size: rotary part and value size.
  std::int64_t head_dim = file.integer(full_key(arch, ".attention.key_length")).value_or(0);
  if (head_dim == 0) {
    const auto hidden = file.integer(full_key(arch, ".embedding_length")).value_or(0);
    const Json heads = out.value("num_attention_heads", Json());
    if (heads.is_number_integer() && heads.get<std::int64_t>() > 0) head_dim = hidden / heads.get<std::int64_t>();
  }
  if (const GgufPair* p = pair(".attention.value_length"))
    out["value_length"] = one_value(*p);
  if (const auto rotary = file.integer(full_key(arch, ".rope.dimension_count")))
    if (head_dim > 0) out["partial_rotary_factor"] = static_cast<double>(*rotary) / static_cast<double>(head_dim);

  // Rotary scaling. "none" is the default kind; the old spelling is a factor alone.
  Json scaling = Json::object();
  for (const auto& [gguf, hf] : kScalingKeys)
    if (const GgufPair* p = pair(gguf)) scaling[std::string(hf)] = gguf_json(*p);
  if (const GgufPair* p = pair(".rope.scale_linear"); p != nullptr && !scaling.contains("rope_type")) {
    scaling["rope_type"] = "linear";
    scaling["factor"] = gguf_json(*p);
  }
  if (scaling.contains("factor") && !scaling.contains("rope_type")) scaling["rope_type"] = "linear";
  // Linear is the kind of a file that names none, and a factor of 0 or none at all leaves it without effect.
  const Json stretch = scaling.value("factor", Json());
  const bool idle = scaling.value("rope_type", Json()) == "linear" && (stretch.is_null() || (stretch.is_number() && stretch.get<double>() == 0));
  if (idle || scaling.value("rope_type", Json()) == "none") scaling["rope_type"] = "default";
  if (scaling.contains("rope_type")) {
    // The attention factor of the file multiplies the one that follows from the scaling factor.
    const Json factor = scaling.value("factor", Json());
    if (const GgufPair* p = pair(".rope.scaling.attn_factor"); p != nullptr && factor.is_number()) {
      const Json own = gguf_json(*p);
      const double s = factor.get<double>();
      if (own.is_number() && own.get<double>() > 0 && s > 0)
        scaling["attention_factor"] = own.get<double>() * (s > 1 ? 0.1 * std::log(s) + 1 : 1);
    }
    out["rope_scaling"] = std::move(scaling);
  }

  if (const GgufPair* p = pair(".attention.sliding_window")) {
    const Json window = one_value(*p);
    if (window.is_number_integer() && window.get<std::int64_t>() > 0) {
      if (arch == "llama")
        out["sliding_window"] = window;
      else
        warnings.push_back(full_key(arch, ".attention.sliding_window") +
                           " is not used: this architecture attends to everything");
    }
  }

  // Other tokens that end a turn.
  Json eos = Json::array();
  if (out.contains("eos_token_id")) eos.push_back(out["eos_token_id"]);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = file.integer(key)) eos.push_back(*id);
  if (eos.size() > 1) out["eos_token_id"] = std::move(eos);
  return out;
}

}  // namespace qengine
