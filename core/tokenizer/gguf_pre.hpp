// What tokenizer.ggml.pre stands for (formats.md 9.6): the pipeline of a byte-level BPE tokenizer.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace qengine {

struct GgufPre {
  std::vector<std::string_view> patterns;  // each cuts what the one before left (Split, Isolated)
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where tokenizer.ggml.add_bos_token is absent
};

// nullopt for a name that is not known.
std::optional<GgufPre> find_gguf_pre(std::string_view name);
std::string_view known_gguf_pres();  // for messages

}  // namespace qengine
