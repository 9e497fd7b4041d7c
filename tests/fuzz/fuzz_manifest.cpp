// NAME.qeplugin.toml: refused with E306, or a manifest whose names may be compared and printed.
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/plugin_host/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  try {
    const Manifest m = parse_manifest({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!valid_plugin_id(m.plugin.id) || !valid_plugin_name(m.plugin.name) || !valid_version(m.plugin.version)) std::abort();
    if (compare_versions(m.plugin.version, m.plugin.version) != 0) std::abort();
    if (m.library.find('/') != std::string::npos || (!m.library.empty() && m.sha256.size() != 64)) std::abort();
    for (const PluginAlias& a : m.plugin.aliases)
      if (a.kind < 1 || a.kind > 4 || a.alias.empty() || a.replacement.empty()) std::abort();
  } catch (const Error& e) {
    if (e.code() != "E306") std::abort();
  }
  return 0;
}
