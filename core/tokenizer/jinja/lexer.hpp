// Lexer of chat templates: Jinja with trim_blocks and lstrip_blocks on (formats.md 2.10).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace qengine::jinja {

struct Pos {
  std::int32_t line = 1, column = 1;
};

// What goes wrong in a template, while it is read or run. ChatTemplate turns it into an Error.
struct Failure : std::runtime_error {
  Failure(const std::string& what, Pos p = {0, 0}) : std::runtime_error(what), pos(p) {}
  Pos pos;               // line 0: not known yet
  bool raised = false;   // by raise_exception: the template's own words
};

struct Token {
  enum class Type { kData, kVariableBegin, kVariableEnd, kBlockBegin, kBlockEnd, kName, kString, kInteger, kFloat, kOperator, kEnd };
  Type type;
  std::string text;  // data after whitespace control; strings after their escapes; operators as written
  Pos pos;
};

// Ends in kEnd. Throws Failure with a position.
std::vector<Token> lex(std::string_view source);

}  // namespace qengine::jinja
