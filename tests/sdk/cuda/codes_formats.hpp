// Two formats of E4M3 codes for products in FP8: scales of a matrix or of rows, and of blocks of 128 x 128.
#pragma once

#include <qe/activation.hpp>

#include <algorithm>

#include "tests/sdk/formats.hpp"

namespace qe_test {

// What the next layers are like.
struct CodesCase {
  bool one_scale = false;       // CodesRow: of a part
  std::int64_t block_rows = 128;
  qe::Activation activation;
  float scale_of_part = 1.0f;   // static scales: from part to part
};
inline CodesCase& codes_case() { static CodesCase c; return c; }

struct CodesSource {
  std::int64_t part = 0;
};

template <class M>
struct CodesBase {
  using Planes = qe::Planes<8>;
  using Meta = M;
  using Source = CodesSource;
  static Source bind(qe::Io&, const qe::Part& p) { return {p.name().empty() ? 0 : p.name().back() - '0'}; }
  static constexpr float value(std::uint32_t c) { return qe::e4m3_to_f32(std::uint8_t(c)); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    return qe::f32_to_e4m3((unit(hash(std::uint64_t(n), std::uint64_t(k), std::uint64_t(s.part))) - 0.5f) * 896.0f);
  }
  static qe::Activation activation(const Source& s) {
    qe::Activation a = codes_case().activation;
    for (std::int64_t i = 0; i < s.part; ++i) a.scale *= codes_case().scale_of_part;
    return a;
  }
};
struct CodesRow : CodesBase<qe::meta::None> {
  static std::int64_t group(const Source&) { return 0; }
  static qe::meta::None::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static float row_scale(const Source& s, std::int64_t n) { return positive(hash(codes_case().one_scale ? 0 : std::uint64_t(n), 5, std::uint64_t(s.part))); }
  static std::int64_t rows_per_scale(const Source&) { return codes_case().one_scale ? 0 : 1; }
};
struct CodesBlock : CodesBase<qe::meta::Shared<qe::meta::ScaleF32>> {
  static std::int64_t group(const Source&) { return 128; }
  static float meta(const Source& s, std::int64_t n, std::int64_t k) { return positive(hash(std::uint64_t(n / codes_case().block_rows), std::uint64_t(k / 128), std::uint64_t(s.part))); }
  static std::int64_t rows_per_scale(const Source&) { return codes_case().block_rows; }
};

}  // namespace qe_test
