#include "core/plan/plot.hpp"

#include <algorithm>
#include <cmath>

#include "core/chart/svg.hpp"

namespace qengine {

using svg::number;

namespace {

constexpr double kWidth = 960, kHeight = 560, kLeft = 70, kRight = 270, kTop = 50, kBottom = 60;

std::string tokens_text(std::int64_t n) { return n % 1024 == 0 ? std::to_string(n / 1024) + "k" : std::to_string(n); }

}  // namespace

std::string plot_svg(const std::string& title, const std::vector<PlotLine>& lines, const std::vector<PlotLevel>& levels) {
  double most = 0, least_x = INFINITY, most_x = 0;
  for (const PlotLine& l : lines)
    for (const auto& [tokens, gib] : l.points) {
      most = std::max(most, gib);
      least_x = std::min(least_x, std::log2(static_cast<double>(tokens)));
      most_x = std::max(most_x, std::log2(static_cast<double>(tokens)));
    }
  // A level far above every line would flatten them all: it is named, but not drawn.
  const double limit = most * 2;
  for (const PlotLevel& l : levels)
    if (l.gib <= limit) most = std::max(most, l.gib);
  most *= 1.05;
  const auto x = [&](double tokens) { return kLeft + (std::log2(tokens) - least_x) / std::max(1e-9, most_x - least_x) * (kWidth - kLeft - kRight); };
  const auto y = [&](double gib) { return kHeight - kBottom - gib / most * (kHeight - kTop - kBottom); };

  std::string out = svg::open(kWidth, kHeight, title) + svg::text(kLeft, 28, "start", title, " font-size=\"16\"");
  for (const double g : svg::ticks(most)) {
    out += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + number(y(g)) + "\" y2=\"" + number(y(g)) + "\" stroke=\"#dddddd\"/>\n";
    out += svg::text(kLeft - 8, y(g) + 4, "end", svg::plain(g));
  }
  for (const auto& [tokens, gib] : lines.front().points) out += svg::text(x(static_cast<double>(tokens)), kHeight - kBottom + 20, "middle", tokens_text(tokens));
  out += svg::text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", "tokens held, over all sequences");
  out += svg::text(18, (kTop + kHeight - kBottom) / 2, "middle", "GiB in all", (" transform=\"rotate(-90 18 " + number((kTop + kHeight - kBottom) / 2) + ")\"").c_str());

  for (const PlotLevel& l : levels) {
    if (l.gib > limit) continue;
    out += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + number(y(l.gib)) + "\" y2=\"" + number(y(l.gib)) + "\" stroke=\"#777777\" stroke-dasharray=\"6 4\"/>\n";
    out += svg::text(kLeft + 6, y(l.gib) - 5, "start", l.label, " fill=\"#555555\"");
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* colour = svg::colour(i);
    const char* dash = svg::dash(i);
    out += std::string("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"") + colour + "\"" + dash + " points=\"";
    for (const auto& [tokens, gib] : lines[i].points) out += number(x(static_cast<double>(tokens))) + "," + number(y(gib)) + " ";
    out += "\"/>\n";
    const double row = kTop + 10 + 18 * static_cast<double>(i);
    out += "<line x1=\"" + number(kWidth - kRight + 16) + "\" x2=\"" + number(kWidth - kRight + 40) + "\" y1=\"" + number(row - 4) + "\" y2=\"" + number(row - 4) + "\" stroke-width=\"2\" stroke=\"" + colour + "\"" + dash + "/>\n";
    out += svg::text(kWidth - kRight + 46, row, "start", lines[i].label);
  }
  double row = kTop + 20 + 18 * static_cast<double>(lines.size());
  for (const PlotLevel& l : levels)
    if (l.gib > limit) out += svg::text(kWidth - kRight + 16, row += 18, "start", l.label + " (above)", " fill=\"#555555\"");
  return out + "</svg>\n";
}

}  // namespace qengine
