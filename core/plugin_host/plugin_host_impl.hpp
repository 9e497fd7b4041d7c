// What PluginHost holds; shared by plugin_host.cpp (finding) and choose.cpp (choosing).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/plugin_host/library.hpp"
#include "core/plugin_host/manifest.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

// A plugin that was found and may be loaded.
struct PluginCandidate {
  Manifest manifest;
  std::filesystem::path file;  // the library, or the manifest of a data-only plugin
  std::string sha256, trust;
  std::optional<Descriptor> fd;  // of the library
};

struct PluginHost::Impl {
  std::vector<std::unique_ptr<Plugin>> plugins;  // by name, then id
  struct Closed {
    Plugin* plugin;                           // of `plugins`: what the first candidate's manifest says
    std::vector<PluginCandidate> candidates;  // of one id; the first that loads is used
  };
  std::vector<Closed> closed;
  std::vector<RefusedPlugin> refused;
  std::vector<Error> refusals;  // the same, as errors
  std::vector<PluginAlias> aliases;  // in force
  std::vector<QuantDialect> dialects;
  mutable std::mutex mutex;
  mutable std::set<std::string> warned;  // aliases that were warned about
  mutable std::set<std::string> deprecated_met;
};

// Whether a list of quant_methods ("": all) holds this one.
bool condition_holds(const std::string& condition, std::string_view method);

}  // namespace qengine
