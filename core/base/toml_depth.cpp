#include "core/base/toml_depth.hpp"

namespace qengine {

int line_of_deep_toml_key(std::string_view text, int limit) {
  int line = 1, dots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      // A text ends with as many quotes as it began with; only "..." and """...""" know escapes.
      const std::string_view triple = c == '"' ? "\"\"\"" : "'''";
      const bool several_lines = text.substr(i).starts_with(triple);
      i += several_lines ? 3 : 1;
      for (; i < text.size(); ++i) {
        if (text[i] == '\n' && !several_lines) break;  // not closed: the parser will say so
        if (text[i] == '\n') ++line;
        if (text[i] == '\\' && c == '"' && i + 1 < text.size()) {
          if (text[++i] == '\n') ++line;
          continue;
        }
        if (several_lines ? text.substr(i).starts_with(triple) : text[i] == c) break;
      }
      if (i < text.size() && text[i] == '\n') ++line, dots = 0;
      if (several_lines) i += 2;
    } else if (c == '.') {
      if (++dots > limit) return line;
    } else if (c == '=' || c == ',' || c == '\n' || c == '[' || c == ']' || c == '{' || c == '}') {
      dots = 0;
    }
  }
  return 0;
}

}  // namespace qengine
