// ChatFrame: how a model is asked and its answer read: template, tools, parsers of calls and reasoning.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/eval/tasks.hpp"
#include "core/server/chat_parser.hpp"
#include "core/tokenizer/chat_template.hpp"

namespace qengine {

struct ChatAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

class ChatFrame {
 public:
  // By the model's template, or --chat-template; a model without one is asked in plain lines.
  ChatFrame(const Invocation& in, std::shared_ptr<const Tokenizer> tokenizer);

  // Ids of a conversation, ready for the answer. A template that ignores tools gets them in a system message, in the form that
  // Hermes models know.
  std::vector<std::int32_t> prompt(const Json& messages, const Json& tools, const Json& kwargs = Json::object()) const;
  ChatAnswer read(const std::string& text, bool tools) const;

  // "the model's template", "tools in a system message", ...: for the record.
  std::string how(bool tools) const;
  const std::string& tool_parser() const { return tool_parser_; }
  const std::string& reasoning_parser() const { return reasoning_; }

 private:
  std::string render(const Json& messages, const Json& tools, const Json& kwargs) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  Json kwargs_ = Json::object();
  std::string tool_parser_, reasoning_;
  bool takes_tools_ = false;
};

}  // namespace qengine
