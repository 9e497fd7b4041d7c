// Every way in which this plugin's dialects lay out a module, packed by the tools' own steps, against
// W = scale * (code - zero) in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "shared/tests/module_maker.hpp"

namespace qengine::test {
namespace {

const std::string kName = "model.layers.0.mlp.up_proj";
std::filesystem::path library() { return binary_dir() / "bin/plugins/gptq_marlin.so"; }

enum class Order { kPlain, kShuffled, kSortedAnew /* groups in another order */, kUnequal };

struct Gptq {
  int bits;
  const char* format;
  bool sym;
  std::int64_t group, n, k;
  std::int32_t dtype;
  Order order;
};
void PrintTo(const Gptq& c, std::ostream* out) {
  *out << c.bits << " bits, " << c.format << (c.sym ? ", sym" : ", asym") << ", group " << c.group << ", " << c.n << "x" << c.k << ", dtype " << c.dtype << ", order "
       << static_cast<int>(c.order);
}

WeightCheck make_gptq(MockHost& host, const std::string& name, const Gptq& c, std::uint32_t seed) {
  const std::int64_t g = c.group < 0 ? c.k : c.group, groups = (c.k + g - 1) / g;
  const Codes codes = random_codes(c.k * c.n, c.bits, seed);  // [k, n]
  Codes zeros = random_codes(groups * c.n, c.bits, seed + 1);  // the true ones
  if (c.sym) std::fill(zeros.begin(), zeros.end(), 1u << (c.bits - 1));
  const bool v1 = std::string(c.format) == "gptq", planar = std::string(c.format) == "gptq_p";
  Codes stored = zeros;
  if (v1)
    for (auto& z : stored) z = (z - 1) & ((1u << c.bits) - 1);  // a true zero of 0 wraps around
  const Scales scales(c.dtype, groups * c.n, seed + 2);

  std::vector<std::int32_t> g_idx(c.k);
  for (std::int64_t i = 0; i < c.k; ++i) g_idx[i] = static_cast<std::int32_t>(i / g);
  std::mt19937 rng(seed + 3);
  if (c.order == Order::kShuffled) std::shuffle(g_idx.begin(), g_idx.end(), rng);
  if (c.order == Order::kSortedAnew)
    for (auto& v : g_idx) v = static_cast<std::int32_t>(groups - 1 - v);
  if (c.order == Order::kUnequal)
    for (auto& v : g_idx) v = static_cast<std::int32_t>(rng() % groups);

  const auto n = c.n, k = c.k;
  host.add(name + ".qweight", QE_I32, {(k * c.bits + 31) / 32, n}, pack_gptq(codes, k, n, c.bits, planar));
  host.add(name + ".qzeros", QE_I32, {groups, (n * c.bits + 31) / 32},
           pack_rows(stored, groups, n, [&](const Codes& row) { return planar ? pack_planar(row, c.bits) : pack_stream(row, c.bits); }));
  scales.add(host, name + ".scales", {groups, n});
  host.add(name + ".g_idx", QE_I32, {k}, g_idx);

  WeightCheck w{std::vector<float>(n * k), n, k};
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t at = g_idx[j] * n + i;
      w.expected[i * k + j] = scales.value[at] * static_cast<float>(static_cast<int>(codes[j * n + i]) - static_cast<int>(zeros[at]));
    }
  return w;
}

MockHost::Stored* stored(MockHost& host, const char* suffix) { return &host.tensors.at(kName + "." + suffix); }

class GptqLayout : public ::testing::TestWithParam<Gptq> {};

std::vector<Gptq> sweep() {
  std::vector<Gptq> all;
  for (int bits = 2; bits <= 8; ++bits)
    for (const char* format : {"gptq", "gptq_v2", "gptq_p"})
      for (bool sym : {true, false}) all.push_back({bits, format, sym, 32, 64, 96, QE_F16, Order::kPlain});
  for (std::int64_t group : {-1, 16, 24, 32, 40, 64, 128})
    for (Order order : {Order::kPlain, Order::kShuffled}) {
      all.push_back({4, "gptq", false, group, 40, 192, QE_BF16, order});   // 24 and 40 leave short last groups, or none
      all.push_back({3, "gptq", true, group, 32, 224, QE_F16, order});     // 64 and 128 leave a short last group
      all.push_back({8, "gptq_v2", false, group, 24, 160, QE_F32, order});
    }
  for (Order order : {Order::kSortedAnew, Order::kUnequal})
    for (std::int64_t group : {16, 32, 128})
      for (int bits : {2, 4, 8}) all.push_back({bits, "gptq", false, group, 32, 320, QE_F16, order});
  for (int bits = 2; bits <= 8; ++bits) all.push_back({bits, "gptq", false, 32, 32, 64, QE_F32, Order::kShuffled});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Sweep, GptqLayout, ::testing::ValuesIn(sweep()));

TEST_P(GptqLayout, GivesScaleTimesCodeMinusZero) {
  const Gptq& c = GetParam();
  MockHost host;
  host.config = {{"quant_method", "gptq"}, {"bits", c.bits}, {"group_size", c.group}, {"sym", c.sym}, {"desc_act", c.order == Order::kShuffled}, {"checkpoint_format", c.format}};
  const WeightCheck w = make_gptq(host, kName, c, 5u + c.bits);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 1000);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
}

Gptq plain(int bits = 4) { return {bits, "gptq", true, 32, 64, 96, QE_F16, Order::kPlain}; }
nlohmann::ordered_json config(int bits = 4) {
  return {{"quant_method", "gptq"}, {"bits", bits}, {"group_size", 32}, {"sym", true}, {"desc_act", false}, {"checkpoint_format", "gptq"}};
}

// Labels lie; symmetric zero points do not.
TEST(GptqZeroPoints, OfSymmetricFilesBeatTheLabel) {
  for (const char* made : {"gptq", "gptq_v2"})
    for (const char* label : {"gptq", "gptq_v2"}) {
      MockHost host;
      host.config = config();
      host.config["checkpoint_format"] = label;
      Gptq c = plain();
      c.format = made;
      const WeightCheck w = make_gptq(host, kName, c, 3);
      LoadedPlugin plugin(library(), host);
      expect_weights(plugin, host, kName, QE_ROLE_UP, w);
      EXPECT_EQ(host.logged.empty(), std::string(made) == label) << made << " labelled " << label;
    }
}

TEST(GptqZeroPoints, WrapEachFieldByItself) {
  // Stored 15 is a true 0: a word-wise addition would carry into the next field.
  MockHost host;
  host.config = config();
  host.config["sym"] = false;
  Gptq c = plain();
  c.sym = false;
  make_gptq(host, kName, c, 3);
  const Words words(3 * 8, 0x7777776Fu);
  host.add(kName + ".qzeros", QE_I32, {3, 8}, words);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
  auto h = plugin.load(layer);
  const auto got = h.dequant(0, 64);
  const auto* q = reinterpret_cast<const std::uint32_t*>(stored(host, "qweight")->data.data());
  const auto* s = reinterpret_cast<const std::uint16_t*>(stored(host, "scales")->data.data());
  for (int n : {0, 1, 2}) {
    const int zero = n == 0 ? 0 : n == 1 ? 7 : 8, code = q[n] & 15;
    const float scale = std::bit_cast<float>((s[n] & 0x8000u) << 16 | ((s[n] >> 10 & 31u) + 112) << 23 | (s[n] & 1023u) << 13);
    EXPECT_EQ(got[n * 96], scale * static_cast<float>(code - zero)) << n;
  }
}

TEST(GptqZeroPoints, ThatContradictSymAreRefused) {
  MockHost host;
  host.config = config();
  Gptq c = plain();
  c.sym = false;
  make_gptq(host, kName, c, 3);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
  try {
    plugin.load(layer);
    FAIL() << "loaded";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.subject, kName + ".qzeros");
    EXPECT_NE(e.message.find("sym"), std::string::npos) << e.message;
  }
  // Where sym is only the default, asymmetric zero points are what old writers meant.
  host.config.erase("sym");
  const WeightCheck w = make_gptq(host, kName, c, 3);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
}

TEST(GptqIndex, OfZerosMeansPlainGroupsUnlessTheOrderMatters) {
  MockHost host;
  host.config = config();
  const WeightCheck w = make_gptq(host, kName, plain(), 3);
  host.add(kName + ".g_idx", QE_I32, {96}, std::vector<std::int32_t>(96));
  LoadedPlugin plugin(library(), host);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
  host.config["desc_act"] = true;
  TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
  try {
    plugin.load(layer);
    FAIL() << "loaded";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.subject, kName + ".g_idx");
  }
}

TEST(GptqIndex, MayBeAbsentWhereGroupsAreInOrder) {
  MockHost host;
  host.config = config();
  const WeightCheck w = make_gptq(host, kName, plain(), 3);
  host.tensors.erase(kName + ".g_idx");
  LoadedPlugin plugin(library(), host);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
}

TEST(GptqIndex, OutOfRangeIsRefusedByNameBeforeAnyWeightIsRead) {
  for (std::int32_t bad : {-1, 3, 1 << 30}) {
    MockHost host;
    host.config = config();
    make_gptq(host, kName, plain(), 3);
    std::vector<std::int32_t> g(96);
    for (int i = 0; i < 96; ++i) g[i] = i / 32;
    g[5] = bad;
    host.add(kName + ".g_idx", QE_I32, {96}, g);
    LoadedPlugin plugin(library(), host);
    TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
    try {
      plugin.plan(layer);
      FAIL() << "planned";
    } catch (const PluginFailure& e) {
      EXPECT_EQ(e.subject, kName + ".g_idx");
      EXPECT_NE(e.message.find(std::to_string(bad)), std::string::npos) << e.message;
    }
  }
}

TEST(GptqScales, ThatAreNotFiniteAreRefusedByName) {
  for (std::uint16_t bad : {0x7e00, 0x7c00}) {
    MockHost host;
    host.config = config();
    make_gptq(host, kName, plain(), 3);
    std::memcpy(stored(host, "scales")->data.data() + 2 * 70, &bad, 2);
    LoadedPlugin plugin(library(), host);
    TestLayer layer(host, {{kName, QE_ROLE_UP, 64}}, 96);
    try {
      plugin.load(layer);
      FAIL() << "loaded";
    } catch (const PluginFailure& e) {
      EXPECT_EQ(e.subject, kName + ".scales");
      EXPECT_NE(e.message.find("output 6, group 1"), std::string::npos) << e.message;
    }
  }
}

// q, k, v of one act-order layer share their order, since they share their inputs; where they do not, they run apart.
TEST(GptqFusion, NeedsOneOrderOneGroupSizeAndOneWidth) {
  MockHost host;
  host.config = config();
  host.config["desc_act"] = true;
  host.config["dynamic"] = {{"+:.*\\.wide$", {{"bits", 8}}}, {"+:.*\\.coarse$", {{"group_size", 96}}}};
  Gptq c = plain();
  c.order = Order::kShuffled;
  const auto a = make_gptq(host, "x.a", c, 3), b = make_gptq(host, "x.b", c, 3);
  make_gptq(host, "x.other", c, 4);
  Gptq wide = c, coarse = c;
  wide.bits = 8;
  coarse.group = 96;
  make_gptq(host, "x.wide", wide, 3);
  make_gptq(host, "x.coarse", coarse, 3);
  LoadedPlugin plugin(library(), host);
  const auto fused = [&](const char* first, const char* second) {
    TestLayer layer(host, {{first, QE_ROLE_GATE, 64}, {second, QE_ROLE_UP, 64}}, 96);
    const qe_plan plan = plugin.plan(layer);
    EXPECT_EQ(plan.claim, 2) << plan.reason;
    return plan.fuse_parts != 0;
  };
  EXPECT_TRUE(fused("x.a", "x.b"));
  EXPECT_FALSE(fused("x.a", "x.other"));
  EXPECT_FALSE(fused("x.a", "x.wide"));
  EXPECT_FALSE(fused("x.a", "x.coarse"));
  TestLayer layer(host, {{"x.a", QE_ROLE_GATE, 64}, {"x.b", QE_ROLE_UP, 64}}, 96);
  auto h = plugin.load(layer);
  auto got = h.dequant(0, 128), expected = a.expected;
  expected.insert(expected.end(), b.expected.begin(), b.expected.end());
  EXPECT_EQ(got, expected);
}

// A rank that holds a range of the inputs has their columns, whatever the order: the ranks' products add up.
TEST(GptqIndex, CutInputsKeepTheirGroups) {
  const std::int64_t n = 64, k = 96;
  for (const Order order : {Order::kPlain, Order::kShuffled, Order::kSortedAnew, Order::kUnequal}) {
    MockHost host;
    host.config = config();
    Gptq c = plain();
    c.order = order;
    const WeightCheck w = make_gptq(host, kName, c, 3);
    ASSERT_EQ(w.n, n);
    ASSERT_EQ(w.k, k);
    LoadedPlugin plugin(library(), host);
    for (int rank = 0; rank < 3; ++rank) {
      TestLayer layer(host, {{kName, QE_ROLE_DOWN, n}}, k);
      layer.view.k_begin = 32 * rank;
      layer.view.k_end = 32 * (rank + 1);
      layer.view.tp_rank = rank;
      layer.view.tp_size = 3;
      auto h = plugin.load(layer);
      const auto got = h.dequant(0, n);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < n; ++i) expected.insert(expected.end(), w.expected.begin() + i * k + 32 * rank, w.expected.begin() + i * k + 32 * (rank + 1));
      EXPECT_EQ(got, expected) << "order " << static_cast<int>(order) << ", rank " << rank;
      std::vector<float> x(32);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) + 0.5f);
      EXPECT_LT(nmse(expected, x, h.run(x, 1), 1, n, 32), 4e-9) << "order " << static_cast<int>(order);
    }
  }
}

TEST(GptqEmbedding, IsGathered) {
  MockHost host;
  host.config = config();
  WeightCheck w = make_gptq(host, "model.embed_tokens", plain(), 3);
  w.n = 59;  // padded to 64
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"model.embed_tokens", QE_ROLE_EMBED, 59}}, 96);
  auto h = plugin.load(layer);
  const auto rows = h.rows({58, 0, 58});
  EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 96, w.expected.begin() + 58 * 96));
  EXPECT_TRUE(std::equal(rows.begin() + 96, rows.begin() + 192, w.expected.begin()));
  EXPECT_THROW(h.rows({59}), PluginFailure);
}

TEST(GptqLmHead, MayBePaddedBeyondTheVocabulary) {
  MockHost host;
  host.config = config();
  host.config["lm_head"] = true;
  WeightCheck w = make_gptq(host, "lm_head", plain(), 3);
  w.n = 59;
  w.expected.resize(w.n * w.k);
  LoadedPlugin plugin(library(), host);
  expect_weights(plugin, host, "lm_head", QE_ROLE_LM_HEAD, w);
  for (const auto& want : plugin.tensors(TestLayer(host, {{"lm_head", QE_ROLE_LM_HEAD, 59}}, 96)))
    if (want.name == "lm_head.scales") {
      EXPECT_EQ(want.dims, (std::vector<std::int64_t>{3, 64}));
    }
}

class Marlin : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Groups, Marlin, ::testing::Values(-1, 128, 64));

TEST_P(Marlin, TilesAndPermutedScalesAreUndone) {
  const std::int64_t n = 128, k = 256, group = GetParam(), groups = group < 0 ? 1 : k / group;
  MockHost host;
  host.config = {{"quant_method", "marlin"}, {"group_size", group}};
  const Codes codes = random_codes(k * n, 4, 7);
  const Scales scales(QE_F16, groups * n, 8);
  host.add(kName + ".B", QE_I32, {k / 16, 2 * n}, pack_marlin(codes, k, n));
  std::vector<std::uint16_t> permuted;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::vector<std::uint16_t> row(scales.half.begin() + g * n, scales.half.begin() + (g + 1) * n);
    for (std::uint16_t v : marlin_scales(row, groups > 1)) permuted.push_back(v);
  }
  host.add(kName + ".s", QE_F16, {groups, n}, permuted);
  WeightCheck w{std::vector<float>(n * k), n, k};
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j)
      w.expected[i * k + j] = scales.value[j / (k / groups) * n + i] * static_cast<float>(static_cast<int>(codes[j * n + i]) - 8);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 1000);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
}

// ---- compressed-tensors pack-quantized -----------------------------------------------------------------

enum class ZeroForm { kNone, kPacked, kBytes };
struct Packed {
  int bits;
  ZeroForm zeros;
  std::int64_t group;  // -1: channel, 0: tensor
  bool padded, order;
  std::int32_t dtype;
};
void PrintTo(const Packed& c, std::ostream* out) {
  *out << c.bits << " bits, zeros " << static_cast<int>(c.zeros) << ", group " << c.group << (c.padded ? ", padded" : "") << (c.order ? ", act order" : "") << ", dtype " << c.dtype;
}
class PackQuantized : public ::testing::TestWithParam<Packed> {};
std::vector<Packed> packed_sweep() {
  std::vector<Packed> all;
  for (int bits = 2; bits <= 8; ++bits)
    for (bool padded : {false, true})
      for (ZeroForm z : {ZeroForm::kNone, ZeroForm::kPacked, ZeroForm::kBytes}) all.push_back({bits, z, 32, padded, false, QE_BF16});
  for (std::int64_t group : {-1, 0, 24, 64, 128})
    for (bool order : {false, true}) all.push_back({4, group == 0 ? ZeroForm::kNone : ZeroForm::kPacked, group, false, order, group == 64 ? QE_F32 : QE_F16});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Sweep, PackQuantized, ::testing::ValuesIn(packed_sweep()));

TEST_P(PackQuantized, GivesScaleTimesCodeMinusZero) {
  const Packed& c = GetParam();
  const std::int64_t n = 40, k = 160, g = c.group > 0 ? c.group : k, groups = (k + g - 1) / g;
  const int half = 1 << (c.bits - 1);
  MockHost host;
  nlohmann::ordered_json args = {{"num_bits", c.bits}, {"type", "int"}, {"symmetric", c.zeros == ZeroForm::kNone}, {"dynamic", false}};
  args["strategy"] = c.group > 0 ? "group" : c.group < 0 ? "channel" : "tensor";
  if (c.group > 0) args["group_size"] = c.group;
  if (c.order) args["actorder"] = "group";
  host.config = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}, {"ignore", {"lm_head"}},
                 {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", args}, {"input_activations", nullptr}}}}}};
  const Codes codes = random_codes(n * k, c.bits, 3);  // [n, k], plus half
  Codes zeros = random_codes(n * groups, c.bits, 4);   // [n, groups], plus half
  if (c.zeros == ZeroForm::kNone) std::fill(zeros.begin(), zeros.end(), half);
  const Scales scales(c.dtype, c.group == 0 ? 1 : n * groups, 5);
  const auto pack = [&](const Codes& row) { return c.padded ? pack_padded(row, c.bits) : pack_stream(row, c.bits); };
  const Words words = pack_rows(codes, n, k, pack);
  host.add(kName + ".weight_packed", QE_I32, {n, static_cast<std::int64_t>(words.size()) / n}, words);
  scales.add(host, kName + ".weight_scale", c.group == 0 ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{n, groups});
  host.add(kName + ".weight_shape", QE_I64, {2}, std::vector<std::int64_t>{n, k});
  if (c.zeros == ZeroForm::kPacked) {
    // Packed along n: column by column of [n, groups].
    Codes column(n);
    std::vector<Words> columns;
    for (std::int64_t j = 0; j < groups; ++j) {
      for (std::int64_t i = 0; i < n; ++i) column[i] = zeros[i * groups + j];
      columns.push_back(pack(column));
    }
    Words out;
    for (std::size_t r = 0; r < columns[0].size(); ++r)
      for (const Words& w : columns) out.push_back(w[r]);
    host.add(kName + ".weight_zero_point", QE_I32, {static_cast<std::int64_t>(columns[0].size()), groups}, out);
  } else if (c.zeros == ZeroForm::kBytes) {
    std::vector<std::int8_t> bytes;
    for (std::uint32_t z : zeros) bytes.push_back(static_cast<std::int8_t>(static_cast<int>(z) - half));
    host.add(kName + ".weight_zero_point", QE_I8, {n, groups}, bytes);
  }
  std::vector<std::int32_t> g_idx(k);
  for (std::int64_t j = 0; j < k; ++j) g_idx[j] = static_cast<std::int32_t>(j / g);
  if (c.order) {
    std::mt19937 rng(6);
    std::shuffle(g_idx.begin(), g_idx.end(), rng);
    host.add(kName + ".weight_g_idx", QE_I32, {k}, g_idx);
  }
  WeightCheck w{std::vector<float>(n * k), n, k};
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j)
      w.expected[i * k + j] = scales.value[c.group == 0 ? 0 : i * groups + g_idx[j]] *
                              static_cast<float>(static_cast<int>(codes[i * k + j]) - static_cast<int>(zeros[i * groups + g_idx[j]]));
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), c.bits == 4 && c.zeros != ZeroForm::kNone ? 600 : 900);
  expect_weights(plugin, host, kName, QE_ROLE_UP, w);
}

// AutoRound keeps zero points as they are in its own packing and in GPTQModel's, and one less in AutoGPTQ's. Asymmetric
// weights do not tell which it was: the configuration does.
TEST(AutoRound, ZeroPointsAreThoseOfThePacking) {
  struct Case {
    const char *key, *value, *format;
  };
  for (const Case& c : {Case{"packing_format", "auto_round:auto_gptq", "gptq"}, {"packing_format", "auto_round:gptqmodel", "gptq_v2"}, {"packing_format", "auto_round", "gptq_v2"},
                        {"packing_format", "auto_round:tritonv2", "gptq_v2"}, {"backend", "auto_round:exllamav2", "gptq_v2"}, {"backend", "autoround:exllamav2", "gptq_v2"},
                        {"backend", "auto_round:gptq:exllamav2", "gptq"}, {"backend", "auto", "gptq"}, {"backend", "gptqmodel:exllamav2", "gptq"}}) {
    SCOPED_TRACE(c.value);
    const std::int64_t n = 40, k = 64;
    MockHost host;
    host.config = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 32}, {"sym", false}, {"data_type", "int"}, {c.key, c.value}};
    const WeightCheck w = make_gptq(host, kName, {4, c.format, false, 32, n, k, QE_F16, Order::kPlain}, 17);
    LoadedPlugin plugin(library(), host);
    expect_weights(plugin, host, kName, QE_ROLE_UP, w);
  }
}

// Some writers store zero points of symmetric weights: half of the range, or nothing.
TEST(PackQuantizedZeroPoints, OfSymmetricWeightsMustStandForZero) {
  const std::int64_t n = 40, k = 64;
  const auto refused = [&](std::int32_t dtype, std::vector<std::int64_t> shape, auto values) -> std::string {
    MockHost host;
    const nlohmann::ordered_json args = {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", 32}};
    host.config = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}, {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", args}}}}}};
    const Words words = pack_rows(random_codes(n * k, 4, 3), n, k, [](const Codes& row) { return pack_stream(row, 4); });
    host.add(kName + ".weight_packed", QE_I32, {n, k / 8}, words);
    Scales(QE_BF16, n * 2, 5).add(host, kName + ".weight_scale", {n, 2});
    host.add(kName + ".weight_zero_point", dtype, std::move(shape), values);
    LoadedPlugin plugin(library(), host);
    TestLayer layer(host, {{kName, QE_ROLE_UP, n}}, k);
    try {
      plugin.load(layer);
    } catch (const PluginFailure& e) {
      return e.subject;
    }
    return "";
  };
  std::vector<std::int8_t> bytes(n * 2, 0);
  EXPECT_EQ(refused(QE_I8, {n, 2}, bytes), "");
  bytes[7] = 1;
  EXPECT_EQ(refused(QE_I8, {n, 2}, bytes), kName + ".weight_zero_point");
  std::vector<std::uint32_t> packed(n / 8 * 2, 0x88888888u);
  EXPECT_EQ(refused(QE_I32, {n / 8, 2}, packed), "");
  packed[3] = 0x88878888u;
  EXPECT_EQ(refused(QE_I32, {n / 8, 2}, packed), kName + ".weight_zero_point");
}

}  // namespace
}  // namespace qengine::test
