#include <algorithm>
#include <array>
#include <cstdio>

#include "core/plugin_host/format_plan.hpp"

namespace qengine {
namespace {

// "0-3,5-35"
std::string ranges(const std::vector<int>& indices) {
  std::string out;
  for (std::size_t i = 0; i < indices.size();) {
    std::size_t j = i;
    while (j + 1 < indices.size() && indices[j + 1] == indices[j] + 1) ++j;
    out += (out.empty() ? "" : ",") + std::to_string(indices[i]);
    if (j > i) out += "-" + std::to_string(indices[j]);
    i = j + 1;
  }
  return out;
}

// "model.layers.3.self_attn.q_proj" -> "self_attn.q_proj"
std::string inside_layer(const LayerReport& r) {
  const std::string prefix = "model.layers." + std::to_string(r.index) + ".";
  return r.name.starts_with(prefix) ? r.name.substr(prefix.size()) : r.name;
}

// Columns of code points, so that a name that is not ASCII does not shift the rest.
std::size_t width(const std::string& s) {
  return static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  char text[32];
  const auto b = static_cast<double>(bytes);
  if (bytes < 1024)
    std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  else if (bytes < (1u << 20))
    std::snprintf(text, sizeof text, "%.1f KiB", b / (1 << 10));
  else if (bytes < (1u << 30))
    std::snprintf(text, sizeof text, "%.1f MiB", b / (1 << 20));
  else
    std::snprintf(text, sizeof text, "%.2f GiB", b / (1 << 30));
  return text;
}

std::string format_table(std::span<const LayerReport> report, bool expand, std::span<const TableRow> more) {
  struct Group {
    const LayerReport* first;
    std::vector<int> indices;
    std::uint64_t bytes;
  };
  std::vector<Group> groups;
  for (const LayerReport& r : report) {
    auto same = expand || r.index < 0 ? groups.end() : std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      const LayerReport& f = *g.first;
      return f.index >= 0 && inside_layer(f) == inside_layer(r) && f.plugin == r.plugin && f.scheme == r.scheme && f.kernel == r.kernel && f.tier == r.tier && f.reason == r.reason;
    });
    if (same == groups.end()) same = groups.insert(groups.end(), {&r, {}, 0});
    same->indices.push_back(r.index);
    same->bytes += r.bytes + r.persist_bytes;
  }

  std::vector<TableRow> rows{{"layers", "plugin:scheme", "kernel", "tier", "bytes", "why"}};
  std::string last_why;
  for (const Group& g : groups) {
    const LayerReport& r = *g.first;
    const std::string name = r.tied ? "embed_tokens = lm_head" : r.index >= 0 ? ranges(g.indices) + " " + inside_layer(r) : r.name.starts_with("model.") ? r.name.substr(6) : r.name;
    std::string why = r.reason;
    if (!expand && why == last_why) why.clear(); else last_why = why;  // said once for a run of rows
    if (r.tied) why += why.empty() ? "tied" : "; tied";
    rows.push_back({name, r.scheme.empty() ? r.plugin : r.plugin + ":" + r.scheme, r.kernel, r.tier, format_bytes(g.bytes), why});
  }
  rows.insert(rows.end(), more.begin(), more.end());

  std::size_t wide[5] = {};
  const auto cells = [](const TableRow& r) { return std::array<const std::string*, 6>{&r.layers, &r.plugin, &r.kernel, &r.tier, &r.bytes, &r.why}; };
  for (const TableRow& r : rows)
    for (int c = 0; c < 5; ++c) wide[c] = std::max(wide[c], width(*cells(r)[c]));
  std::string out;
  for (const TableRow& r : rows) {
    std::string line;
    for (int c = 0; c < 6; ++c) {
      const std::string& cell = *cells(r)[c];
      const std::string pad(c < 5 ? wide[c] - width(cell) : 0, ' ');
      const bool right = c == 4 && &r != &rows[0];  // numbers to the right
      line += (c ? "  " : "") + (right ? pad + cell : cell + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace qengine
