// What a plugin reported, as an Error for the user.
#pragma once

#include <qe/plugin.h>

#include <string>

#include "core/base/error.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

struct PluginCall {
  const Plugin* plugin = nullptr;
  const char* call = "";                    // "plan", "load", ...
  std::string layer;                        // "" when there is none
  const Checkpoint* checkpoint = nullptr;   // null when there is none
};

Error plugin_error(qe_status status, const qe_error& error, const PluginCall& call);

}  // namespace qengine
