// The golden files of tokens/ and reports/templates/, with the tokenizer that each belongs to.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "core/tokenizer/tokenizer.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {

inline constexpr const char* kGoldenNames[] = {"tokens/tiny", "tokens/qwen3", "tokens/deepseek_v3", "tokens/smollm2",
                                               "reports/templates/tiny-qwen3", "reports/templates/tiny-llama", "gguf:tokens/tiny"};

struct Golden {
  std::shared_ptr<const Tokenizer> tokenizer;
  bool from_gguf = false;
  bool skip_special_known = false;  // decoded_skip_special is given wherever it differs
  Json encode, stream, chat;
  std::string missing;  // why there is no tokenizer
};

inline Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return in ? Json::parse(in) : Json::object();
}

// The published SmolLM2 GGUF is too large for the tree: `make model` fetches it, QENGINE_SMOLLM2 names another place.
inline std::filesystem::path smollm2() {
  const char* env = std::getenv("QENGINE_SMOLLM2");
  const std::filesystem::path file = env ? env : source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

inline Golden load_golden(std::string name) {
  Golden g;
  if (name.starts_with("gguf:")) g.from_gguf = true, name = name.substr(5);
  const std::string base = std::filesystem::path(name).filename().string();
  std::filesystem::path tokenizer = g.from_gguf         ? fixture("gguf/tiny-qwen3-q4_k_m.gguf")
                                    : base == "tiny"    ? fixture("tiny-qwen3")
                                    : base == "smollm2" ? smollm2()
                                    : name.starts_with("tokens/") ? fixture("tokenizers/" + base)
                                                                  : fixture(base);
  if (base == "smollm2") g.from_gguf = true;
  const auto encode = fixture(name + ".encode.json");
  if (tokenizer.empty() || encode.empty()) {
    g.missing = "no " + std::string(encode.empty() ? name + ".encode.json" : base == "smollm2" ? "SmolLM2 file" : "tokenizer of " + name) + " here";
    return g;
  }
  g.tokenizer = Tokenizer::load(tokenizer);
  g.skip_special_known = name.starts_with("tokens/");
  g.encode = read_json(encode);
  g.stream = read_json(fixture(name + ".stream.json"));
  g.chat = read_json(fixture(name + ".chat.json"));
  return g;
}

}  // namespace qengine::test
