// 2xx: what the plugin says about itself.
#include <cstring>

#include "core/base/error.hpp"
#include "core/conformance/subject.hpp"
#include "core/model/text.hpp"
#include "core/plugin_host/library.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine::conformance {
namespace {

void sizes(const Subject& s, Notes& notes) {
  void* handle = open_library(s.library);
  const qe_plugin* p = query_descriptor(handle);
  if (!p) fail("qe_plugin_query returns NULL");
  if (p->magic != QE_MAGIC) fail("magic is 0x%08x, expected 0x%08x", p->magic, QE_MAGIC);
  if (!QE_HAS(p, extension)) fail("struct_size of the descriptor is %u; it has fields up to byte %zu", p->struct_size, sizeof *p);
  if (p->struct_size % alignof(qe_plugin) || p->struct_size > 65536) fail("struct_size of the descriptor is %u, which is no size of a descriptor", p->struct_size);
  if (p->abi_major != QE_ABI_MAJOR || p->abi_needs_minor > QE_ABI_MINOR || p->abi_needs_minor > p->abi_built_minor)
    fail("it is built for ABI %u.%u and needs %u.%u; this kit serves %d.%d", p->abi_major, p->abi_built_minor, p->abi_major, p->abi_needs_minor, QE_ABI_MAJOR, QE_ABI_MINOR);
  if (!p->detect || !p->extension) fail("it has no detect or no extension function");
  if (p->n_methods > 1024 || (p->n_methods && !p->methods)) fail("methods is NULL or its count is %u", p->n_methods);
  if (p->n_aliases > 1024 || (p->n_aliases && !p->aliases)) fail("aliases is NULL or its count is %u", p->n_aliases);
  if (p->n_options > 1024 || (p->n_options && !p->options)) fail("options is NULL or its count is %u", p->n_options);
  for (std::uint32_t i = 0; i < p->n_methods; ++i) {
    const qe_method* m = p->methods[i];
    if (!m || !QE_HAS(m, rows) || m->n_rows == 0 || !m->rows) fail("method %u has struct_size %u and %u rows", i, m ? m->struct_size : 0, m ? m->n_rows : 0);
    for (std::uint32_t r = 0; r < m->n_rows; ++r) {
      const qe_capability* c = m->rows[r];
      if (!c || !QE_HAS(c, tier)) fail("row %u of method %u has struct_size %u, expected at least %zu", r, i, c ? c->struct_size : 0, sizeof *c);
      if (c->tier < 1 || c->tier > 3 || (c->kind != QE_CPU && c->kind != QE_CUDA) || (c->sm_max && c->sm_max < c->sm_min))
        fail("row %u of method %u: kind %d, sm %d to %d, tier %d", r, i, c->kind, c->sm_min, c->sm_max, c->tier);
    }
  }
  for (std::uint32_t i = 0; i < p->n_aliases; ++i)
    if (!p->aliases[i] || !QE_HAS(p->aliases[i], message)) fail("alias %u has struct_size %u", i, p->aliases[i] ? p->aliases[i]->struct_size : 0);
  if (const auto* w = static_cast<const qe_weight_v1*>(p->extension("qe.weight/1"))) {
    if (!QE_HAS(w, destroy)) fail("struct_size of qe.weight/1 is %u, expected at least %zu", w->struct_size, sizeof *w);
    if (!w->plan || !w->tensors || !w->load || !w->run || !w->dequant || !w->bytes || !w->destroy) fail("qe.weight/1 lacks a function; only warmup and rows may be NULL");
  }
  if (const auto* k = static_cast<const qe_kv_v1*>(p->extension("qe.kv/1"))) {
    if (!QE_HAS(k, close)) fail("struct_size of qe.kv/1 is %u, expected at least %zu", k->struct_size, sizeof *k);
    if (!k->plan || !k->open || !k->store || !k->gather || !k->close) fail("qe.kv/1 lacks a function; only decode and prefill may be NULL");
  }
  if (p->extension("qe.no.such.thing/1")) fail("extension() answers to an id that nobody knows");
  notes.push_back(text("ABI %u.%u", p->abi_major, p->abi_built_minor));
}

void texts(const Subject& s, Notes& notes) {
  const Session session(s);
  const qe_plugin& p = *session.plugin;
  const auto check = [](const char* field, const char* value, bool needed) {
    if (!value) fail("%s is NULL", field);
    const std::string_view v(value, strnlen(value, 4096));
    if (v.size() == 4096) fail("%s has no end", field);
    if (needed && v.empty()) fail("%s is empty", field);
    if (as_utf8(std::string(v)) != v) fail("%s is not UTF-8", field);
    for (const char c : v)
      if (static_cast<unsigned char>(c) < 0x20) fail("%s holds a control character", field);
  };
  check("id", p.id, true), check("name", p.name, true), check("version", p.version, true);
  check("vendor", p.vendor, false), check("license", p.license, true), check("url", p.url, false);
  check("build", p.build, true), check("sdk", p.sdk, false);
  for (std::uint32_t i = 0; i < p.n_methods; ++i) {
    check("methods.name", p.methods[i]->name, true);
    check("methods.quant_method", p.methods[i]->quant_method, false);
    check("methods.summary", p.methods[i]->summary, false);
  }
  for (std::uint32_t i = 0; i < p.n_options; ++i) check("options", p.options[i], true);
  notes.push_back(std::string(p.id) + " " + p.version + ", " + p.license + ", built by " + p.build);
}

// As core compares them when it loads the plugin.
void manifest_agrees(const Subject& s, Notes&) {
  try {
    const Manifest m = s.manifest();
    if (m.library != s.library.filename()) fail("the manifest names library %s", m.library.c_str());
    Descriptor fd = open_plugin_file(s.library);
    const std::string sha = sha256_of_fd(fd.get(), s.library);
    if (sha != m.sha256) fail("the manifest says sha256 %s, the library has %s", m.sha256.c_str(), sha.c_str());
    load_library(std::move(fd), s.library, sha, m);
  } catch (const Error& e) {
    fail("%s", e.message().c_str());
  }
}

void aliases(const Subject& s, Notes&) {
  const Session session(s);
  const qe_plugin& p = *session.plugin;
  for (std::uint32_t i = 0; i < p.n_aliases; ++i) {
    const qe_alias& a = *p.aliases[i];
    const auto part = [](const char* v) { return std::string(v ? v : ""); };
    const std::string alias = part(a.alias), to = part(a.replacement), plugin = to.substr(0, to.find(':')), scheme = to.find(':') == to.npos ? "" : to.substr(to.find(':') + 1);
    if (a.kind < 1 || a.kind > 4) fail("alias %s has kind %d", alias.c_str(), a.kind);
    if (alias.empty() || to.empty()) fail("alias %u (\"%s\") has no %s", i, alias.c_str(), alias.empty() ? "name" : "replacement");
    for (const char* word : {"trust", "plugin-path", "plugin_path", "plugins.", "allow"})
      if (to.find(word) != to.npos) fail("alias %s leads to %s: an alias never leads to a setting of trust", alias.c_str(), to.c_str());
    if (a.kind == 2 || a.kind == 4) {
      if (plugin != p.name && plugin != p.id) fail("alias %s leads to %s, which is another plugin", alias.c_str(), to.c_str());
      bool known = scheme.empty();
      for (std::uint32_t m = 0; m < p.n_methods; ++m) known |= scheme == p.methods[m]->name;
      if (!known) fail("alias %s leads to scheme %s, which the plugin does not have", alias.c_str(), scheme.c_str());
    }
    if (!part(a.since).empty() && part(a.message).empty()) fail("alias %s is deprecated since %s without a message", alias.c_str(), a.since);
  }
}

void init_again(const Subject& s, Notes&) {
  Session first(s);
  KitHost other;
  try {
    if (first.plugin->init) first.checked("init", "", [&](qe_error* e) { return first.plugin->init(other.table(), e); });
    if (first.plugin->init) first.checked("init", "", [&](qe_error* e) { return first.plugin->init(first.host.table(), e); });
  } catch (const PluginFailure& e) {
    fail("the second time %s", e.what());
  }
}

}  // namespace

const std::vector<Check> descriptor_checks{
    {"QEP-201", "descriptor", "sizes, magic, counts and required functions are right", sizes, true},
    {"QEP-202", "descriptor", "texts are there and UTF-8", texts},
    {"QEP-203", "descriptor", "the manifest says what the library says", manifest_agrees},
    {"QEP-204", "descriptor", "aliases are complete and lead to this plugin", aliases},
    {"QEP-205", "descriptor", "init may be called again", init_again},
};

}  // namespace qengine::conformance
