// Configs that do not name their method: what the shipped plugins know of them, and what anybody may add.
#include "tests/core/plugin_host/toys.hpp"

namespace qengine {
namespace {

using namespace test;

constexpr char kWeights[] = R"({"m.qweight":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"m.g_idx":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";

// A folder whose only weights are two empty tensors with names of GPTQ.
void write_model(const Folder& dir, const std::string& config) {
  std::string file(8, '\0');
  const std::string header(kWeights);
  for (std::size_t i = 0, n = header.size(); i < 8; ++i, n >>= 8) file[i] = static_cast<char>(n & 255);
  dir.write("config.json", config);
  dir.write("model.safetensors", file + header);
}

struct Case {
  const char* config;
  const char* file;
  const char* content;
  const char* method;
};

TEST(Dialects, OfTheShippedPlugins) {
  PluginHostOptions o;
  o.builtin_dir = binary_dir() / "bin/plugins";
  PluginHost host(o);
  host.scan();
  ASSERT_FALSE(host.dialects().empty());
  const Case all[] = {
      {R"({"compression_config":{"format":"x"}})", "", "", "compressed-tensors"},
      {R"({"quantization_config":{"config_groups":{}}})", "", "", "compressed-tensors"},
      {R"({"quantization_config":{"quant_algo":"FP8"}})", "", "", "modelopt"},
      {R"({"quantization_config":{"load_in_4bit":true}})", "", "", "bitsandbytes"},
      {R"({"quantization_config":{"_load_in_8bit":true}})", "", "", "bitsandbytes"},
      {R"({"quantization_config":{"bits":4}})", "", "", "gptq"},  // by its tensors
      {"{}", "quantize_config.json", R"({"bits":4,"desc_act":true})", "gptq"},
      {"{}", "quantize_config.json", R"({"bits":4,"method":"awq","desc_act":true})", "awq"},
      {"{}", "quant_config.json", R"({"w_bit":4,"q_group_size":128,"zero_point":true,"version":"GEMM"})", "awq"},
      {"{}", "hf_quant_config.json", R"({"producer":{},"quantization":{"quant_algo":"NVFP4"}})", "modelopt"},
  };
  for (const Case& c : all) {
    const Folder dir;
    write_model(dir, c.config);
    if (*c.file) dir.write(c.file, c.content);
    EXPECT_EQ(Checkpoint::open(dir.path(), false, host.dialects())->quant_config().at("quant_method"), c.method) << c.config << c.content;
  }
}

TEST(Dialects, AManifestWithoutALibraryAddsOne) {
  const Folder plugins, model;
  spit(plugins.path() / "squeeze.qeplugin.toml",
       "schema = 1\nid = \"test.squeeze\"\nname = \"squeeze\"\nversion = \"1.0.0\"\n"
       "dialect = [{ file = \"squeeze.json\" }, { key = \"squeeze_bits\", quant_method = \"squeezed\" }]\n");
  const auto host = host_of(plugins.path());
  ASSERT_TRUE(host->refused().empty()) << host->refused()[0].reason;
  write_model(model, "{}");
  model.write("squeeze.json", R"({"squeeze_bits":3})");
  EXPECT_EQ(Checkpoint::open(model.path(), false, host->dialects())->quant_config().at("quant_method"), "squeezed");
}

}  // namespace
}  // namespace qengine
