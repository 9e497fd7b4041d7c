// What a model takes: its file, its cache and little else; quantized at load, never the unquantized model beside the quantized one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/paths.hpp"
#include "tests/support/program.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using test::run;
using Json = nlohmann::ordered_json;

// A Llama whose weights are zeros, which take no room on the disk but do in memory. Gives the bytes of its largest fused layer.
std::uint64_t write_zeros(const fs::path& folder, int layers, std::int64_t hidden, std::int64_t inner) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << Json{{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"vocab_size", 1024}, {"hidden_size", hidden}, {"intermediate_size", inner},
                                                {"num_hidden_layers", layers}, {"num_attention_heads", hidden / 64}, {"num_key_value_heads", hidden / 64}, {"max_position_embeddings", 64},
                                                {"rms_norm_eps", 1e-5}, {"tie_word_embeddings", true}, {"torch_dtype", "bfloat16"}};
  Json header = Json::object();
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::uint64_t bytes = 2;
    for (const std::int64_t d : shape) bytes *= static_cast<std::uint64_t>(d);
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  add("model.embed_tokens.weight", {1024, hidden});
  for (int i = 0; i < layers; ++i) {
    const std::string l = "model.layers." + std::to_string(i) + ".";
    add(l + "input_layernorm.weight", {hidden});
    add(l + "post_attention_layernorm.weight", {hidden});
    for (const char* p : {"q", "k", "v", "o"}) add(l + "self_attn." + p + "_proj.weight", {hidden, hidden});
    add(l + "mlp.gate_proj.weight", {inner, hidden});
    add(l + "mlp.up_proj.weight", {inner, hidden});
    add(l + "mlp.down_proj.weight", {hidden, inner});
  }
  add("model.norm.weight", {hidden});
  std::string text = header.dump();
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  const std::uint64_t size = text.size();
  out.write(reinterpret_cast<const char*>(&size), 8);
  out << text;
  out.close();
  fs::resize_file(folder / "model.safetensors", 8 + size + at);
  return static_cast<std::uint64_t>(2 * 2 * inner * hidden);
}

struct Memory {
  std::uint64_t weights = 0, peak = 0;
};
Memory memory_of(const fs::path& model, const std::string& scheme) {
  std::vector<std::string> args{"run", "--model", model.string(), "--prompt-ids", "1,2,3", "--max-tokens", "1", "--temperature", "0", "--ignore-eos", "--max-model-len", "32", "--kv-cache-memory-bytes", "4MiB",
                                "--max-num-batched-tokens", "32", "--threads", "2", "--tokenizer", test::fixture("tiny-qwen3").string(), "--json"};
  if (!scheme.empty()) args.insert(args.end(), {"--quantization", scheme});
  const auto o = run(args);
  EXPECT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out, nullptr, false);
  if (!j.is_object()) return {};
  return {j["memory"]["weights_bytes"], j["memory"]["peak_rss_bytes"]};
}

class OnlinePeak : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Schemes, OnlinePeak, ::testing::Values("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "mxfp4", "int8_per_channel_weight_only"),
                         [](const auto& i) { return std::string(i.param); });

// Peak = what the program takes for a model of nothing, plus the final size, plus the largest layer as it lies in the file.
TEST_P(OnlinePeak, IsTheFinalSizeAndTheLargestLayer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' own memory is counted too";
#endif
  if (test::fixture("tiny-qwen3").empty()) GTEST_SKIP() << "no tiny-qwen3 fixture, whose tokenizer is used";
  const test::TempDir dir;
  write_zeros(dir.path() / "nothing", 1, 128, 128);
  const std::uint64_t largest = write_zeros(dir.path() / "model", 8, 1024, 3072);  // 226 MB in 16 bits, 12.6 MB the largest layer
  const Memory nothing = memory_of(dir.path() / "nothing", GetParam()), m = memory_of(dir.path() / "model", GetParam());
  ASSERT_GT(m.weights, 50u << 20);
  // Activations of 32 tokens and the allocator's rounding are what the last term is for.
  EXPECT_LE(m.peak, nothing.peak + m.weights + largest + (12u << 20)) << "weights " << m.weights << ", program " << nothing.peak << ", largest layer " << largest;
  EXPECT_GE(m.peak, m.weights);
}

// Peak = the file, the cache of the tokens that were seen, and 15 %.
TEST(SmolLm2Peak, IsTheFileAndItsCacheAndFifteenPerCent) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' own memory is counted too";
#endif
  const char* env = std::getenv("QENGINE_SMOLLM2");
  const fs::path file = env ? fs::path(env) : test::source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(file)) GTEST_SKIP() << "the model is not there: make run fetches it, or QENGINE_SMOLLM2 names it";
  const auto o = run({"run", "--model", file.string(), "--prompt", "Why is the sky blue?", "--max-tokens", "8", "--temperature", "0", "--threads", "2", "--device", "cpu", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(j.is_object()) << o.out;
  const double size = static_cast<double>(fs::file_size(file)), peak = j["memory"]["peak_rss_bytes"].get<double>();
  const double cache = 30 * 2 * 3 * 64 * 2 * 16;  // layers, k and v, heads of 64 dimensions in bf16, the block of 16 tokens that holds these
  EXPECT_LE(peak, 1.15 * size + cache);
  EXPECT_GE(peak, 0.95 * size) << "too good: where are the weights?";
}

}  // namespace
}  // namespace qengine
