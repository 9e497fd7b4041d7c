// SHA-256 of files, in lower-case hex.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace qengine {

std::string sha256_of(std::string_view bytes);
// Reads the whole file behind an open descriptor, from its beginning, without moving its position.
// Throws Error E307 when reading fails.
std::string sha256_of_fd(int fd, const std::filesystem::path& name);

}  // namespace qengine
