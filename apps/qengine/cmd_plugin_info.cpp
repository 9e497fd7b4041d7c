// plugin info: everything that is known about one plugin, installed or a file.
#include <filesystem>

#include "apps/qengine/command.hpp"
#include "apps/qengine/plugin_text.hpp"

namespace qengine {
namespace {

int run(const Invocation& in) {
  if (in.words.empty()) throw Error("E101", "no plugin named").hint("qengine plugin info NAME, or the path of a library");
  const std::string& name = in.words[0];
  PluginHost host(plugin_host_options(in));
  Plugin of_file;
  const Plugin* p = nullptr;
  if (name.find('/') != name.npos || std::filesystem::exists(name)) {
    of_file = PluginHost::read_manifest(name);
    p = &of_file;
  } else {
    host.scan();
    p = host.choose(name, "plugin info").plugin;
  }
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["plugin"] = plugin_json(*p);
    doc["plugin"]["summary"] = p->summary;
    doc["plugin"]["vendor"] = p->vendor;
    doc["plugin"]["license"] = p->license;
    doc["plugin"]["url"] = p->url;
    doc["plugin"]["build"] = p->build;
    doc["plugin"]["sdk"] = p->sdk;
    doc["plugin"]["options"] = p->options;
    Json& aliases = doc["plugin"]["aliases"] = Json::array();
    for (const PluginAlias& a : p->aliases) aliases.push_back(alias_json(a));
    print_json(doc);
    return 0;
  }
  std::string out = p->name + " " + p->version + (p->summary.empty() ? "" : ": " + p->summary) + "\n\n";
  const auto line = [&](const char* key, const std::string& value) {
    if (value.empty()) return;
    std::string head = std::string("  ") + key;
    head.resize(11, ' ');
    out += head + value + "\n";
  };
  line("id", p->id);
  line("path", p->path.string());
  line("sha256", p->sha256);
  line("trust", p->trust);
  line("abi", std::to_string(p->abi_major) + "." + std::to_string(p->abi_built) + ", needs " + std::to_string(p->abi_major) + "." + std::to_string(p->abi_needs));
  line("sdk", p->sdk);
  line("build", p->build);
  line("vendor", p->vendor);
  line("license", p->license);
  line("url", p->url);
  if (!p->methods.empty()) {
    out += "\nSchemes\n";
    std::vector<std::vector<std::string>> rows;
    for (const PluginMethod& m : p->methods)
      rows.push_back({"  " + m.name, m.quant_method, capabilities_of(m), m.replacement.empty() ? m.summary : "computed by " + m.replacement + (m.summary.empty() ? "" : ": " + m.summary)});
    out += table(rows);
  }
  if (!p->options.empty()) {
    out += "\nOptions (--plugin-opt " + p->name + ".KEY=VALUE, or [plugins.options." + p->name + "])\n";
    for (const std::string& o : p->options) out += "  " + o + "\n";
  }
  if (!p->aliases.empty()) {
    out += "\nAliases\n";
    std::vector<std::vector<std::string>> rows;
    for (const PluginAlias& a : p->aliases)
      rows.push_back({"  " + a.alias, a.condition.empty() ? "any" : "on " + a.condition, "-> " + a.replacement, a.since.empty() ? "" : "deprecated since " + a.since});
    out += table(rows);
  }
  print(out);
  return 0;
}

}  // namespace

extern const Command plugin_info_command;
const Command plugin_info_command = {
    .name = "plugin info",
    .summary = "one plugin: schemes, options, where it came from",
    .usage = {"awq_marlin", "./libmine.so"},
    .groups = {&plugin_settings()},
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
