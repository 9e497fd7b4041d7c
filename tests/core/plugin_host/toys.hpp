// What the tests of the plugin host share: folders with plugins in them, and a small toy model.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "core/plugin_host/plugin_host.hpp"
#include "core/plugin_host/sha256.hpp"
#include "tests/support/files.hpp"
#include "tests/support/memory_checkpoint.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {

namespace fs = std::filesystem;

inline std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spit(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

using Folder = TempDir;

struct ToyManifest {
  std::string id = "test.toy", name = "toy", version = "1.2.3", abi = "{ major = 0, built = 1, needs = 1 }", sha256, more;
};

inline fs::path toy_library(const std::string& variant) { return binary_dir() / "tests/toys" / (variant + ".so"); }

// Puts a variant of the toy plugin (plugins/toy.c) with its manifest into a folder; gives the sha256.
inline std::string install(const fs::path& folder, const std::string& variant, ToyManifest m = {}) {
  fs::create_directories(folder);
  fs::copy_file(toy_library(variant), folder / (variant + ".so"), fs::copy_options::overwrite_existing);
  const std::string sha = sha256_of(slurp(folder / (variant + ".so")));
  if (m.sha256.empty()) m.sha256 = sha;
  spit(folder / (variant + ".qeplugin.toml"), "schema = 1\nid = \"" + m.id + "\"\nname = \"" + m.name + "\"\nversion = \"" + m.version + "\"\nvendor = \"Toymakers\"\nlibrary = \"" +
                                                   variant + ".so\"\nsha256 = \"" + m.sha256 + "\"\nabi = " + m.abi + "\n" + m.more);
  return sha;
}

// A host whose own folder is `folder`, so that everything in there is trusted.
inline std::unique_ptr<PluginHost> host_of(const fs::path& folder, PluginHostOptions o = {}) {
  o.builtin_dir = folder;
  auto host = std::make_unique<PluginHost>(std::move(o));
  host->scan();
  return host;
}

inline bool has_text(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The Error that f throws; a failure when it throws none.
template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return Error("none", "none");
}

// ---- a model ------------------------------------------------------------------------------------

inline ModelConfig toy_config() {
  ModelConfig c;
  c.architecture = "LlamaForCausalLM";
  c.model_type = "llama";
  c.dtype = "float32";
  c.vocab_size = 20, c.hidden_size = 16, c.intermediate_size = 24;
  c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 4;
  c.max_position = 64;
  c.rms_eps = 1e-5f;
  c.window.assign(2, 0);
  return c;
}

inline std::int8_t toy_code(const std::string& name, std::size_t i) { return static_cast<std::int8_t>((i * 37 + name.size() * 11 + name[name.size() / 2]) % 200 - 100); }
inline float toy_scale(std::size_t row) { return 0.25f + 0.125f * static_cast<float>(row % 5); }

inline void add_plain(MemoryCheckpoint& c, const std::string& name, std::int64_t n, std::int64_t k) {
  std::vector<float> w(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::sin(static_cast<float>(i + name.size()));
  c.add(name + ".weight", QE_F32, {n, k}, w);
}

inline void add_toy(MemoryCheckpoint& c, const std::string& name, std::int64_t n, std::int64_t k) {
  std::vector<std::int8_t> codes(static_cast<std::size_t>(n * k));
  std::vector<float> scale(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = toy_code(name, i);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = toy_scale(i);
  c.add(name + ".codes", QE_I8, {n, k}, codes);
  c.add(name + ".scale", QE_F32, {n}, scale, /*odd=*/true);
}

// quantized: every matrix of a decoder layer in the toy format; embeddings and head plain F32.
inline std::shared_ptr<MemoryCheckpoint> toy_model(const ModelConfig& config, bool quantized = true) {
  auto c = std::make_shared<MemoryCheckpoint>();
  c->config_json = Json{{"torch_dtype", "float32"}};
  if (quantized) c->quant_json = Json{{"quant_method", "toy"}};
  for (const LayerSpec& layer : layer_specs(config))
    for (const PartSpec& p : layer.parts) {
      if (quantized && layer.index >= 0)
        add_toy(*c, p.name, p.n, layer.k);
      else
        add_plain(*c, p.name, p.n, layer.k);
      if (p.bias) c->add(p.name + ".bias", QE_F32, {p.n}, std::vector<float>(static_cast<std::size_t>(p.n), 0.5f));
    }
  const std::vector<float> ones(static_cast<std::size_t>(config.hidden_size), 1.0f);
  for (int i = 0; i < config.num_layers; ++i)
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      c->add("model.layers." + std::to_string(i) + "." + norm + ".weight", QE_F32, {config.hidden_size}, ones);
  c->add("model.norm.weight", QE_F32, {config.hidden_size}, ones);
  return c;
}

// The toy plugin and the shipped one for unquantized weights, in one folder.
inline std::unique_ptr<PluginHost> toy_host(const Folder& folder, PluginHostOptions o = {}) {
  install(folder.path(), "toy");
  for (const char* name : {"bf16_ref.so", "bf16_ref.qeplugin.toml"})
    fs::copy_file(binary_dir() / "bin/plugins" / name, folder.path() / name, fs::copy_options::overwrite_existing);
  return host_of(folder.path(), std::move(o));
}

}  // namespace qengine::test
