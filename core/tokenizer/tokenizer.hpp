// Tokenizer: text <-> token ids, from tokenizer.json or GGUF metadata (formats.md 2.7 to 2.9, 9.6).
//
// Thread-safe after load (all const).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/checkpoint.hpp"

namespace qengine {

// The text of ids that come one by one; what StreamDecoder runs on.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(std::int32_t id) = 0;
  virtual std::string flush() = 0;
};

class Tokenizer {
 public:
  // From a model folder (tokenizer.json, tokenizer_config.json beside it) or a GGUF file. Throws
  // Error E2xx naming the file and the field, token or merge.
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& folder_or_gguf);
  static std::shared_ptr<const Tokenizer> load(const Checkpoint& checkpoint);

  virtual ~Tokenizer() = default;

  // add_special: what the post-processor adds (BOS, EOS). Special tokens written in `text` are always
  // parsed. `text` must be UTF-8; ill-formed bytes become U+FFFD first.
  virtual std::vector<std::int32_t> encode(std::string_view text, bool add_special) const = 0;

  // The whole text of `ids`; ids without a token are left out. skip_special drops special tokens.
  virtual std::string decode(const std::vector<std::int32_t>& ids, bool skip_special) const = 0;

  virtual std::int32_t size() const = 0;  // largest id + 1; rows of the head beyond are padding
  virtual std::optional<std::int32_t> id(std::string_view token) const = 0;
  virtual std::string piece(std::int32_t id) const = 0;        // as spelled in the vocabulary
  virtual std::string token_bytes(std::int32_t id) const = 0;  // what it adds to the text, maybe half a character
  virtual bool is_special(std::int32_t id) const = 0;
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::vector<std::int32_t> eos() const = 0;  // eos, eot and the like that the tokenizer's files name
  virtual std::string bos_text() const = 0;
  virtual std::string eos_text() const = 0;

  // The chat template of the model (formats.md 2.10), "" when there is none. `name`: "" = default.
  virtual std::string chat_template(std::string_view name = {}) const = 0;

  // The stream refers to this tokenizer.
  virtual std::unique_ptr<TextStream> stream(bool skip_special) const = 0;
};

// Decodes one token at a time. A chunk never ends inside a character; nothing complete is held back:
// joined chunks plus flush() equal decode() of all ids. Not thread-safe.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  ~StreamDecoder();
  std::string push(std::int32_t id);
  std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qengine
