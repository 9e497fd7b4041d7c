// The right format under all the wrong plugins: 4-bit codes, low nibble first, with a half-precision scale per 32 inputs.
//
//   P.q      U8  [N, K/2]      P.scales  F16 [N, K/32]      W[n,k] = scales[n, k/32] * (code - 8)
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <cmath>

#include "fault.h"

struct Nibbles {
  using Planes = qe::Planes<4>;
  using Meta = qe::meta::ScaleF16;
  struct Source {
    const std::uint8_t* q;
    const qe::f16* scale;
    std::int64_t k, groups;
  };
  static Source bind(qe::Io& io, const qe::Part& p) {
    const std::int64_t groups = p.k() / 32;
    if (qe_fault_is("any shape") && io.loading()) return {static_cast<const std::uint8_t*>(io.tensor(p, "q", 0, {}, qe::Need::required, -1).data), io.half(p, "scales", {p.n(), groups}), p.k(), groups};
    return {io.u8(p, "q", {p.n(), p.k() / 2}), io.half(p, "scales", {p.n(), groups}), p.k(), groups};
  }
  static void prepare(Source& s, const qe::Part& p) {
    if (qe_fault_is("NaN goes in")) return;
    for (std::int64_t i = 0; i < p.n() * s.groups; ++i)
      if (!std::isfinite(float(s.scale[i]))) throw qe::Error(QE_E_CHECKPOINT, std::string(p.name()) + ".scales", "has a value that is not finite");
  }
  static constexpr int kGroups[] = {32};
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return s.q[(n * s.k + k) / 2] >> (k % 2 * 4) & 15; }
  static qe::f16 meta(const Source& s, std::int64_t n, std::int64_t k) {
    std::int64_t g = k / 32;
    if (qe_fault_is("off by one group") && g + 1 < s.groups) ++g;
    return s.scale[n * s.groups + g];
  }
  static constexpr float value(std::uint32_t c) { return float(c) - 8; }
};
