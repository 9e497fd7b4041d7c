// Windows: how a text that may be longer than the context is cut so that each token is scored once.
//
//   docs    a document whole, its first token left out; one longer than the context in windows that
//           move by `stride`, each scoring only what no window before it has scored
//   chunks  pieces of exactly `context` tokens of all documents in a row, as llama.cpp's perplexity
//           cuts them: the first token replaced by BOS where the tokenizer adds one, only the second
//           half scored, a rest too short for a piece left out
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace qengine {

struct Window {
  std::vector<std::int32_t> ids;
  std::int64_t first = 1;      // ids[first ..] are scored, each from the logits of the position before it
  std::int64_t document = 0;   // index of the document; 0 for chunks
  std::int64_t position = 0;   // of ids[0] in its document
};

// REQUIRES: context >= 2, 1 <= stride < context. Documents of fewer than two tokens give no window.
std::vector<Window> document_windows(const std::vector<std::vector<std::int32_t>>& documents, std::int64_t context, std::int64_t stride);
// REQUIRES: context >= 4.
std::vector<Window> chunk_windows(const std::vector<std::int32_t>& ids, std::int64_t context, std::optional<std::int32_t> bos);

std::int64_t scored_tokens(const std::vector<Window>& windows);

}  // namespace qengine
