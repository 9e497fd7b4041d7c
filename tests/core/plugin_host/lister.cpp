// Prints the plugins that a program lying here finds: id, trust, path.
#include <iostream>

#include "core/plugin_host/plugin_host.hpp"

int main() {
  qengine::PluginHost host({});
  host.scan();
  for (const auto& p : host.plugins()) std::cout << p->id << " " << p->trust << " " << p->path.string() << "\n";
  for (const auto& r : host.refused()) std::cout << "refused " << r.code << " " << r.id << "\n";
}
