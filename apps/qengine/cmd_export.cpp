// export: any readable checkpoint as plain safetensors under Hugging Face names and row order, through
// the plugins' own dequantization. One layer is in memory at a time; the folder appears when it is whole.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/qengine/command.hpp"
#include "apps/qengine/export_tokenizer.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/log.hpp"
#include "core/base/thread_pool.hpp"
#include "core/model/safetensors_writer.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

const SettingGroup& export_settings() {
  static const SettingGroup group{"Export",
                                  {
                                      {.name = "output", .kind = Kind::kPath, .value = "DIR", .help = "folder to make"},
                                      {.name = "dtype", .kind = Kind::kChoice, .value = "bf16|f32", .fallback = "bf16", .help = "f32 is the exact dequantized value, bf16 rounded from it"},
                                  }};
  return group;
}

// Tensors that core itself reads: norms and biases, with their shapes.
struct Dense {
  std::string name;
  std::vector<std::int64_t> shape;
};

std::vector<Dense> dense_tensors(const OpenModel& m) {
  const ModelConfig& c = m.config;
  std::vector<Dense> out;
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

// The name a matrix goes by: a tied model has one for head and embedding.
std::string weight_name(const PartSpec& p, bool tied) { return (tied && p.role == QE_ROLE_LM_HEAD ? std::string("model.embed_tokens") : p.name) + ".weight"; }

class Output {
 public:
  Output(SafetensorsWriter& file, bool bf16) : file_(file), bf16_(bf16) {}
  void write(std::span<const float> values) {
    if (!bf16_) return file_.write(values);
    rounded_.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) rounded_[i] = bf16_from_float(values[i]);
    file_.write(std::as_bytes(std::span(rounded_)));
  }

 private:
  SafetensorsWriter& file_;
  bool bf16_;
  std::vector<std::uint16_t> rounded_;
};

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

// config.json of the exported model: the checkpoint's own without a word about quantization.
Json exported_config(const OpenModel& m, bool bf16) {
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

int run(const Invocation& in) {
  if (!in.values.has("output")) throw Error("E101", "no --output").hint("--output DIR says where the model goes");
  fs::path folder = in.values.text("output");
  if (!folder.has_filename()) folder = folder.parent_path();  // "out/"
  std::error_code ec;
  if (fs::exists(folder, ec) && (!fs::is_directory(folder, ec) || !fs::is_empty(folder, ec)))
    throw Error("E108", folder.string() + " is there already and not an empty folder").hint("name another --output, or remove it first");
  const OpenModel m = open_model(in);
  const FormatPlan& plan = *m.plan;
  const bool bf16 = in.values.text("dtype") == "bf16";
  const bool tied = !has_role(plan, QE_ROLE_EMBED);
  const std::string dtype = bf16 ? "BF16" : "F32";
  ThreadPool pool(static_cast<int>(in.values.integer("threads", 0)));

  std::vector<SafetensorsEntry> entries;
  const std::vector<Dense> dense = dense_tensors(m);
  for (const Dense& d : dense) entries.push_back({d.name, dtype, d.shape});
  std::uint64_t bytes = 0;
  for (const LayerSpec& l : plan.layers())
    for (const PartSpec& p : l.parts) entries.push_back({weight_name(p, tied), dtype, {p.n, l.k}});

  // Everything goes into a folder of another name first.
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  const fs::path temporary = parent / ("." + folder.filename().string() + ".part-" + std::to_string(getpid()));
  fs::create_directories(temporary, ec);
  if (ec) throw Error("E108", "cannot make " + temporary.string() + ": " + ec.message());
  struct Remove {
    const fs::path& path;
    ~Remove() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } remove{temporary};

  const GracefulStop stop;
  {
    Progress progress(in, "export");
    SafetensorsWriter file(temporary / "model.safetensors", entries, {{"format", "pt"}});
    bytes = file.bytes_left();
    Output out(file, bf16);
    for (const Dense& d : dense) out.write(plan.dense(d.name, d.shape));
    for (std::size_t i = 0; i < plan.layers().size(); ++i) {
      const LayerSpec& l = plan.layers()[i];
      const auto linear = plan.load(i, pool);
      const std::int64_t step = std::clamp<std::int64_t>((std::int64_t{4} << 20) / std::max<std::int64_t>(1, l.k), 1, linear->n());
      std::vector<float> rows(static_cast<std::size_t>(step * l.k));
      for (std::int64_t begin = 0; begin < linear->n(); begin += step) {
        if (GracefulStop::requested()) return GracefulStop::exit_code();
        const std::int64_t end = std::min(begin + step, linear->n());
        linear->dequant(begin, end, rows.data());
        out.write(std::span(rows).first(static_cast<std::size_t>((end - begin) * l.k)));
      }
      progress.at(static_cast<double>(i + 1) / static_cast<double>(plan.layers().size()), l.name);
    }
    file.finish();
  }
  write_tokenizer(in, m, temporary);
  if (const Json& generation = m.checkpoint->generation_config(); generation.is_object()) write_file_safely(temporary / "generation_config.json", pretty(generation));
  write_file_safely(temporary / "config.json", pretty(exported_config(m, bf16)));
  fs::remove(folder, ec);  // an empty one
  fs::rename(temporary, folder, ec);
  if (ec) throw Error("E108", "cannot rename " + temporary.string() + " to " + folder.string() + ": " + ec.message());

  if (in.json()) {
    Json doc = json_document(in.command);
    doc["output"] = folder.string();
    doc["dtype"] = in.values.text("dtype");
    doc["tensors"] = entries.size();
    doc["bytes"] = bytes;
    doc["layers"] = layers_json(plan);
    print_json(doc);
  } else {
    note(in, std::to_string(entries.size()) + " tensors, " + size_text(static_cast<double>(bytes)) + " written to " + folder.string());
  }
  return 0;
}

// --dtype means the written type here, not the one to compute in.
std::vector<const SettingGroup*> groups() {
  static const SettingGroup model = [] {
    SettingGroup g = model_settings();
    std::erase_if(g.settings, [](const Setting& s) { return std::string_view(s.name) == "dtype"; });
    return g;
  }();
  return {&export_settings(), &model, &engine_settings(), &plugin_settings()};
}

}  // namespace

extern const Command export_command;
const Command export_command = {
    .name = "export",
    .summary = "write a model as plain bf16 or f32 safetensors",
    .usage = {"MODEL --output DIR", "model.gguf --output DIR --dtype f32"},
    .groups = groups(),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
