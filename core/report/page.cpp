// The report as one page: no script, no outside resource, good on paper too.
#include "core/chart/svg.hpp"
#include "core/report/report.hpp"
#include "core/report/table.hpp"

namespace qengine {
namespace {

using Json = ReportJson;
using svg::escaped;

constexpr const char* kStyle = R"css(
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #1b2430; background: #f4f6f9; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 28px 64px; }
header h1 { margin: 0 0 4px; font-size: 27px; letter-spacing: -.01em; }
header p { margin: 0; color: #5b6775; }
section { background: #fff; border: 1px solid #e1e6ec; border-radius: 10px; padding: 20px 24px; margin-top: 20px; break-inside: avoid; }
h2 { margin: 0 0 12px; font-size: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; margin-top: 22px; }
.card { background: #fff; border: 1px solid #e1e6ec; border-left: 4px solid #0072b2; border-radius: 10px; padding: 14px 18px; }
.card b { display: block; font-size: 12px; text-transform: uppercase; letter-spacing: .06em; color: #5b6775; margin-bottom: 2px; }
.card.bad { border-left-color: #b3261e; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; font-size: 12.5px; color: #47525f; border-bottom: 2px solid #cfd7e0; padding: 6px 8px; vertical-align: bottom; }
td { text-align: right; padding: 7px 8px; border-bottom: 1px solid #e8ecf1; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { font-weight: 600; white-space: normal; min-width: 150px; }
td small { display: block; color: #6a7683; font-size: 11.5px; white-space: normal; }
tr:last-child td { border-bottom: 0; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px; }
.pass, .warn, .fail { display: inline-block; border-radius: 9px; padding: 1px 10px; font-size: 12.5px; font-weight: 600; }
.pass { background: #d9f2e3; color: #0b6b39; } .warn { background: #fdf0cf; color: #7a5500; } .fail { background: #fadbd8; color: #96201a; }
.note { color: #5b6775; font-size: 13.5px; margin: 12px 0 0; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 18px; }
.pictures svg { width: 100%; height: auto; }
details { margin-top: 10px; } summary { cursor: pointer; font-weight: 600; }
ul { margin: 8px 0; padding-left: 20px; } li { margin: 3px 0; }
pre { background: #f4f6f9; border-radius: 6px; padding: 12px; font-size: 12px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-size: 13px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; } dt { color: #5b6775; } dd { margin: 0; overflow-wrap: anywhere; }
td.left, th.left { text-align: left; white-space: normal; }
@media print { body { background: #fff; } section, .card { border-color: #bbb; } main { padding: 0; max-width: none; } }
)css";

std::string table(const report::Table& t, bool swatches) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const auto& c : t.columns) out += "<th title=\"" + escaped(c.help) + "\">" + escaped(c.head) + "</th>";
  out += "</tr></thead><tbody>";
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    out += "<tr>";
    for (const auto& c : t.rows[i]) {
      out += "<td>";
      if (swatches && &c == &t.rows[i].front()) out += std::string("<span class=\"swatch\" style=\"background:") + svg::colour(i) + "\"></span>";
      out += c.grade.empty() ? escaped(c.text) : "<span class=\"" + c.grade + "\">" + escaped(c.text) + "</span>";
      if (!c.detail.empty()) out += "<small>" + escaped(c.detail) + "</small>";
      out += "</td>";
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

void entry(std::string& out, const std::string& name, const std::string& value) {
  if (!value.empty()) out += "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>";
}

std::string text_of(const Json& j) { return j.is_string() ? j.get<std::string>() : j.dump(); }

}  // namespace

std::string report_page(const Json& r) {
  const Json& record = r["record"];
  const std::string title = r["title"];
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>" + escaped(title) + "</title><style>" + kStyle + "</style></head><body><main>\n";
  out += "<header><h1>" + escaped(title) + "</h1><p>" + escaped(record.value("subtitle", std::string())) + "</p></header>\n";
  out += "<div class=\"cards\">";
  for (const std::string& f : report::findings(r)) {
    const auto colon = f.find(':');
    const bool bad = f.starts_with("Not to be used");
    out += std::string("<div class=\"card") + (bad ? " bad" : "") + "\"><b>" + escaped(f.substr(0, colon)) + "</b>" + escaped(f.substr(colon + 2)) + "</div>";
  }
  out += "</div>\n";
  if (!r["arms"].empty() && !r["arms"][0]["levels"].empty())
    out += "<section><h2>Memory and speed</h2>" + table(report::speed_table(r), true) + "<p class=\"note\">" + escaped(record.value("method", std::string())) + "</p></section>\n";
  out += "<section><h2>Answers</h2>";
  if (r.contains("no_quality")) out += "<p>" + escaped(r["no_quality"].get<std::string>()) + "</p>";
  else out += table(report::quality_table(r), true) + "<p class=\"note\">" + escaped(record.value("quality_method", std::string())) + "</p>";
  std::string failures;
  for (const Json& a : r["arms"]) {
    if (!a.contains("task_failures") || a["task_failures"].empty()) continue;
    failures += "<details><summary>" + escaped(a["name"].get<std::string>()) + ": " + std::to_string(a["task_failures"].size()) + " tasks failed</summary><ul>";
    for (const Json& f : a["task_failures"]) failures += "<li>" + escaped(f["suite"].get<std::string>()) + " <code>" + escaped(f["id"].get<std::string>()) + "</code>: " + escaped(f["why"].get<std::string>()) + "</li>";
    failures += "</ul></details>";
  }
  out += failures + "</section>\n";
  const auto pictures = report_pictures(r);
  if (!pictures.empty()) {
    out += "<section><h2>Pictures</h2><div class=\"pictures\">";
    for (const auto& [name, picture] : pictures) out += "<div>" + picture + "</div>";
    out += "</div></section>\n";
  }
  out += "<section><h2>Formats</h2><div class=\"scroll\"><table><thead><tr><th>arm</th><th class=\"left\">flags</th><th class=\"left\">plugin:scheme</th><th class=\"left\">kernel</th><th>tier</th><th>layers</th><th>MiB</th></tr></thead><tbody>";
  for (const Json& a : r["arms"]) {
    if (!a.contains("format")) continue;
    bool first = true;
    for (const Json& f : a["format"]) {
      out += "<tr><td>" + (first ? escaped(a["name"].get<std::string>()) : std::string()) + "</td><td class=\"left\"><code>" + (first ? escaped(a["flags"].get<std::string>()) : std::string()) + "</code></td><td class=\"left\">" + escaped(text_of(f["plugin"]) + ":" + text_of(f["scheme"])) +
             "</td><td class=\"left\">" + escaped(text_of(f["kernel"])) + "</td><td>" + escaped(text_of(f["tier"])) + "</td><td>" + f["layers"].dump() + "</td><td>" + report::digits(f["bytes"].get<double>() / (1 << 20), 1) + "</td></tr>";
      first = false;
    }
  }
  out += "</tbody></table></div></section>\n<section><h2>This run</h2><dl>";
  const auto get = [&](const char* a, const char* b) -> std::string {
    if (!record.contains(a)) return {};
    const Json& j = record[a];
    if (!*b) return text_of(j);
    return j.is_object() && j.contains(b) ? text_of(j[b]) : std::string();
  };
  entry(out, "started", get("started", ""));
  entry(out, "command", get("command", ""));
  entry(out, "program", "qengine " + get("program", "version") + ", commit " + get("program", "commit") + ", " + get("program", "compiler"));
  entry(out, "model", get("model", "path"));
  entry(out, "model sha256", get("model", "sha256"));
  entry(out, "machine", get("machine", "processor") + ", " + get("machine", "threads") + " threads, " + get("machine", "system"));
  entry(out, "device", get("machine", "gpu"));
  entry(out, "text sha256", get("text", "sha256"));
  entry(out, "prompts sha256", get("prompts_sha256", ""));
  out += "</dl>";
  if (record.contains("plugins")) {
    out += "<details><summary>Plugins</summary><div class=\"scroll\"><table><thead><tr><th>plugin</th><th>version</th><th class=\"left\">sha256</th></tr></thead><tbody>";
    for (const Json& p : record["plugins"]) out += "<tr><td>" + escaped(text_of(p["name"])) + "</td><td>" + escaped(text_of(p["version"])) + "</td><td class=\"left\"><code>" + escaped(text_of(p["sha256"])) + "</code></td></tr>";
    out += "</tbody></table></div></details>";
  }
  out += "<details><summary>Everything that was recorded</summary><pre>" + escaped(record.dump(1)) + "</pre></details></section>\n</main></body></html>\n";
  return out;
}

}  // namespace qengine
