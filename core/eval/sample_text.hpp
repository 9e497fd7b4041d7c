// The text that formats are compared on where nobody brings one: config/text/sample.txt, in the public domain.
#pragma once

#include <string_view>

namespace qengine {

std::string_view sample_text();

}  // namespace qengine
