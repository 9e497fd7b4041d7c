// StructuredOutput: what a request says its answer must look like, as an automaton: response_format,
// structured_outputs, guided_*, tool_choice required and named, strict tools. The reasoning that a
// model may write first stays free.
//
// Thread-safe; called by the workers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/server/request.hpp"
#include "core/structured/compiler.hpp"

namespace qengine::server {

class StructuredOutput {
 public:
  // `tool_style` and `reasoning`: as make_chat_parser takes them.
  StructuredOutput(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens, std::string tool_style, std::string reasoning);

  // Null: the answer is free. Throws ApiError invalid_grammar naming the field and the place in it.
  std::shared_ptr<const structured::Automaton> compile(const ApiRequest& request, bool inside_reasoning);

  // Calls are written and read in this form: the model's, or hermes where its template knows none.
  const std::string& tool_style() const { return tool_style_; }

 private:
  structured::Compiler compiler_;
  std::string tool_style_, reasoning_;
};

}  // namespace qengine::server
