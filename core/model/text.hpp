// Pieces of error texts: names that came from a file, made fit to print.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qengine {

// `text` with control and non-ASCII bytes as \xNN, cut after `limit` characters.
std::string printable(std::string_view text, std::size_t limit = 160);

// Length of the well-formed UTF-8 prefix of `text`.
std::size_t utf8_prefix(std::string_view text);
// `text` with each byte that is not UTF-8 replaced by U+FFFD.
std::string as_utf8(std::string_view text);

// A hint about a file that could not be read as what its name says, from its first bytes: that it is a pointer of Git LFS, a
// web page, a pickle, or a model file of the other kind. `otherwise` when it looks like none of these.
std::string mistaken_hint(std::string_view head, const std::string& otherwise);

std::string shape_text(std::span<const std::int64_t> shape);  // "[32, 64]"

}  // namespace qengine
