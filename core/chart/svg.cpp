#include "core/chart/svg.hpp"

#include <cmath>
#include <cstdio>

namespace qengine::svg {

const char* colour(std::size_t i) { return kColours[i % kColours.size()]; }
const char* dash(std::size_t i) { return i / kColours.size() % 2 ? " stroke-dasharray=\"2 3\"" : ""; }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
  }
  return out;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", x);
  return text;
}

std::string plain(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  if (std::fabs(x) >= 1000 && std::fabs(x) < 1e7) std::snprintf(text, sizeof text, "%.0f", x);
  return text;
}

std::string text(double x, double y, const char* anchor, const std::string& text, const std::string& more) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" + escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& stroke, const std::string& more) {
  return "<line x1=\"" + number(x1) + "\" x2=\"" + number(x2) + "\" y1=\"" + number(y1) + "\" y2=\"" + number(y2) + "\" stroke=\"" + stroke + "\"" + more + "/>\n";
}

std::string open(double width, double height, const std::string& title) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) + " " + number(height) + "\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n<title>" + escaped(title) +
         "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
}

std::vector<double> ticks(double most) {
  if (!(most > 0)) return {0};
  double step = std::pow(10, std::floor(std::log10(most)));
  if (most / step < 2) step /= 5;
  else if (most / step < 5) step /= 2;
  std::vector<double> out;
  for (double t = 0; t <= most * (1 + 1e-9); t += step) out.push_back(t);
  return out;
}

}  // namespace qengine::svg
