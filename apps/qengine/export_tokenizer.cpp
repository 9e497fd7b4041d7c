#include "apps/qengine/export_tokenizer.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/tokenizer/gguf_pre.hpp"

namespace qengine {
namespace {

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Rows that only pad the matrix are named [PADn]; they are no tokens.
bool is_padding(std::string_view token, std::int64_t type) { return type == kUnused && token.starts_with("[PAD") && token.ends_with("]"); }

Json split(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
}

// SentencePiece scores as ranked merges: every way to build a token from two others, best score first.
// Two ways to build one token keep the order of the left part's id, as converters elsewhere do.
std::vector<std::pair<std::string, std::string>> merges_from_scores(const std::vector<std::string_view>& tokens, const std::vector<float>& scores) {
  std::unordered_map<std::string_view, std::size_t> id;
  id.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) id.emplace(tokens[i], i);
  struct Merge {
    std::size_t whole, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (std::size_t cut = 1; cut < tokens[t].size(); ++cut) {
      if ((tokens[t][cut] & 0xc0) == 0x80) continue;  // inside a character
      const auto l = id.find(tokens[t].substr(0, cut)), r = id.find(tokens[t].substr(cut));
      if (l != id.end() && r != id.end()) merges.push_back({t, l->second, r->second});
    }
  std::stable_sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    if (scores[a.whole] != scores[b.whole]) return scores[a.whole] > scores[b.whole];
    return a.whole != b.whole ? a.whole < b.whole : std::pair(a.left, a.right) < std::pair(b.left, b.right);
  });
  std::vector<std::pair<std::string, std::string>> out;
  for (const Merge& m : merges) out.emplace_back(tokens[m.left], tokens[m.right]);
  return out;
}

}  // namespace

std::optional<TokenizerFiles> tokenizer_files(const Checkpoint& gguf) {
  const Json& meta = gguf.gguf_metadata();
  if (const auto it = meta.find("tokenizer.huggingface.json"); it != meta.end() && it->is_string())
    return TokenizerFiles{Json::parse(it->get<std::string>()), Json::object(), ""};
  const std::string kind = meta.value("tokenizer.ggml.model", "");
  if (kind != "gpt2" && kind != "llama") return std::nullopt;
  const std::vector<std::string_view> tokens = gguf.gguf_strings("tokenizer.ggml.tokens");
  const std::vector<std::int64_t> types = gguf.gguf_ints("tokenizer.ggml.token_type");
  const auto id_of = [&](const char* key) -> std::optional<std::size_t> {
    const auto it = meta.find(key);
    if (it == meta.end() || !it->is_number_integer()) return std::nullopt;
    const auto v = it->get<std::int64_t>();
    return v >= 0 && v < std::ssize(tokens) ? std::optional(static_cast<std::size_t>(v)) : std::nullopt;
  };

  Json vocab = Json::object(), added = Json::array(), decoder_tokens = Json::object();
  std::optional<std::size_t> unknown = id_of("tokenizer.ggml.unknown_token_id");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t type = types.empty() ? std::int64_t{kNormal} : types[i];
    if (is_padding(tokens[i], type)) continue;
    vocab[std::string(tokens[i])] = i;
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    if (type == kUnknown && !unknown) unknown = i;
    added.push_back({{"id", i}, {"content", tokens[i]}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}, {"special", type != kUserDefined}});
    decoder_tokens[std::to_string(i)] = {{"content", tokens[i]}, {"lstrip", false}, {"normalized", false}, {"rstrip", false}, {"single_word", false}, {"special", type != kUserDefined}};
  }

  Json model{{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr}, {"fuse_unk", false}, {"byte_fallback", false},
             {"ignore_merges", false}};
  Json normalizer, pre_tokenizer, decoder;
  bool add_bos = true;
  Json merges = Json::array();
  if (kind == "gpt2") {
    const std::string name = meta.value("tokenizer.ggml.pre", "");
    const auto pre = find_gguf_pre(name.empty() ? "default" : name);
    if (!pre) return std::nullopt;
    add_bos = pre->add_bos;
    model["ignore_merges"] = pre->ignore_merges;
    if (pre->nfc) normalizer = {{"type", "NFC"}};
    Json steps = Json::array();
    for (const std::string_view p : pre->patterns) steps.push_back(split(p));
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", steps}};
    decoder = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    for (const std::string_view m : gguf.gguf_strings("tokenizer.ggml.merges")) {
      const std::size_t space = m.find(' ', 1);
      merges.push_back({m.substr(0, space), m.substr(space + 1)});
    }
  } else {
    model["byte_fallback"] = true;
    model["fuse_unk"] = true;
    if (unknown) model["unk_token"] = tokens[*unknown];
    const bool prefix = meta.value("tokenizer.ggml.add_space_prefix", true);
    Json steps = Json::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
    normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}}, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    decoder = {{"type", "Sequence"}, {"decoders", decoders}};
    for (const auto& [l, r] : merges_from_scores(tokens, gguf.gguf_floats("tokenizer.ggml.scores"))) merges.push_back({l, r});
  }
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);

  auto bos = id_of("tokenizer.ggml.bos_token_id"), eos = id_of("tokenizer.ggml.eos_token_id");
  const auto pad = id_of("tokenizer.ggml.padding_token_id");
  if (kind == "llama" && !bos && tokens.size() > 1 && tokens[1] == "<s>") bos = 1;
  if (kind == "llama" && !eos && tokens.size() > 2 && tokens[2] == "</s>") eos = 2;
  add_bos = meta.value("tokenizer.ggml.add_bos_token", add_bos) && bos;
  const bool add_eos = meta.value("tokenizer.ggml.add_eos_token", false) && eos;
  Json processor = kind == "gpt2" ? Json{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}} : Json();
  if (add_bos || add_eos) {
    Json single = Json::array(), pair = Json::array(), special = Json::object();
    const auto put = [&](std::size_t id) {
      special[std::string(tokens[id])] = {{"id", tokens[id]}, {"ids", {id}}, {"tokens", {tokens[id]}}};
      return Json{{"SpecialToken", {{"id", tokens[id]}, {"type_id", 0}}}};
    };
    if (add_bos) single.push_back(put(*bos));
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (add_eos) single.push_back(put(*eos));
    pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    processor = {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  }

  TokenizerFiles out;
  out.tokenizer = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added}, {"normalizer", normalizer}, {"pre_tokenizer", pre_tokenizer},
                   {"post_processor", processor}, {"decoder", decoder}, {"model", std::move(model)}};
  out.tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"added_tokens_decoder", decoder_tokens}, {"clean_up_tokenization_spaces", false}, {"add_bos_token", add_bos}, {"add_eos_token", add_eos}};
  if (bos) out.tokenizer_config["bos_token"] = tokens[*bos];
  if (eos) out.tokenizer_config["eos_token"] = tokens[*eos];
  if (pad) out.tokenizer_config["pad_token"] = tokens[*pad];
  if (unknown) out.tokenizer_config["unk_token"] = tokens[*unknown];
  if (const auto it = meta.find("tokenizer.chat_template"); it != meta.end() && it->is_string()) out.chat_template = it->get<std::string>();
  if (!out.chat_template.empty()) out.tokenizer_config["chat_template"] = out.chat_template;
  return out;
}

}  // namespace qengine
