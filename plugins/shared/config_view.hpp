// ConfigView: a quantization config by dotted path, where absent, wrong type and value are three things.
// JSON null counts as absent. Copies what it returns.
#pragma once

#include <qe/plugin.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

namespace qengine::packed {

class ConfigView {
 public:
  explicit ConfigView(qe_cfg cfg) : cfg_(cfg) {}

  bool has(const std::string& path) const { return cfg_.has(path.c_str()); }
  std::int64_t size(const std::string& path) const { return std::max<std::int64_t>(0, cfg_.size(path.c_str())); }
  std::string key(const std::string& path, std::int64_t i) const { return cfg_.key(path.c_str(), i); }
  std::optional<std::string> text(const std::string& path) const {
    qe_str s{};
    if (!qe::host().cfg_str(qe::host().self, cfg_.raw(), path.c_str(), &s)) return std::nullopt;
    return std::string(qe::view(s));
  }
  std::optional<std::int64_t> whole(const std::string& path) const {
    std::int64_t v = 0;
    if (!qe::host().cfg_i64(qe::host().self, cfg_.raw(), path.c_str(), &v)) return std::nullopt;
    return v;
  }
  bool flag(const std::string& path, bool absent) const { return whole(path).value_or(absent) != 0; }

  // The value for an error text.
  std::string shown(const std::string& path) const {
    if (const auto s = text(path)) return "'" + *s + "'";
    if (const auto v = whole(path)) return std::to_string(*v);
    double d = 0;
    if (qe::host().cfg_f64(qe::host().self, cfg_.raw(), path.c_str(), &d)) return qe::format("%g", d);
    return has(path) ? "no single value" : "absent";
  }

 private:
  qe::Config cfg_;
};

inline std::string lower(std::string s) {
  std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return std::tolower(c); });
  return s;
}

}  // namespace qengine::packed
