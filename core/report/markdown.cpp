// The report for people who read it in a terminal or a repository.
#include "core/report/report.hpp"
#include "core/report/table.hpp"

namespace qengine {
namespace {

std::string cell(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '|') text.insert(i++, "\\");
    else if (text[i] == '\n') text[i] = ' ';
  return text;
}

std::string markdown(const report::Table& t) {
  std::string out = "|", rule = "|";
  for (const auto& c : t.columns) out += " " + cell(c.head) + " |", rule += &c == &t.columns.front() ? "---|" : "--:|";
  out += "\n" + rule + "\n";
  for (const auto& row : t.rows) {
    out += "|";
    for (const auto& c : row) out += " " + cell(c.text) + (c.detail.empty() ? "" : " (" + cell(c.detail) + ")") + " |";
    out += "\n";
  }
  return out;
}

}  // namespace

std::string report_markdown(const ReportJson& r) {
  std::string out = "# " + r["title"].get<std::string>() + "\n\n";
  for (const std::string& f : report::findings(r)) out += "- " + f + "\n";
  const ReportJson& record = r["record"];
  if (r["arms"].size() && !r["arms"][0]["levels"].empty()) out += "\n## Memory and speed\n\n" + markdown(report::speed_table(r)) + "\n" + record.value("method", std::string()) + "\n";
  out += "\n## Answers\n\n";
  if (r.contains("no_quality")) out += r["no_quality"].get<std::string>() + "\n";
  else out += markdown(report::quality_table(r)) + "\n" + record.value("quality_method", std::string()) + "\n";
  for (const ReportJson& a : r["arms"]) {
    if (a.contains("task_failures") && !a["task_failures"].empty()) {
      out += "\n<details><summary>" + a["name"].get<std::string>() + ": " + std::to_string(a["task_failures"].size()) + " tasks failed</summary>\n\n";
      for (const ReportJson& f : a["task_failures"]) out += "- " + f["suite"].get<std::string>() + " `" + f["id"].get<std::string>() + "`: " + cell(f["why"].get<std::string>()) + "\n";
      out += "\n</details>\n";
    }
  }
  out += "\n## Formats\n\n| arm | flags | plugin:scheme | kernel | tier | layers | bytes |\n|---|---|---|---|---|--:|--:|\n";
  for (const ReportJson& a : r["arms"])
    if (a.contains("format"))
      for (const ReportJson& f : a["format"])
        out += "| " + a["name"].get<std::string>() + " | `" + cell(a["flags"].get<std::string>()) + "` | " + f["plugin"].get<std::string>() + ":" + f["scheme"].get<std::string>() + " | " + f["kernel"].get<std::string>() + " | " + (f["tier"].is_string() ? f["tier"].get<std::string>() : f["tier"].dump()) + " | " +
               f["layers"].dump() + " | " + f["bytes"].dump() + " |\n";
  out += "\n## This run\n\n```json\n" + record.dump(1) + "\n```\n";
  return out;
}

}  // namespace qengine
