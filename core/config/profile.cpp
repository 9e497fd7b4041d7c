#include "core/config/profile.hpp"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
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
      } else if (tables_.count(name)) {
        settings(table(node, name), name);
      } else {
        std::vector<std::string> known(tables_.begin(), tables_.end());
        known.insert(known.end(), {"schema", "quant"});
        unknown(key, "", known);
      }
    }
    if (!schema && !root.empty())
      throw Error("E102", name_ + ":1:1: missing key schema").hint("begin the file with: schema = 1");
    return std::move(profile_);
  }

 private:
  std::string place(const toml::source_region& at) const {
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

  void options(const toml::table& t) {
    for (const auto& [plugin, node] : t)
      for (const auto& [key, value] : table(node, "plugins.options." + std::string(plugin.str())))
        profile_.options.push_back({std::string(plugin.str()), std::string(key.str()),
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
        options(table(node, "plugins.options"));
        continue;
      }
      const Setting* s = setting_of_key(name + "." + k);
      if (!s) unknown(key, name, keys_of(name));
      value(*s, node, place(key.source()));
    }
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

  void value(const Setting& s, const toml::node& node, std::string where) {
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
    profile_.values.push_back(std::move(out));
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

}  // namespace

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
