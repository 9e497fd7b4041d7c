// GGUF files made here: values of every type, names, and the config that comes out of the metadata.
#include "core/model/gguf.hpp"

#include <gtest/gtest.h>
#include <qe/plugin.h>

#include <cmath>

#include "core/base/error.hpp"
#include "core/model/checkpoint_memory.hpp"
#include "core/model/config.hpp"
#include "tests/support/files.hpp"

namespace qengine {
namespace {

using test::GgufBuilder;
using test::raw;

// Keeps the bytes as long as the checkpoint.
struct Opened {
  std::string bytes;
  std::shared_ptr<const Checkpoint> checkpoint;
  explicit Opened(const GgufBuilder& b) : bytes(b.bytes()), checkpoint(gguf_from_memory(std::as_bytes(std::span(bytes)))) {}
  const Checkpoint* operator->() const { return checkpoint.get(); }
  ModelConfig config() const { return read_model_config(*checkpoint); }
};
std::string complaint(const GgufBuilder& b, bool with_config = false) {
  try {
    const Opened opened(b);
    if (with_config) opened.config();
  } catch (const Error& e) {
    EXPECT_EQ(e.find("in"), "memory.gguf") << e.what();
    EXPECT_FALSE(e.find("hint").empty()) << e.what();
    return e.code() + " " + e.message();
  }
  return "accepted";
}
GgufBuilder small(const std::string& arch = "llama") { return std::move(GgufBuilder().small_model(arch)); }

TEST(Gguf, ValuesOfEveryType) {
  GgufBuilder b = small();
  b.value("u8", 0, raw<std::uint8_t>(200)).value("i8", 1, raw<std::int8_t>(-3)).value("u16", 2, raw<std::uint16_t>(60000));
  b.value("i16", 3, raw<std::int16_t>(-30000)).value("i32", 5, raw<std::int32_t>(-7)).f32("f32", 0.5f);
  b.value("bool", 7, raw<std::uint8_t>(1)).value("bool2", 7, raw<std::uint8_t>(2)).string("str", "g\xc3\xbcnstig");
  b.value("u64", 10, raw<std::uint64_t>(~0ull)).value("i64", 11, raw<std::int64_t>(-5'000'000'000)).value("f64", 12, raw(0.1));
  b.string("bad utf", "a\xff").array<std::string>("strings", 8, {"", "b"}).array<std::int32_t>("ints", 5, {1, -2});
  b.array<std::uint8_t>("bools", 7, {0, 1}).array<float>("floats", 6, {1.5f}).array<double>("doubles", 12, {2.5});
  const Opened o(b);
  const Json& m = o->gguf_metadata();
  EXPECT_EQ(m["u8"], 200);
  EXPECT_EQ(m["i8"], -3);
  EXPECT_EQ(m["u16"], 60000);
  EXPECT_EQ(m["i16"], -30000);
  EXPECT_EQ(m["i32"], -7);
  EXPECT_EQ(m["f32"], 0.5);
  EXPECT_EQ(m["bool"], true);
  EXPECT_EQ(m["bool2"], true);
  EXPECT_EQ(m["str"], "g\xc3\xbcnstig");
  EXPECT_EQ(m["u64"], ~0ull);
  EXPECT_EQ(m["i64"], -5'000'000'000);
  EXPECT_EQ(m["f64"], 0.1);
  EXPECT_EQ(m["bad utf"], "a\xef\xbf\xbd");
  EXPECT_EQ(m["strings"].dump(), R"(["","b"])");
  EXPECT_EQ(m["ints"].dump(), "[1,-2]");
  EXPECT_EQ(m["bools"].dump(), "[false,true]");
  EXPECT_EQ(o->gguf_strings("strings"), (std::vector<std::string_view>{"", "b"}));
  EXPECT_EQ(o->gguf_ints("ints"), (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(o->gguf_ints("bools"), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(o->gguf_floats("floats"), std::vector<float>{1.5f});
  EXPECT_EQ(o->gguf_floats("doubles"), std::vector<float>{2.5f});
  EXPECT_TRUE(o->gguf_strings("absent").empty());
  EXPECT_THROW(o->gguf_strings("ints"), Error);
  EXPECT_THROW(o->gguf_strings("str"), Error);
  EXPECT_THROW(o->gguf_floats("ints"), Error);
  EXPECT_THROW(o->gguf_ints("floats"), Error);
  EXPECT_THROW(o->gguf_ints("strings"), Error);
}

TEST(Gguf, LongArraysStayInTheFile) {
  GgufBuilder b = small();
  b.array<std::int32_t>("at the limit", 5, std::vector<std::int32_t>(1024, 7));
  b.array<std::int32_t>("beyond", 5, std::vector<std::int32_t>(1025, 7));
  const Opened o(b);
  EXPECT_TRUE(o->gguf_metadata().contains("at the limit"));
  EXPECT_FALSE(o->gguf_metadata().contains("beyond"));
  EXPECT_EQ(o->gguf_ints("beyond").size(), 1025u);
}

TEST(Gguf, VersionTwoAndOtherAlignments) {
  GgufBuilder b;
  b.version = 2;
  b.alignment = 128;
  b.small_model("llama").u32("general.alignment", 128);
  b.tensor("output_norm.weight", {3}, 0, std::string(12, 'x')).tensor("blk.0.attn_norm.weight", {3}, 0, std::string(12, 'y'));
  const Opened o(b);
  ASSERT_EQ(o->tensors().size(), 2u);
  EXPECT_EQ(o->tensors()[0].offset % 128, 0u);
  EXPECT_EQ(o->tensors()[1].offset, o->tensors()[0].offset + 128);
  EXPECT_EQ(static_cast<char>(o->data(o->tensors()[1])[11]), 'y');
}

TEST(Gguf, NamesGoThereAndBack) {
  const std::pair<const char*, const char*> names[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
      {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
      {"blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight"},
      {"blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"},
      {"blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"},
      {"blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"},
      {"blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
      {"blk.3.ffn_gate.weight", "model.layers.3.mlp.gate_proj.weight"},
      {"blk.3.ffn_up.weight", "model.layers.3.mlp.up_proj.weight"},
      {"blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"},
  };
  for (const auto& [gguf, hf] : names) {
    EXPECT_EQ(hf_name(gguf), hf);
    EXPECT_EQ(gguf_name(hf), gguf);
  }
  for (const char* other : {"blk.x.attn_q.weight", "blk..attn_q.weight", "blk.0.attn_q", "blk.0.secret.weight", "", ".", "blk.0",
                            "token_embd.scale", "blk.99999999999.attn_q.weight"})
    EXPECT_EQ(hf_name(other), other);
}

TEST(Gguf, MatricesKeepTheirBlocksVectorsBecomePlain) {
  GgufBuilder b = small();
  b.tensor("token_embd.weight", {32, 16}, 1, std::string(1024, 'e'));  // F16
  b.tensor("blk.0.attn_q.weight", {32, 4}, 8, std::string(34 * 4, 'q'));
  b.tensor("output_norm.weight", {32}, 0, std::string(128, 'n'));
  const Opened o(b);
  const Tensor* q = o->find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->dtype, QE_GGML + 8);
  EXPECT_EQ(q->shape, (std::vector<std::int64_t>{4, 32}));
  EXPECT_EQ(q->bytes, 34u * 4);
  EXPECT_EQ(q->file_name, "blk.0.attn_q.weight");
  EXPECT_EQ(static_cast<char>(o->data(*q)[0]), 'q');
  EXPECT_EQ(o->find("model.embed_tokens.weight")->dtype, QE_GGML + 1);
  EXPECT_EQ(o->find("model.norm.weight")->dtype, QE_F32);
  EXPECT_EQ(o->name_in_file("model.layers.0.self_attn.k_proj.weight"), "blk.0.attn_k.weight");
  EXPECT_TRUE(o->rotary_rows_interleaved());
  EXPECT_FALSE(Opened(small("qwen2"))->rotary_rows_interleaved());
  EXPECT_EQ(o->quant_config().at("quant_method"), "gguf");
}

TEST(Gguf, ConfigOfALlama) {
  GgufBuilder b = small();
  b.u32("llama.attention.head_count_kv", 1).u32("llama.rope.dimension_count", 16).f32("llama.rope.freq_base", 5e5f);
  b.u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.eot_token_id", 5).u32("tokenizer.ggml.bos_token_id", 1);
  b.tensor("rope_freqs.weight", {8}, 0, [] {
    std::string s;
    for (int i = 1; i <= 8; ++i) s += raw(static_cast<float>(i));
    return s;
  }());
  b.tensor("blk.0.attn_output.bias", {32}, 0, std::string(128, '\0'));
  const Opened o(b);
  const ModelConfig m = o.config();
  EXPECT_EQ(m.architecture, "LlamaForCausalLM");
  EXPECT_EQ(m.num_layers, 1);
  EXPECT_EQ(m.hidden_size, 32);
  EXPECT_EQ(m.intermediate_size, 64);
  EXPECT_EQ(m.num_heads, 2);
  EXPECT_EQ(m.num_kv_heads, 1);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.max_position, 128);
  EXPECT_EQ(m.vocab_size, 16);
  EXPECT_EQ(m.rms_eps, 1e-5f);
  EXPECT_EQ(m.rope.theta, 5e5);
  EXPECT_EQ(m.rope.freq_divisors, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(m.eos_ids, (std::vector<std::int32_t>{2, 5}));
  EXPECT_EQ(m.bos_id, 1);
  EXPECT_TRUE(m.tied);
  EXPECT_FALSE(m.q_bias);
  EXPECT_TRUE(m.o_bias);
  EXPECT_EQ(o->find("rope_freqs.weight"), nullptr);
}

TEST(Gguf, ConfigDefaultsAndTheOtherArchitectures) {
  // No kv heads, no key length, no vocabulary size: heads, hidden / heads, number of tokens.
  GgufBuilder b;
  b.string("general.architecture", "qwen2").u32("qwen2.block_count", 1).u32("qwen2.embedding_length", 32);
  b.u32("qwen2.feed_forward_length", 64).value("qwen2.attention.head_count", 10, raw<std::uint64_t>(2)).u32("qwen2.context_length", 128);
  b.f32("qwen2.attention.layer_norm_rms_epsilon", 1e-6f).array<std::string>("tokenizer.ggml.tokens", 8, {"a", "b", "c"});
  b.tensor("output.weight", {32, 3}, 0, std::string(384, '\0'));
  const ModelConfig m = Opened(b).config();
  EXPECT_EQ(m.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(m.num_kv_heads, 2);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.vocab_size, 3);
  EXPECT_FALSE(m.tied);
  EXPECT_TRUE(m.q_bias && m.k_bias && m.v_bias);
  EXPECT_FALSE(m.o_bias);
  EXPECT_TRUE(Opened(small("qwen3")).config().qk_norm);
}

TEST(Gguf, RotaryScalingOfTheMetadata) {
  GgufBuilder yarn = small();
  yarn.string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4).u32("llama.rope.scaling.original_context_length", 32);
  yarn.f32("llama.rope.scaling.attn_factor", 2);
  ModelConfig m = Opened(yarn).config();
  EXPECT_EQ(m.rope.kind, "yarn");
  EXPECT_EQ(m.rope.factor, 4);
  EXPECT_EQ(m.rope.original_max_position, 32);
  EXPECT_NEAR(m.rope.attention_factor, 2 * (0.1 * std::log(4.0) + 1), 1e-6);
  GgufBuilder old = small();
  m = Opened(old.f32("llama.rope.scale_linear", 2)).config();
  EXPECT_EQ(m.rope.kind, "linear");
  EXPECT_EQ(m.rope.factor, 2);
  GgufBuilder none = small();
  EXPECT_EQ(Opened(none.string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 0)).config().rope.kind, "default");
  GgufBuilder idle = small(), zero = small(), nameless = small();
  EXPECT_EQ(Opened(idle.string("llama.rope.scaling.type", "linear")).config().rope.kind, "default");
  EXPECT_EQ(Opened(zero.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 0)).config().rope.kind, "default");
  EXPECT_EQ(Opened(nameless.f32("llama.rope.scaling.factor", 2)).config().rope.kind, "linear");
  GgufBuilder longrope = small();
  longrope.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.factor", 4);
  EXPECT_NE(complaint(longrope, true).find("'longrope'"), std::string::npos);
}

TEST(Gguf, FieldsAreNamedAsInTheFile) {
  GgufBuilder kv = small();
  EXPECT_NE(complaint(kv.u32("llama.attention.head_count_kv", 3), true).find("E208 llama.attention.head_count_kv is 3"), std::string::npos);
  GgufBuilder per_layer = small();
  EXPECT_NE(complaint(per_layer.array<std::int32_t>("llama.attention.head_count_kv", 5, {1, 2}), true).find("llama.attention.head_count_kv is an array"), std::string::npos);
  GgufBuilder equal = small();
  EXPECT_EQ(complaint(equal.array<std::int32_t>("llama.attention.head_count_kv", 5, {1, 1}), true), "accepted");
  GgufBuilder text = small();
  EXPECT_NE(complaint(text.string("llama.rope.freq_base", "x"), true).find("llama.rope.freq_base is 'x'"), std::string::npos);
  GgufBuilder odd = small();
  EXPECT_NE(complaint(odd.u32("llama.rope.dimension_count", 7), true).find("llama.rope.dimension_count"), std::string::npos);
  GgufBuilder value = small();
  EXPECT_NE(complaint(value.u32("llama.attention.value_length", 8), true).find("value_length"), std::string::npos);
  GgufBuilder freqs = small();
  EXPECT_NE(complaint(freqs.tensor("rope_freqs.weight", {4}, 0, std::string(16, 'x')), true).find("rope_freqs.weight has 4 values"), std::string::npos);
}

TEST(Gguf, WhatIsNoDenseModelIsRefusedByName) {
  GgufBuilder adapter = small();
  EXPECT_NE(complaint(adapter.string("general.type", "adapter")).find("E201 memory.gguf holds no model: general.type is 'adapter'"), std::string::npos);
  GgufBuilder model = small();
  EXPECT_EQ(complaint(model.string("general.type", "model").u32("llama.expert_count", 0), true), "accepted");
  GgufBuilder experts = small();
  EXPECT_NE(complaint(experts.u32("llama.expert_count", 8), true).find("E208 llama.expert_count is 8"), std::string::npos);
}

// A tensor has four dimensions in ggml, and some writers say so.
TEST(Gguf, DimensionsOfOneAreNone) {
  GgufBuilder b = small();
  b.tensor("blk.0.attn_norm.weight", {4, 1}, 0, std::string(16, 'x')).tensor("blk.0.attn_q.weight", {4, 2, 1, 1}, 0, std::string(32, 'x'));
  const Opened o(b);
  const Tensor* norm = o->find("model.layers.0.input_layernorm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->shape, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(norm->dtype, QE_F32);
  EXPECT_EQ(o->find("model.layers.0.self_attn.q_proj.weight")->shape, (std::vector<std::int64_t>{2, 4}));
}

TEST(Gguf, NamesMustBeText) {
  GgufBuilder key = small();
  EXPECT_NE(complaint(key.u32("a\nb", 1)).find("a\\x0ab"), std::string::npos);
  GgufBuilder tensor = small();
  EXPECT_NE(complaint(tensor.tensor("a\xff", {1}, 0, "xxxx")).find("not UTF-8"), std::string::npos);
  // Two spellings of one tensor.
  GgufBuilder two = small();
  two.tensor("output_norm.weight", {1}, 0, "xxxx").tensor("model.norm.weight", {1}, 0, "xxxx");
  EXPECT_NE(complaint(two).find("model.norm.weight occurs twice"), std::string::npos);
}

// Cut anywhere, the file is refused: nothing is read past its end.
TEST(Gguf, EveryPrefixIsRefused) {
  GgufBuilder b = small();
  b.array<std::string>("tokenizer.ggml.tokens", 8, {"a", "b"}).tensor("output_norm.weight", {8}, 0, std::string(32, 'n'));
  const std::string whole = b.bytes();
  ASSERT_NO_THROW(gguf_from_memory(std::as_bytes(std::span(whole))));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<long>(n));
    EXPECT_THROW(gguf_from_memory(std::as_bytes(std::span(cut))), Error) << n;
  }
}

}  // namespace
}  // namespace qengine
