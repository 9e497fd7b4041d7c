// export: any readable checkpoint as plain safetensors under Hugging Face names and row order, through
// the plugins' own dequantization. One layer is in memory at a time; the folder appears when it is whole.
#include <algorithm>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/written_model.hpp"
#include "core/base/thread_pool.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

const SettingGroup& export_settings() {
  static const SettingGroup group{"Export",
                                  {
                                      {.name = "output", .kind = Kind::kPath, .value = "DIR", .help = "folder to make"},
                                      {.name = "dtype", .kind = Kind::kChoice, .value = "bf16|f32", .fallback = "bf16", .help = "f32 is the exact dequantized value, bf16 rounded from it"},
                                  }};
  return group;
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

int run(const Invocation& in) {
  const GracefulStop stop;  // before anything is on the disk that an interrupt would leave there
  OutputFolder folder(in);
  const OpenModel m = open_model(in);
  const FormatPlan& plan = *m.plan;
  const bool bf16 = in.values.text("dtype") == "bf16";
  const bool tied = !has_role(plan, QE_ROLE_EMBED);
  const std::string dtype = bf16 ? "BF16" : "F32";
  ThreadPool pool(static_cast<int>(in.values.integer("threads", 0)));

  std::vector<SafetensorsEntry> entries;
  const std::vector<DenseTensor> dense = dense_tensors(m);
  for (const DenseTensor& d : dense) entries.push_back({d.name, dtype, d.shape});
  std::uint64_t bytes = 0;
  for (const LayerSpec& l : plan.layers())
    for (const PartSpec& p : l.parts) entries.push_back({weight_name(p, tied), dtype, {p.n, l.k}});

  {
    Progress progress(in, "export");
    SafetensorsWriter file(folder.path() / "model.safetensors", entries, {{"format", "pt"}});
    bytes = file.bytes_left();
    Output out(file, bf16);
    for (const DenseTensor& d : dense) out.write(plan.dense(d.name, d.shape));
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
  write_tokenizer(in, m, folder.path());
  if (const Json& generation = m.checkpoint->generation_config(); generation.is_object()) write_file_safely(folder.path() / "generation_config.json", pretty(generation));
  write_file_safely(folder.path() / "config.json", pretty(written_config(m, bf16)));
  folder.commit();

  if (in.json()) {
    Json doc = json_document(in.command);
    doc["output"] = folder.name().string();
    doc["dtype"] = in.values.text("dtype");
    doc["tensors"] = entries.size();
    doc["bytes"] = bytes;
    doc["layers"] = layers_json(plan);
    print_json(doc);
  } else {
    note(in, std::to_string(entries.size()) + " tensors, " + size_text(static_cast<double>(bytes)) + " written to " + folder.name().string());
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
