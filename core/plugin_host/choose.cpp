// What a user's words mean: --plugin, --quantization, [[quant.override]]. Every name comes from the
// data of the installed plugins; none is known here.
#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/base/nearest.hpp"
#include "core/plugin_host/plugin_host_impl.hpp"

namespace qengine {
namespace {

std::string upper(std::string s) {
  for (char& c : s) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return s;
}

// "an AWQ", "a GPTQ", "a compressed-tensors": short names are read letter by letter.
std::string with_article(const std::string& method) {
  const bool letters = method.size() <= 4;
  const std::string word = letters ? upper(method) : method;
  const std::string_view vowels = letters ? "AEFHILMNORSX" : "aeio";
  return (vowels.find(word[0]) != std::string_view::npos ? "an " : "a ") + word;
}

std::string text_at(const Json& config, std::initializer_list<const char*> keys) {
  if (!config.is_object()) return {};
  for (const char* key : keys)
    if (const auto it = config.find(key); it != config.end()) {
      if (it->is_string()) return it->get<std::string>();
      if (it->is_number_integer()) return std::to_string(it->get<std::int64_t>());
    }
  return {};
}

}  // namespace

bool condition_holds(const std::string& condition, std::string_view method) {
  if (condition.empty()) return true;
  for (std::size_t at = 0; at <= condition.size();) {
    const std::size_t end = std::min(condition.find(',', at), condition.size());
    std::string one = condition.substr(at, end - at);
    one.erase(0, one.find_first_not_of(' '));
    one.erase(one.find_last_not_of(' ') + 1);
    if (one == method) return true;
    at = end + 1;
  }
  return false;
}

std::string quant_method_of(const Checkpoint& checkpoint) {
  const std::string method = text_at(checkpoint.quant_config(), {"quant_method"});
  return method.empty() ? "none" : method;
}

std::string describe_quantization(const Checkpoint& checkpoint) {
  const Json& q = checkpoint.quant_config();
  if (!q.is_object()) {
    const std::string dtype = text_at(checkpoint.config(), {"dtype", "torch_dtype"});
    return dtype.empty() ? "not quantized" : "not quantized (" + dtype + ")";
  }
  std::string details;
  if (const std::string bits = text_at(q, {"bits", "w_bit"}); !bits.empty()) details += bits + "-bit";
  if (const std::string group = text_at(q, {"group_size", "q_group_size"}); !group.empty()) details += (details.empty() ? "group " : ", group ") + group;
  if (const std::string format = text_at(q, {"format"}); !format.empty()) details += (details.empty() ? "" : ", ") + format;
  const std::string method = quant_method_of(checkpoint);
  return (method == "none" ? "quantized in an unnamed way" : method) + (details.empty() ? "" : " (" + details + ")");
}

namespace {

std::string installed(const PluginHost& host) {
  std::string out;
  for (const auto& p : host.plugins()) out += " " + p->name;
  return out.empty() ? " none" : out;
}

}  // namespace

PluginChoice PluginHost::choose(std::string_view spec, const std::string& origin) const {
  const auto colon = spec.find(':');
  const std::string name(spec.substr(0, colon));
  const std::string scheme(colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1));
  const Plugin* p = find(name);
  if (!p) {
    for (std::size_t i = 0; i < impl_->refused.size(); ++i)
      if (impl_->refused[i].name == name || impl_->refused[i].id == name) throw impl_->refusals[i];
    for (const PluginAlias& a : impl_->aliases) {
      if (a.kind != 2 || a.alias != name || !a.condition.empty() || find(a.replacement.substr(0, a.replacement.find(':'))) == nullptr) continue;
      const std::string whole = a.replacement.find(':') == std::string::npos && !scheme.empty() ? a.replacement + ":" + scheme : a.replacement;
      if (a.deprecated()) warn_deprecated(a, origin + " " + name, whole, "");
      PluginChoice c = choose(whole, origin);
      c.how = origin + " " + std::string(spec) + " -> " + whole;
      return c;
    }
    Error e("E103", "no installed plugin is called or aliased \"" + name + "\"");
    e.from(origin + "; installed:" + installed(*this));
    throw e.hint("add its folder with --plugin-path; known names: qengine plugin list --aliases");
  }
  if (!scheme.empty() && !p->methods.empty() &&
      std::none_of(p->methods.begin(), p->methods.end(), [&](const PluginMethod& m) { return m.name == scheme; })) {
    std::vector<std::string> names;
    std::string all;
    for (const PluginMethod& m : p->methods) {
      names.push_back(m.name);
      all += (all.empty() ? "" : " ") + m.name;
    }
    Error e("E103", p->name + " has no scheme \"" + scheme + "\"");
    e.from(origin + "; its schemes: " + all);
    const std::string near = nearest(scheme, names);
    throw e.hint(near.empty() ? "qengine plugin info " + p->name + " describes them" : "did you mean " + p->name + ":" + near + "?");
  }
  if (p->data_only()) {
    for (const PluginMethod& m : p->methods)
      if (scheme.empty() || m.name == scheme) {
        PluginChoice c = choose(m.replacement, origin);
        c.how = origin + " " + std::string(spec) + " -> " + m.replacement;
        return c;
      }
    throw Error("E103", p->name + " brings names only, no arithmetic").from(origin).hint("qengine plugin info " + p->name + " lists what its names stand for");
  }
  return {p, scheme, origin + " " + std::string(spec)};
}

void PluginHost::warn_deprecated(const PluginAlias& a, const std::string& written, const std::string& replacement, const std::string& where) const {
  Error e("W901", written + " is deprecated" + where + "; using " + replacement);
  const std::string flag = a.kind == 4 || a.kind == 2 ? "--plugin " : "";
  std::string hint = "write " + flag + replacement + (a.message.empty() ? "" : ", " + a.message);
  if (!a.removed_in.empty()) hint += "; the old name goes away in " + a.removed_in;
  if (options_.deny_deprecated) {
    Error refused("E107", written + " is deprecated" + where + " and --deny-deprecated is set");
    throw refused.hint(hint);
  }
  e.hint(hint + "; --deny-deprecated makes this an error");
  const std::lock_guard lock(impl_->mutex);
  impl_->deprecated_met.insert(a.alias);
  if (impl_->warned.insert(a.owner + " " + a.alias + " " + a.condition).second) log("plugins").warn("{}", e.what());
}

std::vector<std::string> PluginHost::deprecated_met() const {
  const std::lock_guard lock(impl_->mutex);
  return {impl_->deprecated_met.begin(), impl_->deprecated_met.end()};
}

PluginChoice PluginHost::choose_value(const std::string& flag, std::string_view value) const {
  const std::string written = flag + "=" + std::string(value);
  std::vector<std::string> offered;
  for (const PluginAlias& a : impl_->aliases) {
    if (a.kind != 4) continue;
    if (a.alias == written) {
      if (a.deprecated()) warn_deprecated(a, "--" + flag + " " + std::string(value), a.replacement, "");
      PluginChoice c = choose(a.replacement, "--" + flag + " " + std::string(value));
      c.how = "--" + flag + " " + std::string(value) + " -> " + a.replacement;
      return c;
    }
    if (a.alias.starts_with(flag + "=")) offered.push_back(a.alias.substr(flag.size() + 1));
  }
  std::string all;
  for (const std::string& o : offered) all += (all.empty() ? "" : ", ") + o;
  Error e("E103", "no installed plugin offers --" + flag + " " + std::string(value));
  if (!all.empty()) e.from("offered: " + all);
  throw e.hint("qengine plugin list shows what is installed");
}

PluginChoice PluginHost::choose_quantization(std::string_view value_view, const Checkpoint& checkpoint) const {
  const std::string value(value_view), method = quant_method_of(checkpoint);
  const bool quantized = checkpoint.quant_config().is_object();
  const std::string because = quantized ? " (quant_method " + method + " in " + checkpoint.quant_config_source() + ")" : " (the checkpoint is not quantized)";
  bool known = false;  // the name exists, for other checkpoints
  std::string wants;   // the quant_method it is for
  const auto remember = [&](const std::string& m) {
    known = true;
    if (wants.empty() && !m.empty() && m != "none") wants = m.substr(0, m.find(','));
  };

  // Aliases, those with a condition first.
  for (const bool conditional : {true, false})
    for (const PluginAlias& a : impl_->aliases) {
      if (a.kind != 2 || a.alias != value || a.condition.empty() == conditional) continue;
      if (!condition_holds(a.condition, method)) {
        remember(a.condition);
        continue;
      }
      if (a.deprecated()) {
        // The same word may be right on another checkpoint, so the warning says where it is not.
        const std::string where = a.condition == "none" ? " for unquantized checkpoints" : a.condition.empty() ? "" : " for " + method + " checkpoints";
        warn_deprecated(a, "--quantization " + value, a.replacement, where);
      }
      PluginChoice c = choose(a.replacement, "--quantization " + value);
      c.how = "--quantization " + value + " -> " + a.replacement + because;
      return c;
    }

  // A plugin's own name; then a quant_method that installed plugins read; then one of their schemes.
  const auto fits = [&](const PluginMethod& m) { return condition_holds(m.quant_method, method); };
  if (const Plugin* p = find(value); p && !p->data_only()) {
    if (p->methods.empty() || std::any_of(p->methods.begin(), p->methods.end(), fits))
      return {p, "", "--quantization " + value + " -> " + p->name + because};
    for (const PluginMethod& m : p->methods) remember(m.quant_method);
    known = true;
  }
  std::vector<std::pair<const Plugin*, const PluginMethod*>> readers, schemes;
  for (const auto& p : impl_->plugins)
    for (const PluginMethod& m : p->methods) {
      if (m.quant_method == value) readers.emplace_back(p.get(), &m);
      if (m.name == value) schemes.emplace_back(p.get(), &m);
    }
  if (!readers.empty()) {
    remember(value);
    if (value == method) {
      const bool one = std::all_of(readers.begin(), readers.end(), [&](const auto& r) { return r.first == readers[0].first; });
      if (one && readers[0].first->data_only()) {
        PluginChoice c = choose(readers[0].second->replacement, "--quantization " + value);
        c.how = "--quantization " + value + " -> " + readers[0].second->replacement + because;
        return c;
      }
      if (one) return {readers[0].first, "", "--quantization " + value + " -> " + readers[0].first->name + because};
      return {nullptr, "", "--quantization " + value + ": several plugins read it, the highest score decides" + because};
    }
  }
  std::erase_if(schemes, [&](const auto& s) {
    if (fits(*s.second)) return false;
    remember(s.second->quant_method);
    return true;
  });
  if (schemes.size() > 1 && schemes[0].first != schemes[1].first)
    throw Error("E303", "two plugins have a scheme \"" + value + "\": " + schemes[0].first->name + ", " + schemes[1].first->name)
        .hint("choose with --plugin " + schemes[0].first->name + ":" + value);
  if (!schemes.empty()) {
    const auto& [p, m] = schemes[0];
    const std::string spec = m->replacement.empty() ? p->name + ":" + m->name : m->replacement;
    PluginChoice c = choose(spec, "--quantization " + value);
    c.how = "--quantization " + value + " -> " + spec + because;
    return c;
  }

  if (!known) {
    Error e("E103", "no installed plugin is called or aliased \"" + value + "\"");
    e.from("--quantization; installed:" + installed(*this));
    throw e.hint("add its folder with --plugin-path; known names: qengine plugin list --aliases");
  }
  if (!quantized) {
    const std::string dtype = text_at(checkpoint.config(), {"dtype", "torch_dtype"});
    Error e("E105", "--quantization " + value + " needs " + with_article(wants.empty() ? value : wants) + " checkpoint; this one is not quantized" +
                        (dtype.empty() ? "" : " (" + dtype + ")"));
    std::string looked = "looked in config.json (also text_config)";
    for (const QuantDialect& d : dialects())
      if (!d.file.empty() && looked.find(d.file) == std::string::npos) looked += ", " + d.file;
    e.from(looked);
    // Of the schemes that quantize at load, the one with a scale for each output channel loses least for its size.
    std::string online;
    for (const auto& p : impl_->plugins) {
      if (p->methods.size() < 2) continue;
      for (const PluginMethod& m : p->methods)
        if (m.quant_method == "none" && (online.empty() || m.name.find("per_channel") != std::string::npos) && online.find("per_channel") == std::string::npos)
          online = p->name + ":" + m.name;
    }
    const std::string word = wants.empty() ? value : wants;
    throw e.hint("point --model at the " + (word.size() <= 4 ? upper(word) : word) + " folder" + (online.empty() ? "" : ", or quantize at load: --plugin " + online));
  }
  Error e("E104", "--quantization " + value + " does not match the checkpoint, which is " + describe_quantization(checkpoint));
  e.in(checkpoint.quant_config_source() + ".quant_method");
  std::string other;
  for (const auto& p : impl_->plugins)
    for (const PluginMethod& m : p->methods)
      if (other.empty() && m.quant_method == method) other = m.replacement.empty() ? p->name : m.replacement;
  throw e.hint(other.empty() ? "leave the flag out" : "leave the flag out, or use --plugin " + other);
}

}  // namespace qengine
