// The gguf plugin through its C table: every golden file's rows, products against their own dequantized
// weights, what is refused and how.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "core/model/checkpoint.hpp"
#include "core/model/config.hpp"
#include "plugins/gguf/format.hpp"
#include "tests/support/loaded_plugin.hpp"
#include "tests/support/paths.hpp"

namespace qe_gguf {
namespace {

namespace fs = std::filesystem;
using qengine::test::MockHost;
using qengine::test::LoadedPlugin;
using qengine::test::PluginFailure;
using qengine::test::TestLayer;
using Json = nlohmann::ordered_json;

fs::path library() { return qengine::test::binary_dir() / "bin/plugins/gguf.so"; }

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

// A host that shows a GGUF file.
struct FileHost : MockHost {
  explicit FileHost(const fs::path& file) : checkpoint(qengine::Checkpoint::open(file)), hyper(qengine::read_model_config(*checkpoint)) {
    config = checkpoint->quant_config();
    gguf = checkpoint->gguf_metadata();
    head_dim = hyper.head_dim;
    for (const qengine::Tensor& t : checkpoint->tensors()) tensors[t.name] = {t.dtype, t.shape, {}, checkpoint->data(t)};
  }
  std::shared_ptr<const qengine::Checkpoint> checkpoint;
  qengine::ModelConfig hyper;
};

int role_of(const std::string& module) {
  const std::pair<const char*, int> roles[] = {{"q_proj", QE_ROLE_Q},   {"k_proj", QE_ROLE_K},       {"v_proj", QE_ROLE_V},
                                               {"o_proj", QE_ROLE_O},   {"gate_proj", QE_ROLE_GATE}, {"up_proj", QE_ROLE_UP},
                                               {"down_proj", QE_ROLE_DOWN}, {"embed_tokens", QE_ROLE_LM_HEAD}, {"lm_head", QE_ROLE_LM_HEAD}};
  for (const auto& [end, role] : roles)
    if (module.ends_with(end)) return role;
  return QE_ROLE_OTHER;
}

// Tensors of a golden.safetensors file whose names begin with "rows.": all F32.
std::map<std::string, std::vector<float>> golden_rows(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::uint64_t size = 0;
  in.read(reinterpret_cast<char*>(&size), 8);
  std::string text(size, '\0');
  in.read(text.data(), std::ssize(text));
  std::map<std::string, std::vector<float>> out;
  const Json head = Json::parse(text);
  for (const auto& [name, info] : head.items()) {
    if (!name.starts_with("rows.")) continue;
    const auto begin = info["data_offsets"][0].get<std::uint64_t>(), end = info["data_offsets"][1].get<std::uint64_t>();
    std::vector<float> values((end - begin) / 4);
    in.seekg(std::streamoff(8 + size + begin));
    in.read(reinterpret_cast<char*>(values.data()), std::streamsize(end - begin));
    out[name.substr(5)] = std::move(values);
  }
  return out;
}

// Files that llama-quantize wrote, with rows dequantized elsewhere. Skipped one by one where absent.
class GoldenFile : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenFile, RowsAreEqualBitForBit) {
  const fs::path file = qengine::test::fixture("gguf/" + std::string(GetParam()) + ".gguf");
  if (file.empty()) GTEST_SKIP() << "fixture " << GetParam() << " is not here";
  const fs::path stem = file.parent_path() / GetParam();
  std::ifstream json(stem.string() + ".golden.json");
  const Json golden = Json::parse(json);
  const auto rows = golden_rows(stem.string() + ".golden.safetensors");
  ASSERT_FALSE(golden["dequant_rows"].empty());

  FileHost host(file);
  LoadedPlugin plugin(library(), host);
  EXPECT_EQ(plugin.detect(), 1000);
  for (const auto& [module, numbers] : golden["dequant_rows"].items()) {
    const qengine::Tensor* t = host.checkpoint->find(module + ".weight");
    ASSERT_NE(t, nullptr) << module;
    const std::int64_t n = t->shape[0], k = t->shape[1];
    TestLayer layer(host, {{module, role_of(module), n}}, k);
    auto handle = plugin.load(layer);
    const std::vector<float>& expected = rows.at(module);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::int64_t row = numbers[i].get<std::int64_t>();
      const std::vector<float> got = handle.dequant(row, row + 1), again = handle.rows({std::int32_t(row)});
      for (std::int64_t c = 0; c < k; ++c) {
        const float want = expected[i * std::size_t(k) + std::size_t(c)];
        ASSERT_TRUE(same_bits(got[std::size_t(c)] + 0.0f, want + 0.0f)) << module << " row " << row << " column " << c << ": " << got[std::size_t(c)] << ", expected " << want;
        ASSERT_TRUE(same_bits(got[std::size_t(c)], again[std::size_t(c)])) << module << " row " << row << " column " << c;
      }
    }
  }
}

// Every matrix of the file: planned as loaded, stored + 4 % at most, products near the sums of its own weights.
TEST_P(GoldenFile, ProductsAreThoseOfTheDequantizedWeights) {
  const fs::path file = qengine::test::fixture("gguf/" + std::string(GetParam()) + ".gguf");
  if (file.empty()) GTEST_SKIP() << "fixture " << GetParam() << " is not here";
  FileHost host(file);
  LoadedPlugin plugin(library(), host);
  std::mt19937 rng(3);
  std::uint64_t stored = 0, resident = 0;
  for (const qengine::Tensor& t : host.checkpoint->tensors()) {
    if (t.shape.size() != 2) continue;
    const std::string module = t.name.substr(0, t.name.size() - std::string(".weight").size());
    const std::int64_t n = t.shape[0], k = t.shape[1], m = 3;
    std::vector<float> x(std::size_t(m * k));
    for (float& v : x) v = std::normal_distribution<float>()(rng);
    for (const bool exact : {false, true}) {
      TestLayer layer(host, {{module, role_of(module), n}}, k, exact ? QE_LAYER_EXACT : 0);
      const auto wants = plugin.tensors(layer);
      ASSERT_EQ(wants.size(), 1u);
      EXPECT_EQ(wants[0].name, t.name);
      EXPECT_EQ(wants[0].dims, t.shape);
      EXPECT_TRUE(wants[0].dtypes >> t.dtype & 1);
      auto handle = plugin.load(layer);
      const double error = qengine::test::nmse(handle.dequant(0, n), x, handle.run(x, m), m, n, k);
      // int16 activations per 32 inputs: 3e-10 to 1e-9 expected; float32: 1e-12
      EXPECT_LT(error, exact ? 1e-10 : 2e-9) << t.name;
      if (!exact) stored += t.bytes, resident += handle.bytes(QE_MEM_WEIGHT);
    }
  }
  EXPECT_GE(resident, stored);
  EXPECT_LE(double(resident), 1.03 * double(stored) + 1024) << "resident weights are more than 3 % above the file's";
}

INSTANTIATE_TEST_SUITE_P(File, GoldenFile,
                         ::testing::Values("tiny-llama-q4_1", "tiny-llama-q4_k_s", "tiny-llama-q5_0", "tiny-qwen2-bf16", "tiny-qwen2-f16",
                                           "tiny-qwen2-f32-q8_0", "tiny-qwen3-q2_k", "tiny-qwen3-q3_k_m", "tiny-qwen3-q4_0",
                                           "tiny-qwen3-q4_k_m", "tiny-qwen3-q5_k_m", "tiny-qwen3-q6_k", "tiny-qwen3-q8_0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- made-up matrices ------------------------------------------------------------------------------

// Random blocks with scales that are finite and not tiny.
template <class T>
std::vector<typename T::Block> random_blocks(std::int64_t count, std::mt19937& rng) {
  std::vector<typename T::Block> out(static_cast<std::size_t>(count));
  const auto half = [&] { return qe::f16::from(std::uniform_real_distribution<float>(0.01f, 0.1f)(rng) * (rng() % 2 ? 1.0f : -1.0f)); };
  for (auto& b : out) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(&b);
    for (std::size_t i = 0; i < sizeof b; ++i) bytes[i] = std::uint8_t(rng());
    if constexpr (T::kId == kMXFP4) {
      b.e = std::uint8_t(115 + rng() % 8);
    } else {
      b.d = half();
      if constexpr (T::kOffset && T::kValues == 256) b.dmin = half();
      if constexpr (T::kOffset && T::kValues == 32) b.m = half();
    }
  }
  return out;
}

struct MadeUp {
  std::vector<float> weights;  // [n, k] as format.hpp defines them, rows in file order
};

template <class T>
MadeUp add_matrix(MockHost& host, const std::string& module, std::int64_t n, std::int64_t k, std::mt19937& rng) {
  const auto blocks = random_blocks<T>(n * k / T::kValues, rng);
  host.add(module + ".weight", int(QE_GGML) + int(T::kId), {n, k}, blocks);
  MadeUp made;
  for (const auto& b : blocks)
    for (int i = 0; i < T::kValues; ++i) made.weights.push_back(weight<T>(b, i));
  return made;
}

template <class T>
class EveryType : public ::testing::Test {};
using Types = ::testing::Types<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4>;
struct TypeNames {
  template <class T>
  static std::string GetName(int) { return type_name(T::kId); }
};
TYPED_TEST_SUITE(EveryType, Types, TypeNames);

// Odd row counts, several blocks, rows that end inside a strip.
TYPED_TEST(EveryType, DequantizesEveryRowExactly) {
  using T = TypeParam;
  std::mt19937 rng(5);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  const std::int64_t n = 13, k = 3 * T::kValues;
  const MadeUp made = add_matrix<T>(host, "m", n, k, rng);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"m", QE_ROLE_O, n}}, k);
  EXPECT_STREQ(plugin.plan(layer).scheme, type_name(T::kId));
  auto handle = plugin.load(layer);
  const std::vector<float> got = handle.dequant(0, n), part = handle.dequant(5, 11), picked = handle.rows({12, 0, 7});
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const float want = made.weights[std::size_t(r * k + c)];
      ASSERT_TRUE(same_bits(got[std::size_t(r * k + c)] + 0.0f, want + 0.0f)) << r << ", " << c;
      if (r >= 5 && r < 11) { ASSERT_TRUE(same_bits(part[std::size_t((r - 5) * k + c)] + 0.0f, want + 0.0f)) << r << ", " << c; }
    }
  for (std::int64_t c = 0; c < k; ++c) {
    EXPECT_EQ(picked[std::size_t(c)], made.weights[std::size_t(12 * k + c)]);
    EXPECT_EQ(picked[std::size_t(2 * k + c)], made.weights[std::size_t(7 * k + c)]);
  }
}

// One token at a time, in twos, or all at once: the same bits.
TYPED_TEST(EveryType, ATokensResultDoesNotDependOnTheOthers) {
  using T = TypeParam;
  std::mt19937 rng(6);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  const std::int64_t n = 21, k = 512, m = 19;
  const MadeUp made = add_matrix<T>(host, "m", n, k, rng);
  LoadedPlugin plugin(library(), host);
  std::vector<float> x(std::size_t(m * k));
  for (float& v : x) v = std::normal_distribution<float>()(rng);
  for (const int flags : {0, int(QE_LAYER_EXACT)}) {
    TestLayer layer(host, {{"m", QE_ROLE_O, n}}, k, flags);
    auto handle = plugin.load(layer);
    const std::vector<float> all = handle.run(x, m);
    EXPECT_LT(qengine::test::nmse(made.weights, x, all, m, n, k), flags ? 1e-10 : 2e-9);
    for (std::int64_t step : {1, 2, 3, 5, 8})
      for (std::int64_t t = 0; t < m; t += step) {
        const std::int64_t count = std::min(step, m - t);
        const std::vector<float> some = handle.run({x.begin() + t * k, x.begin() + (t + count) * k}, count);
        for (std::int64_t i = 0; i < count * n; ++i)
          ASSERT_TRUE(same_bits(some[std::size_t(i)], all[std::size_t(t * n + i)])) << "token " << t << " of " << m << " in steps of " << step;
      }
    EXPECT_TRUE(handle.run({}, 0).empty());
  }
}

TYPED_TEST(EveryType, RefusesAScaleThatIsNotFinite) {
  using T = TypeParam;
  std::mt19937 rng(8);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  const std::int64_t n = 9, k = 2 * T::kValues;
  auto blocks = random_blocks<T>(n * 2, rng);
  if constexpr (T::kId == kMXFP4) blocks[7].e = 255;
  else blocks[7].d.bits = 0x7e00;
  host.add("model.layers.0.mlp.up_proj.weight", int(QE_GGML) + int(T::kId), {n, k}, blocks);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"model.layers.0.mlp.up_proj", QE_ROLE_UP, n}}, k);
  try {
    plugin.load(layer);
    FAIL() << "a NaN scale was accepted";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.status, QE_E_CHECKPOINT);
    EXPECT_EQ(e.subject, "model.layers.0.mlp.up_proj.weight");
    EXPECT_NE(e.message.find("a scale that is NaN or infinite"), std::string::npos) << e.message;
    EXPECT_NE(e.message.find("in row 3 ("), std::string::npos) << e.message;
  }
}

TEST(GgufPlugin, PartsOfOneTypeAreFusedAndOthersAreNot) {
  std::mt19937 rng(9);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  const std::int64_t k = 256;
  const MadeUp q = add_matrix<Q4_K>(host, "q", 32, k, rng), kk = add_matrix<Q4_K>(host, "k", 12, k, rng);
  add_matrix<Q6_K>(host, "v", 12, k, rng);
  LoadedPlugin plugin(library(), host);
  TestLayer both(host, {{"q", QE_ROLE_Q, 32}, {"k", QE_ROLE_K, 12}}, k);
  const qe_plan fused = plugin.plan(both);
  EXPECT_EQ(fused.claim, 2);
  EXPECT_EQ(fused.fuse_parts, 1);
  TestLayer three(host, {{"q", QE_ROLE_Q, 32}, {"k", QE_ROLE_K, 12}, {"v", QE_ROLE_V, 12}}, k);
  const qe_plan apart = plugin.plan(three);
  EXPECT_EQ(apart.claim, 2);
  EXPECT_EQ(apart.fuse_parts, 0);
  EXPECT_STRNE(apart.reason, "");
  EXPECT_STREQ(apart.scheme, "Q4_K+Q6_K");

  // The fused product is the two products side by side.
  std::vector<float> x(std::size_t(2 * k));
  for (float& v : x) v = std::normal_distribution<float>()(rng);
  auto h = plugin.load(both);
  TestLayer first(host, {{"q", QE_ROLE_Q, 32}}, k), second(host, {{"k", QE_ROLE_K, 12}}, k);
  const std::vector<float> y = h.run(x, 2), a = plugin.load(first).run(x, 2), b = plugin.load(second).run(x, 2);
  for (int t = 0; t < 2; ++t)
    for (int i = 0; i < 44; ++i)
      EXPECT_TRUE(same_bits(y[std::size_t(t * 44 + i)], i < 32 ? a[std::size_t(t * 32 + i)] : b[std::size_t(t * 12 + i - 32)])) << t << ", " << i;
}

// In files of architecture llama, rows of q and k come back in the model's order; v and other architectures stay.
TEST(GgufPlugin, RotaryRowOrderIsUndoneByRoleAndArchitecture) {
  std::mt19937 rng(10);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  host.head_dim = 8;
  const std::int64_t n = 16, k = 64;
  const MadeUp made = add_matrix<Q8_0>(host, "m", n, k, rng);
  LoadedPlugin plugin(library(), host);
  for (const char* architecture : {"llama", "qwen2"})
    for (const int role : {QE_ROLE_Q, QE_ROLE_K, QE_ROLE_V, QE_ROLE_O}) {
      host.gguf = {{"general.architecture", architecture}};
      const bool moved = std::string(architecture) == "llama" && (role == QE_ROLE_Q || role == QE_ROLE_K);
      TestLayer layer(host, {{"m", role, n}}, k);
      const std::vector<float> got = plugin.load(layer).dequant(0, n);
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t s = 0; s < 2; ++s)
          for (std::int64_t i = 0; i < 4; ++i) {
            const std::int64_t model_row = h * 8 + s * 4 + i, file_row = moved ? h * 8 + 2 * i + s : model_row;
            for (std::int64_t c = 0; c < k; ++c)
              ASSERT_EQ(got[std::size_t(model_row * k + c)], made.weights[std::size_t(file_row * k + c)])
                  << architecture << " role " << role << " row " << model_row;
          }
    }
}

// A rank's share of rows and inputs is that part of the whole.
TEST(GgufPlugin, CutsTakeTheirRowsAndColumns) {
  std::mt19937 rng(11);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  const std::int64_t n = 32, k = 512;
  const MadeUp made = add_matrix<Q6_K>(host, "m", n, k, rng);
  LoadedPlugin plugin(library(), host);
  TestLayer rows(host, {{"m", QE_ROLE_UP, n, 8, 24}}, k);
  const std::vector<float> middle = plugin.load(rows).dequant(0, 16);
  for (std::int64_t r = 0; r < 16; ++r)
    for (std::int64_t c = 0; c < k; ++c) ASSERT_EQ(middle[std::size_t(r * k + c)], made.weights[std::size_t((r + 8) * k + c)]);
  TestLayer columns(host, {{"m", QE_ROLE_DOWN, n}}, k);
  columns.view.k_begin = 256;
  const std::vector<float> right = plugin.load(columns).dequant(0, n);
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c < 256; ++c) ASSERT_EQ(right[std::size_t(r * 256 + c)], made.weights[std::size_t(r * k + 256 + c)]);
}

TEST(GgufPlugin, PlainNumbersAreReadToo) {
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  std::mt19937 rng(12);
  const std::int64_t n = 11, k = 40;  // no multiple of 32
  std::vector<float> f(std::size_t(n * k)), x(std::size_t(2 * k));
  std::vector<std::uint16_t> half, brain;
  for (float& v : f) {
    v = std::normal_distribution<float>()(rng);
    half.push_back(qe::f32_to_f16(v));
    brain.push_back(qe::f32_to_bf16(v));
  }
  for (float& v : x) v = std::normal_distribution<float>()(rng);
  host.add("a.weight", int(QE_GGML) + int(kF32), {n, k}, f);
  host.add("b.weight", int(QE_GGML) + int(kF16), {n, k}, half);
  host.add("c.weight", int(QE_GGML) + int(kBF16), {n, k}, brain);
  LoadedPlugin plugin(library(), host);
  for (const char* name : {"a", "b", "c"}) {
    TestLayer layer(host, {{name, QE_ROLE_O, n}}, k);
    auto h = plugin.load(layer);
    const std::vector<float> w = h.dequant(0, n);
    for (std::size_t i = 0; i < w.size(); ++i)
      ASSERT_EQ(w[i], *name == 'a' ? f[i] : *name == 'b' ? qe::f16_to_f32(half[i]) : qe::bf16_to_f32(brain[i])) << name;
    EXPECT_LT(qengine::test::nmse(w, x, h.run(x, 2), 2, n, k), 1e-10) << name;
  }
  brain[50] = 0xff80;  // -inf
  host.add("c.weight", int(QE_GGML) + int(kBF16), {n, k}, brain);
  TestLayer layer(host, {{"c", QE_ROLE_O, n}}, k);
  try {
    plugin.load(layer);
    FAIL() << "an infinite weight was accepted";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.subject, "c.weight");
    EXPECT_NE(e.message.find("a weight that is NaN or infinite in row 1 (BF16)"), std::string::npos) << e.message;
  }
}

TEST(GgufPlugin, SaysNoWithAReason) {
  MockHost host;
  LoadedPlugin plugin(library(), host);
  std::string why;
  host.config = {{"quant_method", "gptq"}};
  EXPECT_EQ(plugin.detect(&why), 0);
  EXPECT_NE(why.find("gptq"), std::string::npos) << why;
  host.config = {{"quant_method", "gguf"}};
  EXPECT_EQ(plugin.detect(&why), 1000);

  host.add("m.weight", QE_GGML + 21, {4, 256}, std::vector<std::uint8_t>(4 * 110));
  TestLayer layer(host, {{"m", QE_ROLE_O, 4}}, 256);
  qe_plan p = plugin.plan(layer);
  EXPECT_EQ(p.claim, 0);
  EXPECT_NE(std::string(p.reason).find("m.weight is IQ3_S; supported: Q4_0"), std::string::npos) << p.reason;
  EXPECT_THROW(plugin.load(layer), PluginFailure);
  EXPECT_THROW(plugin.tensors(layer), PluginFailure);

  TestLayer missing(host, {{"absent", QE_ROLE_O, 4}}, 256);
  p = plugin.plan(missing);
  EXPECT_EQ(p.claim, 0);
  EXPECT_NE(std::string(p.reason).find("absent.weight is not in the file"), std::string::npos) << p.reason;

  TestLayer blind(host, {{"m", QE_ROLE_O, 4}}, 256, 0, /*with_files=*/false);
  p = plugin.plan(blind);
  EXPECT_EQ(p.claim, 0);
  EXPECT_STRNE(p.reason, "");

  plugin.device.kind = QE_CUDA;
  p = plugin.plan(layer);
  EXPECT_EQ(p.claim, 0);
  EXPECT_STRNE(p.reason, "");
}

TEST(GgufPlugin, AWrongShapeIsRefusedByName) {
  std::mt19937 rng(13);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  add_matrix<Q4_0>(host, "m", 16, 64, rng);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"m", QE_ROLE_O, 24}}, 64);
  try {
    plugin.load(layer);
    FAIL() << "16 rows were taken for 24";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.subject, "m.weight");
    EXPECT_EQ(e.status, QE_E_CHECKPOINT);
  }
}

TEST(GgufPlugin, GivesUpWhenAskedToAndWhenMemoryIsShort) {
  std::mt19937 rng(14);
  MockHost host;
  host.config = {{"quant_method", "gguf"}};
  add_matrix<Q4_0>(host, "m", 64, 256, rng);
  LoadedPlugin plugin(library(), host);
  TestLayer layer(host, {{"m", QE_ROLE_O, 64}}, 256);
  host.cancel = true;
  try {
    plugin.load(layer);
    FAIL() << "loading went on";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.status, QE_E_CANCELLED);
  }
  host.cancel = false;
  host.fail_alloc = 0;
  try {
    plugin.load(layer);
    FAIL() << "no memory, and yet it loaded";
  } catch (const PluginFailure& e) {
    EXPECT_EQ(e.status, QE_E_OOM);
  }
  EXPECT_EQ(plugin.load(layer).n, 64);
}

}  // namespace
}  // namespace qe_gguf
