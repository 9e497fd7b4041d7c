#include "apps/qengine/plan_arm.hpp"

#include <algorithm>

#include "core/plan/tables.hpp"
#include "core/plugin_host/kv_format.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

Shape shape_of(const ModelConfig& c, const std::string& name) {
  Shape s{.name = name, .hidden = c.hidden_size, .intermediate = c.intermediate_size, .layers = c.num_layers, .heads = c.num_heads, .kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim, .vocab = c.vocab_size, .max_position = c.max_position, .tied = c.tied, .qk_norm = c.qk_norm, .q_bias = c.q_bias, .k_bias = c.k_bias,
          .v_bias = c.v_bias, .o_bias = c.o_bias, .mlp_bias = c.mlp_bias};
  if (std::ranges::any_of(c.window, [](std::int32_t w) { return w > 0; })) s.window = c.window;
  return s;
}

Json without_quantization(Json config) {
  config.erase("quantization_config");
  if (config.contains("text_config") && config["text_config"].is_object()) config["text_config"].erase("quantization_config");
  return config;
}

HeadFormat head_format(const std::string& text) { return text == "fp8" ? HeadFormat::kFp8 : text == "int8" ? HeadFormat::kInt8 : HeadFormat::kSame; }

bool has_weights(const fs::path& folder) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec))
    if (entry.path().extension() == ".safetensors" || entry.path().filename().string().ends_with(".safetensors.index.json")) return true;
  return false;
}

// "model.layers.3.mlp.up_proj.qweight" -> "model.layers.3.mlp.gate_up": what is loaded at one go.
std::string fused_module(const std::string& tensor) {
  std::string module = tensor.substr(0, tensor.rfind('.'));
  const std::string last = module.substr(module.rfind('.') + 1);
  const char* fused = last == "q_proj" || last == "k_proj" || last == "v_proj" ? "qkv" : last == "gate_proj" || last == "up_proj" ? "gate_up" : nullptr;
  return fused ? module.substr(0, module.rfind('.') + 1) + fused : module;
}

// The plugins' own numbers, summed by who owns them and what a step reads.
void add_layers(Arm& a, const FormatPlan& plan, const Shape& s) {
  std::map<std::string, std::int64_t> owners;
  const auto& specs = plan.layers();
  for (const LayerReport& r : plan.report()) {
    const std::int64_t bytes = static_cast<std::int64_t>(r.bytes + r.persist_bytes);
    owners[r.plugin] += bytes;
    a.weights.resident += bytes;
    a.weights.load_temp = std::max<std::int64_t>(a.weights.load_temp, static_cast<std::int64_t>(r.load_temp_bytes));
    const bool table = r.index < 0;
    (table ? a.weights.tables : a.weights.matrices) += bytes;
    // An untied embedding is resident, but a step reads only the rows of its tokens.
    const bool embedding = table && !r.tied && !s.tied && r.name.find("embed_tokens") != r.name.npos;
    if (!embedding) a.weights.read += bytes;
  }
  // Norms and biases, which core keeps as float32; a fused layer has a bias for all of its parts or for none.
  std::int64_t small = s.norm_params();
  for (const LayerSpec& l : specs)
    if (std::ranges::any_of(l.parts, &PartSpec::bias))
      for (const PartSpec& p : l.parts) small += p.n;
  a.weights.small = small * 4;
  owners["core"] += a.weights.small;
  a.weights.resident += a.weights.small;
  a.weights.read += a.weights.small;
  a.by_plugin = Json::object();
  for (const auto& [owner, bytes] : owners) a.by_plugin[owner] = bytes;
  a.by_owner = {{"matrices", a.weights.matrices}, {"embeddings", a.weights.tables}, {"norms", a.weights.small}};
  a.layers = layers_json(plan);
}

}  // namespace

PlanSource::PlanSource(const Invocation& in) : in_(in) {
  const Values& v = in.values;
  if (v.has("shape") == v.has("model"))
    throw Error("E101", v.has("shape") ? "both a model and --shape" : "no model").hint("qengine plan MODEL, or --shape NAME for a well-known one such as qwen3-4b");
  if (v.has("shape")) {
    const KnownShape& known = shape_named(v.text("shape"));
    shape_ = known.shape;
    plain_config_ = Json::parse(known.config_json);
    architecture_ = plain_config_["architectures"][0];
    if (shape_.experts == 0) checkpoint_ = Checkpoint::from_config(plain_config_);
    return;
  }
  const fs::path path = model_path(in);
  checkpoint_ = Checkpoint::open(path, fs::is_directory(path) && !has_weights(path), host().dialects());
  const ModelConfig config = read_model_config(*checkpoint_);
  shape_ = shape_of(config, path.filename().empty() ? path.parent_path().filename().string() : path.filename().string());
  architecture_ = config.architecture;
  plain_config_ = without_quantization(checkpoint_->config());
}

bool PlanSource::quantized() const { return checkpoint_ && !checkpoint_->quant_config().is_null(); }

const PluginHost& PlanSource::host() const {
  if (!host_) {
    host_ = std::make_unique<PluginHost>(plugin_options(in_));
    host_->scan();
    pool_ = std::make_unique<ThreadPool>(1);
  }
  return *host_;
}

void PlanSource::add_stored(Arm& a) const {
  a.stored = true;
  const bool as_it_is = a.name.format.empty() && checkpoint_ && !checkpoint_->tensors().empty();
  if (as_it_is) {
    std::int64_t embedding = 0;
    std::map<std::string, std::int64_t> fused;
    for (const Tensor& t : checkpoint_->tensors()) {
      const auto bytes = static_cast<std::int64_t>(t.bytes);
      a.weights.resident += bytes;
      const bool table = t.name.find("embed_tokens") != t.name.npos || t.name.starts_with("lm_head");
      const bool small = t.name.ends_with("norm.weight") || t.name.ends_with(".bias");
      (table ? a.weights.tables : small ? a.weights.small : a.weights.matrices) += bytes;
      if (!shape_.tied && t.name.find("embed_tokens") != t.name.npos) embedding += bytes;
      if (!table && !small) fused[fused_module(t.name)] += bytes;
    }
    a.weights.read = a.weights.resident - embedding;
    for (const auto& [module, bytes] : fused) a.weights.load_temp = std::max(a.weights.load_temp, bytes);
    a.by_owner = {{"matrices", a.weights.matrices}, {"embeddings", a.weights.tables}, {"norms", a.weights.small}};
    a.notes.push_back("weights as the tensors lie in the files");
  } else {
    if (a.name.format.empty() && quantized()) throw Error("E101", "the files of this checkpoint are not here: its bytes are not known without asking the plugins").hint("--bytes resident");
    const WeightFormat& f = format_named(a.name.format.empty() ? "bf16" : a.name.format);
    a.weights = stored_weights(shape_, f, head_format(in_.values.text("quantize-lm-head")));
    a.math = f.math;
    a.bits = static_cast<int>(f.bits);
    a.by_owner = {{"codes", a.weights.codes}, {"scales", a.weights.matrices - a.weights.codes}, {"embeddings", a.weights.tables}, {"norms", a.weights.small}};
  }
  a.by_plugin = Json::object();
  a.layers = Json::array();

  a.kv_dtype = a.name.kv;
  if (a.kv_dtype == "auto") {
    const Json* quant = checkpoint_ && quantized() && a.name.format.empty() ? &checkpoint_->quant_config() : nullptr;
    const bool narrow = quant && quant->contains("kv_cache_scheme") && (*quant)["kv_cache_scheme"].is_object();
    a.kv_dtype = narrow ? "fp8" : "bfloat16";
  }
  a.kv_bytes_per_token = kv_bytes_per_token(shape_, a.kv_dtype == "float32" ? 32 : a.kv_dtype.starts_with("fp8") ? 8 : 16);
}

void PlanSource::add_resident(Arm& a, const Card& card) const {
  if (!checkpoint_) throw Error("E101", shape_.name + " has experts, which no plugin here multiplies: only formulas are known for it").hint("--bytes stored");
  FormatOptions options = format_options(in_);
  options.fallback = Fallback::kAllow;
  options.m_max = in_.values.integer("max-num-batched-tokens", 2048);
  std::shared_ptr<const Checkpoint> checkpoint = checkpoint_;
  if (!a.name.format.empty()) {
    const WeightFormat* f = find_format(a.name.format);
    if (f && f->gguf) throw Error("E101", "a shape in " + f->name + " has no file, and GGUF is planned from its file").hint("--bytes stored, or name the .gguf file as MODEL");
    checkpoint = Checkpoint::from_config(plain_config_, f && !f->quant_config_json.empty() ? Json::parse(f->quant_config_json) : Json(), host().dialects());
    options.plugin.clear();
    options.quantization = !f ? a.name.format : f->quantization;
    if (f) a.math = f->math, a.bits = static_cast<int>(f->bits);
  }
  const ModelConfig config = read_model_config(*checkpoint);
  std::unique_ptr<FormatPlan> plan;
  const std::string card_name = card.sm ? "sm" + std::to_string(card.sm) : "";
  if (card.sm) {
    FormatOptions on_card = options;
    on_card.device = {.struct_size = sizeof(qe_device), .kind = QE_CUDA, .sm = card.sm, .mem_bytes = static_cast<std::uint64_t>(card.memory_bytes)};
    try {
      plan = FormatPlan::make(host(), checkpoint, config, on_card);
    } catch (const Error& e) {
      // Not this format at all is an error below, too; no kernels for the card is said and counted as on the CPU.
      a.notes.push_back("no installed plugin runs " + (a.name.format.empty() ? std::string("this checkpoint") : a.name.format) + " on " + card_name + ": bytes are those of the CPU container");
    }
  }
  if (!plan) plan = FormatPlan::make(host(), checkpoint, config, options);
  add_layers(a, *plan, shape_);

  KvFormatOptions kv{.dtype = a.name.kv, .plugin = in_.values.text("kv-plugin"), .block_tokens = static_cast<std::int32_t>(in_.values.integer("block-size", 16))};
  if (const auto format = KvFormat::make(host(), checkpoint, config, kv, *pool_)) {
    a.kv_dtype = a.name.kv != "auto" ? a.name.kv : format->scheme().empty() ? format->plugin().name : format->scheme();
    a.kv_bytes_per_token = static_cast<std::int64_t>(format->bytes_per_token());
    a.by_plugin[format->plugin().name] = 0;
    return;
  }
  a.kv_dtype = a.name.kv;
  if (a.kv_dtype == "auto") a.kv_dtype = in_.values.text("dtype") == "auto" ? (config.dtype.empty() ? "bfloat16" : config.dtype) : in_.values.text("dtype");
  if (a.kv_dtype == "half") a.kv_dtype = "float16";
  if (a.kv_dtype == "float") a.kv_dtype = "float32";
  a.kv_bytes_per_token = kv_bytes_per_token(shape_, a.kv_dtype == "float32" ? 32 : 16);
}

Arm PlanSource::arm(const ArmName& name, const Card& card, bool stored) const {
  Arm a{.name = name};
  if (stored) add_stored(a);
  else add_resident(a, card);
  a.kv_block_bytes = a.kv_bytes_per_token * in_.values.integer("block-size", 16);
  a.kv_narrow = a.kv_bytes_per_token < kv_bytes_per_token(shape_, 16);
  if (card.sm) {
    if (((a.math == "fp8" || a.kv_narrow) && !card.fp8) || (a.math == "fp4" && !card.fp4))
      a.notes.push_back(card.label + " has no native " + (a.math == "fp4" ? "FP4" : "FP8") + ": storage only, bf16 math; room and bandwidth are gained, prefill speed is not");
  }
  return a;
}

}  // namespace qengine
