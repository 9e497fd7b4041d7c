// Every way in which AWQ modules are laid out, packed by the tools' own steps, against
// W = scale * (code - zero), or scale * code + offset, in float32.
#include <gtest/gtest.h>

#include "shared/tests/module_maker.hpp"

namespace qengine::test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kName = "model.layers.0.mlp.up_proj";
std::filesystem::path library() { return binary_dir() / "bin/plugins/awq_marlin.so"; }

struct Awq {
  const char* layout;   // what the tensors are
  const char* version;  // what the config says
  std::int64_t group, n, k;
  bool zeros;
  std::int32_t dtype;
};
void PrintTo(const Awq& c, std::ostream* out) {
  *out << c.layout << " labelled " << c.version << ", group " << c.group << ", " << c.n << "x" << c.k << (c.zeros ? "" : ", no zero points") << ", dtype " << c.dtype;
}

float half_value(std::uint16_t h) {  // normal numbers and zero
  if ((h & 0x7fff) == 0) return std::bit_cast<float>((h & 0x8000u) << 16);
  return std::bit_cast<float>((h & 0x8000u) << 16 | ((h >> 10 & 31u) + 112) << 23 | (h & 1023u) << 13);
}
std::uint16_t to_half(float f) {  // cut off, for numbers that are normal halves
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  return f == 0 ? 0 : static_cast<std::uint16_t>((u >> 16 & 0x8000) | ((u >> 23 & 255) - 112) << 10 | (u >> 13 & 1023));
}

WeightCheck make_awq(MockHost& host, const std::string& name, const Awq& c, std::uint32_t seed) {
  const std::string layout = c.layout;
  const std::int64_t n = c.n, k = c.k, g = c.group < 0 ? k : c.group, groups = k / g;
  const Codes nk = random_codes(n * k, 4, seed);
  Codes zeros = random_codes(n * groups, 4, seed + 1);  // [n, groups]
  if (!c.zeros) std::fill(zeros.begin(), zeros.end(), 8u);
  const Scales scales(c.dtype, n * groups, seed + 2, false);  // [n, groups]
  const auto transposed = [](const auto& m, std::size_t rows, std::size_t columns) {
    auto t = m;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < columns; ++i) t[i * rows + r] = m[r * columns + i];
    return t;
  };
  const Codes kn = transposed(nk, n, k);
  Scales by_group = scales;  // [groups, n]
  by_group.half = c.dtype == QE_F32 ? scales.half : transposed(scales.half, n, groups);
  by_group.value = transposed(scales.value, n, groups);
  // gemv and gemv_fast pad along groups.
  const std::int64_t multiple = g >= 128 ? 1 : g == 64 ? 2 : 4, words = ((groups + 7) / 8 + multiple - 1) / multiple * multiple;

  std::vector<float> offsets;
  if (layout == "gemm") {
    host.add(name + ".qweight", QE_I32, {k, (n + 7) / 8}, pack_rows(kn, k, n, pack_awq));
    if (c.zeros) host.add(name + ".qzeros", QE_I32, {groups, n / 8}, pack_rows(transposed(zeros, n, groups), groups, n, pack_awq));
    by_group.add(host, name + ".scales", {groups, n});
  } else if (layout == "gemv") {
    host.add(name + ".qweight", QE_I32, {n, k / 8}, pack_rows(nk, n, k, [](const Codes& r) { return pack_stream(r, 4); }));
    Codes padded(n * 8 * words);
    std::vector<std::uint16_t> padded_scales(n * 8 * words);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < groups; ++j) {
        padded[i * 8 * words + j] = zeros[i * groups + j];
        padded_scales[i * 8 * words + j] = scales.half[i * groups + j];
      }
    if (c.zeros) host.add(name + ".qzeros", QE_I32, {n, words}, pack_rows(padded, n, 8 * words, [](const Codes& r) { return pack_stream(r, 4); }));
    host.add(name + ".scales", c.dtype, {n, 8 * words}, padded_scales);
  } else if (layout == "gemv_fast") {
    host.add(name + ".qweight", QE_I16, {n / 4, k}, pack_gemv_fast(nk, n, k));
    std::vector<std::uint16_t> s(8 * words * n), o(8 * words * n);
    offsets.resize(n * groups);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < groups; ++j) {
        s[j * n + i] = scales.half[i * groups + j];
        o[j * n + i] = to_half(-scales.value[i * groups + j] * static_cast<float>(zeros[i * groups + j]));
        offsets[i * groups + j] = half_value(o[j * n + i]);
      }
    host.add(name + ".scales", QE_F16, {8 * words, n}, s);
    host.add(name + ".qzeros", QE_F16, {8 * words, n}, o);
  } else {
    host.add(name + ".qweight", QE_I32, {k / 16, 2 * n}, pack_marlin(kn, k, n));
    std::vector<std::uint16_t> permuted;
    for (std::int64_t j = 0; j < groups; ++j) {
      const std::vector<std::uint16_t> row(by_group.half.begin() + j * n, by_group.half.begin() + (j + 1) * n);
      for (std::uint16_t v : marlin_scales(row, groups > 1)) permuted.push_back(v);
    }
    host.add(name + ".scales", QE_F16, {groups, n}, permuted);
  }
  WeightCheck w{std::vector<float>(n * k), n, k};
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t at = i * groups + j / g;
      const float code = static_cast<float>(nk[i * k + j]), scaled = scales.value[at] * code;
      w.expected[i * k + j] = offsets.empty() ? scales.value[at] * (code - static_cast<float>(zeros[at])) : scaled + offsets[at];
    }
  return w;
}

class AwqLayout : public ::testing::TestWithParam<Awq> {};
std::vector<Awq> sweep() {
  std::vector<Awq> all;
  for (const char* version : {"gemm", "gemv", "gemv_fast", "marlin"})  // whichever label, the tensors decide
    for (std::int64_t group : {-1, 32, 64, 128}) {
      all.push_back({"gemm", version, group, 40, 256, true, QE_F16});
      all.push_back({"gemv", version, group, 40, 256, true, QE_F16});
      all.push_back({"gemv_fast", version, group, 40, 256, true, QE_F16});
      all.push_back({"marlin", version, group, 128, 256, false, QE_F16});
    }
  all.push_back({"gemm", "GEMM", 64, 64, 192, true, QE_BF16});
  all.push_back({"gemm", "exllama", 64, 64, 192, true, QE_F32});
  all.push_back({"gemm", "gemm", 64, 64, 192, false, QE_F16});
  all.push_back({"gemv", "gemv", 64, 24, 192, false, QE_F16});
  for (const char* layout : {"gemm", "gemv"}) all.push_back({layout, "gemm", 32, 128, 128, true, QE_F16});  // square: the scales tell
  return all;
}
INSTANTIATE_TEST_SUITE_P(Sweep, AwqLayout, ::testing::ValuesIn(sweep()));

// The layout that a version stands for.
std::string packed_label(const std::string& version) { return version == "GEMM" || version == "exllama" ? "gemm" : version; }

Json config(const Awq& c) {
  return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", c.group}, {"zero_point", c.zeros}, {"version", c.version}, {"modules_to_not_convert", nullptr}};
}

TEST_P(AwqLayout, GivesTheDefinedWeights) {
  const Awq& c = GetParam();
  MockHost host;
  host.config = config(c);
  const WeightCheck w = make_awq(host, kName, c, 5);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 1000);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
  const std::string version = packed_label(c.version);
  const qe_plan plan = plugin.plan(TestLayer(host, {{kName, QE_ROLE_UP, c.n}}, c.k));
  EXPECT_EQ(host.logged.empty(), version == c.layout) << "a label that is wrong is said, one that is right is not";
  EXPECT_EQ(plan.reason[0] == 0, version == c.layout) << plan.reason;
}

const Awq kGemm{"gemm", "gemm", 32, 64, 96, true, QE_F16};

TEST(AwqModules, AreSkippedByPartsOfTheirNames) {
  MockHost host;
  host.config = config(kGemm);
  host.config["modules_to_not_convert"] = {"layers.1.mlp", "v_proj"};
  host.add("model.layers.1.mlp.up_proj.weight", QE_BF16, {64, 96}, std::vector<std::uint16_t>(64 * 96));
  make_awq(host, "model.layers.0.mlp.up_proj", kGemm, 1);
  make_awq(host, "model.layers.0.self_attn.v_proj", kGemm, 2);  // listed, but quantized all the same: tensors decide
  LoadedPlugin plugin(library(), host);
  const auto claim = [&](const char* name, bool files = true) {
    return plugin.plan(TestLayer(host, {{name, QE_ROLE_UP, 64}}, 96, 0, files));
  };
  EXPECT_EQ(claim("model.layers.0.mlp.up_proj").claim, 2);
  EXPECT_EQ(claim("model.layers.0.self_attn.v_proj").claim, 2);
  const qe_plan skipped = claim("model.layers.1.mlp.up_proj");
  EXPECT_EQ(skipped.claim, 0);
  EXPECT_NE(std::string(skipped.reason).find("layers.1.mlp"), std::string::npos) << skipped.reason;
  // Without files the list is all there is.
  EXPECT_EQ(claim("model.layers.7.self_attn.v_proj", false).claim, 0);
  EXPECT_EQ(claim("model.layers.7.self_attn.q_proj", false).claim, 2);
}

TEST(AwqZeroPoints, ThatAreMissingAreAskedForByName) {
  MockHost host;
  host.config = config(kGemm);
  make_awq(host, kName, kGemm, 1);
  host.tensors.erase(kName + ".qzeros");
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
  bool required = false;
  for (const auto& want : plugin.tensors(layer)) required |= want.name == kName + ".qzeros" && want.required;
  EXPECT_TRUE(required);
  try {
    plugin.load(layer);
    FAIL() << "loaded";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.subject, kName + ".qzeros");
  }
}

TEST(AwqConfig, NamesWhatItCannotRead) {
  const std::pair<Json, const char*> cases[] = {{{{"bits", 3}}, "bits"}, {{{"bits", "four"}}, "bits"}, {{{"version", "gemx"}}, "gemx"}, {{{"group_size", 0}}, "group_size"},
                                                {{{"group_size", nullptr}}, "group_size"}};
  for (const auto& [change, word] : cases) {
    MockHost host;
    host.config = config(kGemm);
    host.config.update(change);
    LoadedPlugin plugin(library(), host);
    std::string why;
    EXPECT_EQ(plugin.detect(&why), 0) << change;
    EXPECT_NE(why.find(word), std::string::npos) << why;
    const qe_plan plan = plugin.plan(TestLayer(host, {{kName, QE_ROLE_UP, 64}}, 96, 0, false));
    EXPECT_EQ(plan.claim, 0);
    EXPECT_NE(std::string(plan.reason).find(word), std::string::npos) << plan.reason;
  }
}

// GPTQModel writes GPTQ's keys into AWQ configurations; AutoRound has AWQ's packing under its own name.
TEST(AwqConfig, ReadsTheDialects) {
  MockHost host;
  host.config = {{"bits", 4}, {"checkpoint_format", "gemm"}, {"format", "gemm"}, {"desc_act", false}, {"group_size", 32}, {"method", "awq"}, {"quant_method", "awq"}, {"version", "gemm"}, {"zero_point", true}};
  const WeightCheck w = make_awq(host, kName, kGemm, 1);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 1000);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
  host.config = {{"quant_method", "auto-round"}, {"packing_format", "auto_round:auto_awq"}, {"bits", 4}, {"group_size", 32}, {"sym", false}, {"data_type", "int"}};
  EXPECT_EQ(plugin.detect(), 900);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
  host.config = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  EXPECT_EQ(plugin.detect(), 0);
}

}  // namespace
}  // namespace qengine::test
