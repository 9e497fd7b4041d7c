// Python's view of strings: sequences of code points, with Python's idea of whitespace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qengine::jinja {

bool is_space(char32_t c);  // str.isspace
std::string_view lstrip(std::string_view s);
std::string_view rstrip(std::string_view s);
std::string_view strip(std::string_view s);
// Any of the characters of `set`.
std::string_view strip(std::string_view s, std::string_view set, bool left, bool right);

std::int64_t length(std::string_view s);                         // in code points
std::vector<std::string_view> characters(std::string_view s);
std::vector<std::string_view> split_lines(std::string_view s);   // str.splitlines

std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title(std::string_view s);        // str.title
std::string title_words(std::string_view s);  // the filter: words begin after space, - ( { [ <

std::string repr(std::string_view s);  // 'as Python shows it'
std::string repr(double d);            // shortest, as repr(float)

}  // namespace qengine::jinja
