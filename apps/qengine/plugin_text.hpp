// Plugins as text and JSON, for the plugin commands.
#pragma once

#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

// From --plugin-path, --trust and the profile alone: for commands that open no model.
PluginHostOptions plugin_host_options(const Invocation& in);

Json plugin_json(const Plugin& p);
Json alias_json(const PluginAlias& a);

std::string devices_of(const Plugin& p);                // "cpu, sm80+"
std::string schemes_of(const Plugin& p);                // "w4g128 w4g32"
std::string capabilities_of(const PluginMethod& m);     // "cpu native, sm80-89 weight-only"
std::string indented(std::string text);                 // lines after the first by two spaces

// Columns two spaces apart, the last one as it is.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace qengine
