// A chat template: refused, failed, or rendered within its bounds; always with an Error or a text.
#include <cstdint>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/tokenizer/chat_template.hpp"
#include "core/tokenizer/unicode.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  static const Json kVariables = Json::parse(R"({
    "messages": [{"role": "system", "content": " Be brief. \n"}, {"role": "user", "content": "Hi \u00e9 \ud83d\ude00"},
                 {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, true, null]}}}]},
                 {"role": "tool", "content": "{\"t\": 3}"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "array"}}}}}],
    "add_generation_prompt": true, "n": 3, "l": [3, 1, 2], "d": {"b": 1, "a": "x"}, "s": "Hello World"})");
  try {
    const ChatTemplate chat(std::string(reinterpret_cast<const char*>(data), size), "<s>", "</s>");
    const std::string text = chat.render(kVariables);
    if (text.size() > 1 << 20 || !unicode::is_valid(text)) std::abort();
  } catch (const Error& e) {
    if (e.code() != "E504") std::abort();
  }
  return 0;
}
