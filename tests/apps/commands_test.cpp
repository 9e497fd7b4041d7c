// Commands that write files, and what they write.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/paths.hpp"
#include "tests/support/program.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using test::fixture;
using test::run;
using Json = nlohmann::ordered_json;

class InFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    folder_ = fs::path(::testing::TempDir()) / ("apps_" + std::to_string(getpid()) + name);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const char* name) const { return (folder_ / name).string(); }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  fs::path folder_;
};

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct TensorFile {
  Json header;
  std::string data;
  explicit TensorFile(const fs::path& file) {
    const std::string all = bytes_of(file);
    std::uint64_t size = 0;
    if (all.size() < 8) return;
    std::memcpy(&size, all.data(), 8);
    header = Json::parse(all.substr(8, size), nullptr, false);
    data = all.substr(8 + size);
  }
  std::string bytes(const std::string& name) const {
    const std::size_t begin = header.at(name).at("data_offsets").at(0), end = header.at(name).at("data_offsets").at(1);
    return data.substr(begin, end - begin);
  }
};

class EvalLogits : public InFolder {};

// The largest logit of the last position is the token that greedy decoding takes.
TEST_F(EvalLogits, AgreeWithWhatRunGenerates) {
  const std::string model = fixture("tiny-qwen3").string();
  if (model.empty()) GTEST_SKIP() << "no tiny-qwen3 fixture";
  ASSERT_EQ(run({"eval", "logits", model, "--prompt-ids", "5,6,7,8", "--prompt-ids", "9", "--output", at("l.safetensors"), "--exact"}).code, 0);
  const TensorFile f(at("l.safetensors"));
  EXPECT_EQ(f.header["logits_0"]["shape"], Json({4, 1024}));
  EXPECT_EQ(f.header["logits_1"]["shape"], Json({1, 1024}));
  EXPECT_EQ(f.header["logits_0"]["dtype"], "F32");
  const std::string raw = f.bytes("logits_0");
  std::vector<float> rows(raw.size() / 4);
  std::memcpy(rows.data(), raw.data(), raw.size());
  const auto last = rows.end() - 1024;
  const Json doc = Json::parse(run({"run", model, "--prompt-ids", "5,6,7,8", "--max-tokens", "1", "--temperature", "0", "--ignore-eos", "--exact", "--json"}).out);
  EXPECT_EQ(doc["outputs"][0]["token_ids"][0], std::max_element(last, rows.end()) - last);
}

TEST_F(EvalLogits, RefuseIdsOutsideTheVocabularyAndLeaveNoFile) {
  const std::string model = fixture("tiny-qwen3").string();
  if (model.empty()) GTEST_SKIP() << "no tiny-qwen3 fixture";
  const auto o = run({"eval", "logits", model, "--prompt-ids", "5,5000", "--output", at("l.safetensors")});
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(o.err.substr(0, 35), "E101 token id 5000 of prompt 0 is o");
  EXPECT_EQ(files(), 0);
}

class Export : public InFolder, public ::testing::WithParamInterface<const char*> {};

// The exported model is the same model: ids of a text, and its perplexity on the exact path.
TEST_P(Export, IsTheSameModel) {
  const std::string model = fixture(GetParam()).string();
  if (model.empty()) GTEST_SKIP() << "no fixture " << GetParam();
  const auto o = run({"export", model, "--output", at("out"), "--dtype", "f32"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(files(), 1);  // no leftovers beside it
  const std::string text = "The river runs past 42 mills, doesn't it?\n\tCaf\u00e9 \u4f60\u597d";
  const auto ids = [&](const std::string& m) { return Json::parse(run({"tokenize", "--tokenizer", m, "--text", text, "--json"}).out)["tokens"]; };
  EXPECT_EQ(ids(model), ids(at("out")));
  const auto ppl = [&](const std::string& m) {
    return Json::parse(run({"eval", "ppl", m, "--text", (test::source_dir() / "tests/golden/README.md").string(), "--exact", "--json"}).out)["ppl"].get<double>();
  };
  // Equal weights; only the order of summation may differ between two plugins.
  EXPECT_NEAR(ppl(at("out")) / ppl(model), 1, 1e-5);
}
INSTANTIATE_TEST_SUITE_P(Models, Export,
                         ::testing::Values("tiny-qwen3", "tiny-qwen2", "gguf/tiny-qwen3-q4_k_m.gguf", "gguf/tiny-llama-q4_1.gguf", "gguf/tiny-qwen2-f16.gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

class ExportTo : public InFolder {};

TEST_F(ExportTo, Bf16OfABf16ModelIsBitForBitTheSame) {
  const fs::path model = fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no tiny-qwen3 fixture";
  ASSERT_EQ(run({"export", model.string(), "--output", at("out")}).code, 0);
  const TensorFile a(model / "model.safetensors"), b(at("out/model.safetensors"));
  std::size_t compared = 0;
  for (const auto& [name, entry] : b.header.items()) {
    if (name == "__metadata__") continue;
    ASSERT_TRUE(a.header.contains(name)) << name;
    EXPECT_EQ(entry["dtype"], "BF16");
    EXPECT_EQ(entry["shape"], a.header.at(name)["shape"]);
    EXPECT_TRUE(a.bytes(name) == b.bytes(name)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, a.header.size() - a.header.contains("__metadata__"));
}

TEST_F(ExportTo, AFolderThatHoldsSomethingIsLeftAlone) {
  const std::string model = fixture("tiny-qwen3").string();
  if (model.empty()) GTEST_SKIP() << "no tiny-qwen3 fixture";
  fs::create_directories(folder_ / "out");
  std::ofstream(folder_ / "out/precious") << "x";
  const auto o = run({"export", model, "--output", at("out")});
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(o.err.substr(0, 5), "E108 ");
  EXPECT_EQ(bytes_of(folder_ / "out/precious"), "x");
  EXPECT_EQ(files(), 1);
}

class PluginTrust : public InFolder {};

TEST_F(PluginTrust, AddsTheEntryOnceAndTheProfileStaysReadable) {
  const std::string library = Json::parse(run({"plugin", "list", "--json"}).out)["plugins"][0]["path"];
  std::ofstream(folder_ / "q.toml") << "schema = 1\n[engine]\nseed = 3";  // no newline at its end
  const auto shown = run({"plugin", "trust", library});
  EXPECT_EQ(shown.out.substr(0, 24), "[[plugins.allow]]\nid = \"");
  EXPECT_EQ(run({"plugin", "trust", library, "--yes"}).code, 2);  // where to?
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run({"plugin", "trust", library, "--yes", "--config", at("q.toml")}).code, 0);
  const std::string text = bytes_of(folder_ / "q.toml");
  EXPECT_NE(text.find(shown.out), std::string::npos) << text;
  EXPECT_EQ(text.find("[[plugins.allow]]"), text.rfind("[[plugins.allow]]"));
  EXPECT_EQ(run({"plugin", "list", "--config", at("q.toml")}).code, 0);
}

class Inspect : public InFolder {};

TEST_F(Inspect, CheckFindsAValueThatThePlanCannotSee) {
  const fs::path model = fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no tiny-qwen3 fixture";
  EXPECT_EQ(run({"inspect", model.string(), "--check"}).code, 0);
  fs::copy(model, folder_ / "m");
  const TensorFile f(model / "model.safetensors");
  const std::size_t begin = f.header.at("model.layers.1.mlp.up_proj.weight")["data_offsets"][0];
  std::string all = bytes_of(model / "model.safetensors");
  const std::size_t data = all.size() - f.data.size();
  all[data + begin] = '\xc0', all[data + begin + 1] = '\x7f';  // a NaN
  std::ofstream(folder_ / "m/model.safetensors", std::ios::binary) << all;
  EXPECT_EQ(run({"inspect", at("m")}).code, 0);
  const auto o = run({"inspect", at("m"), "--check"});
  EXPECT_EQ(o.code, 3);
  EXPECT_NE(o.out.find("model.layers.1.mlp.up_proj.weight has 1 NaN values in model.safetensors"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace qengine
