// A fixture folder in a MockHost: its tensors, its configuration, its layers as the architecture has them,
// and the golden rows; and the test that holds a plugin to them.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <random>

#include "core/model/file_bytes.hpp"
#include "core/model/safetensors.hpp"
#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {

struct Module {
  std::string name;
  int role;
  std::int64_t n, k;
};

// Modules of one product, and what became of them.
struct FixtureModel {
  MockHost host;
  Json config;
  std::vector<std::vector<Module>> layers;  // qkv, o, gate_up, down of each layer, then lm_head

  explicit FixtureModel(const std::filesystem::path& folder) : folder_(folder) {
    config = read_json(folder / "config.json");
    const Json& where = config.contains("quantization_config") ? config : config.at("text_config");
    host.config = where.at("quantization_config");
    host.model_config = config;
    const FileBytes file = FileBytes::map(folder / "model.safetensors");
    for (const Tensor& t : parse_safetensors(file).tensors) host.add(t.name, t.dtype, t.shape, file.bytes().data() + t.offset, t.bytes);

    const auto number = [&](const char* key, std::int64_t absent) { return config.value(key, absent); };
    const std::int64_t h = number("hidden_size", 0), inner = number("intermediate_size", 0), heads = number("num_attention_heads", 0);
    const std::int64_t kv = number("num_key_value_heads", heads), dim = number("head_dim", h / heads);
    for (std::int64_t i = 0; i < number("num_hidden_layers", 0); ++i) {
      const std::string p = "model.layers." + std::to_string(i) + ".";
      const std::string a = p + "self_attn.", m = p + "mlp.";
      layers.push_back({{a + "q_proj", QE_ROLE_Q, heads * dim, h}, {a + "k_proj", QE_ROLE_K, kv * dim, h}, {a + "v_proj", QE_ROLE_V, kv * dim, h}});
      layers.push_back({{a + "o_proj", QE_ROLE_O, h, heads * dim}});
      layers.push_back({{m + "gate_proj", QE_ROLE_GATE, inner, h}, {m + "up_proj", QE_ROLE_UP, inner, h}});
      layers.push_back({{m + "down_proj", QE_ROLE_DOWN, h, inner}});
    }
    if (!config.value("tie_word_embeddings", false)) layers.push_back({{"lm_head", QE_ROLE_LM_HEAD, number("vocab_size", 0), h}});
  }

  struct Rows {
    std::vector<std::int64_t> numbers;
    std::vector<float> values;  // [numbers, k]
  };
  std::map<std::string, Rows> golden() const {
    std::map<std::string, Rows> out;
    const Json wanted = read_json(folder_ / "golden.json")["dequant_rows"];
    for (const auto& [module, rows] : wanted.items()) out[module].numbers = rows.get<std::vector<std::int64_t>>();
    const FileBytes file = FileBytes::map(folder_ / "golden.safetensors");
    for (const Tensor& t : parse_safetensors(file).tensors)
      if (t.name.starts_with("rows.")) {
        auto& values = out[t.name.substr(5)].values;
        values.resize(t.bytes / 4);
        std::memcpy(values.data(), file.bytes().data() + t.offset, t.bytes);
      }
    return out;
  }

 private:
  static Json read_json(const std::filesystem::path& file) { return Json::parse(std::ifstream(file)); }
  std::filesystem::path folder_;
};

// Activations as layers see them: channels of unequal size, a few far larger than the rest.
inline std::vector<float> activations(std::int64_t m, std::int64_t k, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> channel(k), x(m * k);
  for (auto& c : channel) c = std::exp(0.5f * normal(rng));
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < k; ++i) x[t * k + i] = channel[i] * normal(rng);
  return x;
}

// Loads every module that the plugin takes, fused where it says so, and holds it to the golden rows, to the
// planned bytes (MockHost does), and to the products of its own exact weights. Returns the names it took.
inline std::vector<std::string> check_fixture(FixtureModel& model, LoadedPlugin& plugin) {
  const auto golden = model.golden();
  std::vector<std::string> taken;
  std::size_t rows_seen = 0;
  const auto check = [&](const std::vector<Module>& parts) {
    std::vector<TestLayer::PartSpec> specs;
    for (const Module& m : parts) specs.push_back({m.name, m.role, m.n});
    const std::int64_t k = parts[0].k;
    TestLayer layer(model.host, specs, k), exact_layer(model.host, specs, k, QE_LAYER_EXACT);
    const qe_plan plan = plugin.plan(layer);
    if (plan.claim == 0 || !plan.fuse_parts) {
      EXPECT_NE(plan.reason[0], 0) << parts[0].name << ": a refusal without a reason";
      return false;
    }
    auto h = plugin.load(layer);
    const std::vector<float> weights = h.dequant(0, h.n);
    std::int64_t row = 0;
    for (const Module& m : parts) {
      taken.push_back(m.name);
      if (const auto it = golden.find(m.name); it != golden.end()) {
        for (std::size_t i = 0; i < it->second.numbers.size(); ++i) {
          const float* ours = weights.data() + (row + it->second.numbers[i]) * k;
          const float* theirs = it->second.values.data() + i * k;
          EXPECT_EQ(std::memcmp(ours, theirs, k * sizeof(float)), 0) << m.name << " row " << it->second.numbers[i] << " begins " << ours[0] << " " << ours[1]
                                                                     << ", golden " << theirs[0] << " " << theirs[1];
          ++rows_seen;
        }
      }
      row += m.n;
    }
    auto exact = plugin.load(exact_layer);
    // int16 activations per 32 inputs cost 3e-10 to 1e-9 (uniform noise of a step amax / 32512); float32 sums
    // about 1e-13. Better than a tenth of the first would mean that nothing was quantized.
    const std::int64_t m = 16;
    const auto x = activations(m, k, 17);
    const auto fast = h.run(x, m), slow = exact.run(x, m);
    const bool int16 = std::string_view(plan.regime[0].kernel).find("int16") != std::string_view::npos;
    EXPECT_LT(nmse(weights, x, fast, m, h.n, k), int16 ? 2e-9 : 1e-10) << parts[0].name;
    if (int16) {
      EXPECT_GT(nmse(weights, x, fast, m, h.n, k), 3e-11) << parts[0].name;
    }
    EXPECT_LT(nmse(weights, x, slow, m, h.n, k), 1e-10) << parts[0].name;
    // A token's result does not depend on its company.
    const auto alone = h.run(std::vector<float>(x.begin(), x.begin() + k), 1);
    EXPECT_EQ(std::memcmp(alone.data(), fast.data(), h.n * sizeof(float)), 0) << parts[0].name;
    return true;
  };
  for (const auto& parts : model.layers)
    if (!check(parts) && parts.size() > 1)
      for (const Module& m : parts) check({m});
  EXPECT_GT(rows_seen, 0u) << "no golden row was compared";
  return taken;
}

// A folder, what a plugin's detect says of it, and how many modules it takes (quantized ones, of those
// the architecture has).
struct FixtureCase {
  const char* folder;
  int score;
  std::size_t modules;
};
inline void PrintTo(const FixtureCase& c, std::ostream* out) { *out << c.folder; }
inline std::string fixture_name(const ::testing::TestParamInfo<FixtureCase>& info) {
  std::string name = info.param.folder;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class FixtureTest : public ::testing::TestWithParam<FixtureCase> {
 protected:
  void check(const std::string& plugin_name) {
    const auto folder = fixture(GetParam().folder);
    if (folder.empty()) GTEST_SKIP() << "no fixture " << GetParam().folder;
    FixtureModel model(folder);
    LoadedPlugin plugin(binary_dir() / "bin/plugins" / (plugin_name + ".so"), model.host);
    EXPECT_EQ(plugin.detect(), GetParam().score);
    EXPECT_EQ(check_fixture(model, plugin).size(), GetParam().modules);
  }
};

}  // namespace qengine::test
