// plugin list: what is installed, what was refused and why.
#include "apps/qengine/command.hpp"
#include "apps/qengine/plugin_text.hpp"

namespace qengine {
namespace {

const SettingGroup& list_settings() {
  static const SettingGroup group{"Plugin list", {{.name = "aliases", .kind = Kind::kBool, .fallback = "false", .help = "the names that plugins answer to, and what each becomes"}}};
  return group;
}

int run(const Invocation& in) {
  PluginHost host(plugin_host_options(in));
  host.scan();
  if (in.json()) {
    Json doc = json_document(in.command);
    Json& plugins = doc["plugins"] = Json::array();
    for (const auto& p : host.plugins()) plugins.push_back(plugin_json(*p));
    Json& refused = doc["refused"] = Json::array();
    for (const RefusedPlugin& r : host.refused()) refused.push_back({{"path", r.path.string()}, {"code", r.code}, {"reason", r.reason}});
    Json& aliases = doc["aliases"] = Json::array();
    for (const PluginAlias& a : host.aliases()) aliases.push_back(alias_json(a));
    print_json(doc);
    return 0;
  }
  if (in.values.flag("aliases")) {
    std::vector<std::vector<std::string>> rows{{"kind", "alias", "on", "becomes", "deprecated since", "plugin"}};
    const char* const kinds[] = {"", "flag", "name", "option", "value"};
    for (const PluginAlias& a : host.aliases())
      rows.push_back({a.kind >= 1 && a.kind <= 4 ? kinds[a.kind] : "?", a.alias, a.condition.empty() ? "any" : a.condition, a.replacement, a.since, a.owner});
    print(table(rows));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"name", "version", "abi", "devices", "trust", "schemes"}};
  std::string paths;
  for (const auto& p : host.plugins())
    rows.push_back({p->name, p->version, std::to_string(p->abi_major) + "." + std::to_string(p->abi_built), devices_of(*p), p->trust, schemes_of(*p)});
  print(table(rows));
  std::map<std::string, int> folders;
  for (const auto& p : host.plugins()) ++folders[p->path.parent_path().string()];
  for (const auto& [folder, n] : folders) print("\n" + std::to_string(n) + " from " + folder);
  if (!folders.empty()) print("\n");
  for (const RefusedPlugin& r : host.refused()) print("\nrefused " + r.path.string() + "\n  " + indented(r.reason) + "\n");
  if (host.plugins().empty()) print("no plugins found; they are in plugins/ beside the program, or where --plugin-path says\n");
  return 0;
}

}  // namespace

extern const Command plugin_list_command;
const Command plugin_list_command = {
    .name = "plugin list",
    .summary = "installed plugins, and those refused with the reason",
    .usage = {"", "--aliases"},
    .groups = {&list_settings(), &plugin_settings()},
    .run = run,
};

}  // namespace qengine
