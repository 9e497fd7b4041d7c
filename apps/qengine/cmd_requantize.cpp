// requantize: any readable checkpoint in another scheme, written as compressed-tensors, which other
// engines read too. Round to nearest, without calibration. One layer is in memory at a time.
//
//   scheme           tensors of a module P                                                   activations
//   fp8_per_tensor   P.weight F8_E4M3 [N, K], P.weight_scale BF16 [1]                         per token, dynamic
//   fp8_per_channel  P.weight F8_E4M3 [N, K], P.weight_scale BF16 [N, 1]                      per token, dynamic
//   fp8_per_block    P.weight F8_E4M3 [N, K], P.weight_scale BF16 [ceil(N/128), ceil(K/128)]  per 128 inputs, dynamic
//   int8             P.weight I8 [N, K], P.weight_scale BF16 [N, 1]                           per token, dynamic
//   int4             P.weight_packed I32 [N, K/8], P.weight_scale BF16 [N, K/g], P.weight_shape   left alone
//
// Scales are rounded to BF16 first and the codes made with the rounded ones, so that every reader
// multiplies with what was divided by. Embeddings, norms and lm_head are written as BF16.
#include <qe/numbers.hpp>

#include <algorithm>
#include <cmath>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/written_model.hpp"
#include "core/base/checked.hpp"
#include "core/base/thread_pool.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

const SettingGroup& requantize_settings() {
  static const SettingGroup group{
      "Requantize",
      {
          {.name = "output", .kind = Kind::kPath, .value = "DIR", .help = "folder to make"},
          {.name = "scheme", .kind = Kind::kChoice, .value = "fp8_per_tensor|fp8_per_channel|fp8_per_block|int8|int4", .help = "what to write"},
          {.name = "group-size", .kind = Kind::kInt, .value = "N", .fallback = "128", .help = "int4: inputs that share a scale", .least = 8, .most = 65536},
          {.name = "weight-only", .kind = Kind::kBool, .fallback = "false", .help = "8 bits: say in the config that activations stay as they are"},
      }};
  return group;
}

enum class Scheme { kFp8Tensor, kFp8Channel, kFp8Block, kInt8, kInt4 };
constexpr std::int64_t kBlock = 128;

// Scales of one matrix as it is written: [rows of the grid][columns of the grid].
struct Grid {
  std::int64_t rows, columns;      // of scales
  std::int64_t per_row, per_column;  // weights that share one
};

Grid grid_of(Scheme s, std::int64_t n, std::int64_t k, std::int64_t group) {
  switch (s) {
    case Scheme::kFp8Tensor: return {1, 1, n, k};
    case Scheme::kFp8Block: return {ceil_div(n, kBlock), ceil_div(k, kBlock), kBlock, kBlock};
    case Scheme::kInt4: return {n, k / group, 1, group};
    default: return {n, 1, 1, k};
  }
}

std::vector<SafetensorsEntry> entries_of(Scheme s, const std::string& p, std::int64_t n, std::int64_t k, const Grid& g) {
  const std::vector<std::int64_t> scale = s == Scheme::kFp8Tensor ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{g.rows, g.columns};
  if (s == Scheme::kInt4) return {{p + ".weight_packed", "I32", {n, k / 8}}, {p + ".weight_scale", "BF16", scale}, {p + ".weight_shape", "I64", {2}}};
  return {{p + ".weight", s == Scheme::kInt8 ? "I8" : "F8_E4M3", {n, k}}, {p + ".weight_scale", "BF16", scale}};
}

Json quantization_config(Scheme s, std::int64_t group, bool weight_only, const std::vector<std::string>& ignore) {
  const bool fp8 = s <= Scheme::kFp8Block;
  Json weights{{"num_bits", s == Scheme::kInt4 ? 4 : 8}, {"type", fp8 ? "float" : "int"}, {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  weights["strategy"] = s == Scheme::kFp8Tensor ? "tensor" : s == Scheme::kFp8Block ? "block" : s == Scheme::kInt4 ? "group" : "channel";
  weights["group_size"] = s == Scheme::kInt4 ? Json(group) : Json(nullptr);
  weights["block_structure"] = s == Scheme::kFp8Block ? Json{kBlock, kBlock} : Json(nullptr);
  Json input = nullptr;
  if (s != Scheme::kInt4 && !weight_only) {
    input = {{"num_bits", 8}, {"type", fp8 ? "float" : "int"}, {"symmetric", true}, {"dynamic", true}, {"observer", nullptr}};
    input["strategy"] = s == Scheme::kFp8Block ? "group" : "token";
    input["group_size"] = s == Scheme::kFp8Block ? Json(kBlock) : Json(nullptr);
  }
  const char* format = fp8 ? "float-quantized" : s == Scheme::kInt8 ? "int-quantized" : "pack-quantized";
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", input}, {"output_activations", nullptr}, {"format", format}}}}},
          {"ignore", ignore},
          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr}};
}

class Quantizer {
 public:
  Quantizer(SafetensorsWriter& file, ThreadPool& pool, Scheme scheme, std::int64_t group) : file_(file), pool_(pool), scheme_(scheme), group_(group) {}

  // Rows [begin, begin + n) of `linear` as the module's tensors.
  void write(const Linear& linear, std::int64_t begin, std::int64_t n, const std::string& name) {
    const std::int64_t k = linear.k();
    const Grid g = grid_of(scheme_, n, k, group_);
    std::vector<float> amax(static_cast<std::size_t>(g.rows * g.columns));
    each(linear, begin, n, [&](std::int64_t row, const float* w) {
      float* a = amax.data() + row / g.per_row * g.columns;
      for (std::int64_t i = 0; i < k; ++i) {
        if (!std::isfinite(w[i])) throw Error("E206", name + ".weight has a value that is not finite in row " + std::to_string(row)).hint("such a matrix cannot be quantized");
        a[i / g.per_column] = std::max(a[i / g.per_column], std::fabs(w[i]));
      }
    });
    std::vector<std::uint16_t> stored(amax.size());
    std::vector<float> scale(amax.size());
    const float largest = scheme_ <= Scheme::kFp8Block ? 448.0f : scheme_ == Scheme::kInt8 ? 127.0f : 7.5f;
    for (std::size_t i = 0; i < amax.size(); ++i) {
      stored[i] = bf16_from_float(amax[i] > 0 ? std::max(amax[i] / largest, 0x1p-100f) : 1.0f);
      scale[i] = qe::bf16_to_f32(stored[i]);
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(k));
    std::vector<std::uint32_t> words(static_cast<std::size_t>(k / 8));
    each(linear, begin, n, [&](std::int64_t row, const float* w) {
      const float* s = scale.data() + row / g.per_row * g.columns;
      if (scheme_ == Scheme::kInt4) {
        std::fill(words.begin(), words.end(), 0);
        for (std::int64_t i = 0; i < k; ++i) words[static_cast<std::size_t>(i / 8)] |= integer(w[i] / s[i / g.per_column], -8, 7, 8) << (i % 8 * 4);
        file_.write(std::as_bytes(std::span(words)));
        return;
      }
      for (std::int64_t i = 0; i < k; ++i) {
        const float x = w[i] / s[i / g.per_column];
        codes[static_cast<std::size_t>(i)] = scheme_ == Scheme::kInt8 ? static_cast<std::uint8_t>(integer(x, -128, 127, 0)) : qe::f32_to_e4m3(x);
      }
      file_.write(std::as_bytes(std::span(codes)));
    });
    file_.write(std::as_bytes(std::span(stored)));
    if (scheme_ == Scheme::kInt4) {
      const std::int64_t shape[2] = {n, k};
      file_.write(std::as_bytes(std::span(shape)));
    }
  }

 private:
  static std::uint32_t integer(float x, int least, int most, int offset) {
    return static_cast<std::uint32_t>(std::clamp(static_cast<int>(std::nearbyint(x)), least, most) + offset) & (offset ? 15u : 255u);
  }
  // body(row, weights), rows in order.
  template <class F>
  void each(const Linear& linear, std::int64_t begin, std::int64_t n, F&& body) {
    const std::int64_t k = linear.k(), step = std::clamp<std::int64_t>((std::int64_t{4} << 20) / k, 1, n);
    std::vector<float> rows(static_cast<std::size_t>(step * k));
    for (std::int64_t r = 0; r < n; r += step) {
      const std::int64_t count = std::min(step, n - r);
      linear.dequant(begin + r, begin + r + count, rows.data());
      for (std::int64_t i = 0; i < count; ++i) body(r + i, rows.data() + i * k);
    }
  }

  SafetensorsWriter& file_;
  ThreadPool& pool_;
  Scheme scheme_;
  std::int64_t group_;
};

bool quantized(const PartSpec& p) { return p.role != QE_ROLE_EMBED && p.role != QE_ROLE_LM_HEAD; }

int run(const Invocation& in) {
  if (!in.values.has("scheme")) throw Error("E101", "no --scheme").hint("one of fp8_per_tensor, fp8_per_channel, fp8_per_block, int8, int4");
  const std::string wanted = in.values.text("scheme");
  const Scheme scheme = wanted == "fp8_per_tensor" ? Scheme::kFp8Tensor : wanted == "fp8_per_channel" ? Scheme::kFp8Channel : wanted == "fp8_per_block" ? Scheme::kFp8Block
                        : wanted == "int8"         ? Scheme::kInt8 : Scheme::kInt4;
  const std::int64_t group = in.values.integer("group-size", 128);
  const GracefulStop stop;  // before anything is on the disk that an interrupt would leave there
  OutputFolder folder(in);
  const OpenModel m = open_model(in);
  const FormatPlan& plan = *m.plan;
  ThreadPool pool(static_cast<int>(in.values.integer("threads", 0)));
  const bool tied = !has_role(plan, QE_ROLE_EMBED);

  std::vector<SafetensorsEntry> entries;
  const std::vector<DenseTensor> dense = dense_tensors(m);
  for (const DenseTensor& d : dense) entries.push_back({d.name, "BF16", d.shape});
  for (const LayerSpec& l : plan.layers())
    for (const PartSpec& p : l.parts) {
      if (!quantized(p)) {
        entries.push_back({(tied ? std::string("model.embed_tokens") : p.name) + ".weight", "BF16", {p.n, l.k}});
        continue;
      }
      if (scheme == Scheme::kInt4 && (l.k % group != 0 || group % 8 != 0)) {
        std::string legal;
        for (const std::int64_t g : {128, 64, 32, 16})
          if (l.k % g == 0) legal += (legal.empty() ? "" : ", ") + std::to_string(g);
        throw Error("E107", "--group-size " + std::to_string(group) + " does not divide the " + std::to_string(l.k) + " inputs of " + p.name).hint(legal.empty() ? "use an 8-bit scheme" : "legal for it: " + legal);
      }
      for (SafetensorsEntry& e : entries_of(scheme, p.name, p.n, l.k, grid_of(scheme, p.n, l.k, group))) entries.push_back(std::move(e));
    }

  std::uint64_t bytes = 0;
  {
    Progress progress(in, "requantize");
    SafetensorsWriter file(folder.path() / "model.safetensors", entries, {{"format", "pt"}});
    bytes = file.bytes_left();
    std::vector<std::uint16_t> rounded;
    const auto write_bf16 = [&](std::span<const float> values) {
      rounded.resize(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), bf16_from_float);
      file.write(std::as_bytes(std::span(rounded)));
    };
    for (const DenseTensor& d : dense) write_bf16(plan.dense(d.name, d.shape));
    Quantizer quantizer(file, pool, scheme, group);
    for (std::size_t i = 0; i < plan.layers().size(); ++i) {
      if (GracefulStop::requested()) return GracefulStop::exit_code();
      const LayerSpec& l = plan.layers()[i];
      const auto linear = plan.load(i, pool);
      std::int64_t row = 0;
      for (const PartSpec& p : l.parts) {
        if (quantized(p)) {
          quantizer.write(*linear, row, p.n, p.name);
        } else {
          const std::int64_t step = std::clamp<std::int64_t>((std::int64_t{4} << 20) / l.k, 1, p.n);
          std::vector<float> rows(static_cast<std::size_t>(step * l.k));
          for (std::int64_t r = 0; r < p.n; r += step) {
            const std::int64_t count = std::min(step, p.n - r);
            linear->dequant(row + r, row + r + count, rows.data());
            write_bf16(std::span(rows).first(static_cast<std::size_t>(count * l.k)));
          }
        }
        row += p.n;
      }
      progress.at(static_cast<double>(i + 1) / static_cast<double>(plan.layers().size()), l.name);
    }
    file.finish();
  }
  write_tokenizer(in, m, folder.path());
  if (const Json& generation = m.checkpoint->generation_config(); generation.is_object()) write_file_safely(folder.path() / "generation_config.json", pretty(generation));
  Json config = written_config(m, true);
  config["quantization_config"] = quantization_config(scheme, group, in.values.flag("weight-only"), {"lm_head"});
  write_file_safely(folder.path() / "config.json", pretty(config));
  folder.commit();

  if (in.json()) {
    Json doc = json_document(in.command);
    doc["output"] = folder.name().string();
    doc["scheme"] = wanted;
    doc["tensors"] = entries.size();
    doc["bytes"] = bytes;
    print_json(doc);
  } else {
    note(in, wanted + ": " + std::to_string(entries.size()) + " tensors, " + size_text(static_cast<double>(bytes)) + " written to " + folder.name().string());
  }
  return 0;
}

}  // namespace

extern const Command requantize_command;
const Command requantize_command = {
    .name = "requantize",
    .summary = "write a model in another scheme, as compressed-tensors",
    .usage = {"MODEL --scheme fp8_per_channel --output DIR", "MODEL --scheme int4 --group-size 64 --output DIR"},
    .details = "Round to nearest, without calibration. Compare with: qengine eval kl --model DIR --reference MODEL --text FILE",
    .groups = with_model_groups({&requantize_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
