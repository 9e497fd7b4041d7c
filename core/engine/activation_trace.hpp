// What Runner::diagnose() saw: where activations first stopped being finite, and how large they were before.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace qengine {

struct ActivationTrace {
  int layer = -1;  // where something was not finite first; -1: in no layer
  int now = 0;     // the layer that runs
  float largest = 0;

  // "in layer 11 (float16, largest activation 6.5e4)": the exponent as people write it.
  std::string text(const char* dtype) const {
    const int exponent = largest > 0 ? static_cast<int>(std::floor(std::log10(static_cast<double>(largest)))) : 0;
    char text[96];
    std::snprintf(text, sizeof text, "(%s, largest activation %.1fe%d)", dtype, static_cast<double>(largest) / std::pow(10.0, exponent), exponent);
    return (layer >= 0 ? "in layer " + std::to_string(layer) : std::string("in lm_head")) + " " + text;
  }
};

}  // namespace qengine
