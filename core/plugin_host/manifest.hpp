// Manifest: NAME.qeplugin.toml, what can be known about a plugin before any of its code runs.
//
// Untrusted text: at most 64 KiB, every key is checked, unknown ones are errors. It decides nothing:
// after loading it must equal the library's descriptor.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

struct Manifest {
  Plugin plugin;        // identity, methods, aliases, options; path and sha256 are left to the caller
  std::string library;  // a bare file name; "" when the manifest only brings data
  std::string sha256;   // of the library, as the manifest says; 64 hex digits
};

inline constexpr std::string_view kManifestSuffix = ".qeplugin.toml";
inline constexpr std::size_t kMaxManifest = 64 * 1024;

// Throws Error E306 with FILE:LINE:COLUMN. `name` is only for messages.
Manifest parse_manifest(std::string_view text, const std::string& name);
// Reads the file; also E306 when it is no regular file or too large.
Manifest read_manifest_file(const std::filesystem::path& file, std::string* text = nullptr);

// "0.9.1" < "0.10.0", "1.0.0-rc1" < "1.0.0".
int compare_versions(std::string_view a, std::string_view b);
bool valid_plugin_id(std::string_view id);      // reverse DNS: "com.acme.int5", "qengine.gguf"
bool valid_plugin_name(std::string_view name);  // [a-z0-9_]+
bool valid_version(std::string_view version);   // semantic versioning

}  // namespace qengine
