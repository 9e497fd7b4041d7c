// bf16 weights that are not quite those of the file: each is off by up to the option "error" of itself. Everything else is right.
#pragma once

#include "plugins/bf16_ref/format.hpp"

namespace drifting {

struct Format : bf16_ref::BF16 {
  using Base = bf16_ref::BF16;
  struct Source : Base::Source {
    double error = 0;
  };
  static Source bind(qe::Io& io, const qe::Part& p) { return {Base::bind(io, p), p.config().f64("options.error", 0)}; }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, Word* out) {
    Base::unpack(s, n, k0, count, out);
    if (s.error == 0) return;
    for (int i = 0; i < count; ++i) {
      std::uint64_t h = (static_cast<std::uint64_t>(n) << 32 | static_cast<std::uint64_t>(k0 + i)) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 29, h *= 0xBF58476D1CE4E5B9ull, h ^= h >> 32;
      const double u = static_cast<double>(h >> 11) * 0x1p-52 - 1;  // -1 to 1, the same every time
      out[i] = static_cast<Word>(qe::f32_to_bf16(static_cast<float>(Base::value(out[i]) * (1 + s.error * u))));
    }
  }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    Word w = 0;
    unpack(s, n, k, 1, &w);
    return w;
  }
};

}  // namespace drifting
