// ChatParser: splits what a chat model writes into content, reasoning and tool calls, as it streams.
//
// The pieces joined are the same whether they came one token or one megabyte at a time. A call that
// does not parse is given back as content, never as an error (serving.md 3.6).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qengine::server {

struct ToolDelta {
  int index = 0;
  std::string id, name;   // in the first delta of a call
  std::string arguments;  // a further piece of the JSON text
};

struct ChatDelta {
  std::string content, reasoning;
  std::vector<ToolDelta> tools;
  bool empty() const { return content.empty() && reasoning.empty() && tools.empty(); }
};

class ChatParser {
 public:
  virtual ~ChatParser() = default;
  virtual ChatDelta push(std::string_view text) = 0;
  virtual ChatDelta finish() = 0;
  // Calls seen so far, and those that looked like one and were not.
  virtual int calls() const = 0;
  virtual int failures() const = 0;
};

// tool_parser: "none", "hermes", "llama3_json", "mistral". reasoning: "none" or "think";
// `inside_reasoning`: the prompt already opened the block.
std::unique_ptr<ChatParser> make_chat_parser(std::string_view tool_parser, std::string_view reasoning, bool inside_reasoning);

// The parsers that a template's text asks for: "auto" resolved.
std::string detect_tool_parser(std::string_view chat_template);
std::string detect_reasoning_parser(std::string_view chat_template);

}  // namespace qengine::server
