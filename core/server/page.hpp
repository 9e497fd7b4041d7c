// The page at "/": chat with the model, live figures, the format table, the memory map. One static
// text, no outside resources.
#pragma once

#include <string_view>

namespace qengine::server {

extern const std::string_view kPage;

}  // namespace qengine::server
