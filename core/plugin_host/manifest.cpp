#include "core/plugin_host/manifest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"
#include "core/base/toml_depth.hpp"

namespace qengine {
namespace {

constexpr std::size_t kMaxItems = 1024, kMaxText = 4096;

// One table of the manifest, read key by key; what was not asked for at the end is an unknown key.
class Table {
 public:
  Table(const toml::table& table, std::string file, std::string where) : table_(table), file_(std::move(file)), where_(std::move(where)) {}

  std::string text(const char* key, bool required = false) {
    const toml::node* n = get(key, required);
    if (!n) return {};
    const auto* s = n->as_string();
    if (!s) fail(*n, path(key) + " must be a string");
    if (s->get().size() > kMaxText || s->get().find('\0') != std::string::npos) fail(*n, path(key) + " is too long or holds a NUL");
    return s->get();
  }

  std::int64_t integer(const char* key, bool required = false, std::int64_t otherwise = 0) {
    const toml::node* n = get(key, required);
    if (!n) return otherwise;
    const auto* i = n->as_integer();
    if (!i) fail(*n, path(key) + " must be an integer");
    return i->get();
  }

  std::uint32_t number(const char* key, bool required) {
    const std::int64_t n = integer(key, required);
    if (n < 0 || n > 1000000) fail_at(key, path(key) + " must be between 0 and 1000000");
    return static_cast<std::uint32_t>(n);
  }

  std::vector<std::string> texts(const char* key) {
    std::vector<std::string> out;
    each(key, "an array of strings", [&](const toml::node& n) {
      const auto* s = n.as_string();
      if (!s || s->get().size() > kMaxText) fail(n, path(key) + " must be an array of strings");
      out.push_back(s->get());
    });
    return out;
  }

  template <class F>
  void tables(const char* key, F&& f) {
    each(key, "an array of tables", [&](const toml::node& n) {
      const auto* t = n.as_table();
      if (!t) fail(n, path(key) + " must be an array of tables");
      Table inner(*t, file_, path(key));
      f(inner);
      inner.finish();
    });
  }

  template <class F>
  void table(const char* key, F&& f) {
    const toml::node* n = get(key, false);
    if (!n) return;
    const auto* t = n->as_table();
    if (!t) fail(*n, path(key) + " must be a table");
    Table inner(*t, file_, path(key));
    f(inner);
    inner.finish();
  }

  bool has(const char* key) const { return table_.contains(key); }

  void finish() {
    for (const auto& [key, node] : table_) {
      const std::string k(key.str());
      if (std::find(known_.begin(), known_.end(), k) != known_.end()) continue;
      Error e = error(node, "unknown key " + path(k.c_str()));
      if (const std::string near = nearest(k, known_); !near.empty())
        e.hint("did you mean " + near + "?");
      else
        e.hint("this qengine may be older than the plugin");
      throw e;
    }
  }

  [[noreturn]] void fail_at(const char* key, const std::string& what) {
    const toml::node* n = table_.get(key);
    throw error(n ? *n : static_cast<const toml::node&>(table_), what);
  }

 private:
  template <class F>
  void each(const char* key, const char* what, F&& f) {
    const toml::node* n = get(key, false);
    if (!n) return;
    const auto* a = n->as_array();
    if (!a) fail(*n, path(key) + " must be " + what);
    if (a->size() > kMaxItems) fail(*n, path(key) + " has more than 1024 entries");
    for (const toml::node& item : *a) f(item);
  }

  const toml::node* get(const char* key, bool required) {
    known_.emplace_back(key);
    const toml::node* n = table_.get(key);
    if (!n && required) throw error(table_, "has no " + path(key));
    return n;
  }

  std::string path(const char* key) const { return where_.empty() ? key : where_ + "." + key; }

  Error error(const toml::node& n, const std::string& what) const {
    const auto at = n.source().begin;
    return Error("E306", file_ + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + what);
  }
  [[noreturn]] void fail(const toml::node& n, const std::string& what) const { throw error(n, what); }

  const toml::table& table_;
  std::string file_, where_;
  std::vector<std::string> known_;
};

// "cpu:1", "cuda80+:2", "cuda80-90:1", "cuda90:1": kind, sm range, tier.
bool parse_capability(std::string_view text, qe_capability& row) {
  row = {};
  row.struct_size = sizeof row;
  const auto take = [&](std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  const auto number = [&](std::int32_t& out) {
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (bad != std::errc() || out < 0 || out > 9999) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  };
  if (take("cpu")) {
    row.kind = QE_CPU;
  } else if (take("cuda")) {
    row.kind = QE_CUDA;
    if (!text.starts_with(":")) {
      if (!number(row.sm_min)) return false;
      if (take("-")) {
        if (!number(row.sm_max) || row.sm_max < row.sm_min) return false;
      } else if (!take("+")) {
        row.sm_max = row.sm_min;
      }
    }
  } else {
    return false;
  }
  return take(":") && number(row.tier) && text.empty() && row.tier >= 1 && row.tier <= 3;
}

int alias_kind(std::string_view kind) {
  const std::string_view kinds[] = {"flag", "name", "option", "value"};
  const auto it = std::find(std::begin(kinds), std::end(kinds), kind);
  return it == std::end(kinds) ? 0 : static_cast<int>(it - std::begin(kinds)) + 1;
}

bool hex64(std::string_view s) {
  return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool digits(std::string_view s) { return !s.empty() && s.size() <= 9 && s.find_first_not_of("0123456789") == std::string_view::npos; }

std::vector<std::string_view> split(std::string_view s, char by) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0;;) {
    const std::size_t end = s.find(by, at);
    out.push_back(s.substr(at, end - at));
    if (end == std::string_view::npos) return out;
    at = end + 1;
  }
}

}  // namespace

bool valid_plugin_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

bool valid_plugin_id(std::string_view id) {
  if (id.size() > 128) return false;
  const auto labels = split(id, '.');
  return labels.size() >= 2 && std::all_of(labels.begin(), labels.end(), [](std::string_view l) {
           return !l.empty() && l.front() != '-' &&
                  l.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string_view::npos;
         });
}

bool valid_version(std::string_view version) {
  if (version.size() > 64) return false;
  version = version.substr(0, version.find('+'));
  const std::string_view core = version.substr(0, version.find('-'));
  const auto parts = split(core, '.');
  if (parts.size() != 3 || !std::all_of(parts.begin(), parts.end(), digits)) return false;
  return core.size() == version.size() || (version.size() > core.size() + 1 &&
         version.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-", core.size()) == std::string_view::npos);
}

int compare_versions(std::string_view a, std::string_view b) {
  a = a.substr(0, a.find('+'));
  b = b.substr(0, b.find('+'));
  const auto number = [](std::string_view s) {
    long n = 0;
    std::from_chars(s.data(), s.data() + s.size(), n);
    return n;
  };
  const auto compare = [&](const std::vector<std::string_view>& x, const std::vector<std::string_view>& y) {
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      const bool dx = digits(x[i]), dy = digits(y[i]);
      if (dx && dy) {
        if (const long p = number(x[i]), q = number(y[i]); p != q) return p < q ? -1 : 1;
      } else if (dx != dy) {
        return dx ? -1 : 1;
      } else if (const int c = x[i].compare(y[i]); c != 0) {
        return c < 0 ? -1 : 1;
      }
    }
    return x.size() == y.size() ? 0 : x.size() < y.size() ? -1 : 1;
  };
  const std::size_t da = a.find('-'), db = b.find('-');
  if (const int c = compare(split(a.substr(0, da), '.'), split(b.substr(0, db), '.'))) return c;
  if (da == std::string_view::npos || db == std::string_view::npos)
    return da == db ? 0 : da == std::string_view::npos ? 1 : -1;  // a release is above its candidates
  return compare(split(a.substr(da + 1), '.'), split(b.substr(db + 1), '.'));
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  if (text.size() > kMaxManifest) throw Error("E306", name + " is larger than 64 KiB");
  if (const int line = line_of_deep_toml_key(text)) throw Error("E306", name + ":" + std::to_string(line) + ":1: the key is nested too deeply");
  toml::table root;
  try {
    root = toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& e) {
    const auto at = e.source().begin;
    throw Error("E306", name + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + std::string(e.description()));
  }

  Manifest m;
  Plugin& p = m.plugin;
  Table t(root, name, "");
  if (const std::int64_t schema = t.integer("schema", true); schema != 1)
    t.fail_at("schema", "schema " + std::to_string(schema) + "; this qengine reads 1");
  p.id = t.text("id", true);
  p.name = t.text("name", true);
  p.version = t.text("version", true);
  if (!valid_plugin_id(p.id)) t.fail_at("id", "id \"" + p.id + "\" must be reverse DNS in lower case, such as com.acme.int5");
  if (!valid_plugin_name(p.name)) t.fail_at("name", "name \"" + p.name + "\" must be made of a-z, 0-9 and _");
  if (!valid_version(p.version)) t.fail_at("version", "version \"" + p.version + "\" must be MAJOR.MINOR.PATCH");
  p.vendor = t.text("vendor");
  p.license = t.text("license");
  p.url = t.text("url");
  p.build = t.text("build");
  p.summary = t.text("summary");
  p.sdk = t.text("sdk");
  t.text("signature");  // reserved
  m.library = t.text("library");
  m.sha256 = t.text("sha256", !m.library.empty());
  if (m.library.empty()) {
    if (t.has("library")) t.fail_at("library", "library must be a file name");
  } else {
    if (m.library.find_first_of("/\\") != std::string::npos || m.library[0] == '.')
      t.fail_at("library", "library \"" + m.library + "\" must be a bare file name in the manifest's own folder");
    if (!hex64(m.sha256)) t.fail_at("sha256", "sha256 must be 64 lower-case hex digits");
    if (!t.has("abi")) t.fail_at("id", "has no abi");
  }
  t.table("abi", [&](Table& abi) {
    p.abi_major = abi.number("major", true);
    p.abi_built = abi.number("built", true);
    p.abi_needs = abi.number("needs", true);
  });
  p.options = t.texts("options");
  t.tables("method", [&](Table& row) {
    PluginMethod method;
    method.name = row.text("name", true);
    method.quant_method = row.text("quant_method");
    method.summary = row.text("summary");
    method.replacement = row.text("replacement");
    if (method.name.empty()) row.fail_at("name", "method.name must not be empty");
    if (!m.library.empty() && !method.replacement.empty())
      row.fail_at("replacement", "method.replacement is for manifests without a library");
    if (m.library.empty() && method.replacement.empty())
      row.fail_at("name", "method " + method.name + " of a manifest without a library needs a replacement");
    for (const std::string& device : row.texts("devices")) {
      qe_capability c;
      if (!parse_capability(device, c)) row.fail_at("devices", "method.devices has \"" + device + "\"; expected such as cpu:1, cuda80+:2");
      method.rows.push_back(c);
    }
    p.methods.push_back(std::move(method));
  });
  t.tables("alias", [&](Table& row) {
    PluginAlias alias;
    const std::string kind = row.text("kind", true);
    alias.kind = alias_kind(kind);
    if (alias.kind == 0) row.fail_at("kind", "alias.kind is \"" + kind + "\"; expected flag, name, option or value");
    alias.alias = row.text("alias", true);
    alias.condition = row.text("condition");
    alias.replacement = row.text("replacement", true);
    alias.since = row.text("since");
    alias.removed_in = row.text("removed_in");
    alias.message = row.text("message");
    alias.owner = p.id;
    if (alias.alias.empty() || alias.replacement.empty()) row.fail_at("alias", "alias and its replacement must not be empty");
    p.aliases.push_back(std::move(alias));
  });
  t.tables("dialect", [&](Table& row) {
    QuantDialect d;
    d.quant_method = row.text("quant_method");
    d.file = row.text("file");
    d.at = row.text("at");
    d.key = row.text("key");
    d.tensors = row.texts("tensors");
    d.owner = p.name;
    if (d.file.empty() + d.key.empty() + d.tensors.empty() != 2) row.fail_at("quant_method", "a dialect has one of file, key and tensors");
    if (d.file.empty() && d.quant_method.empty()) row.fail_at("key", "a dialect by key or tensors needs a quant_method");
    if (d.file.find_first_of("/\\") != std::string::npos || d.file.starts_with('.')) row.fail_at("file", "dialect.file \"" + d.file + "\" must be a bare file name");
    if (!d.at.empty() && d.file.empty()) row.fail_at("at", "dialect.at is a key in dialect.file, which is missing");
    if (d.file == "config.json" && d.at.empty()) row.fail_at("file", "a dialect in config.json needs the key at which it lies");
    if (std::any_of(d.quant_method.begin(), d.quant_method.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) row.fail_at("quant_method", "dialect.quant_method must be in lower case");
    if (std::any_of(d.tensors.begin(), d.tensors.end(), [](const std::string& e) { return e.empty(); })) row.fail_at("tensors", "dialect.tensors has an empty ending");
    p.dialects.push_back(std::move(d));
  });
  t.finish();
  return m;
}

Manifest read_manifest_file(const std::filesystem::path& file, std::string* text) {
  const std::string name = file.string();
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw Error("E306", "cannot read " + name + ": " + std::strerror(errno));
  std::string content;
  struct stat st {};
  const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  if (regular && st.st_size <= static_cast<off_t>(kMaxManifest)) {
    content.resize(kMaxManifest + 1);
    std::size_t n = 0;
    for (ssize_t got; n < content.size() && (got = read(fd, content.data() + n, content.size() - n)) > 0;) n += static_cast<std::size_t>(got);
    content.resize(n);
  }
  close(fd);
  if (!regular) throw Error("E306", name + " is no regular file");
  if (st.st_size > static_cast<off_t>(kMaxManifest)) throw Error("E306", name + " is larger than 64 KiB");
  Manifest m = parse_manifest(content, file.filename().string());
  if (text) *text = std::move(content);
  return m;
}

}  // namespace qengine
