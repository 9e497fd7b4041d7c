#include "apps/qengine/written_model.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "apps/qengine/export_tokenizer.hpp"
#include "core/base/log.hpp"
#include "core/model/safetensors_writer.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace qengine {

namespace fs = std::filesystem;

namespace {

// Divisors of the rotary frequencies, which only GGUF stores as numbers, as the rule they came from.
// nullopt: no llama3 rule gives them.
std::optional<Json> rope_rule(const ModelConfig& c) {
  const auto& d = c.rope.freq_divisors;
  const double factor = *std::max_element(d.begin(), d.end());
  for (const std::int64_t original : {8192, 4096, 2048, 1024, 512, 256, 128, 16384, 32768}) {
    ModelConfig rule = c;
    rule.rope.freq_divisors.clear();
    rule.rope.kind = "llama3";
    rule.rope.factor = factor;
    rule.rope.low_freq_factor = 1;
    rule.rope.high_freq_factor = 4;
    rule.rope.original_max_position = original;
    float attention = 1, other = 1;
    const auto a = rope_inv_freq(c, &attention), b = rope_inv_freq(rule, &other);
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = std::abs(a[i] / b[i] - 1) < 1e-4;
    if (same) return Json{{"rope_type", "llama3"}, {"factor", factor}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", original}};
  }
  return std::nullopt;
}

}  // namespace

std::vector<DenseTensor> dense_tensors(const OpenModel& m) {
  const ModelConfig& c = m.config;
  std::vector<DenseTensor> out;
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    out.push_back({layer + "input_layernorm.weight", {c.hidden_size}});
    out.push_back({layer + "post_attention_layernorm.weight", {c.hidden_size}});
    if (c.qk_norm) {
      out.push_back({layer + "self_attn.q_norm.weight", {c.head_dim}});
      out.push_back({layer + "self_attn.k_norm.weight", {c.head_dim}});
    }
  }
  out.push_back({"model.norm.weight", {c.hidden_size}});
  for (const LayerSpec& l : m.plan->layers())
    for (const PartSpec& p : l.parts)
      if (p.bias) out.push_back({p.name + ".bias", {p.n}});
  return out;
}

bool has_role(const FormatPlan& plan, int role) {
  for (const LayerSpec& l : plan.layers())
    for (const PartSpec& p : l.parts)
      if (p.role == role) return true;
  return false;
}

Json written_config(const OpenModel& m, bool bf16) {
  Json config = m.checkpoint->config();
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    // The language half of a wrapped model stands alone from here on.
    Json inner = *text;
    for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"})
      if (!inner.contains(key) && config.contains(key)) inner[key] = config[key];
    config = std::move(inner);
    config["architectures"] = {m.config.architecture};
    config["model_type"] = m.config.model_type;
  }
  for (const char* key : {"quantization_config", "compression_config", "rope_freq_divisors", "torch_dtype"}) config.erase(key);
  if (!m.config.rope.freq_divisors.empty()) {
    if (auto rule = rope_rule(m.config)) config["rope_scaling"] = std::move(*rule);
    else throw Error("E207", "the rotary frequencies of this file follow no rule that config.json can express").in(m.checkpoint->path().string()).from("rope_freqs.weight");
  }
  config["dtype"] = config["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  config["vocab_size"] = m.config.vocab_size;
  const bool tied = m.config.tied && !(has_role(*m.plan, QE_ROLE_EMBED) && has_role(*m.plan, QE_ROLE_LM_HEAD));
  config["tie_word_embeddings"] = tied;
  return config;
}

std::string pretty(const Json& j) { return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

void write_tokenizer(const Invocation& in, const OpenModel& m, const fs::path& folder) {
  std::error_code ec;
  const fs::path source = in.values.has("tokenizer") ? fs::path(in.values.text("tokenizer")) : m.checkpoint->folder();
  const bool gguf = m.checkpoint->kind() == Checkpoint::Kind::kGguf && !in.values.has("tokenizer");
  if (gguf && m.checkpoint->gguf_metadata().contains("tokenizer.ggml.model")) {
    Tokenizer::load(*m.checkpoint);  // every check on its parts
    if (const auto files = tokenizer_files(*m.checkpoint)) {
      write_file_safely(folder / "tokenizer.json", files->tokenizer.dump(-1, ' ', false, Json::error_handler_t::replace));
      write_file_safely(folder / "tokenizer_config.json", pretty(files->tokenizer_config));
      if (!files->chat_template.empty()) write_file_safely(folder / "chat_template.jinja", files->chat_template);
    } else {
      log("export").warn("the file's tokenizer has no form that tokenizer.json could hold; none is written");
    }
    return;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"})
    if (fs::exists(source / name, ec)) write_file_safely(folder / name, read_text((source / name).string(), 256 << 20));
  if (!fs::exists(folder / "tokenizer.json", ec) && !fs::exists(folder / "tokenizer.model", ec)) log("export").warn("no tokenizer in {}; none is written", source.string());
}

OutputFolder::OutputFolder(const Invocation& in) {
  if (!in.values.has("output")) throw Error("E101", "no --output").hint("--output DIR says where the model goes");
  folder_ = in.values.text("output");
  if (!folder_.has_filename()) folder_ = folder_.parent_path();  // "out/"
  std::error_code ec;
  if (fs::exists(folder_, ec) && (!fs::is_directory(folder_, ec) || !fs::is_empty(folder_, ec)))
    throw Error("E108", folder_.string() + " is there already and not an empty folder").hint("name another --output, or remove it first");
  const fs::path parent = folder_.has_parent_path() ? folder_.parent_path() : fs::path(".");
  temporary_ = parent / ("." + folder_.filename().string() + ".part-" + std::to_string(getpid()));
  fs::create_directories(temporary_, ec);
  if (ec) throw Error("E108", "cannot make " + temporary_.string() + ": " + ec.message());
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
  std::error_code ec;
  fs::remove(folder_, ec);  // an empty one
  fs::rename(temporary_, folder_, ec);
  if (ec) throw Error("E108", "cannot rename " + temporary_.string() + " to " + folder_.string() + ": " + ec.message());
  temporary_.clear();
}

}  // namespace qengine
