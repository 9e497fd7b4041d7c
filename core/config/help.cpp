// Settings as text: --help, --print-config and the list of `help config`.
#include <algorithm>

#include "core/config/command_line.hpp"

namespace qengine {
namespace {

std::string default_of(const Setting& s, const std::vector<std::pair<std::string, std::string>>& defaults) {
  std::string text = s.fallback;
  bool changed = false;
  for (const auto& [name, value] : defaults)
    if (name == s.name) text = value, changed = true;
  if (*s.shown && !changed) return s.shown;
  if (s.kind == Kind::kBool) return text == "true" ? "on" : "";
  return text;
}

std::string flag_of(const Setting& s, bool on) {
  std::string out = s.letter ? std::string("-") + s.letter + ", " : "";
  if (s.kind == Kind::kBool) return out + (on ? "--[no-]" : "--") + s.name;
  out += std::string("--") + s.name + " " + s.value;
  if (is_list(s.kind)) out += " ...";
  return out;
}

// `text` broken at spaces into lines of at most `width`, all but the first indented.
void wrap(std::string& out, std::string_view text, std::size_t width, std::size_t indent) {
  std::size_t column = 0;
  while (!text.empty()) {
    const auto space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = 0;
    }
    if (column > 0) out += ' ', ++column;
    out += word;
    column += word.size();
    text = space == text.npos ? std::string_view{} : text.substr(space + 1);
  }
  out += '\n';
}

const char* reload_name(Reload r) {
  switch (r) {
    case Reload::kLive: return "live";
    case Reload::kSwap: return "swap";
    default: return "restart";
  }
}

const char* kind_name(const Setting& s) {
  switch (s.kind) {
    case Kind::kBool: return "true or false";
    case Kind::kInt: return "integer";
    case Kind::kBytes: return "size";
    case Kind::kNumber: return "number";
    case Kind::kPath: return "path";
    case Kind::kPaths: return "list of paths";
    case Kind::kList:
    case Kind::kTexts: return "list of texts";
    case Kind::kChoice: return "choice";
    default: return "text";
  }
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    char hex[8];
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out.append(hex, std::snprintf(hex, sizeof hex, "\\u%04x", c & 0xff));
    else out += c;
  }
  return out + '"';
}

std::string toml_value(const Setting& s, const std::string& text) {
  const bool bare = s.kind == Kind::kBool || ((s.kind == Kind::kInt || s.kind == Kind::kBytes) && parse_integer(text, true)) ||
                    (s.kind == Kind::kNumber && parse_number(text));
  return bare ? text : toml_text(text);
}

// Groups a profile may hold, by table, in order of first appearance.
std::vector<std::string> tables_of(std::span<const SettingGroup* const> groups) {
  std::vector<std::string> out;
  for (const SettingGroup* g : groups)
    for (const Setting& s : g->settings)
      if (const std::string key = s.key; !key.empty())
        if (const std::string table = key.substr(0, key.find('.')); std::find(out.begin(), out.end(), table) == out.end())
          out.push_back(table);
  return out;
}

}  // namespace

std::string help_text(std::span<const SettingGroup* const> groups,
                      const std::vector<std::pair<std::string, std::string>>& defaults, int width, bool colour) {
  constexpr std::size_t kColumn = 30;
  const std::size_t room = std::max<std::size_t>(40, width - kColumn);
  std::string out;
  std::string_view title;
  for (const SettingGroup* g : groups) {
    if (title != g->title) out += std::string("\n") + (colour ? "\033[1m" : "") + g->title + (colour ? "\033[0m" : "") + "\n";
    title = g->title;
    for (const Setting& s : g->settings) {
      if (s.hidden) continue;
      const std::string fallback = default_of(s, defaults);
      std::string line = "  " + flag_of(s, s.kind == Kind::kBool && fallback == "on");
      if (line.size() + 2 > kColumn) line += "\n" + std::string(kColumn, ' ');
      else line.resize(kColumn, ' ');
      out += line;
      wrap(out, fallback.empty() || fallback == "on" ? s.help : s.help + (" (default: " + fallback + ")"), room, kColumn);
    }
  }
  return out;
}

std::string print_config(const CommandLineSpec& spec, const Arguments& arguments) {
  std::string out = "# effective configuration of qengine " + spec.command + "\nschema = 1\n";
  const auto source = [](const Value& v) -> std::string {
    switch (v.origin) {
      case Origin::kFlag: return v.where.starts_with("--") ? "flag " + v.where : v.where;
      case Origin::kEnvironment: return "env " + v.where;
      case Origin::kProfile: return v.where;
      default: return "default";
    }
  };
  for (const std::string& table : tables_of(spec.groups)) {
    out += "\n[" + table + "]\n";
    for (const SettingGroup* g : spec.groups)
      for (const Setting& s : g->settings) {
        const std::string key = s.key;
        if (!key.starts_with(table + ".")) continue;
        const Value& v = arguments.values.at(s.name);
        std::string line = key.substr(table.size() + 1) + " = ";
        if (v.texts.empty()) {
          if (s.hidden) continue;
          out += "# " + line + "  # unset" + (*s.shown ? std::string(": ") + s.shown : "") + "\n";
          continue;
        }
        if (s.secret) line += is_list(s.kind) ? "[\"***\"]" : "\"***\"";
        else if (is_list(s.kind)) {
          line += "[";
          for (std::size_t i = 0; i < v.texts.size(); ++i) line += (i ? ", " : "") + toml_value(s, v.texts[i]);
          line += "]";
        } else line += toml_value(s, v.texts.back());
        out += line + "  # " + source(v) + "\n";
      }
  }
  const Profile& p = arguments.profile;
  std::string plugin;
  for (const ProfileOption& o : p.options) {
    if (o.plugin != plugin) out += "\n[plugins.options." + (plugin = o.plugin) + "]\n";
    out += toml_text(o.key) + " = " + o.value + "  # " + o.where + "\n";
  }
  for (const ProfileBackend& b : p.backends) {
    out += "\n[[backend]]  # " + b.where + "\nname = " + toml_text(b.name) + "\n";
    for (const ProfileValue& v : b.values) {
      const std::string key = v.setting->key;
      std::string line = key.substr(key.find('.') + 1) + " = ";
      if (is_list(v.setting->kind)) {
        line += "[";
        for (std::size_t i = 0; i < v.texts.size(); ++i) line += (i ? ", " : "") + toml_value(*v.setting, v.texts[i]);
        line += "]";
      } else line += toml_value(*v.setting, v.texts.back());
      out += line + "  # " + v.where + "\n";
    }
    std::string of;
    for (const ProfileOption& o : b.options) {
      if (o.plugin != of) out += "[backend.options." + (of = o.plugin) + "]\n";
      out += toml_text(o.key) + " = " + o.value + "  # " + o.where + "\n";
    }
  }
  for (const ProfilePlugin& a : p.allow)
    out += "\n[[plugins.allow]]  # " + a.where + "\nid = " + toml_text(a.id) + "\nsha256 = " + toml_text(a.sha256) + "\n";
  for (const ProfileOverride& o : p.overrides)
    out += "\n[[quant.override]]  # " + o.where + "\nmatch = " + toml_text(o.match) + "\nplugin = " + toml_text(o.plugin) + "\n";
  return out;
}

std::string config_reference() {
  std::string out =
      "A profile is a TOML file named with --config. Every key is a flag with _ for -, and every flag can\n"
      "be given in the environment: flag > environment > profile > default. Paths are relative to the file.\n"
      "The last column says what a change takes in a running server: nothing (live), loading beside what\n"
      "runs (swap), or a new start.\n\nschema = 1                            required first key\n";
  for (const std::string& table : tables_of(profile_groups())) {
    out += "\n[" + table + "]\n";
    for (const SettingGroup* g : profile_groups())
      for (const Setting& s : g->settings) {
        const std::string key = s.key;
        if (s.hidden || !key.starts_with(table + ".")) continue;
        std::string line = "  " + key.substr(table.size() + 1);
        line.resize(std::max<std::size_t>(line.size() + 1, 34), ' ');
        line += "--" + std::string(s.name);
        line.resize(std::max<std::size_t>(line.size() + 1, 68), ' ');
        line += env_name(s);
        line.resize(std::max<std::size_t>(line.size() + 1, 108), ' ');
        line += reload_name(s.reload);
        out += line + "\n";
        line = "    " + std::string(kind_name(s));
        if (s.kind == Kind::kChoice) line += " " + std::string(s.value);
        if (const std::string fallback = *s.shown ? s.shown : s.fallback; !fallback.empty()) line += ", default " + fallback;
        if (s.wave > 1) line += ", not in this release";
        out += line + ": " + s.help + "\n";
      }
  }
  out +=
      "\n[plugins.options.PLUGIN]              options of a plugin, as qengine plugin info PLUGIN lists them\n"
      "[[plugins.allow]]                     id, sha256: a plugin that may be loaded\n"
      "[[quant.override]]                    match (name, glob or re:), plugin: later entries win\n"
      "[[backend]]                           name, and keys of [model] and [engine] of class swap without their table:\n"
      "                                      a way to load the model that a running server can change to\n"
      "[backend.options.PLUGIN]              options of a plugin for that backend\n";
  return out;
}

}  // namespace qengine
