// What the eval commands share: texts, the models they are run on, the record in their output.
#pragma once

#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/eval/verdict.hpp"
#include "core/eval/windows.hpp"

namespace qengine {

// --text, --prompt-ids, --method, --context, --stride.
const SettingGroup& text_settings();

struct EvalText {
  std::vector<std::vector<std::int32_t>> documents;
  std::vector<Window> windows;
  std::string method;       // "docs", "chunks"
  std::int64_t context = 0, stride = 0;
  bool bos = false;         // the tokenizer begins each document (each chunk) with BOS
  std::string sha256;       // of the text, or of the ids as little-endian 32-bit numbers
};

// REQUIRES: the engine has a tokenizer when --text is given. Throws Error E101.
EvalText eval_text(const Invocation& in, const Engine& engine);
bool eval_needs_tokenizer(const Invocation& in);

// Throws Error E101 when an id is outside the vocabulary of `engine`, naming which prompt.
void check_ids(const Engine& engine, const std::vector<std::int32_t>& ids, const std::string& what);

// The options for --reference beside those of the model: what concerns the machine and the arithmetic is
// kept, nothing about formats, and no tokenizer is needed.
EngineOptions reference_options(const Invocation& in, const EngineOptions& options);

// method, context, stride, bos, corpus hash, as members of `document`.
void add_text_record(Json& document, const EvalText& text);

// [{"gate","value","limit"}]
Json reasons_json(const Verdict& verdict);

}  // namespace qengine
