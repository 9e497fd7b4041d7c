// calibrate-kv: scales for an FP8 KV cache, from the range of keys and values over a text, written beside the checkpoint.
//
//   scale = largest magnitude / 448, per layer ("tensor") or per layer and KV head ("head"); stored = e4m3(x / scale)
//
// Written are kv_scales.safetensors (model.layers.I.self_attn.k_scale and v_scale, as compressed-tensors spells them), the index that
// lists it, and kv_cache_scheme in the quantization config. Everything is made in a folder of its own and tried there first; a file
// of the checkpoint is replaced as a whole, config.json last: until then it loads as before.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/qengine/command.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/kv_ranges.hpp"
#include "apps/qengine/logit_compare.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/written_model.hpp"
#include "core/eval/statistics.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

constexpr float kE4M3Max = 448;
constexpr const char* kScalesFile = "kv_scales.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kSchemeHint = "run it with --kv-cache-dtype fp8";

const SettingGroup& calibrate_settings() {
  static const SettingGroup group{
      "Calibration",
      {
          {.name = "output", .kind = Kind::kPath, .value = "DIR", .shown = "the checkpoint itself", .help = "a new folder that links to the checkpoint's files and adds the scales"},
          {.name = "strategy", .kind = Kind::kChoice, .value = "tensor|head", .fallback = "tensor", .help = "a scale for each layer's keys and values, or one for each of their heads"},
          {.name = "margin", .kind = Kind::kNumber, .value = "F", .fallback = "1", .help = "room above the largest value seen: scale = F * largest / 448", .least = 1, .most = 64},
          {.name = "dry-run", .kind = Kind::kBool, .fallback = "false", .help = "measure and tell, write nothing"},
      }};
  return group;
}

// The staging folder: everything of the checkpoint under its name, linked; removed when it goes.
class Stage {
 public:
  explicit Stage(const fs::path& beside) {
    const fs::path parent = beside.has_parent_path() ? beside.parent_path() : fs::path(".");
    path_ = parent / ("." + beside.filename().string() + ".kv-" + std::to_string(getpid()));
    std::error_code ec;
    fs::create_directories(path_, ec);
    if (ec) throw Error("E108", "cannot make " + path_.string() + ": " + ec.message()).hint("--output DIR says where else");
  }
  ~Stage() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Stage(const Stage&) = delete;
  const fs::path& path() const { return path_; }
  void keep_as(const fs::path& name) {
    std::error_code ec;
    fs::remove(name, ec);  // an empty folder
    fs::rename(path_, name, ec);
    if (ec) throw Error("E108", "cannot rename " + path_.string() + " to " + name.string() + ": " + ec.message());
    path_.clear();
  }
  // A hard link, else a symbolic one, else a copy.
  void link(const fs::path& file) {
    std::error_code ec;
    const fs::path real = fs::canonical(file, ec), to = path_ / file.filename();
    if (ec) throw Error("E201", "cannot read " + file.string() + ": " + ec.message());
    fs::create_hard_link(real, to, ec);
    if (ec) fs::create_symlink(real, to, ec);
    if (ec) fs::copy_file(real, to, ec);
    if (ec) throw Error("E108", "cannot link " + file.string() + " into " + path_.string() + ": " + ec.message());
  }

 private:
  fs::path path_;
};

// What the file calls model.layers.I.self_attn.: "language_model.model.layers.3.self_attn." in a wrapped model.
std::string attention_prefix(const Checkpoint& checkpoint, int layer) {
  const std::string own = "model.layers." + std::to_string(layer) + ".", norm = own + "input_layernorm.weight";
  if (const Tensor* t = checkpoint.find(norm); t && t->file_name.ends_with("input_layernorm.weight")) return t->file_name.substr(0, t->file_name.size() - std::string("input_layernorm.weight").size()) + "self_attn.";
  return own + "self_attn.";
}

void refuse_scales_of_others(const Checkpoint& checkpoint) {
  for (const Tensor& t : checkpoint.tensors())
    for (const char* end : {".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale"})
      if (t.name.ends_with(end) && checkpoint.files()[static_cast<std::size_t>(t.file)].path.filename() != kScalesFile)
        throw Error("E101", "the checkpoint has scales of its own: " + t.name).in(checkpoint.files()[static_cast<std::size_t>(t.file)].path.string()).hint("they are used as they are; remove them first to calibrate again");
}

void write_scales(const fs::path& file, const Checkpoint& checkpoint, const ModelConfig& config, const KvRanges& ranges, bool per_head, float margin) {
  std::vector<SafetensorsEntry> entries;
  std::vector<float> values;
  const int heads = config.num_kv_heads;
  // A head that is always 0 needs no scale.
  const auto scale = [&](float largest) { return largest > 0 ? largest * margin / kE4M3Max : 1.0f; };
  for (int l = 0; l < config.num_layers; ++l)
    for (const char kind : {'k', 'v'}) {
      entries.push_back({attention_prefix(checkpoint, l) + kind + "_scale", "F32", per_head ? std::vector<std::int64_t>{heads, 1, 1} : std::vector<std::int64_t>{1}});
      if (per_head) {
        for (int h = 0; h < heads; ++h) values.push_back(scale(kind == 'k' ? ranges.k(l, h) : ranges.v(l, h)));
      } else {
        values.push_back(scale(kind == 'k' ? ranges.k(l) : ranges.v(l)));
      }
    }
  SafetensorsWriter out(file, entries);
  out.write(std::span<const float>(values));
  out.finish();
}

std::string index_text(const Checkpoint& checkpoint, const fs::path& scales) {
  Json map = Json::object();
  std::uint64_t bytes = 0;
  const auto others = checkpoint.files();
  // The checkpoint's own index lists tensors that it leaves out (rotary tables): it is kept where there is one.
  const fs::path old = checkpoint.folder() / kIndexFile;
  Json index = Json::object();
  std::error_code ec;
  if (fs::exists(old, ec)) {
    index = Json::parse(read_text(old.string(), 1 << 28), nullptr, false);
    if (!index.is_object() || !index.contains("weight_map")) throw Error("E207", "weight_map is missing").in(old.string());
    map = index["weight_map"];
    for (auto it = map.begin(); it != map.end();)
      if (*it == kScalesFile) it = map.erase(it);
      else ++it;
  } else {
    for (const Tensor& t : checkpoint.tensors())
      if (others[static_cast<std::size_t>(t.file)].path.filename() != kScalesFile) map[t.file_name] = others[static_cast<std::size_t>(t.file)].path.filename().string(), bytes += t.bytes;
    index["metadata"] = {{"total_size", bytes}};
  }
  const auto alone = Checkpoint::open(scales.parent_path());
  for (const Tensor& t : alone->tensors()) map[t.file_name] = kScalesFile;
  index["weight_map"] = std::move(map);
  return pretty(index);
}

// config.json with kv_cache_scheme; "" where the quantization config lies elsewhere.
std::string config_text(const Checkpoint& checkpoint, bool per_head) {
  Json config = Json::parse(read_text((checkpoint.folder() / "config.json").string(), 64 << 20), nullptr, false);
  if (!config.is_object()) return {};
  const Json scheme{{"num_bits", 8}, {"type", "float"}, {"strategy", per_head ? "attn_head" : "tensor"}, {"dynamic", false}, {"symmetric", true}};
  if (checkpoint.quant_config().is_null()) {
    config["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"format", "dense"}, {"quantization_status", "compressed"}, {"config_groups", Json::object()}, {"ignore", Json::array()}, {"kv_cache_scheme", scheme}};
  } else if (checkpoint.quant_config_source() == "config.json quantization_config") {
    config["quantization_config"]["kv_cache_scheme"] = scheme;
  } else if (checkpoint.quant_config_source() == "config.json text_config.quantization_config" && config.contains("text_config")) {
    config["text_config"]["quantization_config"]["kv_cache_scheme"] = scheme;
  } else {
    return {};
  }
  return pretty(config);
}

struct Quality {
  Estimate ppl, kl, same_top;
};

Quality measure(const Invocation& in, Engine& base, Engine& model, const EvalText& text, const char* what) {
  KlStats stats;
  Progress progress(in, what);
  std::size_t done = 0;
  for (const Window& w : text.windows) {
    if (GracefulStop::requested()) break;
    compare_logits(base, model, w, [&](std::int64_t position, std::span<const float> a, std::span<const float> b) { stats.add(a, b, w.ids[static_cast<std::size_t>(position + 1)]); });
    progress.at(static_cast<double>(++done) / static_cast<double>(text.windows.size()));
  }
  return {stats.ppl_q(), stats.kld(), stats.same_top()};
}

int run(const Invocation& in) {
  const fs::path model = model_path(in);
  const auto checkpoint = Checkpoint::open(model);
  if (checkpoint->kind() != Checkpoint::Kind::kSafetensors)
    throw Error("E101", "calibrate-kv needs a folder of .safetensors files; " + model.string() + " is none").hint("qengine export MODEL --output DIR makes one of a GGUF file");
  refuse_scales_of_others(*checkpoint);
  const bool per_head = in.values.text("strategy") == "head", dry = in.values.flag("dry-run");
  const float margin = static_cast<float>(in.values.number("margin").value_or(1));
  fs::path output = in.values.has("output") ? fs::path(in.values.text("output")) : fs::path();
  if (!output.empty() && !output.has_filename()) output = output.parent_path();
  std::error_code ec;
  if (!output.empty() && fs::exists(output, ec) && (!fs::is_directory(output, ec) || !fs::is_empty(output, ec)))
    throw Error("E108", output.string() + " is there already and not an empty folder").hint("name another --output, or remove it first");
  const GracefulStop stop;

  EngineOptions options = engine_options(in);
  if (in.values.given("kv-cache-dtype") || in.values.given("kv-plugin")) throw Error("E101", "calibrate-kv compares a 16-bit cache with an FP8 one").hint("leave --kv-cache-dtype and --kv-plugin out");
  options.kv_cache_dtype = options.exact ? "float32" : "bfloat16";
  options.need_tokenizer = eval_needs_tokenizer(in);
  const auto base = load_engine(in, options);
  const EvalText text = eval_text(in, *base);

  KvRanges ranges(base->config().num_layers, static_cast<int>(base->config().num_kv_heads), static_cast<int>(base->config().head_dim));
  {
    Progress progress(in, "calibrating");
    std::size_t done = 0;
    for (const Window& w : text.windows) {
      if (GracefulStop::requested()) return GracefulStop::exit_code();
      base->observe(w.ids, ranges);
      progress.at(static_cast<double>(++done) / static_cast<double>(text.windows.size()));
    }
  }

  // A folder beside the target, with everything in it that the target will have.
  const fs::path target = output.empty() ? fs::path(checkpoint->folder()) : output;
  fs::path name = fs::absolute(target).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  Stage stage(name);
  {
    Stage only_scales(name.parent_path() / (name.filename().string() + ".scales"));
    write_scales(only_scales.path() / kScalesFile, *checkpoint, base->config(), ranges, per_head, margin);
    only_scales.link(checkpoint->folder() / "config.json");
    const std::string index = index_text(*checkpoint, only_scales.path() / kScalesFile);
    for (const auto& entry : fs::directory_iterator(checkpoint->folder())) {
      const std::string file = entry.path().filename().string();
      if (entry.is_regular_file() && file != kScalesFile && file != kIndexFile && file != "config.json") stage.link(entry.path());
    }
    stage.link(only_scales.path() / kScalesFile);
    write_file_safely(stage.path() / kIndexFile, index);
  }
  const std::string config = config_text(*checkpoint, per_head);
  if (config.empty()) stage.link(checkpoint->folder() / "config.json");
  else write_file_safely(stage.path() / "config.json", config);

  // Before and after, each against the 16-bit cache. `before` never sees scales: the checkpoint may hold ours of another time.
  EngineOptions fp8 = options;
  fp8.kv_cache_dtype = "fp8";
  Quality before, after;
  {
    EngineOptions plain = fp8;
    if (fs::exists(checkpoint->folder() / kScalesFile, ec)) plain.kv_cache_dtype.clear();
    if (!plain.kv_cache_dtype.empty()) {
      const auto engine = load_engine(in, plain);
      before = measure(in, *base, *engine, text, "scale 1.0");
    }
  }
  {
    fp8.model = stage.path();
    const auto engine = load_engine(in, fp8);
    const std::string source = engine->kv_report()["scale_source"];
    if (source != "checkpoint") throw Error("E000", "the scales that were written are not the ones that are read: " + source);
    after = measure(in, *base, *engine, text, "calibrated");
  }
  if (GracefulStop::requested()) return GracefulStop::exit_code();
  PerplexityStats sixteen;
  for (const Window& w : text.windows)
    base->all_logits(w.ids, [&](std::int64_t position, std::span<const float> row) {
      if (position + 1 >= w.first && position + 1 < std::ssize(w.ids)) sixteen.add(log_sum_exp(row) - row[static_cast<std::size_t>(w.ids[static_cast<std::size_t>(position + 1)])]);
    });

  if (!dry) {
    if (!output.empty()) {
      stage.keep_as(output);
    } else {
      for (const char* file : {kScalesFile, kIndexFile, "config.json"}) {  // config.json last: it is what switches the scales on
        const fs::path from = stage.path() / file, to = checkpoint->folder() / file;
        if (std::string_view(file) == "config.json") {
          if (config.empty()) continue;
          if (const fs::path backup = checkpoint->folder() / "config.json.before-kv"; !fs::exists(backup, ec)) write_file_safely(backup, read_text(to.string(), 64 << 20));
        }
        write_file_safely(to, read_text(from.string(), 1ull << 30));
      }
    }
  }

  const bool compared = before.ppl.value > 0;
  Json doc = json_document(in.command);
  const auto quality = [](const Quality& q) { return Json{{"ppl", q.ppl.value}, {"ppl_error", q.ppl.error}, {"kl_mean", q.kl.value}, {"kl_mean_error", q.kl.error}, {"same_top_p", q.same_top.value}}; };
  doc["strategy"] = per_head ? "head" : "tensor";
  doc["margin"] = margin;
  doc["bits16"] = {{"ppl", sixteen.ppl().value}, {"ppl_error", sixteen.ppl().error}};
  if (compared) doc["scale_one"] = quality(before);
  doc["calibrated"] = quality(after);
  doc["tokens"] = sixteen.count();
  add_text_record(doc, text);
  Json& layers = doc["layers"] = Json::array();
  for (int l = 0; l < base->config().num_layers; ++l) {
    Json j{{"layer", l}, {"k_amax", ranges.k(l)}, {"v_amax", ranges.v(l)}};
    if (per_head)
      for (int h = 0; h < base->config().num_kv_heads; ++h) j["k_amax_heads"].push_back(ranges.k(l, h)), j["v_amax_heads"].push_back(ranges.v(l, h));
    layers.push_back(std::move(j));
  }
  if (!dry) doc["written"] = target.string();
  if (in.json()) {
    print_json(doc);
    return 0;
  }
  char line[200];
  std::string out = "KV cache              PPL            mean KL to 16 bit      same top\n";
  std::snprintf(line, sizeof line, "16 bit          %9.4f                      -             -\n", sixteen.ppl().value);
  out += line;
  const auto row = [&](const char* what, const Quality& q) {
    std::snprintf(line, sizeof line, "%-15s %9.4f   %10.3g ± %-9.2g   %8.2f %%\n", what, q.ppl.value, q.kl.value, q.kl.error, 100 * q.same_top.value);
    out += line;
  };
  if (compared) row("FP8, scale 1.0", before);
  row(per_head ? "FP8, per head" : "FP8, per tensor", after);
  float least_k = INFINITY, most_k = 0, least_v = INFINITY, most_v = 0;
  for (int l = 0; l < base->config().num_layers; ++l) least_k = std::min(least_k, ranges.k(l)), most_k = std::max(most_k, ranges.k(l)), least_v = std::min(least_v, ranges.v(l)), most_v = std::max(most_v, ranges.v(l));
  std::snprintf(line, sizeof line, "\nlargest key of a layer %.3g to %.3g, value %.3g to %.3g; E4M3 reaches 448\n%lld tokens, the same text for scales and figures\n", least_k, most_k, least_v, most_v, static_cast<long long>(sixteen.count()));
  out += line;
  if (dry) out += "nothing written (--dry-run)\n";
  else out += "written: " + (target / kScalesFile).string() + (config.empty() ? std::string("; ") + kSchemeHint : ", used by --kv-cache-dtype auto from now on") + "\n";
  print(out);
  return 0;
}

}  // namespace

extern const Command calibrate_kv_command;
const Command calibrate_kv_command = {
    .name = "calibrate-kv",
    .summary = "scales for an FP8 KV cache, written beside the checkpoint, with what they gain",
    .usage = {"MODEL --text FILE", "MODEL --text FILE --strategy head --output DIR"},
    .groups = with_model_groups({&calibrate_settings(), &text_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
