// PipelineTokenizer: the one Tokenizer behind tokenizer.json and GGUF metadata. Their readers fill
// TokenizerParts; this runs them: added tokens, normalizer, pre-tokenizer, model, post-processor.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tokenizer/added_tokens.hpp"
#include "core/tokenizer/decoder.hpp"
#include "core/tokenizer/model.hpp"
#include "core/tokenizer/normalizer.hpp"
#include "core/tokenizer/pre_tokenizer.hpp"
#include "core/tokenizer/tokenizer.hpp"
#include "core/tokenizer/vocab.hpp"

namespace qengine {

struct TokenizerParts {
  std::unique_ptr<Vocab> vocab = std::make_unique<Vocab>();  // its address is kept by the model; holds added tokens too
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<Decoder> decoder;
  std::vector<AddedToken> added;
  std::vector<bool> plain;  // by id: the piece is the text itself, no decoder applies; may be shorter
  std::vector<std::int32_t> prefix, suffix;  // what add_special adds
  std::optional<std::int32_t> bos;
  std::vector<std::int32_t> eos;
  std::map<std::string, std::string, std::less<>> templates;  // "" is the default one
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<std::int32_t> encode(std::string_view text, bool add_special) const override;
  std::string decode(const std::vector<std::int32_t>& ids, bool skip_special) const override;
  std::int32_t size() const override { return parts_.vocab->size(); }
  std::optional<std::int32_t> id(std::string_view token) const override;
  std::string piece(std::int32_t id) const override { return std::string(parts_.vocab->token(id)); }
  std::string token_bytes(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override { return id >= 0 && static_cast<std::size_t>(id) < special_.size() && special_[static_cast<std::size_t>(id)]; }
  std::optional<std::int32_t> bos() const override { return parts_.bos; }
  std::vector<std::int32_t> eos() const override { return parts_.eos; }
  std::string bos_text() const override { return parts_.bos ? piece(*parts_.bos) : std::string(); }
  std::string eos_text() const override { return parts_.eos.empty() ? std::string() : piece(parts_.eos.front()); }
  std::string chat_template(std::string_view name) const override;
  std::unique_ptr<TextStream> stream(bool skip_special) const override;

 private:
  class Stream;
  void encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& out) const;
  std::string_view spelling(std::int32_t id) const;  // what the decoder is given
  bool is_plain(std::int32_t id) const { return static_cast<std::size_t>(id) < parts_.plain.size() && parts_.plain[static_cast<std::size_t>(id)]; }

  TokenizerParts parts_;
  TokenFinder raw_, normalized_;
  std::vector<bool> special_;  // by id
  std::map<std::int32_t, std::string> respelled_;  // added tokens that the normalizer changes: what they decode to
};

// The readers. `folder` holds tokenizer.json. Throw Error E220.
TokenizerParts read_tokenizer_json(const std::filesystem::path& folder);
TokenizerParts read_gguf_tokenizer(const Checkpoint& checkpoint);
// tokenizer.json as a string (GGUF tokenizer.huggingface.json); `name` for messages.
TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& name);

}  // namespace qengine
