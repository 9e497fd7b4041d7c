// Malformed model folders and files, one fault each: every one ends in an Error that names the tensor,
// field or file, and its controls load.
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/model/config.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

struct Case {
  const char* input;
  const char* code;   // "" = loads
  const char* names;  // must occur in the text
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.input; }

class Broken : public ::testing::TestWithParam<Case> {};

TEST_P(Broken, IsRefusedByName) {
  const Case& c = GetParam();
  const auto path = test::fixture(std::string("broken/") + c.input);
  if (path.empty()) GTEST_SKIP() << "broken/" << c.input << " is not in this copy of the fixtures";
  try {
    const auto checkpoint = Checkpoint::open(path);
    const ModelConfig config = read_model_config(*checkpoint);
    EXPECT_STREQ(c.code, "") << "accepted with " << config.num_layers << " layers";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), c.code) << e.what();
    EXPECT_NE(std::string(e.what()).find(c.names), std::string::npos) << e.what() << "\nlacks: " << c.names;
    EXPECT_EQ(e.message().find('\n'), std::string::npos);
    EXPECT_FALSE(e.find("hint").empty()) << e.what();
  }
}

constexpr char kQ[] = "model.layers.0.self_attn.q_proj.weight";

INSTANTIATE_TEST_SUITE_P(Safetensors, Broken, ::testing::Values(
    Case{"valid-micro", "", ""},
    Case{"st-empty", "E207", "too small for a safetensors header"},
    Case{"st-7-bytes", "E207", "too small"},
    Case{"st-truncated", "E207", "its header needs"},
    Case{"st-truncated-header", "E207", "beyond the file"},
    Case{"st-header-huge", "E207", "100000000"},
    Case{"st-header-max64", "E207", "too large"},
    Case{"st-overlap", "E207", kQ},
    Case{"st-same-range", "E207", "_proj.weight"},
    Case{"st-past-end", "E207", "model.layers.0.mlp.down_proj.weight"},
    Case{"st-begin-after-end", "E207", kQ},
    Case{"st-shape-bytes", "E207", kQ},
    Case{"st-dtype-bytes", "E207", kQ},
    Case{"st-unknown-dtype", "E207", "Q7"},
    Case{"st-shape-overflow", "E207", "size overflow"},
    Case{"st-shape-negative", "E207", "-32"},
    Case{"st-shape-float", "E207", kQ},
    Case{"st-duplicate-key", "E207", "duplicate"},
    Case{"st-bad-json", "E207", "not valid JSON"},
    Case{"st-not-object", "E207", "not a JSON object"},
    Case{"st-not-utf8", "E207", "UTF-8"},
    Case{"st-deep-json", "E207", "__metadata__"},
    Case{"st-trailing", "E207", "16 bytes after the last tensor"},
    Case{"st-hole", "E207", "hole"},
    Case{"shards-valid", "", ""},
    Case{"shard-missing", "E201", "model-00002-of-00002.safetensors"},
    Case{"shard-tensor-missing", "E202", kQ},
    Case{"shard-tensor-missing", "E202", "-of-00002.safetensors"},
    Case{"shard-escape", "E207", "../valid-micro/model.safetensors"},
    Case{"shard-bin", "E201", "pytorch_model-00001.bin"},
    Case{"pickle-bin", "E201", "pytorch_model.bin"},
    Case{"pickle-zip-bin", "E201", "pytorch_model.bin"},
    Case{"pickle-renamed", "E207", "looks like a pickle"},
    Case{"no-weights", "E201", "no .safetensors or .gguf found"}));

INSTANTIATE_TEST_SUITE_P(Config, Broken, ::testing::Values(
    Case{"cfg-no-layers", "E208", "num_hidden_layers"},
    Case{"cfg-negative-layers", "E208", "num_hidden_layers is -1"},
    Case{"cfg-huge-layers", "E208", "num_hidden_layers"},
    Case{"cfg-string-hidden", "E208", "hidden_size"},
    Case{"cfg-zero-heads", "E208", "num_attention_heads"},
    Case{"cfg-heads-kv", "E208", "num_attention_heads"},
    Case{"cfg-kv-not-dividing", "E208", "num_key_value_heads"},
    Case{"cfg-odd-head-dim", "E208", "head_dim"},
    Case{"cfg-unknown-arch", "E209", "FooForCausalLM"},
    Case{"cfg-rope-unknown", "E208", "rope_type"},
    Case{"cfg-rope-unknown", "E208", "'spiral'"},
    Case{"cfg-rope-factor", "E208", "factor"},
    Case{"cfg-eps", "E208", "rms_norm_eps"},
    Case{"cfg-huge-vocab", "E208", "vocab_size"},
    Case{"cfg-bad-json", "E208", "line"},
    Case{"cfg-nan", "E208", "config.json is not valid JSON"},
    Case{"cfg-array", "E208", "config.json is not a JSON object"},
    Case{"cfg-missing", "E201", "no config.json"},
    Case{"q-no-method", "E211", "quant_method"}));

INSTANTIATE_TEST_SUITE_P(Gguf, Broken, ::testing::Values(
    Case{"gguf/valid-micro.gguf", "", ""},
    Case{"gguf/magic.gguf", "E207", "not a GGUF file"},
    Case{"gguf/version99.gguf", "E207", "version 99"},
    Case{"gguf/version1.gguf", "E207", "version 1"},
    Case{"gguf/big-endian.gguf", "E207", "big-endian"},
    Case{"gguf/empty.gguf", "E207", "too short"},
    Case{"gguf/short.gguf", "E207", "too short"},
    Case{"gguf/kv-count.gguf", "E207", "1152921504606846976"},
    Case{"gguf/kv-negative.gguf", "E207", "-1 metadata pairs"},
    Case{"gguf/tensor-count.gguf", "E207", "tensors"},
    Case{"gguf/string-len.gguf", "E207", "bytes long"},
    Case{"gguf/key-len.gguf", "E207", "18446744073709551615"},
    Case{"gguf/array-len.gguf", "E207", "elements"},
    Case{"gguf/array-nested.gguf", "E207", "array of arrays"},
    Case{"gguf/kv-type.gguf", "E207", "type 77"},
    Case{"gguf/bool-2.gguf", "", ""},
    Case{"gguf/dup-key.gguf", "E207", "llama.block_count"},
    Case{"gguf/empty-key.gguf", "E207", "empty"},
    Case{"gguf/align3.gguf", "E207", "general.alignment is 3"},
    Case{"gguf/align0.gguf", "E207", "general.alignment is 0"},
    Case{"gguf/offset-misaligned.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/offset-past-end.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/offset-wrap.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/offset-overlap.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/type-unknown.gguf", "E207", "blk.0.attn_q.weight has type 99"},
    Case{"gguf/type-retired.gguf", "E207", "blk.0.attn_q.weight has type 4"},
    Case{"gguf/ndims5.gguf", "E207", "blk.0.attn_q.weight has 5 dimensions"},
    Case{"gguf/dims-zero.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/dims-negative.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/dims-overflow.gguf", "E207", "blk.0.attn_q.weight"},
    Case{"gguf/row-block.gguf", "E207", "rows of 24"},
    Case{"gguf/dims-swapped.gguf", "E207", "blk.0.attn_k.weight [32, 32]"},
    Case{"gguf/name-long.gguf", "E207", "70 bytes"},
    Case{"gguf/name-dup.gguf", "E207", "blk.0.attn_v.weight"},
    Case{"gguf/truncated.gguf", "E207", "beyond the end of the file"},
    Case{"gguf/truncated-info.gguf", "E207", "the file ends"},
    Case{"gguf/no-arch.gguf", "E207", "general.architecture"},
    Case{"gguf/arch-unknown.gguf", "E209", "'foo'"},
    Case{"gguf/no-block-count.gguf", "E208", "llama.block_count"},
    Case{"gguf/heads-zero.gguf", "E208", "llama.attention.head_count"}));

}  // namespace
}  // namespace qengine
