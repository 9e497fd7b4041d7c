#include "core/tokenizer/gguf_pre.hpp"

#include <string>

#include "core/tokenizer/patterns.hpp"

namespace qengine {
namespace {

using namespace patterns;

constexpr std::string_view kPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr std::string_view kNumbers = R"(\p{N}+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  std::string_view names;  // with a space on either side
  GgufPre pre;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {" default ", {.patterns = {kPunctuation, kGpt2, kNumbers, kThreeDigits}}},
      {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4 ",
       {.patterns = {kGpt2}}},
      {" smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ", {.patterns = {kOneNumber, kGpt2}}},
      {" falcon ", {.patterns = {kFalconPunctuation, kGpt2, kThreeDigits}}},
      {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
      {" dbrx smaug-bpe glm4 chatglm-bpe ", {.patterns = {kLlama3}}},
      {" qwen2 deepseek-r1-qwen kormo megrez ", {.patterns = {kQwen2}, .nfc = true}},
      {" stablelm2 hunyuan solar-open grok-2 ", {.patterns = {kQwen2}}},
      {" qwen35 ", {.patterns = {kQwen35}, .nfc = true}},
      {" tekken ", {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
      {" gpt-4o llama4 kanana2 minimax-m2 ", {.patterns = {kGpt4o}}},
      {" deepseek-v3 hunyuan-dense joyai-llm ", {.patterns = {kDeepSeek3Numbers, kDeepSeek3Cjk, kDeepSeek3}}},
      {" poro-chat bloom gpt3-finnish ", {.patterns = {kBloom}}},
      {" viking ", {.patterns = {kBloom, kOneNumber}}},
      {" bailingmoe bailingmoe2 llada-moe ", {.patterns = {kBailing}}},
      {" seed-coder ", {.patterns = {kSeedCoder}}},
  };
  return kRows;
}

}  // namespace

std::optional<GgufPre> find_gguf_pre(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return std::nullopt;
  for (const Row& row : rows())
    for (std::size_t at = row.names.find(name); at != std::string_view::npos; at = row.names.find(name, at + 1))
      if (row.names[at - 1] == ' ' && row.names[at + name.size()] == ' ') return row.pre;
  return std::nullopt;
}

std::string_view known_gguf_pres() {
  static const std::string kAll = [] {
    std::string all;
    for (const Row& row : rows()) all += row.names.substr(1);
    all.pop_back();
    return all;
  }();
  return kAll;
}

}  // namespace qengine
