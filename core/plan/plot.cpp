#include "core/plan/plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace qengine {
namespace {

constexpr double kWidth = 960, kHeight = 560, kLeft = 70, kRight = 270, kTop = 50, kBottom = 60;
// Told apart by people who see colours differently, too.
constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", x);
  return text;
}

std::string tokens_text(std::int64_t n) { return n % 1024 == 0 ? std::to_string(n / 1024) + "k" : std::to_string(n); }

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" + escaped(text) + "</text>\n";
}

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

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " + number(kHeight) + "\" font-family=\"sans-serif\" font-size=\"12\">\n";
  out += "<title>" + escaped(title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + text_at(kLeft, 28, "start", title, " font-size=\"16\"");
  double step = std::pow(10, std::floor(std::log10(most)));
  if (most / step < 2) step /= 5;
  else if (most / step < 5) step /= 2;
  for (double g = 0; g <= most; g += step) {
    out += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + number(y(g)) + "\" y2=\"" + number(y(g)) + "\" stroke=\"#dddddd\"/>\n";
    out += text_at(kLeft - 8, y(g) + 4, "end", step < 1 ? number(g) : std::to_string(static_cast<long long>(g + 0.5)));
  }
  for (const auto& [tokens, gib] : lines.front().points) out += text_at(x(static_cast<double>(tokens)), kHeight - kBottom + 20, "middle", tokens_text(tokens));
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", "tokens held, over all sequences");
  out += text_at(18, (kTop + kHeight - kBottom) / 2, "middle", "GiB in all", (" transform=\"rotate(-90 18 " + number((kTop + kHeight - kBottom) / 2) + ")\"").c_str());

  for (const PlotLevel& l : levels) {
    if (l.gib > limit) continue;
    out += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + number(y(l.gib)) + "\" y2=\"" + number(y(l.gib)) + "\" stroke=\"#777777\" stroke-dasharray=\"6 4\"/>\n";
    out += text_at(kLeft + 6, y(l.gib) - 5, "start", l.label, " fill=\"#555555\"");
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    const char* dash = i / kColours.size() % 2 ? " stroke-dasharray=\"2 3\"" : "";
    out += std::string("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"") + colour + "\"" + dash + " points=\"";
    for (const auto& [tokens, gib] : lines[i].points) out += number(x(static_cast<double>(tokens))) + "," + number(y(gib)) + " ";
    out += "\"/>\n";
    const double row = kTop + 10 + 18 * static_cast<double>(i);
    out += "<line x1=\"" + number(kWidth - kRight + 16) + "\" x2=\"" + number(kWidth - kRight + 40) + "\" y1=\"" + number(row - 4) + "\" y2=\"" + number(row - 4) + "\" stroke-width=\"2\" stroke=\"" + colour + "\"" + dash + "/>\n";
    out += text_at(kWidth - kRight + 46, row, "start", lines[i].label);
  }
  double row = kTop + 20 + 18 * static_cast<double>(lines.size());
  for (const PlotLevel& l : levels)
    if (l.gib > limit) out += text_at(kWidth - kRight + 16, row += 18, "start", l.label + " (above)", " fill=\"#555555\"");
  return out + "</svg>\n";
}

}  // namespace qengine
