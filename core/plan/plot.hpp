// Memory against context as an SVG picture: one line an arm, one dashed level a card.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace qengine {

struct PlotLine {
  std::string label;
  std::vector<std::pair<std::int64_t, double>> points;  // tokens, GiB; tokens rising
};
struct PlotLevel {
  std::string label;
  double gib = 0;
};

// REQUIRES: at least one line, each with at least two points.
std::string plot_svg(const std::string& title, const std::vector<PlotLine>& lines, const std::vector<PlotLevel>& levels);

}  // namespace qengine
