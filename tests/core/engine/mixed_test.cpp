// A checkpoint whose modules are in different formats: attention in FP8, MLP in 4 bits with zero points. Each
// layer goes to the plugin that reads its group, and the answers stay those of the model.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/model/safetensors_writer.hpp"
#include "tests/core/engine/open_model.hpp"
#include "tests/support/files.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

Json read(const fs::path& file) { return Json::parse(std::ifstream(file)); }

TEST(MixedCheckpoint, EachGroupGoesToThePluginThatReadsIt) {
  const fs::path attention = test::fixture("ct-fp8-static-kv"), mlp = test::fixture("ct-w4a16-asym"), base = test::fixture("tiny-qwen3");
  if (attention.empty() || mlp.empty() || base.empty()) GTEST_SKIP() << "fixtures ct-fp8-static-kv, ct-w4a16-asym, tiny-qwen3 are not all there";
  test::TempDir folder;
  const auto a = Checkpoint::open(attention), b = Checkpoint::open(mlp);
  std::vector<SafetensorsEntry> entries;
  std::vector<std::span<const std::byte>> bytes;
  const auto take = [&](const Checkpoint& c, bool of_mlp) {
    for (const Tensor& t : c.tensors()) {
      if ((t.name.find(".mlp.") != std::string::npos) != of_mlp) continue;
      entries.push_back({t.name, dtype_name(t.dtype), t.shape});
      bytes.push_back(c.data(t));
    }
  };
  take(*a, false);
  take(*b, true);
  SafetensorsWriter file(folder.path() / "model.safetensors", entries);
  for (const auto& piece : bytes) file.write(piece);
  file.finish();

  Json config = read(attention / "config.json");
  Json& quant = config["quantization_config"];
  Json first = quant["config_groups"]["group_0"], second = read(mlp / "config.json")["quantization_config"]["config_groups"]["group_0"];
  first["targets"] = {"re:.*self_attn.*"};
  first["format"] = "float-quantized";
  second["targets"] = {"re:.*mlp.*"};
  second["format"] = "pack-quantized";
  quant["config_groups"] = {{"group_0", first}, {"group_1", second}};
  quant["format"] = "mixed-precision";
  std::ofstream(folder.path() / "config.json") << config.dump();
  fs::copy_file(base / "tokenizer.json", folder.path() / "tokenizer.json");

  const auto mixed = Engine::load(test::exact_options(folder.path()));
  for (const LayerReport& r : mixed->format().report()) {
    if (r.index < 0) continue;
    if (r.name.find("mlp") == std::string::npos) EXPECT_EQ(r.plugin, "fp8_checkpoint") << r.name;
    else EXPECT_TRUE(r.plugin == "awq_marlin" || r.plugin == "gptq_marlin") << r.name << " " << r.plugin;  // both read it
  }
  for (const std::string& w : mixed->format().warnings()) EXPECT_EQ(w.find("W201"), std::string::npos) << w;

  // Close to the unquantized model, and not equal to it.
  const auto plain = Engine::load(test::exact_options(base));
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 96; ++i) ids.push_back(5 + i * 7 % 900);
  std::vector<std::vector<float>> want;
  plain->all_logits(ids, [&](std::int64_t, std::span<const float> row) { want.emplace_back(row.begin(), row.end()); });
  double kl = 0;
  mixed->all_logits(ids, [&](std::int64_t t, std::span<const float> row) {
    const auto sum = [](std::span<const float> x) {
      double m = x[0], s = 0;
      for (const float v : x) m = std::max<double>(m, v);
      for (const float v : x) s += std::exp(v - m);
      return m + std::log(s);
    };
    const auto& w = want[static_cast<std::size_t>(t)];
    const double p = sum(w), q = sum(row);
    for (std::size_t i = 0; i < row.size(); ++i) kl += std::exp(w[i] - p) * ((w[i] - p) - (row[i] - q));
  });
  kl /= static_cast<double>(ids.size());
  EXPECT_GT(kl, 1e-6);
  EXPECT_LT(kl, 2e-2);
}

}  // namespace
}  // namespace qengine
