// A report: what each format of one model costs and gives, made of the JSON that bench and eval print.
//
// The report itself is JSON (docs/report.md): scripts read it, and the page, the Markdown and the pictures are made of nothing
// else. Nothing here runs a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace qengine {

using ReportJson = nlohmann::ordered_json;

// What was measured of one arm; members are null where nothing was.
struct ArmPieces {
  std::string name, flags;              // flags: as one would type them
  ReportJson inspect;                   // inspect --json
  std::vector<ReportJson> speed;        // bench throughput --method articles --json, one a round, in order
  ReportJson ppl, kl, greedy, tasks;    // eval ... --json; kl and greedy against the first arm
};

// The first arm is the one that ratios and divergences refer to. `record`: what identifies the run. `no_quality`: why there are no
// quality columns; "" when there are.
ReportJson make_report(const std::string& title, const ReportJson& record, const std::vector<ArmPieces>& arms, const std::string& no_quality);

// Figures of two reports on the same arms that their intervals do not explain: [{"arm","figure","this","other"}], and how many were
// compared.
struct Disagreements {
  ReportJson list = ReportJson::array();
  std::int64_t compared = 0;
};
Disagreements compare_reports(const ReportJson& one, const ReportJson& other);

std::string report_markdown(const ReportJson& report);
// One page without outside resources; pictures are part of it.
std::string report_page(const ReportJson& report);
// File names and SVG texts.
std::vector<std::pair<std::string, std::string>> report_pictures(const ReportJson& report);

}  // namespace qengine
