#include "core/config/command_line.hpp"

#include <sys/auxv.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <set>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"

extern char** environ;

namespace qengine {
namespace {

namespace po = boost::program_options;

constexpr int kStyle = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing &
                       ~po::command_line_style::allow_sticky;

std::string see(const CommandLineSpec& spec) { return "qengine " + spec.command + " --help"; }

// One options_description a group. Scalars and booleans are kept as text here: all sources share one
// way to check a value (normalize), so that they fail with the same words.
po::options_description describe(const SettingGroup& group) {
  po::options_description out(group.title);
  for (const Setting& s : group.settings) {
    if (is_list(s.kind)) out.add_options()(s.name, po::value<std::vector<std::string>>(), s.help);
    else if (s.kind == Kind::kBool) out.add_options()(s.name, po::value<std::string>()->implicit_value("true"), s.help);
    else out.add_options()(s.name, po::value<std::string>(), s.help);
  }
  return out;
}

class Resolver {
 public:
  Resolver(const CommandLineSpec& spec, std::span<const SettingGroup* const> any) : spec_(spec), any_(any) {
    for (const SettingGroup* g : spec.groups)
      for (const Setting& s : g->settings) {
        by_name_.emplace(s.name, &s);
        if (s.letter) by_letter_.emplace(s.letter, &s);
      }
    for (const SettingGroup* g : spec.groups) description_.add(describe(*g));
  }

  Arguments run(std::span<const std::string> args, const std::map<std::string, std::string>& environment) {
    // First wins in a variables_map: flags, then environment, then profile; defaults are filled in last.
    parse_flags(args);
    parse_environment(environment);
    if (by_name_.count("config") && vars_.count("config")) {
      arguments_.profile = read_profile(vars_["config"].as<std::string>());
      parse_profile_values();
    }
    po::notify(vars_);
    fill();
    return std::move(arguments_);
  }

 private:
  const Setting* find(const std::string& name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : it->second;
  }

  [[noreturn]] void unknown(const std::string& name, const std::string& typed) const {
    Error error("E101", "unknown option " + typed);
    for (const auto& [flag, command] : spec_.elsewhere)
      if (flag == name) throw error.hint("--" + flag + " belongs to qengine " + command);
    std::vector<std::string> known;
    for (const auto& [n, s] : by_name_)
      if (!s->hidden) known.push_back(n);
    const std::string near = nearest(name, known, std::max(2, static_cast<int>(name.size()) / 4));
    if (near.empty()) throw error.hint(see(spec_) + " lists the options");
    throw error.hint("did you mean --" + near + "? (" + see(spec_) + ")");
  }

  // Rewrites the words into forms that Boost reads in one way only: --name=value. That keeps a value
  // that begins with a dash apart from a flag, and lets `_` pass as `-` in names but not in values.
  void parse_flags(std::span<const std::string> args) {
    std::vector<std::string> out;
    std::vector<std::string> words;
    for (std::size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      if (arg == "--") {
        words.insert(words.end(), args.begin() + i + 1, args.end());
        break;
      }
      if (arg.size() < 2 || arg[0] != '-') {
        words.push_back(arg);
        continue;
      }
      const auto equals = arg.find('=');
      std::string typed = arg.substr(0, equals), name;
      std::optional<std::string> value;
      if (equals != arg.npos) value = arg.substr(equals + 1);
      if (arg[1] != '-') {
        if (typed == "-tp") name = "tensor-parallel-size";
        else if (typed == "-v") name = "log-level", value = value.value_or("debug");
        else if (const auto it = by_letter_.find(arg[1]); typed.size() == 2 && it != by_letter_.end()) name = it->second->name;
        else throw Error("E101", "unknown option " + typed).hint(see(spec_) + " lists the options; their names begin with two dashes");
      } else {
        name = typed.substr(2);
        std::replace(name.begin(), name.end(), '_', '-');
        typed = "--" + name;
      }
      const Setting* s = find(name);
      if (!s && name.starts_with("no-"))
        if (const Setting* positive = find(name.substr(3)); positive && positive->kind == Kind::kBool) {
          if (value) throw Error("E101", typed + " takes no value").hint("write " + typed + ", or --" + positive->name + "=" + *value);
          s = positive;
          value = "false";
        }
      if (!s) {
        if (const VllmFlag* v = vllm_flag(name)) {
          if (*v->replacement)
            throw Error("E106", "--" + name + " is a vLLM flag that qengine does not have").hint(v->replacement);
          if (v->takes_value && !value && i + 1 < args.size() && !args[i + 1].starts_with('-')) ++i;
          arguments_.notices.push_back("--" + name + " has no meaning here and is ignored");
          continue;
        }
        if (name.starts_with("no-") && vllm_flag(name.substr(3))) {  // turns off what is not there
          arguments_.notices.push_back("--" + name + " has no meaning here and is ignored");
          continue;
        }
        unknown(name, typed);
      }
      if (s->kind == Kind::kBool) {
        if (value && value->empty()) throw Error("E101", typed + "= has no value").hint("write " + typed + ", or --no-" + s->name);
        out.push_back(std::string("--") + s->name + "=" + value.value_or("true"));
        continue;
      }
      if (!value) {
        if (i + 1 == args.size() || is_flag(args[i + 1])) throw missing(*s, typed);
        value = args[++i];
      }
      if (value->empty()) out.insert(out.end(), {std::string("--") + s->name, ""});
      else out.push_back(std::string("--") + s->name + "=" + *value);
    }
    try {
      po::store(po::command_line_parser(out).options(description_).style(kStyle).run(), vars_);
    } catch (const po::multiple_occurrences& e) {
      const std::string option = e.get_option_name();
      throw Error("E101", option + " is given more than once").hint("give it once; lists are --prompt, --stop and the like (" + see(spec_) + ")");
    } catch (const po::error& e) {
      throw Error("E101", e.what()).hint(see(spec_) + " lists the options");
    }
    take_words(words);
  }

  // Is this word a flag of this command, so that it cannot be the value of the one before it?
  bool is_flag(const std::string& word) const {
    if (!word.starts_with("--") || word.size() == 2) return false;
    std::string name = word.substr(2, word.find('=') == word.npos ? word.npos : word.find('=') - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (find(name)) return true;
    const Setting* positive = name.starts_with("no-") ? find(name.substr(3)) : nullptr;
    return positive && positive->kind == Kind::kBool;
  }

  Error missing(const Setting& s, const std::string& typed) const {
    return Error("E101", typed + " needs a value: " + (*s.value ? s.value : "TEXT")).hint(see(spec_) + " describes it");
  }

  void take_words(std::vector<std::string>& words) {
    if (!spec_.positional.empty() && !words.empty()) {
      // "-" is standard input, never a model.
      const auto model = std::find_if(words.begin(), words.end(), [](const auto& w) { return w != "-"; });
      if (model != words.end()) {
        if (!vars_.count(spec_.positional)) {
          po::parsed_options parsed(&description_);
          po::option option(spec_.positional, {*model});
          parsed.options.push_back(option);
          po::store(parsed, vars_);
          positional_ = true;
        } else if (const auto& flag = vars_[spec_.positional].as<std::string>(); flag != *model) {
          throw Error("E101", "two models: " + *model + " and --" + spec_.positional + " " + flag).hint("MODEL and --" + spec_.positional + " are one thing; give one of them");
        }
        words.erase(model);
      }
    }
    if (static_cast<int>(words.size()) > spec_.max_words)
      throw Error("E101", "unexpected argument " + words[spec_.max_words]).hint("a text with spaces needs quotes (" + see(spec_) + ")");
    arguments_.words = std::move(words);
  }

  void parse_environment(const std::map<std::string, std::string>& environment) {
    std::map<std::string, const Setting*> mine;
    for (const auto& [name, s] : by_name_)
      if (name != "help" && name != "version" && name != "print-config") mine.emplace(env_name(*s), s);
    std::set<std::string> known{"QENGINE_PLUGIN_PATH", "QENGINE_CUBLASLT"};  // read where they are needed
    for (const SettingGroup* g : any_)
      for (const Setting& s : g->settings) known.insert(env_name(s));
    po::parsed_options parsed(&description_);
    for (const auto& [name, text] : environment) {
      if (name == "QENGINE_PLUGIN_PATH") continue;  // the plugin host reads it, unless privileged
      const auto it = mine.find(name);
      if (it == mine.end()) {
        if (known.count(name)) continue;  // of another command
        const std::vector<std::string> all(known.begin(), known.end());
        const std::string near = nearest(name, all, 3);
        arguments_.notices.push_back("environment variable " + name + " is not known" +
                                     (near.empty() ? std::string() : "; did you mean " + near + "?"));
        continue;
      }
      parsed.options.emplace_back(it->second->name, std::vector<std::string>{text});
    }
    store(parsed, Origin::kEnvironment);
  }

  void parse_profile_values() {
    po::parsed_options parsed(&description_);
    for (const ProfileValue& v : arguments_.profile.values) {
      const Setting* mine = find(v.setting->name);
      if (!mine || std::string_view(mine->key) != v.setting->key) continue;  // of another command
      if (!vars_.count(v.setting->name)) where_[v.setting->name] = {Origin::kProfile, v.where};
      for (const std::string& text : v.texts) parsed.options.emplace_back(v.setting->name, std::vector<std::string>{text});
    }
    store(parsed, Origin::kProfile);
  }

  void store(const po::parsed_options& parsed, Origin origin) {
    if (origin == Origin::kEnvironment)
      for (const auto& option : parsed.options)
        if (!vars_.count(option.string_key)) where_[option.string_key] = {origin, env_name(*find(option.string_key))};
    po::store(parsed, vars_);
  }

  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> out;
    std::size_t begin = 0;
    for (std::size_t comma; (comma = text.find(',', begin)) != text.npos; begin = comma + 1) out.push_back(text.substr(begin, comma - begin));
    out.push_back(text.substr(begin));
    return out;
  }

  void fill() {
    for (const auto& [name, s] : by_name_) {
      Value v{s, {}, Origin::kDefault, ""};
      std::vector<std::string> raw;
      if (vars_.count(name)) {
        v.origin = Origin::kFlag;
        v.where = positional_ && name == spec_.positional ? "argument" : "--" + name;
        if (const auto it = where_.find(name); it != where_.end()) std::tie(v.origin, v.where) = it->second;
        raw = is_list(s->kind) ? vars_[name].as<std::vector<std::string>>() : std::vector{vars_[name].as<std::string>()};
        if (v.origin != Origin::kProfile && (s->kind == Kind::kList || s->kind == Kind::kPaths)) {
          std::vector<std::string> items;
          for (const std::string& text : raw)
            for (std::string& item : split(text)) items.push_back(std::move(item));
          raw = std::move(items);
        }
      } else {
        std::string fallback = s->fallback;
        for (const auto& [n, text] : spec_.defaults)
          if (n == name) fallback = text;
        if (!fallback.empty()) raw = s->kind == Kind::kList || s->kind == Kind::kPaths ? split(fallback) : std::vector{fallback};
      }
      for (const std::string& text : raw) {
        std::string expected;
        auto normal = v.origin == Origin::kProfile ? std::optional(text) : normalize(*s, text, &expected);
        if (!normal) {
          const std::string found = s->secret ? "the value" : "\"" + text + "\"";
          Error error("E101", v.where + ": " + found + " is not " + expected);
          const auto all = s->kind == Kind::kChoice ? words(*s) : std::vector<std::string>();
          if (const std::string near = nearest(text, all); !near.empty()) error.hint("did you mean " + near + "?");
          throw error;
        }
        v.texts.push_back(std::move(*normal));
      }
      arguments_.values.set(name, std::move(v));
    }
  }

  const CommandLineSpec& spec_;
  std::span<const SettingGroup* const> any_;
  std::map<std::string, const Setting*> by_name_;
  std::map<char, const Setting*> by_letter_;
  po::options_description description_;
  po::variables_map vars_;
  std::map<std::string, std::pair<Origin, std::string>> where_;
  bool positional_ = false;
  Arguments arguments_;
};

}  // namespace

Arguments resolve(const CommandLineSpec& spec, std::span<const std::string> args,
                  const std::map<std::string, std::string>& environment, std::span<const SettingGroup* const> any) {
  return Resolver(spec, any).run(args, environment);
}

Arguments with_backend(const Arguments& arguments, const ProfileBackend& backend) {
  Arguments out = arguments;
  const auto unset = [&](const char* name, const char* other) {
    const auto says = [&](const char* n) { return std::any_of(backend.values.begin(), backend.values.end(), [&](const ProfileValue& v) { return std::string_view(v.setting->name) == n; }); };
    if (!says(other) || says(name) || !out.values.knows(name)) return;
    const Setting& s = *out.values.at(name).setting;
    out.values.set(name, {&s, *s.fallback ? std::vector<std::string>{s.fallback} : std::vector<std::string>{}, Origin::kDefault, ""});
  };
  unset("plugin", "quantization"), unset("quantization", "plugin");
  unset("kv-plugin", "kv-cache-dtype"), unset("kv-cache-dtype", "kv-plugin");
  for (const ProfileValue& v : backend.values)
    if (out.values.knows(v.setting->name)) out.values.set(v.setting->name, {v.setting, v.texts, Origin::kProfile, v.where});
  out.profile.options.insert(out.profile.options.end(), backend.options.begin(), backend.options.end());  // the last one of a key holds
  return out;
}

std::map<std::string, std::string> qengine_environment() {
  if (getauxval(AT_SECURE)) return {};  // raised rights: who started us must not choose plugins, profiles or files
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("QENGINE_") && equals != text.npos) out.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

}  // namespace qengine
