// Charts of a report: figures of several arms side by side, with their intervals.
#pragma once

#include <string>
#include <vector>

namespace qengine {

struct ChartPoint {
  double x = 0, y = 0, low = 0, high = 0;  // low == high: no interval
};
struct ChartSeries {
  std::string label;
  std::vector<ChartPoint> points;
};

struct ChartAxes {
  std::string title, x, y;
  bool log_x = false, log_y = false;  // else from 0
};

// A line a series, with intervals as bars. REQUIRES: a point, positive values on logarithmic axes.
std::string line_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series);
// A labelled dot a series (its first point).
std::string dot_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series);

struct ChartBar {
  std::string label;
  std::vector<double> parts;  // stacked, in the order of `names`
};
std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<std::string>& names, const std::vector<ChartBar>& bars);

}  // namespace qengine
