#include "apps/qengine/plugin_text.hpp"

#include <algorithm>
#include <set>

namespace qengine {
namespace {

const char* tier_name(int tier) { return tier == 1 ? "native" : tier == 2 ? "weight-only" : "reference"; }

std::string device_of(const qe_capability& c) {
  if (c.kind == QE_CPU) return "cpu";
  if (c.sm_min == 0 && c.sm_max == 0) return "cuda";
  if (c.sm_max == 0) return "sm" + std::to_string(c.sm_min) + "+";
  return "sm" + std::to_string(c.sm_min) + (c.sm_max == c.sm_min ? "" : "-" + std::to_string(c.sm_max));
}

std::size_t width(const std::string& s) {
  return static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

PluginHostOptions plugin_host_options(const Invocation& in) {
  PluginHostOptions o;
  for (const std::string& p : in.values.list("plugin-path")) o.paths.emplace_back(p);
  const std::string trust = in.values.text("trust");
  o.trust = trust == "builtin" ? Trust::kBuiltin : trust == "any" ? Trust::kAny : Trust::kHash;
  for (const ProfilePlugin& a : in.profile.allow) o.allow.push_back({a.id, a.sha256});
  return o;
}

Json plugin_json(const Plugin& p) {
  Json methods = Json::array(), capabilities = Json::array();
  if (p.weight) capabilities.push_back("qe.weight/1");
  if (p.kv) capabilities.push_back("qe.kv/1");
  for (const PluginMethod& m : p.methods) {
    Json rows = Json::array();
    for (const qe_capability& c : m.rows) {
      Json row{{"device", c.kind == QE_CPU ? "cpu" : "cuda"}, {"tier", tier_name(c.tier)}};
      if (c.kind != QE_CPU) row["sm_min"] = c.sm_min;
      if (c.kind != QE_CPU && c.sm_max != 0) row["sm_max"] = c.sm_max;
      rows.push_back(std::move(row));
    }
    Json method{{"name", m.name}, {"quant_method", m.quant_method}, {"summary", m.summary}, {"devices", std::move(rows)}};
    if (!m.replacement.empty()) method["computed_by"] = m.replacement;
    methods.push_back(std::move(method));
  }
  return {{"id", p.id}, {"name", p.name}, {"version", p.version}, {"abi", std::to_string(p.abi_major) + "." + std::to_string(p.abi_built)},
          {"path", p.path.string()}, {"sha256", p.sha256}, {"trust", p.trust}, {"methods", std::move(methods)}, {"capabilities", std::move(capabilities)}};
}

Json alias_json(const PluginAlias& a) {
  const char* const kinds[] = {"", "flag", "name", "option", "value"};
  Json j{{"kind", a.kind >= 1 && a.kind <= 4 ? kinds[a.kind] : ""}, {"alias", a.alias}, {"condition", a.condition}, {"replacement", a.replacement}, {"plugin", a.owner}};
  if (!a.since.empty()) j["since"] = a.since;
  if (!a.removed_in.empty()) j["removed_in"] = a.removed_in;
  if (!a.message.empty()) j["message"] = a.message;
  return j;
}

std::string devices_of(const Plugin& p) {
  std::set<std::string> all;
  for (const PluginMethod& m : p.methods)
    for (const qe_capability& c : m.rows) all.insert(device_of(c));
  std::string out;
  for (const std::string& d : all) out += (out.empty() ? "" : ", ") + d;
  return out;
}

std::string schemes_of(const Plugin& p) {
  std::string out;
  for (const PluginMethod& m : p.methods) out += (out.empty() ? "" : " ") + m.name;
  return out;
}

std::string capabilities_of(const PluginMethod& m) {
  std::string out;
  for (const qe_capability& c : m.rows) out += (out.empty() ? "" : ", ") + device_of(c) + " " + tier_name(c.tier);
  return out;
}

std::string indented(std::string text) {
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 3) text.insert(at + 1, "  ");
  return text;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> wide;
  for (const auto& r : rows)
    for (std::size_t c = 0; c < r.size(); ++c) {
      if (wide.size() <= c) wide.push_back(0);
      wide[c] = std::max(wide[c], width(r[c]));
    }
  std::string out;
  for (const auto& r : rows) {
    std::string line;
    for (std::size_t c = 0; c < r.size(); ++c) line += (c ? "  " : "") + r[c] + std::string(c + 1 < r.size() ? wide[c] - width(r[c]) : 0, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace qengine
