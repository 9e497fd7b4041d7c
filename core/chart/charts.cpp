#include "core/chart/charts.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/chart/svg.hpp"

namespace qengine {
namespace {

constexpr double kWidth = 820, kHeight = 420, kLeft = 74, kTop = 48, kBottom = 56;
constexpr const char* kGrid = "#dddddd";

// From a value to a place, and the values worth a mark.
class Scale {
 public:
  Scale(bool log, double least, double most, double from, double to) : log_(log), from_(from), to_(to) {
    if (log_) {
      low_ = std::log10(least) - 0.05;
      high_ = std::log10(most) + 0.05;
      if (high_ - low_ < 0.3) low_ -= 0.15, high_ += 0.15;
    } else {
      low_ = 0;
      high_ = most > 0 ? most * 1.08 : 1;
    }
  }
  double at(double x) const { return from_ + ((log_ ? std::log10(x) : x) - low_) / (high_ - low_) * (to_ - from_); }
  std::vector<double> marks() const {
    if (!log_) return svg::ticks(high_);
    std::vector<double> out;
    const bool fine = high_ - low_ < 2;
    for (int e = static_cast<int>(std::floor(low_)); e <= static_cast<int>(std::ceil(high_)); ++e)
      for (const double m : {1.0, 2.0, 5.0})
        if (const double x = m * std::pow(10.0, e); (m == 1 || fine) && std::log10(x) >= low_ && std::log10(x) <= high_) out.push_back(x);
    return out;
  }

 private:
  bool log_;
  double from_, to_, low_, high_;
};

struct Frame {
  Scale x, y;
  std::string out;
};

Frame frame(const ChartAxes& axes, const std::vector<ChartSeries>& series, double right, const std::set<double>& marks_x) {
  double least_x = INFINITY, most_x = 0, least_y = INFINITY, most_y = 0;
  for (const ChartSeries& s : series)
    for (const ChartPoint& p : s.points) {
      least_x = std::min(least_x, p.x), most_x = std::max(most_x, p.x);
      least_y = std::min({least_y, p.y, p.low < p.high ? p.low : p.y}), most_y = std::max({most_y, p.y, p.high});
    }
  if (axes.log_y) least_y = std::max(least_y, most_y * 1e-9);
  Frame f{Scale(axes.log_x, least_x, most_x, kLeft, kWidth - right), Scale(axes.log_y, least_y, most_y, kHeight - kBottom, kTop), svg::open(kWidth, kHeight, axes.title)};
  f.out += svg::text(kLeft, 26, "start", axes.title, " font-size=\"15\" font-weight=\"600\"");
  for (const double m : f.y.marks()) {
    f.out += svg::line(kLeft, f.y.at(m), kWidth - right, f.y.at(m), kGrid);
    f.out += svg::text(kLeft - 8, f.y.at(m) + 4, "end", svg::plain(m));
  }
  for (const double m : marks_x.empty() ? f.x.marks() : std::vector<double>(marks_x.begin(), marks_x.end())) {
    f.out += svg::line(f.x.at(m), kHeight - kBottom, f.x.at(m), kHeight - kBottom + 5, "#777777");
    f.out += svg::text(f.x.at(m), kHeight - kBottom + 20, "middle", svg::plain(m));
  }
  f.out += svg::text((kLeft + kWidth - right) / 2, kHeight - 14, "middle", axes.x);
  const double middle = (kTop + kHeight - kBottom) / 2;
  f.out += svg::text(18, middle, "middle", axes.y, " transform=\"rotate(-90 18 " + svg::number(middle) + ")\"");
  return f;
}

}  // namespace

std::string line_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series) {
  constexpr double kRight = 210;
  std::set<double> marks;
  for (const ChartSeries& s : series)
    for (const ChartPoint& p : s.points) marks.insert(p.x);
  Frame f = frame(axes, series, kRight, marks.size() <= 8 ? marks : std::set<double>());
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::string colour = svg::colour(i), dash = svg::dash(i);
    // Beside each other, so that intervals of equal figures can be told apart.
    const double shift = 5 * (static_cast<double>(i) - (static_cast<double>(series.size()) - 1) / 2);
    f.out += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + colour + "\"" + dash + " points=\"";
    for (const ChartPoint& p : series[i].points) f.out += svg::number(f.x.at(p.x) + shift) + "," + svg::number(f.y.at(p.y)) + " ";
    f.out += "\"/>\n";
    for (const ChartPoint& p : series[i].points) {
      const double x = f.x.at(p.x) + shift;
      if (p.low < p.high) f.out += svg::line(x, f.y.at(p.low), x, f.y.at(p.high), colour, " stroke-width=\"2\"");
      f.out += "<circle cx=\"" + svg::number(x) + "\" cy=\"" + svg::number(f.y.at(p.y)) + "\" r=\"3.5\" fill=\"" + colour + "\"><title>" + svg::escaped(series[i].label) + ": " + svg::plain(p.y) + "</title></circle>\n";
    }
    const double row = kTop + 12 + 19 * static_cast<double>(i), left = kWidth - kRight + 18;
    f.out += svg::line(left, row - 4, left + 22, row - 4, colour, " stroke-width=\"3\"" + dash);
    f.out += svg::text(left + 28, row, "start", series[i].label);
  }
  return f.out + "</svg>\n";
}

std::string dot_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series) {
  constexpr double kRight = 60;
  Frame f = frame(axes, series, kRight, {});
  std::vector<std::pair<double, double>> labels;  // taken places
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (series[i].points.empty()) continue;
    const ChartPoint& p = series[i].points.front();
    const double x = f.x.at(p.x), y = f.y.at(p.y);
    const std::string colour = svg::colour(i);
    if (p.low < p.high) f.out += svg::line(x, f.y.at(axes.log_y ? std::max(p.low, p.y * 1e-3) : p.low), x, f.y.at(p.high), colour, " stroke-width=\"2\"");
    f.out += "<circle cx=\"" + svg::number(x) + "\" cy=\"" + svg::number(y) + "\" r=\"5\" fill=\"" + colour + "\"/>\n";
    const bool left = x > kWidth - kRight - 150;
    double at = y - 8;
    while (std::any_of(labels.begin(), labels.end(), [&](const auto& l) { return std::fabs(l.first - x) < 170 && std::fabs(l.second - at) < 13; })) at -= 13;
    labels.emplace_back(x, at);
    f.out += svg::text(left ? x - 8 : x + 8, at, left ? "end" : "start", series[i].label, " fill=\"" + colour + "\" font-weight=\"600\"");
  }
  return f.out + "</svg>\n";
}

std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<std::string>& names, const std::vector<ChartBar>& bars) {
  constexpr double kLabels = 190, kRow = 30, kHead = 74;
  const double height = kHead + kRow * static_cast<double>(bars.size()) + 16, right = 90;
  double most = 0;
  for (const ChartBar& b : bars) {
    double sum = 0;
    for (const double p : b.parts) sum += p;
    most = std::max(most, sum);
  }
  if (!(most > 0)) most = 1;
  std::string out = svg::open(kWidth, height, title) + svg::text(16, 26, "start", title, " font-size=\"15\" font-weight=\"600\"");
  double at = kLabels;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += "<rect x=\"" + svg::number(at) + "\" y=\"42\" width=\"14\" height=\"14\" fill=\"" + std::string(svg::colour(i)) + "\"/>\n" + svg::text(at + 20, 54, "start", names[i]);
    at += 40 + 7.0 * static_cast<double>(names[i].size());
  }
  for (std::size_t b = 0; b < bars.size(); ++b) {
    const double y = kHead + kRow * static_cast<double>(b);
    out += svg::text(kLabels - 10, y + 15, "end", bars[b].label);
    double x = kLabels, sum = 0;
    for (std::size_t i = 0; i < bars[b].parts.size(); ++i) {
      const double width = bars[b].parts[i] / most * (kWidth - kLabels - right);
      out += "<rect x=\"" + svg::number(x) + "\" y=\"" + svg::number(y) + "\" width=\"" + svg::number(width) + "\" height=\"20\" fill=\"" + std::string(svg::colour(i)) + "\"><title>" + svg::plain(bars[b].parts[i]) + " " + svg::escaped(unit) + "</title></rect>\n";
      x += width;
      sum += bars[b].parts[i];
    }
    out += svg::text(x + 8, y + 15, "start", svg::plain(sum) + " " + unit);
  }
  return out + "</svg>\n";
}

}  // namespace qengine
