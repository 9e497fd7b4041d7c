#include "core/config/profile.hpp"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"
#include "core/base/toml_depth.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

// A profile is written by hand; a larger file is something else.
constexpr std::uintmax_t kMostBytes = 1 << 20;

std::string kind_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "a list";
    case toml::node_type::string: return "a text";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true or false";
    default: return "a date or time";
  }
}

// The value of a leaf as it would be typed after a flag; "" and false for tables, lists and dates.
bool leaf_text(const toml::node& node, std::string* out) {
  if (const auto* s = node.as_string()) *out = s->get();
  else if (const auto* i = node.as_integer()) *out = std::to_string(i->get());
  else if (const auto* b = node.as_boolean()) *out = b->get() ? "true" : "false";
  else if (const auto* f = node.as_floating_point()) {
    std::ostringstream text;
    text.precision(17);
    text << f->get();
    *out = text.str();
  } else return false;
  return true;
}

class Reader {
 public:
  Reader(std::string name, fs::path folder) : name_(std::move(name)), folder_(std::move(folder)) {}

  Profile read(const toml::table& root) {
    bool schema = false;
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      if (name == "schema") {
        const auto* version = node.as_integer();
        if (!version || version->get() != 1) fail(node, "schema is " + shown(node) + ", expected 1");
        schema = true;
      } else if (name == "quant") {
        for (const auto& [k, v] : table(node, name)) {
          if (k.str() != "override") unknown(k, name, {"override"});
          for (const toml::table* t : tables(v, "quant.override")) override_rule(*t);
        }
      } else if (name == "backend") {
        for (const toml::table* t : tables(node, name)) {
          ProfileBackend b = backend(*t);
          if (b.name.empty()) throw Error("E102", b.where + ": [[backend]] has no name").hint("name = \"fp8\", for example");
          for (const ProfileBackend& other : profile_.backends)
            if (other.name == b.name) throw Error("E102", b.where + ": backend " + b.name + " is named twice").from("the first is at " + other.where);
          profile_.backends.push_back(std::move(b));
        }
      } else if (tables_.count(name)) {
        settings(table(node, name), name);
      } else {
        std::vector<std::string> known(tables_.begin(), tables_.end());
        known.insert(known.end(), {"schema", "quant", "backend"});
        unknown(key, "", known);
      }
    }
    if (!schema && !root.empty())
      throw Error("E102", name_ + ":1:1: missing key schema").hint("begin the file with: schema = 1");
    return std::move(profile_);
  }

  ProfileBackend backend(const toml::table& t) {
    ProfileBackend out;
    out.where = place(t.source());
    for (const auto& [key, node] : t) {
      const std::string k(key.str());
      if (k == "name") {
        out.name = text(t, "name", "backend");
        const auto odd = [](unsigned char c) { return !(std::isalnum(c) || c == '-' || c == '_' || c == '.'); };
        if (out.name.size() > 64 || std::any_of(out.name.begin(), out.name.end(), odd)) fail(node, "backend.name " + shown(node) + " is not up to 64 letters, digits, - _ and .");
      } else if (k == "options") {
        options(table(node, "backend.options"), "backend.options", out.options);
      } else if (const Setting* s = backend_setting(k)) {
        out.values.push_back(value(*s, node, place(key.source())));
      } else {
        unknown(key, "backend", backend_keys());
      }
    }
    return out;
  }

 private:
  std::string place(const toml::source_region& at) const {
    if (at.begin.line == 0) return name_;  // not out of a file
    return name_ + ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column);
  }
  [[noreturn]] void fail(const toml::node& node, const std::string& what) const {
    throw Error("E102", place(node.source()) + ": " + what);
  }

  static std::string shown(const toml::node& node) {
    std::string text;
    if (!leaf_text(node, &text)) return kind_name(node);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return node.is_string() ? "\"" + text + "\"" : text;
  }

  [[noreturn]] void unknown(const toml::key& key, const std::string& table, std::vector<std::string> known) const {
    const std::string name(key.str()), full = table.empty() ? name : table + "." + name;
    Error error("E102", place(key.source()) + ": unknown " + (table.empty() ? "table or key " : "key ") + full);
    std::sort(known.begin(), known.end());
    if (const std::string near = nearest(name, known); !near.empty()) throw error.hint("did you mean " + near + "?");
    for (const SettingGroup* g : profile_groups())  // right name, wrong table
      for (const Setting& s : g->settings)
        if (const std::string k = s.key; k.size() > name.size() && k.ends_with("." + name))
          throw error.hint("that key is in [" + k.substr(0, k.size() - name.size() - 1) + "]");
    std::string all;
    for (const std::string& k : known) all += (all.empty() ? "" : " ") + k;
    throw error.hint((table.empty() ? "known here: " : "keys of [" + table + "]: ") + all);
  }

  const toml::table& table(const toml::node& node, const std::string& name) const {
    if (const auto* t = node.as_table()) return *t;
    fail(node, name + " is " + kind_name(node) + ", expected a table: [" + name + "]");
  }

  std::vector<const toml::table*> tables(const toml::node& node, const std::string& name) const {
    std::vector<const toml::table*> out;
    const auto* list = node.as_array();
    if (!list) fail(node, name + " is " + kind_name(node) + ", expected tables: [[" + name + "]]");
    for (const toml::node& item : *list) {
      if (!item.is_table()) fail(item, name + " holds " + kind_name(item) + ", expected tables: [[" + name + "]]");
      out.push_back(item.as_table());
    }
    return out;
  }

  std::string text(const toml::table& t, const char* key, const std::string& table) const {
    const toml::node* node = t.get(key);
    if (!node) fail(t, "[[" + table + "]] has no " + key);
    if (!node->is_string()) fail(*node, table + "." + key + " is " + kind_name(*node) + ", expected a text");
    std::string value = node->as_string()->get();
    if (value.empty()) fail(*node, table + "." + key + " is empty");
    return value;
  }

  void only(const toml::table& t, const std::string& table, const std::vector<std::string>& known) const {
    for (const auto& [k, v] : t)
      if (std::find(known.begin(), known.end(), k.str()) == known.end()) unknown(k, table, known);
  }

  void override_rule(const toml::table& t) {
    only(t, "quant.override", {"match", "plugin"});
    profile_.overrides.push_back({text(t, "match", "quant.override"), text(t, "plugin", "quant.override"), place(t.source())});
  }

  void allow_entry(const toml::table& t) {
    only(t, "plugins.allow", {"id", "sha256"});
    ProfilePlugin entry{text(t, "id", "plugins.allow"), text(t, "sha256", "plugins.allow"), place(t.source())};
    std::transform(entry.sha256.begin(), entry.sha256.end(), entry.sha256.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
    if (entry.sha256.size() != 64 || entry.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
      throw Error("E102", place(t.get("sha256")->source()) + ": plugins.allow.sha256 of " + entry.id + " is not 64 hex digits")
          .hint("qengine plugin info FILE prints it");
    profile_.allow.push_back(std::move(entry));
  }

  nlohmann::ordered_json json(const toml::node& node) const {
    if (const auto* s = node.as_string()) return s->get();
    if (const auto* i = node.as_integer()) return i->get();
    if (const auto* b = node.as_boolean()) return b->get();
    if (const auto* f = node.as_floating_point()) {
      if (!std::isfinite(f->get())) fail(node, "the number is not finite");
      return f->get();
    }
    if (const auto* a = node.as_array()) {
      auto list = nlohmann::ordered_json::array();
      for (const toml::node& item : *a) list.push_back(json(item));
      return list;
    }
    fail(node, "is " + kind_name(node) + ", expected a text, number, truth value or list");
  }

  void options(const toml::table& t, const std::string& name, std::vector<ProfileOption>& out) {
    for (const auto& [plugin, node] : t)
      for (const auto& [key, value] : table(node, name + "." + std::string(plugin.str())))
        out.push_back({std::string(plugin.str()), std::string(key.str()),
                                    json(value).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                                    place(key.source())});
  }

  void settings(const toml::table& t, const std::string& name) {
    for (const auto& [key, node] : t) {
      const std::string k(key.str());
      if (name == "plugins" && k == "allow") {
        for (const toml::table* entry : tables(node, "plugins.allow")) allow_entry(*entry);
        continue;
      }
      if (name == "plugins" && k == "options") {
        options(table(node, "plugins.options"), "plugins.options", profile_.options);
        continue;
      }
      const Setting* s = setting_of_key(name + "." + k);
      if (!s && node.is_table() && !keys_of(name + "." + k).empty()) {  // [canary.abort_if]
        settings(*node.as_table(), name + "." + k);
        continue;
      }
      if (!s) unknown(key, name, keys_of(name));
      profile_.values.push_back(value(*s, node, place(key.source())));
    }
  }

  // Settings that a running server can change by loading anew.
  static const Setting* backend_setting(const std::string& key) {
    for (const char* table : {"model.", "engine."})
      if (const Setting* s = setting_of_key(table + key); s && s->reload == Reload::kSwap) return s;
    return nullptr;
  }
  static std::vector<std::string> backend_keys() {
    std::vector<std::string> out{"name", "options"};
    for (const SettingGroup* g : profile_groups())
      for (const Setting& s : g->settings)
        if (const std::string k = s.key; !s.hidden && s.reload == Reload::kSwap && (k.starts_with("model.") || k.starts_with("engine."))) out.push_back(k.substr(k.find('.') + 1));
    return out;
  }

  static std::vector<std::string> keys_of(const std::string& table) {
    std::vector<std::string> out;
    for (const SettingGroup* g : profile_groups())
      for (const Setting& s : g->settings)
        if (const std::string k = s.key; !s.hidden && k.starts_with(table + ".")) out.push_back(k.substr(table.size() + 1));
    if (table == "plugins") out.insert(out.end(), {"allow", "options"});
    return out;
  }

  // Numbers may be written as text ("8K"); a text is never written as a number.
  static bool fits(const Setting& s, const toml::node& node) {
    switch (s.kind) {
      case Kind::kBool: return node.is_boolean();
      case Kind::kInt:
      case Kind::kBytes: return node.is_integer() || node.is_string();
      case Kind::kNumber: return node.is_integer() || node.is_floating_point() || node.is_string();
      case Kind::kChoice: return node.is_string() || (node.is_integer() && s.value[0] >= '0' && s.value[0] <= '9');
      case Kind::kList: return node.is_string() || node.is_integer();
      default: return node.is_string();
    }
  }

  static std::string expected_kind(const Setting& s) {
    switch (s.kind) {
      case Kind::kBool: return "true or false";
      case Kind::kInt: return "an integer";
      case Kind::kBytes: return "a size such as \"4GiB\"";
      case Kind::kNumber: return "a number";
      default: return is_list(s.kind) ? "a text or a list of texts" : "a text";
    }
  }

  ProfileValue value(const Setting& s, const toml::node& node, std::string where) {
    ProfileValue out{&s, {}, std::move(where)};
    const auto take = [&](const toml::node& item) {
      std::string raw, expected;
      if (!fits(s, item) || !leaf_text(item, &raw))
        fail(item, std::string(s.key) + " is " + kind_name(item) + ", expected " + expected_kind(s));
      auto normal = normalize(s, raw, &expected);
      if (!normal) {
        const std::string found = s.secret ? "the value" : shown(item);
        fail(item, std::string(s.key) + ": " + found + " is not " + expected);
      }
      if (is_path(s.kind)) normal = (folder_ / *normal).lexically_normal().string();
      out.texts.push_back(std::move(*normal));
    };
    if (const auto* list = node.as_array(); list && is_list(s.kind))
      for (const toml::node& item : *list) take(item);
    else take(node);
    return out;
  }

  const std::string name_;
  const fs::path folder_;
  Profile profile_;
  const std::set<std::string> tables_ = [] {
    std::set<std::string> out;
    for (const SettingGroup* g : profile_groups())
      for (const Setting& s : g->settings)
        if (const std::string_view key = s.key; !key.empty()) out.emplace(key.substr(0, key.find('.')));
    return out;
  }();
};

// For an object out of a request; what TOML cannot hold is an error there.
void to_toml(const nlohmann::ordered_json& j, toml::table& out, const std::string& name) {
  const auto refuse = [&](const std::string& key) { throw Error("E102", name + ": " + key + " is neither a text, a number, a truth value, a list of these, nor an object"); };
  for (const auto& item : j.items()) {
    const std::string& key = item.key();  // clang before 16 lets no lambda capture a structured binding
    const auto& v = item.value();
    const auto leaf = [&](const nlohmann::ordered_json& x, auto&& take) {
      if (x.is_string()) take(x.get<std::string>());
      else if (x.is_boolean()) take(x.get<bool>());
      else if (x.is_number_integer()) take(x.get<std::int64_t>());
      else if (x.is_number_float()) take(x.get<double>());
      else refuse(key);
    };
    if (v.is_object()) {
      toml::table t;
      to_toml(v, t, name);
      out.insert(key, std::move(t));
    } else if (v.is_array()) {
      toml::array list;
      for (const auto& x : v) leaf(x, [&](auto value) { list.push_back(std::move(value)); });
      out.insert(key, std::move(list));
    } else {
      leaf(v, [&](auto value) { out.insert(key, std::move(value)); });
    }
  }
}

}  // namespace

ProfileBackend parse_backend(std::string_view json, const std::string& name, const fs::path& folder) {
  const auto object = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!object.is_object()) throw Error("E102", name + " is no JSON object").hint("with the keys of a [[backend]], such as {\"plugin\": \"fp8_online\"}");
  toml::table t;
  to_toml(object, t, name);
  return Reader(name, folder).backend(t);
}

Profile parse_profile(std::string_view text, const std::string& name, const fs::path& folder) {
  if (const int line = line_of_deep_toml_key(text))
    throw Error("E102", name + ":" + std::to_string(line) + ":1: the key is nested too deeply").hint("qengine help config lists the keys");
  try {
    const toml::table root = toml::parse(text, std::string_view(name));
    return Reader(name, folder).read(root);
  } catch (const toml::parse_error& e) {
    const auto at = e.source().begin;
    throw Error("E102", name + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + std::string(e.description()))
        .hint("the file must be TOML 1.0; qengine help config lists the keys");
  }
}

Profile read_profile(const fs::path& file) {
  std::error_code ec;
  const auto bytes = fs::file_size(file, ec);
  if (ec) throw Error("E102", "cannot read " + file.string() + ": " + ec.message()).from("--config").hint("name a TOML file; qengine help config lists its keys");
  if (bytes > kMostBytes)
    throw Error("E102", file.string() + " has " + std::to_string(bytes) + " bytes; a profile has at most " + std::to_string(kMostBytes))
        .from("--config");
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in.good() && !in.eof()) throw Error("E102", "cannot read " + file.string()).from("--config");
  Profile profile = parse_profile(text, file.string(), fs::absolute(file).parent_path());
  profile.path = file;
  return profile;
}

}  // namespace qengine
