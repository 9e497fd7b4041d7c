// @NAME@: what the bytes of a checkpoint mean. Everything else is derived from this struct.
//
//   config     {"quant_method": "@NAME@", "group_size": 32}
//   P.q        U8  [N, K/2]             input k is in byte k/2, even k in its low nibble
//   P.scales   F16 [N, K/group_size]
//   W[n,k]   = scales[n, k/group_size] * (code - 8)
//
// Every optional member: qe/format.hpp, its opening comment.
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <cmath>

struct Format {
  using Planes = qe::Planes<4>;             // bits of a code: Planes<4, 1> would be 5, Planes<2, 1> 3
  using Meta = qe::meta::ScaleF16;          // what a row and a group carry: qe/meta.hpp has more
  struct Source {                           // what bind found; pointers are NULL while only planning
    const std::uint8_t* q;
    const qe::f16* scale;
    std::int64_t k, group, groups;
  };

  // Asks for the tensors of one module. Runs to plan, to list them, and to load: ask the same each time.
  static Source bind(qe::Io& io, const qe::Part& p) {
    const std::int64_t group = p.config().i64("group_size", 32), groups = p.k() / group;
    return {io.u8(p, "q", {p.n(), p.k() / 2}), io.half(p, "scales", {p.n(), groups}), p.k(), group, groups};
  }
  // Once at load, before anything is packed: refuse what cannot be, and name the tensor.
  static void prepare(Source& s, const qe::Part& p) {
    for (std::int64_t i = 0; i < p.n() * s.groups; ++i)
      if (!std::isfinite(float(s.scale[i])))
        throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, "scales"), qe::format("has a value that is not finite (row %lld)", static_cast<long long>(i / s.groups)), "the file is damaged");
  }
  static std::int64_t group(const Source& s) { return s.group; }  // inputs that share a record
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return s.q[(n * s.k + k) / 2] >> (k % 2 * 4) & 15; }
  static qe::f16 meta(const Source& s, std::int64_t n, std::int64_t k) { return s.scale[n * s.groups + k / s.group]; }
  static constexpr float value(std::uint32_t code) { return float(code) - 8; }  // before the record
};
