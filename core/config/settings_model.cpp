// Which model, in which format, through which plugin.
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& model_settings() {
  static const SettingGroup group{
      "Model and format",
      {
          {.name = "model", .kind = Kind::kPath, .value = "DIR", .key = "model.path", .reload = Reload::kSwap,
           .help = "folder with config.json and .safetensors, or a .gguf file; MODEL is the same"},
          {.name = "tokenizer", .kind = Kind::kPath, .value = "DIR", .shown = "the model's", .key = "model.tokenizer",
           .reload = Reload::kSwap, .help = "take the tokenizer from there"},
          {.name = "served-model-name", .kind = Kind::kList, .value = "NAME", .shown = "folder name",
           .key = "model.served_model_name", .help = "name or names that clients may use"},
          {.name = "plugin", .value = "ID[:SCHEME]", .shown = "by detection", .key = "model.plugin",
           .reload = Reload::kSwap, .help = "format plugin, and scheme where it offers several"},
          {.name = "quantization", .letter = 'q', .value = "NAME", .shown = "by detection", .key = "model.quantization",
           .reload = Reload::kSwap, .help = "the same under the names other engines use: gptq, awq, fp8, ..."},
          {.name = "kv-plugin", .value = "ID[:SCHEME]", .shown = "by --kv-cache-dtype", .key = "model.kv_plugin",
           .reload = Reload::kSwap, .help = "plugin of the KV cache"},
          {.name = "kv-cache-dtype", .kind = Kind::kChoice, .value = "auto|bfloat16|float16|float32|fp8|fp8_e4m3|fp8_e5m2",
           .fallback = "auto", .key = "engine.kv_cache_dtype", .reload = Reload::kSwap,
           .help = "KV cache; auto follows the checkpoint"},
          {.name = "dtype", .kind = Kind::kChoice, .value = "auto|half|float16|bfloat16|float|float32",
           .fallback = "auto", .key = "model.dtype", .reload = Reload::kSwap, .help = "type the model computes in"},
          {.name = "load-format", .kind = Kind::kChoice, .value = "auto|safetensors|gguf|dummy", .fallback = "auto",
           .key = "model.load_format", .reload = Reload::kSwap, .help = "kind of files to read; dummy: none, weights are made up"},
          {.name = "generation-config", .value = "auto|vllm|DIR", .fallback = "auto", .key = "model.generation_config",
           .reload = Reload::kLive, .help = "where sampling defaults come from; vllm means neutral ones"},
          {.name = "activation-quant", .kind = Kind::kChoice, .value = "checkpoint|off|dynamic|auto",
           .fallback = "checkpoint", .key = "model.activation_quant", .reload = Reload::kSwap,
           .help = "8-bit activations: as the checkpoint says, none, or per token"},
          {.name = "quantize-lm-head", .kind = Kind::kChoice, .value = "fp8|int8", .key = "model.quantize_lm_head",
           .reload = Reload::kSwap, .help = "quantize the output head too"},
          {.name = "exact", .kind = Kind::kBool, .fallback = "false", .key = "engine.exact", .reload = Reload::kSwap,
           .help = "float32 on the dequantized weights and in the KV cache; the default rounds activations to 16 bits"},
          {.name = "fallback", .kind = Kind::kChoice, .value = "error|warn|allow", .fallback = "warn",
           .key = "engine.fallback", .reload = Reload::kSwap, .help = "when a layer gets no native kernel"},
          {.name = "require-format", .kind = Kind::kTexts, .value = "PATTERN=SCHEME", .key = "engine.require_format",
           .reload = Reload::kSwap, .help = "refuse to start unless these layers are in this scheme"},
          {.name = "ignore-tensor", .kind = Kind::kTexts, .value = "PATTERN", .key = "engine.ignore_tensors",
           .reload = Reload::kSwap, .help = "tensors that may stay unused: name, glob or re:"},
          {.name = "deny-deprecated", .kind = Kind::kBool, .fallback = "false", .key = "engine.deny_deprecated",
           .help = "refuse deprecated names instead of warning"},
          {.name = "allow-deprecated-quantization", .kind = Kind::kBool, .fallback = "false",
           .help = "accepted without effect", .hidden = true},
      }};
  return group;
}

const SettingGroup& plugin_settings() {
  static const SettingGroup group{
      "Plugins",
      {
          {.name = "plugin-path", .kind = Kind::kPaths, .value = "DIR", .key = "plugins.paths",
           .help = "more folders with plugins"},
          {.name = "plugin-opt", .kind = Kind::kTexts, .value = "ID.KEY=VALUE", .reload = Reload::kSwap,
           .help = "an option of a plugin (qengine plugin info ID)"},
          {.name = "trust", .kind = Kind::kChoice, .value = "builtin|hash|any", .fallback = "hash", .key = "plugins.trust",
           .help = "which plugins may be loaded"},
      }};
  return group;
}

}  // namespace qengine
