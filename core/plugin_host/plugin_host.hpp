// PluginHost: finds plugins, decides which may be loaded, loads them, and answers questions about them.
//
//   discover -> manifest -> trust -> open + hash -> dlopen (now|local) -> qe_plugin_query -> descriptor
//   checked against the manifest -> init
//
// Libraries may wait: scan(Open::kLater) reads manifests alone, and open_readers() opens what can apply to a checkpoint, since
// each library takes memory and a model wants one or two of them.
//
// A library once loaded stays mapped: its deleters and tables may still be in use. Nothing a plugin
// does wrong here stops the others: it is listed as refused, with the reason.
// Contract: sdk/include/qe/plugin.h. Which plugin gets which layer: format_plan.hpp.
//
// scan() and what opens are for one thread; everything else is const and thread-safe.
#pragma once

#include <qe/plugin.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/model/checkpoint.hpp"

namespace qengine {

class PluginServices;

enum class Trust { kBuiltin, kHash, kAny };

struct AllowEntry {
  std::string id, sha256;
};

struct PluginHostOptions {
  // Searched in order: the program's own folder (plugins/ beside it in a build, ../lib/qengine/plugins
  // installed) always comes first, then these, then QENGINE_PLUGIN_PATH unless privileged. Never the
  // current directory.
  std::vector<std::filesystem::path> paths;
  std::filesystem::path builtin_dir;  // the program's own folder; empty: derived from /proc/self/exe
  Trust trust = Trust::kHash;
  std::vector<AllowEntry> allow;
  std::map<std::string, Json> plugin_options;  // by plugin name: [plugins.options.NAME], --plugin-opt
  bool deny_deprecated = false;
};

struct PluginMethod {
  std::string name, quant_method, summary;
  std::vector<qe_capability> rows;
  std::string replacement;  // manifest-only methods: "PLUGIN[:SCHEME]" that does the arithmetic
};

struct PluginAlias {
  int kind = 0;  // 1 flag, 2 name, 3 option, 4 value
  std::string alias, condition, replacement, since, removed_in, message;
  std::string owner;  // plugin id whose data this is

  bool deprecated() const { return !since.empty(); }  // "deprecated since"; a plain synonym has none
};

// One installed plugin. `descriptor` is null when it is data only or not opened yet, `weight` / `kv` also when it does not offer them.
struct Plugin {
  std::string id, name, version, vendor, license, url, build, sdk, summary;
  std::uint32_t abi_major = 0, abi_built = 0, abi_needs = 0;
  std::filesystem::path path;      // the library, or the manifest of a data-only plugin
  std::string sha256;              // of that file
  std::string trust;               // "builtin", "hash", "any"
  std::vector<PluginMethod> methods;
  std::vector<PluginAlias> aliases;
  std::vector<std::string> options;
  std::vector<QuantDialect> dialects;  // manifest only
  const qe_plugin* descriptor = nullptr;
  const qe_weight_v1* weight = nullptr;
  const qe_kv_v1* kv = nullptr;
  PluginServices* services = nullptr;  // its host table; never destroyed
  bool library = false;                // false: a manifest with data alone

  bool data_only() const { return !library; }
  bool opened() const { return descriptor != nullptr; }
};

struct RefusedPlugin {
  std::string id, name;  // as far as they could be read
  std::filesystem::path path;
  std::string code;    // "E301", "E302", ...
  std::string reason;  // the whole error text
};

// What --plugin / --quantization resolved to.
struct PluginChoice {
  const Plugin* plugin = nullptr;  // null: several would do, the highest detection score decides
  std::string scheme;  // "" = the plugin's own choice
  std::string how;     // one line for the log: "--quantization gptq -> gptq_marlin (quant_method gptq in config.json)"
};

class PluginHost {
 public:
  explicit PluginHost(PluginHostOptions options);
  ~PluginHost();

  enum class Open { kAll, kLater };
  void scan(Open open = Open::kAll);  // never throws for one bad plugin
  // Opens the libraries whose manifest says that they read `quant_method`, or leaves it open; then all. False: none was closed.
  bool open_readers(std::string_view quant_method);
  bool open_rest();

  std::span<const std::unique_ptr<Plugin>> plugins() const;
  std::span<const RefusedPlugin> refused() const;
  std::vector<PluginAlias> aliases() const;  // those in force
  // What the installed plugins know of configs that do not name their method; for Checkpoint::open.
  std::span<const QuantDialect> dialects() const;
  const Plugin* find(std::string_view name_or_id) const;
  const PluginHostOptions& options() const { return options_; }

  // "ID[:SCHEME]" of --plugin / [[quant.override]] plugin. Throws E103 (with installed names and the
  // nearest), E301/E302 when that plugin was refused.
  // `origin` is for messages: where the name was written.
  PluginChoice choose(std::string_view spec, const std::string& origin = "--plugin") const;
  // A --quantization value on this checkpoint, through the aliases and methods of the installed
  // plugins. Throws E103, E104, E105; warns W901 once, or throws E107 under deny_deprecated.
  PluginChoice choose_quantization(std::string_view value, const Checkpoint& checkpoint) const;

  // An alias of kind 4 (value), "FLAG=VALUE" -> "PLUGIN[:SCHEME]": what a core flag's value means here,
  // such as "quantize-lm-head=fp8". Throws E103 when no installed plugin offers it.
  PluginChoice choose_value(const std::string& flag, std::string_view value) const;

  // Throws E102 for an option that its plugin does not declare, naming the nearest.
  void check_options() const;

  // Inspects one library or manifest file without adding it or running its code (plugin info FILE,
  // plugin trust FILE): the manifest's data, and the sha256 of the file that [[plugins.allow]] names.
  static Plugin read_manifest(const std::filesystem::path& library_or_manifest);

  // The deprecated names that a choice has met so far.
  std::vector<std::string> deprecated_met() const;

 private:
  struct Impl;
  void refuse(const std::filesystem::path& path, const Plugin& known, const Error& e);
  bool open_if(const std::function<bool(const Plugin&)>& wanted);
  // W901 once for each alias, or E107 under deny_deprecated.
  void warn_deprecated(const PluginAlias& alias, const std::string& written, const std::string& replacement, const std::string& where) const;
  PluginHostOptions options_;
  std::unique_ptr<Impl> impl_;
};

// "gptq (4-bit, group 128)", "not quantized (bfloat16)".
std::string describe_quantization(const Checkpoint& checkpoint);
// The checkpoint's quant_method, "none" when it is not quantized.
std::string quant_method_of(const Checkpoint& checkpoint);

}  // namespace qengine
