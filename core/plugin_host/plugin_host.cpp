#include "core/plugin_host/plugin_host.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/base/nearest.hpp"
#include "core/plugin_host/library.hpp"
#include "core/plugin_host/manifest.hpp"
#include "core/plugin_host/plugin_host_impl.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  bool builtin;
};

fs::path program_folder() {
  std::error_code ec;
  const fs::path exe = fs::read_symlink("/proc/self/exe", ec);
  return ec ? fs::path() : exe.parent_path();
}

std::vector<Folder> folders(const PluginHostOptions& options) {
  std::vector<Folder> out;
  std::error_code ec;
  if (!options.builtin_dir.empty()) {
    out.push_back({options.builtin_dir, true});
  } else if (const fs::path exe = program_folder(); !exe.empty()) {
    const fs::path beside = exe / "plugins", installed = exe / "../lib/qengine/plugins";
    out.push_back({(fs::is_directory(beside, ec) ? beside : installed).lexically_normal(), true});
  }
  for (const fs::path& p : options.paths) out.push_back({p, false});
  if (const char* env = std::getenv("QENGINE_PLUGIN_PATH"); env && !getauxval(AT_SECURE)) {
    const std::string_view all(env);
    for (std::size_t at = 0; at <= all.size();) {
      const std::size_t end = std::min(all.find(':', at), all.size());
      // A relative entry would mean a folder that depends on where we were started.
      if (const fs::path p(all.substr(at, end - at)); p.is_absolute())
        out.push_back({p, false});
      else if (!p.empty())
        log("plugins").warn("QENGINE_PLUGIN_PATH: {} is not absolute and is not searched", p.string());
      at = end + 1;
    }
  }
  std::vector<Folder> unique;
  std::vector<fs::path> seen;
  for (Folder& f : out) {
    fs::path real = fs::weakly_canonical(f.path, ec);
    if (std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
    seen.push_back(std::move(real));
    unique.push_back(std::move(f));
  }
  return unique;
}

// What [[plugins.allow]] is asked about. Throws E302.
std::string trust_of(const PluginHostOptions& options, bool builtin, const std::string& id, const std::string& sha256, const fs::path& file) {
  if (builtin) return "builtin";
  if (options.trust == Trust::kAny) return "any";
  if (options.trust == Trust::kBuiltin)
    throw Error("E302", id + " is not trusted: --trust builtin loads only what came with the program").in(file.string()).hint("--trust hash and an entry in [[plugins.allow]] admit it");
  bool id_known = false;
  for (const AllowEntry& a : options.allow) {
    if (a.id != id) continue;
    if (a.sha256 == sha256) return "hash";
    id_known = true;
  }
  Error e("E302", id_known ? id + " is not trusted: its sha256 " + sha256 + " is not the one in [[plugins.allow]]"
                           : id + " is not trusted: its sha256 is not in [[plugins.allow]]");
  throw e.in(file.string()).hint("plugins run with your rights; after checking its source add id and sha256 (qengine plugin info FILE prints both)");
}

PluginCandidate examine(const PluginHostOptions& options, const Folder& folder, const fs::path& manifest_file, Manifest manifest, const std::string& text) {
  PluginCandidate c{std::move(manifest), manifest_file, {}, {}, {}};
  if (c.manifest.library.empty()) {
    if (!folder.builtin) check_place(folder.path, open_plugin_file(manifest_file));
    c.sha256 = sha256_of(text);
  } else {
    c.file = manifest_file.parent_path() / c.manifest.library;
    c.fd.emplace(open_plugin_file(c.file));
    if (!folder.builtin) check_place(folder.path, *c.fd);
    c.sha256 = sha256_of_fd(c.fd->get(), c.file);
    if (c.sha256 != c.manifest.sha256)
      throw Error("E306", manifest_file.filename().string() + " says sha256 " + c.manifest.sha256 + ", its library has " + c.sha256)
          .in(c.file.string())
          .hint("the two belong to different builds; install both from one");
  }
  c.trust = trust_of(options, folder.builtin, c.manifest.plugin.id, c.sha256, c.file);
  return c;
}

// What its manifest says of it; nothing of the library is mapped.
std::unique_ptr<Plugin> described(const PluginCandidate& c) {
  auto p = std::make_unique<Plugin>(c.manifest.plugin);
  p->path = c.file;
  p->sha256 = c.sha256;
  p->trust = c.trust;
  p->library = c.fd.has_value();
  return p;
}

std::unique_ptr<Plugin> load(PluginCandidate& c) {
  if (!c.fd) return described(c);
  std::unique_ptr<Plugin> p = load_library(std::move(*c.fd), c.file, c.sha256, c.manifest);
  p->trust = c.trust;
  p->library = true;
  return p;
}

// Whether one of its methods reads `quant_method`; one that names none is for all of them, and a manifest without methods may
// leave them to the library.
bool reads(const Plugin& p, std::string_view quant_method) {
  return p.methods.empty() || std::ranges::any_of(p.methods, [&](const PluginMethod& m) { return condition_holds(m.quant_method, quant_method); });
}

// An alias may lead to plugins and their schemes, never to what decides which code runs.
bool leads_to_trust(const PluginAlias& a) {
  for (const char* word : {"trust", "plugin-path", "plugin_path", "plugins.", "allow"})
    if (a.replacement.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace

PluginHost::PluginHost(PluginHostOptions options) : options_(std::move(options)), impl_(std::make_unique<Impl>()) {}
PluginHost::~PluginHost() = default;

void PluginHost::refuse(const fs::path& path, const Plugin& known, const Error& e) {
  log("plugins").debug("{}", e.what());
  impl_->refused.push_back({known.id, known.name, path, e.code(), e.what()});
  impl_->refusals.push_back(e);
}

void PluginHost::scan(Open open) {
  impl_ = std::make_unique<Impl>();
  Impl& s = *impl_;
  std::vector<PluginCandidate> found;
  for (const Folder& folder : folders(options_)) {
    std::error_code ec;
    std::vector<fs::path> files;
    for (const fs::directory_entry& f : fs::directory_iterator(folder.path, ec)) files.push_back(f.path());
    std::sort(files.begin(), files.end());
    std::set<std::string> claimed;
    for (const fs::path& file : files) {
      const std::string name = file.filename().string();
      if (!name.ends_with(kManifestSuffix)) continue;
      Plugin known;
      try {
        std::string text;
        Manifest m = read_manifest_file(file, &text);
        known = m.plugin;
        if (!m.library.empty()) claimed.insert(m.library);
        found.push_back(examine(options_, folder, file, std::move(m), text));
      } catch (const Error& e) {
        refuse(file, known, e);
      }
    }
    for (const fs::path& file : files)
      if (file.extension() == ".so" && !claimed.contains(file.filename().string()))
        log("plugins").debug("{} has no manifest ({}{}) and is not looked at", file.string(), file.stem().string(), kManifestSuffix);
  }

  // One id twice: the higher version wins; of equals the one found first.
  std::stable_sort(found.begin(), found.end(), [](const PluginCandidate& a, const PluginCandidate& b) {
    const Plugin &p = a.manifest.plugin, &q = b.manifest.plugin;
    return p.id != q.id ? p.id < q.id : compare_versions(p.version, q.version) > 0;
  });
  for (PluginCandidate& c : found) {
    if (s.plugins.empty() || s.plugins.back()->id != c.manifest.plugin.id) {
      s.plugins.push_back(described(c));
      s.closed.push_back({s.plugins.back().get(), {}});
    }
    s.closed.back().candidates.push_back(std::move(c));
  }
  open_if([&](const Plugin& p) { return open == Open::kAll || p.data_only(); });
  std::sort(s.plugins.begin(), s.plugins.end(), [](const auto& a, const auto& b) { return std::pair(a->name, a->id) < std::pair(b->name, b->id); });

  for (const auto& p : s.plugins) {
    s.dialects.insert(s.dialects.end(), p->dialects.begin(), p->dialects.end());
    for (const PluginAlias& a : p->aliases) {
      const auto drop = [&](const std::string& why) { log("plugins").warn("alias \"{}\" of {} is not used: {}", a.alias, p->id, why); };
      if (leads_to_trust(a)) {
        drop("it leads to a setting of trust");
        continue;
      }
      if (const Plugin* other = a.kind == 2 ? find(a.alias) : nullptr; other && other != p.get()) {
        drop("a plugin has that name");
        continue;
      }
      const auto same = std::find_if(s.aliases.begin(), s.aliases.end(), [&](const PluginAlias& b) {
        return a.kind == b.kind && a.alias == b.alias && a.condition == b.condition;
      });
      if (same != s.aliases.end()) {
        if (same->replacement != a.replacement) drop(same->owner + " has it already");
        continue;
      }
      s.aliases.push_back(a);
    }
  }
}

bool PluginHost::open_if(const std::function<bool(const Plugin&)>& wanted) {
  Impl& s = *impl_;
  std::vector<Impl::Closed> now, later;
  for (Impl::Closed& c : s.closed) (wanted(*c.plugin) ? now : later).push_back(std::move(c));
  s.closed = std::move(later);
  for (Impl::Closed& closed : now) {
    Plugin& p = *closed.plugin;
    bool opened = false;
    for (PluginCandidate& c : closed.candidates) {
      const Plugin& said = c.manifest.plugin;
      if (opened) {
        log("plugins").warn("W301 {} is installed twice: {} and {}; {} is used (in {}, {})", said.id, said.version, p.version, p.version, c.file.parent_path().string(),
                            p.path.parent_path().string());
        continue;
      }
      try {
        p = std::move(*load(c));
        opened = true;
        log("plugins").info("{} {} {} sha256 {}", p.id, p.version, p.path.string(), p.sha256);
        if (p.trust == "any") log("plugins").warn("W303 {} runs unchecked: --trust any", p.id);
      } catch (const Error& e) {
        refuse(c.file, said, e);
      }
    }
    if (!opened) std::erase_if(s.plugins, [&](const auto& q) { return q.get() == &p; });
  }
  return !now.empty();
}

bool PluginHost::open_readers(std::string_view quant_method) {
  std::set<const Plugin*> wanted;
  for (const auto& p : impl_->plugins) {
    if (!reads(*p, quant_method)) continue;
    wanted.insert(p.get());
    if (p->data_only())  // its arithmetic is another's
      for (const PluginMethod& m : p->methods)
        if (const Plugin* other = find(std::string_view(m.replacement).substr(0, m.replacement.find(':')))) wanted.insert(other);
  }
  return open_if([&](const Plugin& p) { return wanted.contains(&p); });
}

bool PluginHost::open_rest() {
  return open_if([](const Plugin&) { return true; });
}

std::span<const std::unique_ptr<Plugin>> PluginHost::plugins() const { return impl_->plugins; }
std::span<const RefusedPlugin> PluginHost::refused() const { return impl_->refused; }
std::vector<PluginAlias> PluginHost::aliases() const { return impl_->aliases; }
std::span<const QuantDialect> PluginHost::dialects() const { return impl_->dialects; }

const Plugin* PluginHost::find(std::string_view name_or_id) const {
  for (const auto& p : impl_->plugins)
    if (p->id == name_or_id || p->name == name_or_id) return p.get();
  return nullptr;
}

void PluginHost::check_options() const {
  for (const auto& [name, values] : options_.plugin_options) {
    const Plugin* p = find(name);
    if (!p) {
      std::vector<std::string> names;
      for (const auto& q : impl_->plugins) names.push_back(q->name);
      Error e("E102", "[plugins.options." + name + "]: no installed plugin is called " + name);
      const std::string near = nearest(name, names);
      throw e.hint(near.empty() ? "qengine plugin list shows the installed ones" : "did you mean " + near + "?");
    }
    if (!values.is_object()) throw Error("E102", "plugins.options." + name + " must be a table");
    for (const auto& [key, value] : values.items()) {
      if (std::find(p->options.begin(), p->options.end(), key) != p->options.end()) continue;
      Error e("E102", "unknown option plugins.options." + name + "." + key);
      if (p->options.empty()) throw e.hint(p->name + " has no options");
      std::string all;
      for (const std::string& o : p->options) all += (all.empty() ? "" : ", ") + o;
      const std::string near = nearest(key, p->options);
      throw e.hint(near.empty() ? p->name + " knows " + all : "did you mean " + near + "?");
    }
  }
}

Plugin PluginHost::read_manifest(const fs::path& file) {
  fs::path manifest_file = file;
  if (!file.string().ends_with(kManifestSuffix)) {
    manifest_file = file.parent_path() / (file.stem().string() + std::string(kManifestSuffix));
    std::error_code ec;
    if (!fs::exists(file, ec)) throw Error("E307", file.string() + " cannot be opened: no such file");
    if (!fs::exists(manifest_file, ec))
      throw Error("E306", file.string() + " has no manifest beside it").from("looked for " + manifest_file.filename().string()).hint("the build writes it; install both");
  }
  std::string text;
  Manifest m = read_manifest_file(manifest_file, &text);
  Plugin p = m.plugin;
  p.path = manifest_file;
  p.sha256 = sha256_of(text);
  if (!m.library.empty()) {
    p.path = manifest_file.parent_path() / m.library;
    p.sha256 = sha256_of_fd(open_plugin_file(p.path).get(), p.path);
  }
  return p;
}

}  // namespace qengine
