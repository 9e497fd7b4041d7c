// What PluginHost holds; shared by plugin_host.cpp (finding) and choose.cpp (choosing).
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

struct PluginHost::Impl {
  std::vector<std::unique_ptr<Plugin>> plugins;  // by name, then id
  std::vector<RefusedPlugin> refused;
  std::vector<Error> refusals;  // the same, as errors
  std::vector<PluginAlias> aliases;  // in force
  mutable std::mutex mutex;
  mutable std::set<std::string> warned;  // aliases that were warned about
};

}  // namespace qengine
