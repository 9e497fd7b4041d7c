// The tokenizer inside a GGUF file, as the files that a Hugging Face folder has.
#pragma once

#include <optional>

#include "core/model/checkpoint.hpp"

namespace qengine {

struct TokenizerFiles {
  Json tokenizer;         // tokenizer.json
  Json tokenizer_config;  // tokenizer_config.json
  std::string chat_template;  // chat_template.jinja; "" when there is none
};

// nullopt when the file holds no tokenizer. REQUIRES: the tokenizer could be loaded (its parts were
// checked then).
std::optional<TokenizerFiles> tokenizer_files(const Checkpoint& gguf);

}  // namespace qengine
