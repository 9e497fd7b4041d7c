// Hyperparameters from config.json: defaults of the families, the spellings in use, and what is refused.
#include "core/model/config.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/model/json_text.hpp"

namespace qengine {
namespace {

Json base(const std::string& family = "Llama") {
  return Json{{"architectures", {family + "ForCausalLM"}}, {"vocab_size", 100}, {"hidden_size", 64}, {"intermediate_size", 96},
              {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
}
Json with(Json json, const char* more) {
  const Json parsed = parse_json(more, "test");
  for (const auto& [key, value] : parsed.items()) json[key] = value;
  return json;
}
ModelConfig read(const Json& json) { return read_model_config(*Checkpoint::from_config(json)); }
ModelConfig llama(const char* more) { return read(with(base(), more)); }
std::string complaint(const Json& json) {
  try {
    read(json);
  } catch (const Error& e) {
    EXPECT_FALSE(e.find("hint").empty());
    return e.code() + " " + e.message();
  }
  return "accepted";
}
std::string complaint(const char* more) { return complaint(with(base(), more)); }
#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(ModelConfig, DefaultsOfLlama) {
  Json json = base();
  json.erase("num_key_value_heads");
  const ModelConfig m = read(json);
  EXPECT_EQ(m.model_type, "llama");
  EXPECT_EQ(m.num_kv_heads, 4);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.max_position, 2048);
  EXPECT_EQ(m.rms_eps, 1e-6f);
  EXPECT_FALSE(m.tied || m.q_bias || m.k_bias || m.v_bias || m.o_bias || m.mlp_bias || m.qk_norm);
  EXPECT_EQ(m.rope.theta, 10000);
  EXPECT_EQ(m.rope.kind, "default");
  EXPECT_EQ(m.rope.rot_dim, 16);
  EXPECT_EQ(m.attention_scale, 0.25f);
  EXPECT_EQ(m.window, std::vector<std::int32_t>(4, 0));
  EXPECT_TRUE(m.eos_ids.empty());
  EXPECT_EQ(m.bos_id, -1);
  EXPECT_EQ(m.activation, Activation::kSilu);
}

TEST(ModelConfig, DefaultsOfTheOthers) {
  Json mistral = with(base("Mistral"), R"({"num_attention_heads":16,"num_key_value_heads":null,"attention_bias":true,"mlp_bias":true})");
  ModelConfig m = read(mistral);
  EXPECT_EQ(m.num_kv_heads, 16);  // null is not absent
  mistral.erase("num_key_value_heads");
  EXPECT_EQ(read(mistral).num_kv_heads, 8);
  EXPECT_EQ(m.max_position, 131072);
  EXPECT_FALSE(m.q_bias || m.o_bias || m.mlp_bias);  // keys that this family does not have

  m = read(base("Qwen2"));
  EXPECT_TRUE(m.q_bias && m.k_bias && m.v_bias);
  EXPECT_FALSE(m.o_bias || m.qk_norm);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.max_position, 32768);

  m = read(base("Qwen3"));
  EXPECT_TRUE(m.qk_norm);
  EXPECT_FALSE(m.q_bias);
  EXPECT_EQ(m.head_dim, 128);
  EXPECT_EQ(read(with(base("Qwen3"), R"({"head_dim":null})")).head_dim, 16);
  EXPECT_TRUE(read(with(base("Qwen3"), R"({"attention_bias":true})")).o_bias);

  Json no_kv = base("Qwen2");
  no_kv.erase("num_key_value_heads");
  EXPECT_SAYS(complaint(no_kv), "num_key_value_heads is 32");
}

TEST(ModelConfig, KeysOfLlama) {
  const ModelConfig m = llama(R"({"head_dim":32,"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true,"rms_norm_eps":1e-5,
      "rope_theta":500000,"max_position_embeddings":8192,"torch_dtype":"torch.float16","hidden_act":"gelu_pytorch_tanh",
      "bos_token_id":1,"eos_token_id":[2,3,2],"pad_token_id":-1})");
  EXPECT_EQ(m.head_dim, 32);
  EXPECT_EQ(m.q_size(), 128);
  EXPECT_EQ(m.kv_size(), 64);
  EXPECT_TRUE(m.tied && m.q_bias && m.k_bias && m.v_bias && m.o_bias && m.mlp_bias);
  EXPECT_EQ(m.rope.theta, 500000);
  EXPECT_EQ(m.dtype, "float16");
  EXPECT_EQ(m.activation, Activation::kGeluTanh);
  EXPECT_EQ(m.eos_ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(m.bos_id, 1);
  EXPECT_EQ(m.pad_id, -1);
  EXPECT_EQ(llama(R"({"dtype":"bfloat16","torch_dtype":"float32"})").dtype, "bfloat16");
  EXPECT_EQ(llama(R"({"torch_dtype":"auto"})").dtype, "");
}

TEST(ModelConfig, NamesOfArchitectures) {
  EXPECT_EQ(llama(R"({"architectures":["LLaMAForCausalLM"]})").architecture, "LlamaForCausalLM");
  EXPECT_EQ(llama(R"({"architectures":null,"model_type":"qwen3"})").architecture, "Qwen3ForCausalLM");
  EXPECT_SAYS(complaint(R"({"architectures":["GemmaForCausalLM"],"model_type":"llama"})"), "E209 architectures is 'GemmaForCausalLM'");
  EXPECT_SAYS(complaint(R"({"architectures":null,"model_type":"gpt2"})"), "model_type is 'gpt2'");
  EXPECT_SAYS(complaint(R"({"architectures":null})"), "E209 architectures is missing");
  EXPECT_SAYS(complaint(R"({"architectures":"LlamaForCausalLM"})"), "E209");
}

TEST(ModelConfig, TextConfigComesFirstAndMayLeaveOutTheClassDefaults) {
  for (const std::string key : {"text_config", "llm_config", "language_config"}) {
    const Json json = parse_json(R"({"architectures":["LlavaForConditionalGeneration"],"vocab_size":7,"eos_token_id":5,"dtype":{"vision_config":"float32"},")" +
        key + R"(":{"model_type":"mistral","vocab_size":50,"num_hidden_layers":2,"torch_dtype":"float16"}})", "test");
    const ModelConfig m = read(json);
    EXPECT_EQ(m.architecture, "MistralForCausalLM");
    EXPECT_EQ(m.vocab_size, 50);
    EXPECT_EQ(m.num_layers, 2);
    EXPECT_EQ(m.hidden_size, 4096);
    EXPECT_EQ(m.intermediate_size, 14336);
    EXPECT_EQ(m.num_heads, 32);
    EXPECT_EQ(m.eos_ids, std::vector<std::int32_t>{5});
    EXPECT_EQ(m.dtype, "float16");
  }
}

TEST(ModelConfig, SlidingWindows) {
  using W = std::vector<std::int32_t>;
  EXPECT_EQ(read(with(base("Mistral"), R"({"sliding_window":8})")).window, W(4, 8));
  EXPECT_EQ(read(with(base("Mistral"), R"({"sliding_window":null})")).window, W(4, 0));
  EXPECT_EQ(read(base("Mistral")).window, W(4, 4096));  // null is not absent
  EXPECT_EQ(read(base("Qwen2")).window, W(4, 0));
  EXPECT_EQ(read(with(base("Qwen3"), R"({"use_sliding_window":true,"max_window_layers":2})")).window, (W{0, 0, 4096, 4096}));
  EXPECT_EQ(read(with(base("Qwen3"), R"({"use_sliding_window":true,"max_window_layers":2,"sliding_window":null})")).window, W(4, 0));
  EXPECT_EQ(llama(R"({"sliding_window":8})").window, W(4, 0));  // a key that this family does not have
  EXPECT_EQ(read(with(base("Qwen2"), R"({"sliding_window":8,"max_window_layers":0})")).window, W(4, 0));
  EXPECT_EQ(read(with(base("Qwen2"), R"({"sliding_window":8,"use_sliding_window":true,"max_window_layers":3})")).window, (W{0, 0, 0, 8}));
  EXPECT_EQ(read(with(base("Qwen2"), R"({"sliding_window":8,"use_sliding_window":true})")).window, W(4, 0));  // from layer 28
  const char* types = R"({"sliding_window":8,"layer_types":["full_attention","sliding_attention","full_attention","sliding_attention"]})";
  EXPECT_EQ(read(with(base("Qwen3"), types)).window, (W{0, 8, 0, 8}));
  EXPECT_SAYS(complaint(with(base("Qwen3"), R"({"layer_types":["full_attention"]})")), "layer_types has 1 entries");
  EXPECT_SAYS(complaint(with(base("Qwen3"), R"({"layer_types":["full_attention","sliding_attention","full_attention","full_attention"]})")), "sliding_window is missing");
  EXPECT_SAYS(complaint(with(base("Qwen3"), R"({"layer_types":["full_attention","chunked","full_attention","full_attention"]})")), "layer_types[1] is 'chunked'");
  EXPECT_SAYS(complaint(with(base("Mistral"), R"({"sliding_window":0})")), "sliding_window is 0");
  EXPECT_SAYS(complaint(R"({"use_bidirectional_attention":true})"), "use_bidirectional_attention");
}

TEST(ModelConfig, RopeScalingInBothSpellings) {
  ModelConfig m = llama(R"({"rope_scaling":{"type":"linear","factor":2}})");
  EXPECT_EQ(m.rope.kind, "linear");
  EXPECT_EQ(m.rope.factor, 2);
  m = llama(R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":512}})");
  EXPECT_EQ(m.rope.kind, "llama3");
  EXPECT_EQ(m.rope.high_freq_factor, 4);
  EXPECT_EQ(m.rope.original_max_position, 512);
  m = llama(R"({"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":16,"truncate":false}})");
  EXPECT_EQ(m.rope.original_max_position, 2048);  // the model's own length
  EXPECT_EQ(m.rope.beta_fast, 16);
  EXPECT_EQ(m.rope.beta_slow, 1);
  EXPECT_FALSE(m.rope.truncate);
  EXPECT_EQ(llama(R"({"rope_scaling":{"type":"mrope","mrope_section":[1,2]}})").rope.kind, "default");
  EXPECT_EQ(llama(R"({"rope_scaling":{"type":"dynamic","factor":2.5},"original_max_position_embeddings":99})").rope.original_max_position, 99);
  EXPECT_EQ(llama(R"({"rope_scaling":null})").rope.kind, "default");
  m = llama(R"({"rope_theta":9,"rope_scaling":{"rope_type":"default","rope_theta":7000}})");
  EXPECT_EQ(m.rope.theta, 7000);
  ASSERT_EQ(m.warnings.size(), 1u);
  EXPECT_SAYS(m.warnings[0], "that of rope_scaling is used");
  EXPECT_EQ(llama(R"({"partial_rotary_factor":0.5})").rope.rot_dim, 8);
}

TEST(ModelConfig, RopeParameters) {
  ModelConfig m = llama(R"({"rope_theta":1,"rope_parameters":{"rope_type":"linear","factor":3,"rope_theta":5000,"partial_rotary_factor":0.25},
                            "rope_scaling":{"type":"yarn","factor":9}})");
  EXPECT_EQ(m.rope.kind, "linear");
  EXPECT_EQ(m.rope.factor, 3);
  EXPECT_EQ(m.rope.theta, 5000);
  EXPECT_EQ(m.rope.rot_dim, 4);
  EXPECT_EQ(m.warnings.size(), 2u);
  EXPECT_EQ(llama(R"({"rope_theta":77,"rope_parameters":{"rope_type":"default"}})").rope.theta, 77);
  m = llama(R"({"rope_parameters":{"full_attention":{"rope_type":"linear","factor":2,"rope_theta":9000},"sliding_attention":{"rope_type":"default"}}})");
  EXPECT_EQ(m.rope.factor, 2);
  EXPECT_EQ(m.rope.theta, 9000);
  EXPECT_SAYS(complaint(R"({"rope_parameters":{"full_attention":null}})"), "rope_parameters.full_attention is null");
  const char* mixed = R"({"sliding_window":8,"layer_types":["full_attention","sliding_attention","full_attention","full_attention"],
      "rope_parameters":{"full_attention":{"rope_theta":1000},"sliding_attention":{"rope_theta":2000}}})";
  EXPECT_SAYS(complaint(mixed), "rope_parameters differs between");
}

TEST(ModelConfig, RopeIsNeverGuessed) {
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"rope_type":"longrope","factor":2}})"), "'longrope'");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"su","factor":2}})"), "'su'");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"linear"}})"), "rope_scaling.factor is missing");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"linear","factor":0.5}})"), "rope_scaling.factor is 0.5");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"linear","factor":"2"}})"), "rope_scaling.factor is '2'");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"llama3","factor":8}})"), "low_freq_factor is missing");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}})"), "less than high_freq_factor");
  EXPECT_SAYS(complaint(R"({"rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":0}})"), "original_max_position_embeddings is 0");
  EXPECT_SAYS(complaint(R"({"rope_scaling":[]})"), "rope_scaling is an array");
  EXPECT_SAYS(complaint(R"({"rope_theta":0})"), "rope_theta is 0");
  EXPECT_SAYS(complaint(R"({"partial_rotary_factor":0.2})"), "partial_rotary_factor gives 3 rotary dimensions");
  EXPECT_SAYS(complaint(R"({"partial_rotary_factor":2})"), "partial_rotary_factor");
}

TEST(ModelConfig, FieldsAreCheckedAndNamed) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = base();
    json.erase(key);
    EXPECT_SAYS(complaint(json), std::string("E208 ") + key + " is missing");
    for (const char* value : {"0", "-1", "1.5", "true", "\"x\"", "[1]", "4611686018427387904", "18446744073709551615"})
      EXPECT_SAYS(complaint(with(base(), ("{\"" + std::string(key) + "\":" + value + "}").c_str())), std::string("E208 ") + key + " is ");
  }
  EXPECT_SAYS(complaint(R"({"hidden_size":66})"), "num_attention_heads is 4");
  EXPECT_SAYS(complaint(R"({"hidden_size":60})"), "head_dim of 15");
  EXPECT_SAYS(complaint(R"({"head_dim":33})"), "head_dim is 33");
  EXPECT_SAYS(complaint(R"({"num_key_value_heads":3})"), "num_key_value_heads is 3");
  EXPECT_SAYS(complaint(R"({"rms_norm_eps":0})"), "rms_norm_eps is 0");
  EXPECT_SAYS(complaint(R"({"tie_word_embeddings":1})"), "tie_word_embeddings is 1");
  EXPECT_SAYS(complaint(R"({"hidden_act":"relu2"})"), "hidden_act is 'relu2'");
  EXPECT_SAYS(complaint(R"({"eos_token_id":["a"]})"), "eos_token_id is 'a'");
  EXPECT_SAYS(complaint(R"({"final_logit_softcapping":30.0})"), "final_logit_softcapping is 30");
  EXPECT_SAYS(complaint(R"({"attention_bias":"no"})"), "attention_bias is 'no'");
}

}  // namespace
}  // namespace qengine
