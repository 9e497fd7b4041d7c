// Profile: a TOML configuration file, read and checked whole before anything uses it.
//
// Every key is a setting of the registry (setting.hpp) or part of a table below; anything else is
// Error E102 with file, line, column and the nearest known key. Values stay as text until a command
// resolves them; each remembers where it stood.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/setting.hpp"

namespace qengine {

struct ProfileValue {
  const Setting* setting = nullptr;
  std::vector<std::string> texts;  // normalized; paths made absolute against the file's folder
  std::string where;               // "qengine.toml:14:1"
};

struct ProfilePlugin {  // [[plugins.allow]]
  std::string id, sha256, where;
};

struct ProfileOption {  // [plugins.options.PLUGIN] key = value
  std::string plugin, key, value /* as JSON */, where;
};

struct ProfileOverride {  // [[quant.override]]
  std::string match, plugin, where;
};

// [[backend]]: one way to load the model that a running server can change to. Its values are settings of class
// "swap" from [model] and [engine], under the last part of their keys.
struct ProfileBackend {
  std::string name, where;
  std::vector<ProfileValue> values;
  std::vector<ProfileOption> options;  // [backend.options.PLUGIN]
};

struct Profile {
  std::filesystem::path path;  // empty: no profile
  std::vector<ProfileValue> values;
  std::vector<ProfilePlugin> allow;
  std::vector<ProfileOption> options;
  std::vector<ProfileOverride> overrides;
  std::vector<ProfileBackend> backends;
};

// Throws Error E102.
Profile read_profile(const std::filesystem::path& file);
// `name` stands for the file in messages, `folder` is what relative paths start from.
Profile parse_profile(std::string_view text, const std::string& name, const std::filesystem::path& folder);

// A [[backend]] written as a JSON object, with the same keys and the same errors. A name is not needed. Throws Error E102.
ProfileBackend parse_backend(std::string_view json, const std::string& name, const std::filesystem::path& folder);

}  // namespace qengine
