// The values of JSON Schema's "format" that are enforced, as regular expressions for the whole text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qengine::structured {

// nullptr: not enforced here. Each is a subset of what its RFC allows (no 29th of February, for example).
const char* format_pattern(std::string_view format);

// For messages: "date, date-time, ...".
std::string format_names();

}  // namespace qengine::structured
