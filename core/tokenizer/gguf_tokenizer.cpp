// The tokenizer in GGUF metadata (formats.md 9.6).
#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/tokenizer/gguf_pre.hpp"
#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/pipeline.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Metadata {
 public:
  explicit Metadata(const Checkpoint& c) : json_(c.gguf_metadata()) {}
  const Json* find(const std::string& key) const {
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  std::string string(const std::string& key) const {
    const Json* j = find(key);
    if (!j) return {};
    if (!j->is_string()) throw Error("E220", key + " is no string");
    return j->get<std::string>();
  }
  bool boolean(const std::string& key, bool otherwise) const {
    const Json* j = find(key);
    if (!j) return otherwise;
    if (!j->is_boolean()) throw Error("E220", key + " is neither true nor false");
    return j->get<bool>();
  }
  // nullopt when absent.
  std::optional<std::int32_t> id(const std::string& key, const Vocab& vocab) const {
    const Json* j = find(key);
    if (!j) return std::nullopt;
    if (!j->is_number_integer()) throw Error("E220", key + " is no integer");
    const auto v = j->is_number_unsigned() && j->get<std::uint64_t>() > 0x7FFFFFFF ? -1 : j->get<std::int64_t>();
    if (v == -1 || v == 0xFFFFFFFF) return std::nullopt;  // written for "none"
    if (v < 0 || v >= vocab.size() || !vocab.has(static_cast<std::int32_t>(v)))
      throw Error("E220", key + " is " + std::to_string(v) + ", which is no token; there are " + std::to_string(vocab.size()));
    return static_cast<std::int32_t>(v);
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
};

// Rows that only pad the matrix are named [PADn].
bool is_padding(std::string_view token, std::int64_t type) {
  return type == kUnused && token.size() > 5 && token.starts_with("[PAD") && token.ends_with("]") &&
         token.substr(4, token.size() - 5).find_first_not_of("0123456789") == std::string_view::npos;
}

std::string shown(std::string_view s) { return "\"" + unicode::sanitize(s.substr(0, 60)) + "\""; }

MergeTable read_merges(const Checkpoint& c, const Vocab& vocab) {
  const std::vector<std::string_view> merges = c.gguf_strings("tokenizer.ggml.merges");
  MergeTable table;
  table.reserve(merges.size());
  std::string joined;
  std::int32_t id = Vocab::kNone;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string_view m = merges[i];
    const std::size_t space = m.find(' ', 1);
    const auto where = [&] { return "tokenizer.ggml.merges[" + std::to_string(i) + "] is " + shown(m); };
    if (m.empty() || space == std::string_view::npos) throw Error("E220", where() + ", expected two tokens and one space between them");
    const std::string_view left = m.substr(0, space), right = m.substr(space + 1);
    joined.assign(left).append(right);
    const std::int32_t l = vocab.find(left), r = vocab.find(right);
    id = vocab.find(joined, id + 1);
    if (l == Vocab::kNone || r == Vocab::kNone || id == Vocab::kNone)
      throw Error("E220", where() + ", but " + shown(l == Vocab::kNone ? left : r == Vocab::kNone ? right : std::string_view(joined)) + " is not in tokenizer.ggml.tokens");
    table.add(l, r, {static_cast<std::int32_t>(i), id});
  }
  return table;
}

Json split_step(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
}

// Byte-level BPE. Returns whether BOS is added where the file does not say.
bool read_gpt2(const Checkpoint& c, const Metadata& meta, TokenizerParts& parts) {
  std::string name = meta.string("tokenizer.ggml.pre");
  if (name.empty()) {
    log("tokenizer").warn("tokenizer.ggml.pre is missing; text is cut by the pattern \"default\", which may not be the model's");
    name = "default";
  }
  const auto pre = find_gguf_pre(name);
  if (!pre)
    throw Error("E220", "tokenizer.ggml.pre is '" + unicode::sanitize(name) + "', which is not a known pre-tokenizer")
        .from("known: " + std::string(known_gguf_pres()))
        .hint("name a folder with the model's tokenizer.json: --tokenizer DIR");
  if (pre->nfc) parts.normalizer = make_normalizer({{"type", "NFC"}});
  Json steps = Json::array();
  for (const std::string_view p : pre->patterns) steps.push_back(split_step(p));
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  parts.pre_tokenizer = make_pre_tokenizer({{"type", "Sequence"}, {"pretokenizers", steps}});
  parts.decoder = make_decoder({{"type", "ByteLevel"}});
  BpeOptions options;
  options.ignore_merges = pre->ignore_merges;
  parts.model = std::make_unique<BpeModel>(*parts.vocab, read_merges(c, *parts.vocab), std::move(options));
  return pre->add_bos;
}

// SentencePiece with scores.
void read_llama(const Checkpoint& c, const Metadata& meta, std::size_t tokens, std::optional<std::int32_t> unk, TokenizerParts& parts) {
  std::vector<float> scores = c.gguf_floats("tokenizer.ggml.scores");
  if (scores.size() != tokens)
    throw Error("E220", "tokenizer.ggml.scores has " + std::to_string(scores.size()) + " values for " + std::to_string(tokens) + " tokens");
  if (std::any_of(scores.begin(), scores.end(), [](float s) { return s != s; })) throw Error("E220", "tokenizer.ggml.scores holds a NaN");
  const bool prefix = meta.boolean("tokenizer.ggml.add_space_prefix", true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
  parts.normalizer = make_normalizer({{"type", "Sequence"}, {"normalizers", normalizers}});
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}}, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  parts.decoder = make_decoder({{"type", "Sequence"}, {"decoders", decoders}});
  parts.model = std::make_unique<ScoreModel>(*parts.vocab, std::move(scores), unk);
}

TokenizerParts read(const Checkpoint& c) {
  const Metadata meta(c);
  const std::string model = meta.string("tokenizer.ggml.model");
  if (model.empty()) {
    if (const std::string json = meta.string("tokenizer.huggingface.json"); !json.empty()) return parse_tokenizer_json(json, "tokenizer.huggingface.json");
    if (std::filesystem::exists(c.folder() / "tokenizer.json")) return read_tokenizer_json(c.folder());
    throw Error("E220", "tokenizer.ggml.model is missing and there is no tokenizer.json beside the file").hint("name a folder with the model's tokenizer.json: --tokenizer DIR");
  }
  if (model != "gpt2" && model != "llama")
    throw Error("E220", "tokenizer.ggml.model is \"" + unicode::sanitize(model) + "\"; qengine reads gpt2 (byte-level BPE) and llama (SentencePiece with scores)")
        .hint("name a folder with the model's tokenizer.json: --tokenizer DIR");

  TokenizerParts parts;
  const std::vector<std::string_view> tokens = c.gguf_strings("tokenizer.ggml.tokens");
  if (tokens.empty()) throw Error("E220", "tokenizer.ggml.tokens is missing or empty");
  if (static_cast<std::int64_t>(tokens.size()) > Vocab::kMaxId)
    throw Error("E220", "tokenizer.ggml.tokens has " + std::to_string(tokens.size()) + " entries, expected at most " + std::to_string(Vocab::kMaxId));
  const std::vector<std::int64_t> types = c.gguf_ints("tokenizer.ggml.token_type");
  if (!types.empty() && types.size() != tokens.size())
    throw Error("E220", "tokenizer.ggml.token_type has " + std::to_string(types.size()) + " values for " + std::to_string(tokens.size()) + " tokens");
  std::size_t bytes = 0;
  for (const std::string_view t : tokens) bytes += t.size();
  parts.vocab->reserve(tokens.size(), bytes);
  parts.plain.resize(tokens.size());
  std::optional<std::int32_t> unk;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t type = types.empty() ? std::int64_t{kNormal} : types[i];
    if (is_padding(tokens[i], type)) continue;
    const auto id = static_cast<std::int32_t>(i);
    parts.vocab->add(tokens[i], id);
    if (type == kControl || type == kUserDefined || type == kUnknown) {
      parts.plain[i] = true;
      AddedToken t;
      t.id = id, t.content = tokens[i], t.special = type != kUserDefined;
      if (!t.content.empty()) parts.added.push_back(std::move(t));
      if (type == kUnknown) unk = id;
    }
  }
  if (const auto id = meta.id("tokenizer.ggml.unknown_token_id", *parts.vocab); id && model == "llama") unk = id;

  if (model == "gpt2" && c.gguf_strings("tokenizer.ggml.merges").empty())
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool joined = std::count_if(tokens[i].begin(), tokens[i].end(), [](char b) { return (b & 0xc0) != 0x80; }) > 1;
      if (joined && !parts.plain[i] && !is_padding(tokens[i], types.empty() ? std::int64_t{kNormal} : types[i]))
        throw Error("E220", "tokenizer.ggml.merges is missing or empty, and " + shown(tokens[i]) + " is a token that only merging makes")
            .hint("name a folder with the model's tokenizer.json: --tokenizer DIR");
    }

  bool add_bos = true;
  if (model == "gpt2") add_bos = read_gpt2(c, meta, parts);
  else read_llama(c, meta, tokens.size(), unk, parts);

  parts.bos = meta.id("tokenizer.ggml.bos_token_id", *parts.vocab);
  if (!parts.bos && model == "llama") parts.bos = parts.vocab->find("<s>") == 1 ? std::optional(1) : std::nullopt;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = meta.id(key, *parts.vocab); id && std::find(parts.eos.begin(), parts.eos.end(), *id) == parts.eos.end()) parts.eos.push_back(*id);
  if (parts.eos.empty() && model == "llama" && parts.vocab->find("</s>") == 2) parts.eos.push_back(2);
  if (meta.boolean("tokenizer.ggml.add_bos_token", add_bos) && parts.bos) parts.prefix = {*parts.bos};
  if (meta.boolean("tokenizer.ggml.add_eos_token", false) && !parts.eos.empty()) parts.suffix = {parts.eos[0]};
  for (const auto& [key, value] : meta.json().items())
    if (key.starts_with("tokenizer.chat_template") && value.is_string()) {
      const std::string name = key.size() > 24 && key[23] == '.' ? key.substr(24) : "";
      if (key.size() == 23 || !name.empty()) parts.templates.insert_or_assign(name == "default" ? "" : name, value.get<std::string>());
    }
  return parts;
}

}  // namespace

TokenizerParts read_gguf_tokenizer(const Checkpoint& checkpoint) {
  try {
    return read(checkpoint);
  } catch (const Error& e) {
    throw in_file(e, checkpoint.path().string());
  }
}

}  // namespace qengine
