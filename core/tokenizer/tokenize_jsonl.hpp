// One line of `qengine tokenize --jsonl`: a JSON object in, a JSON object out.
//
//   {"text": T, "add_special_tokens": true}        -> {"tokens": [...]}
//   {"ids": [...]}                                 -> {"text", "chunks": what may be sent after each id, "flush"}
//   {"chat": {"messages", "tools", ...}, "template", "bos_token", "eos_token"} -> {"text", "tokens"}
//
// A line that fails gives {"error": ...}.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/tokenizer/tokenizer.hpp"

namespace qengine {

// Never throws; the result is one line without its end.
std::string tokenize_jsonl(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view line);

// The prompt of a chat request: its template (the model's "tool_use" one where there is one and tools
// are given, else the default), rendered. Throws Error E504. The text holds its own BOS.
std::string render_chat(const Tokenizer& tokenizer, const Json& variables);

}  // namespace qengine
