// Pieces of SVG text that every picture is made of.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace qengine::svg {

// Told apart by people who see colours differently, too.
inline constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"};
const char* colour(std::size_t i);
const char* dash(std::size_t i);  // an attribute, "" for the first eight: what tells the ninth colour from the first

std::string escaped(const std::string& text);  // for text and attributes, of XML and HTML
std::string number(double x);                  // one decimal
// "12", "0.25", "3.1e-05": as few digits as say it.
std::string plain(double x);

std::string text(double x, double y, const char* anchor, const std::string& text, const std::string& more = "");
std::string line(double x1, double y1, double x2, double y2, const std::string& stroke, const std::string& more = "");
std::string open(double width, double height, const std::string& title);

// Round steps of an axis from 0 (linear) up to `most`: about five.
std::vector<double> ticks(double most);

}  // namespace qengine::svg
