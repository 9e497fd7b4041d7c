// The cells of a report's table as text: what Markdown and the page have in common.
#pragma once

#include <string>
#include <vector>

#include "core/report/report.hpp"

namespace qengine::report {

struct Cell {
  std::string text, detail;  // detail: an interval or a ratio, shown smaller
  std::string grade;         // "pass", "warn", "fail", "" for none
};
struct Column {
  std::string head, help;
};
struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

Table speed_table(const ReportJson& report);
Table quality_table(const ReportJson& report);
// One or two sentences a reader takes away: what the best arms save and cost.
std::vector<std::string> findings(const ReportJson& report);

std::string gib(double bytes);
std::string digits(double x, int n);      // n decimals
std::string significant(double x, int n);  // n significant digits

}  // namespace qengine::report
