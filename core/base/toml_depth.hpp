// A TOML document may nest tables as deep as it has dots in a key, and a parser that builds them, or
// frees them, recurses as deep: a file of a.a.a.a... ends the program. Asked before parsing.
#pragma once

#include <string_view>

namespace qengine {

// Line (from 1) of the first key with more than `limit` dots; 0 when there is none. Dots in texts,
// numbers and comments do not count.
int line_of_deep_toml_key(std::string_view text, int limit = 32);

}  // namespace qengine
