#include "core/plugin_host/library.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef BOOST_DLL_USE_STD_FS
#define BOOST_DLL_USE_STD_FS
#endif
#include <boost/dll/shared_library.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "core/base/error.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/elf_file.hpp"
#include "core/plugin_host/host_table.hpp"
#include "core/plugin_host/plugin_error.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
constexpr char kEntry[] = "qe_plugin_query";

// A library of this process. Both members are never destroyed.
struct Mapped {
  std::string sha256;
  boost::dll::shared_library* library = nullptr;
};

std::mutex mapped_mutex;
std::map<std::pair<dev_t, ino_t>, Mapped>& mapped() {
  static auto* const all = new std::map<std::pair<dev_t, ino_t>, Mapped>;
  return *all;
}
std::map<const qe_plugin*, PluginServices*>& services_of() {
  static auto* const all = new std::map<const qe_plugin*, PluginServices*>;
  return *all;
}

// "boost::dll::shared_library::load() failed (dlerror system message: /proc/self/fd/9: version `X' not found): ..."
std::string loader_text(std::string text, const std::string& opened) {
  const std::string mark = "dlerror system message: ";
  if (const auto at = text.find(mark); at != std::string::npos) text = text.substr(at + mark.size());
  if (const auto at = text.rfind("): "); at != std::string::npos) text.resize(at);
  if (text.starts_with(opened + ": ")) text.erase(0, opened.size() + 2);
  for (auto at = text.find(opened); at != std::string::npos; at = text.find(opened)) text.replace(at, opened.size(), "it");
  return plugin_text(text);
}

Error broken(const Plugin& p, const std::string& what, const fs::path& file) {
  return Error("E309", p.name + " " + p.version + " broke its contract: " + what).in(file.string()).hint("report it to " + (p.vendor.empty() ? "its author" : p.vendor));
}

std::string text_of(const char* s, const char* field, const Plugin& p, const fs::path& file) {
  if (!s) throw broken(p, std::string("descriptor field ") + field + " is NULL", file);
  return plugin_text(std::string_view(s, strnlen(s, 4096)), 4096);
}

std::string abi_text(std::uint32_t major, std::uint32_t minor) { return std::to_string(major) + "." + std::to_string(minor); }
std::string served_abi() {
  constexpr std::uint32_t oldest = QE_ABI_MINOR;
  return oldest == QE_ABI_MINOR ? abi_text(QE_ABI_MAJOR, QE_ABI_MINOR)
                                : abi_text(QE_ABI_MAJOR, oldest) + " to " + abi_text(QE_ABI_MAJOR, QE_ABI_MINOR);
}

void check_abi(const std::string& id, std::uint32_t major, std::uint32_t built, std::uint32_t needs, const fs::path& file) {
  constexpr std::uint32_t oldest = QE_ABI_MINOR;
  if (major == QE_ABI_MAJOR && needs <= QE_ABI_MINOR && built >= oldest) return;
  const bool newer = major > QE_ABI_MAJOR || (major == QE_ABI_MAJOR && needs > QE_ABI_MINOR);
  Error e("E301", newer ? id + " needs plugin ABI " + abi_text(major, needs) + "; this qengine serves " + served_abi()
                        : id + " was built for plugin ABI " + abi_text(major, built) + "; this qengine serves " + served_abi());
  e.in(file.string());
  const std::string other = "a build of the plugin for ABI " + abi_text(QE_ABI_MAJOR, QE_ABI_MINOR);
  throw e.hint(newer ? "update qengine, or use " + other : "use " + other);
}

std::vector<PluginMethod> methods_of(const qe_plugin& d, const Plugin& p, const fs::path& file) {
  if (d.n_methods > 1024 || (d.n_methods && !d.methods)) throw broken(p, "descriptor field methods is not usable", file);
  std::vector<PluginMethod> out;
  for (std::uint32_t i = 0; i < d.n_methods; ++i) {
    const qe_method* m = d.methods[i];
    if (!m || !QE_HAS(m, rows) || m->n_rows > 1024 || (m->n_rows && !m->rows)) throw broken(p, "method " + std::to_string(i) + " is not usable", file);
    PluginMethod method;
    method.name = text_of(m->name, "methods.name", p, file);
    method.quant_method = m->quant_method ? text_of(m->quant_method, "methods.quant_method", p, file) : "";
    method.summary = m->summary ? text_of(m->summary, "methods.summary", p, file) : "";
    for (std::uint32_t r = 0; r < m->n_rows; ++r) {
      const qe_capability* c = m->rows[r];
      if (!c || !QE_HAS(c, tier)) throw broken(p, "method " + method.name + " has an unusable capability row", file);
      qe_capability row{};
      row.struct_size = sizeof row;
      row.kind = c->kind;
      row.sm_min = c->sm_min;
      row.sm_max = c->sm_max;
      row.tier = c->tier;
      method.rows.push_back(row);
    }
    out.push_back(std::move(method));
  }
  return out;
}

std::vector<PluginAlias> aliases_of(const qe_plugin& d, const Plugin& p, const fs::path& file) {
  if (d.n_aliases > 1024 || (d.n_aliases && !d.aliases)) throw broken(p, "descriptor field aliases is not usable", file);
  std::vector<PluginAlias> out;
  for (std::uint32_t i = 0; i < d.n_aliases; ++i) {
    const qe_alias* a = d.aliases[i];
    if (!a || !QE_HAS(a, message)) throw broken(p, "alias " + std::to_string(i) + " is not usable", file);
    const auto text = [&](const char* s) { return s ? text_of(s, "aliases", p, file) : std::string(); };
    out.push_back({a->kind, text(a->alias), text(a->condition), text(a->replacement), text(a->since), text(a->removed_in), text(a->message), p.id});
  }
  return out;
}

std::vector<std::string> options_of(const qe_plugin& d, const Plugin& p, const fs::path& file) {
  if (d.n_options > 1024 || (d.n_options && !d.options)) throw broken(p, "descriptor field options is not usable", file);
  std::vector<std::string> out;
  for (std::uint32_t i = 0; i < d.n_options; ++i) out.push_back(text_of(d.options[i], "options", p, file));
  return out;
}

std::string list(std::set<std::string> names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : " ") + n;
  return out.empty() ? "none" : out;
}

// The manifest decides nothing: it must say what the library says. Lists may be left to the library.
void compare(const Plugin& said, const Plugin& is, const fs::path& file) {
  const auto differ = [&](const std::string& what, const std::string& manifest, const std::string& library) {
    if (manifest == library) return;
    throw Error("E306", file.stem().string() + std::string(kManifestSuffix) + " says " + what + " " + manifest + ", its library says " + library)
        .in(file.string())
        .hint("the two belong to different builds; install both from one");
  };
  differ("id", said.id, is.id);
  differ("name", said.name, is.name);
  differ("version", said.version, is.version);
  differ("abi", abi_text(said.abi_major, said.abi_built) + " needs " + abi_text(said.abi_major, said.abi_needs),
         abi_text(is.abi_major, is.abi_built) + " needs " + abi_text(is.abi_major, is.abi_needs));
  std::set<std::string> a, b;
  for (const auto& m : said.methods) a.insert(m.name);
  for (const auto& m : is.methods) b.insert(m.name);
  if (!a.empty() && !b.empty()) differ("methods", list(a), list(b));
  a.clear(), b.clear();
  for (const auto& x : said.aliases) a.insert(x.alias + "->" + x.replacement);
  for (const auto& x : is.aliases) b.insert(x.alias + "->" + x.replacement);
  if (!a.empty() && !b.empty()) differ("aliases", list(a), list(b));
  a = {said.options.begin(), said.options.end()}, b = {is.options.begin(), is.options.end()};
  if (!a.empty() && !b.empty()) differ("options", list(a), list(b));
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor open_plugin_file(const fs::path& file) {
  Descriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw Error("E307", file.string() + " cannot be opened: " + std::strerror(errno)).hint("install the plugin's manifest and library together");
  struct stat st {};
  if (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) throw Error("E307", file.string() + " is no regular file");
  return fd;
}

void check_place(const fs::path& folder, const Descriptor& file) {
  const uid_t me = geteuid();
  const auto check = [&](const struct stat& st, const std::string& name, bool sticky_ok) {
    const auto refuse = [&](const std::string& why, const std::string& hint) { throw Error("E305", name + " is not used: " + why).hint(hint); };
    if (st.st_uid != 0 && st.st_uid != me) refuse("it belongs to user " + std::to_string(st.st_uid), "chown it to root or to yourself");
    if (sticky_ok && (st.st_mode & S_ISVTX)) return;
    if (st.st_mode & S_IWOTH) refuse("everybody can write to it", "chmod o-w " + name);
    if ((st.st_mode & S_IWGRP) && st.st_gid != 0 && st.st_gid != getegid()) refuse("group " + std::to_string(st.st_gid) + " can write to it", "chmod g-w " + name);
  };
  struct stat st {};
  if (fstat(file.get(), &st) == 0) check(st, "the plugin file in " + folder.string(), false);
  std::error_code ec;
  for (fs::path p = fs::canonical(folder, ec); !ec && !p.empty(); p = p.parent_path()) {
    if (stat(p.c_str(), &st) == 0) check(st, p.string(), true);
    if (p == p.root_path()) break;
  }
}

std::unique_ptr<Plugin> load_library(Descriptor fd, const fs::path& file, const std::string& sha256, const Manifest& manifest) {
  const Plugin& said = manifest.plugin;
  check_abi(said.id, said.abi_major, said.abi_built, said.abi_needs, file);

  const std::lock_guard lock(mapped_mutex);
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) throw Error("E307", file.string() + " cannot be read: " + std::strerror(errno));
  Mapped& entry = mapped()[{st.st_dev, st.st_ino}];
  if (entry.library && entry.sha256 != sha256)
    throw Error("E307", file.string() + " was rewritten in place since it was loaded").hint("replace plugin files by renaming, and start again");
  if (!entry.library) {
    const std::string opened = "/proc/self/fd/" + std::to_string(fd.get());
    // What it exports is read before any of its code runs; of a stripped library too.
    std::vector<ElfFile::Export> symbols;
    try {
      symbols = ElfFile::read(opened).exported;
    } catch (const Error&) {
      throw Error("E307", file.string() + " is no shared library for this machine").hint("the file may be damaged, or built for another system");
    }
    if (std::none_of(symbols.begin(), symbols.end(), [](const ElfFile::Export& e) { return e.name == kEntry; }))
      throw Error("E307", file.string() + " is no qengine plugin: it exports no " + kEntry);
    auto library = std::make_unique<boost::dll::shared_library>();
    boost::dll::fs::error_code ec;
    try {
      library->load(fs::path(opened), boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    } catch (const std::exception& e) {
      Error error("E307", file.string() + " does not load: " + loader_text(e.what(), opened));
      throw error.hint("it was built for another system or misses a library; ask " + (said.vendor.empty() ? "its author" : said.vendor) + " for a build for this one");
    }
    entry = {sha256, library.release()};
    fd.keep();
  }

  auto query = reinterpret_cast<qe_plugin_query_fn>(&entry.library->get<void()>(kEntry));
  Call call{said.name.c_str(), kEntry};
  const qe_plugin* d = nullptr;
  {
    const CallScope scope(call);
    d = query(QE_ABI_MAJOR, QE_ABI_MINOR);
  }
  if (!d) {
    throw Error("E301", said.id + " has no interface for plugin ABI " + served_abi() + ", though its manifest says " + abi_text(said.abi_major, said.abi_built))
        .in(file.string())
        .hint("use a build of the plugin for ABI " + served_abi());
  }
  auto p = std::make_unique<Plugin>();
  p->id = said.id, p->name = said.name, p->version = said.version, p->vendor = said.vendor;
  if (!QE_HAS(d, magic) || d->magic != QE_MAGIC) throw broken(said, "its descriptor does not begin with the size and magic of a plugin", file);
  if (QE_HAS(d, abi_needs_minor)) check_abi(said.id, d->abi_major, d->abi_built_minor, d->abi_needs_minor, file);
  if (!QE_HAS(d, extension))
    throw broken(said, "its descriptor has " + std::to_string(d->struct_size) + " bytes; ABI " + served_abi() + " has " + std::to_string(sizeof *d), file);
  p->abi_major = d->abi_major;
  p->abi_built = d->abi_built_minor;
  p->abi_needs = d->abi_needs_minor;
  p->id = text_of(d->id, "id", said, file);
  p->name = text_of(d->name, "name", said, file);
  p->version = text_of(d->version, "version", said, file);
  p->vendor = d->vendor ? text_of(d->vendor, "vendor", said, file) : said.vendor;
  p->license = d->license ? text_of(d->license, "license", said, file) : said.license;
  p->url = d->url ? text_of(d->url, "url", said, file) : said.url;
  p->build = d->build ? text_of(d->build, "build", said, file) : said.build;
  p->sdk = d->sdk ? text_of(d->sdk, "sdk", said, file) : said.sdk;
  p->summary = said.summary;
  p->dialects = said.dialects;
  p->methods = methods_of(*d, *p, file);
  p->aliases = aliases_of(*d, *p, file);
  p->options = options_of(*d, *p, file);
  compare(said, *p, file);
  if (p->methods.empty()) p->methods = said.methods;
  if (p->aliases.empty()) p->aliases = said.aliases;
  if (p->options.empty()) p->options = said.options;
  for (std::size_t i = 0; i < p->methods.size(); ++i)
    if (p->summary.empty()) p->summary = p->methods[i].summary;
  p->path = file;
  p->sha256 = sha256;
  p->descriptor = d;
  if (!d->detect || !d->extension) throw broken(*p, "its descriptor has no detect or no extension function", file);

  PluginServices*& services = services_of()[d];
  if (!services) {
    auto* const fresh = new PluginServices(p->name);  // kept even if init fails: the plugin may hold it
    if (d->init) {
      qe_error error{};
      call.call = "init";
      const CallScope scope(call);
      if (const qe_status status = d->init(fresh->table(), &error)) throw plugin_error(status, error, {p.get(), "init", "", nullptr});
    }
    services = fresh;
  }
  p->services = services;

  call.call = "extension";
  const CallScope scope(call);
  p->weight = static_cast<const qe_weight_v1*>(d->extension("qe.weight/1"));
  p->kv = static_cast<const qe_kv_v1*>(d->extension("qe.kv/1"));
  if (const qe_weight_v1* w = p->weight) {
    if (!QE_HAS(w, destroy)) throw broken(*p, "its qe.weight/1 table is too short", file);
    const std::pair<const char*, bool> needed[] = {{"plan", w->plan}, {"tensors", w->tensors}, {"load", w->load}, {"run", w->run},
                                                   {"dequant", w->dequant}, {"bytes", w->bytes}, {"destroy", w->destroy}};
    for (const auto& [name, there] : needed)
      if (!there) throw broken(*p, std::string("its qe.weight/1 has no ") + name, file);
  }
  if (const qe_kv_v1* k = p->kv) {
    if (!QE_HAS(k, close)) throw broken(*p, "its qe.kv/1 table is too short", file);
    const std::pair<const char*, bool> needed[] = {{"plan", k->plan}, {"open", k->open}, {"store", k->store}, {"gather", k->gather}, {"close", k->close}};
    for (const auto& [name, there] : needed)
      if (!there) throw broken(*p, std::string("its qe.kv/1 has no ") + name, file);
  }
  return p;
}

}  // namespace qengine
