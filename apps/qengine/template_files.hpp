// The files of sdk/template, inside the program: what `plugin new` writes. Made by the build.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace qengine {

// Path below the project, text with @NAME@, @ID@ and @VENDOR@ in it.
std::span<const std::pair<std::string_view, std::string_view>> template_files();

}  // namespace qengine
