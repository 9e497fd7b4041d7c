#include "apps/qengine/dummy_setup.hpp"

#include "core/plan/tables.hpp"

namespace qengine {

namespace fs = std::filesystem;

const SettingGroup& dummy_settings() {
  static const SettingGroup group{
      "Made-up weights (--load-format dummy)",
      {
          {.name = "shape", .value = "NAME", .help = "a well-known model instead of MODEL: qwen3-4b, llama-3.1-8b, ..."},
          {.name = "format", .value = "FORMAT", .shown = "as config.json says; shapes: bf16", .help = "bf16, awq, gptq, gptq8, or what --quantization takes"},
      }};
  return group;
}

std::shared_ptr<const DummyModel> dummy_model(const Invocation& in, FormatOptions& options) {
  const Values& v = in.values;
  const bool dummy = v.knows("load-format") && v.text("load-format") == "dummy";
  const bool shape = v.knows("shape") && v.has("shape"), format = v.knows("format") && v.has("format");
  if (!dummy) {
    if (shape || format) throw Error("E101", std::string(shape ? "--shape" : "--format") + " is for made-up weights").hint("add --load-format dummy");
    return nullptr;
  }
  auto model = std::make_shared<DummyModel>();
  if (shape) {
    if (v.has("model")) throw Error("E101", "both a model and --shape").hint("leave one of them out");
    const KnownShape& known = shape_named(v.text("shape"));
    if (known.shape.experts > 0) throw Error("E101", known.shape.name + " has experts, which no plugin here multiplies").hint("choose another --shape");
    model->config = Json::parse(known.config_json);
  } else {
    if (!v.has("model")) throw Error("E101", "no model").hint("--shape NAME for a well-known one such as qwen3-4b, or a folder with its config.json");
    const fs::path path = v.text("model");
    const auto checkpoint = Checkpoint::open(path, /*config_only=*/true);
    model->config = checkpoint->config();
    model->quant_config = checkpoint->quant_config();
    model->folder = checkpoint->folder();
  }
  if (!format) return model;
  if (!options.quantization.empty()) throw Error("E101", "both --format and --quantization").hint("they say the same; leave one out");
  const std::string name = v.text("format");
  const WeightFormat* f = find_format(name);
  if (name.starts_with("gguf:") || (f && f->gguf)) throw Error("E101", "weights of a GGUF type cannot be made up").hint("--format bf16, awq, gptq, gptq8, or a scheme that is made at load such as fp8_per_channel");
  model->config.erase("quantization_config");
  model->quant_config = f && !f->quant_config_json.empty() ? Json::parse(f->quant_config_json) : Json();
  if (f)
    for (const WeightFormat::Fill& fill : f->fills) model->fills.push_back({fill.tensor, fill.code, fill.bits});
  options.plugin.clear();
  options.quantization = !f ? name : f->quantization;
  return model;
}

}  // namespace qengine
