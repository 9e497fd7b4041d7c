// The Precompiled normalizer: SentencePiece's table of replacements as a double-array trie.
#pragma once

#include <memory>
#include <string>

#include "core/tokenizer/normalizer.hpp"

namespace qengine {

// `base64`: u32 bytes of the trie, the trie's u32 units, replacement strings that end in NUL. Throws
// Error E220 naming `where`.
std::unique_ptr<Normalizer> make_precompiled(const std::string& base64, const std::string& where);

}  // namespace qengine
