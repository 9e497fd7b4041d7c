#include "format.hpp"

#include <algorithm>

namespace qengine::online {
namespace {

std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

float amax(const Source& s, const qe::Part& p, std::int64_t row, std::int64_t k0, std::int64_t k1) {
  float m = 0;
  bool finite = true;
  for (std::int64_t k = k0; k < k1; ++k) {
    const float a = std::fabs(s.at(row, k));
    finite &= std::isfinite(a);
    m = std::max(m, a);
  }
  if (!finite)
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, "weight"), qe::format("has values that are not finite (first seen in row %lld)", static_cast<long long>(row)),
                    "such a matrix cannot be quantized; the file is damaged");
  return m;
}

void scale_rows(const Source& s, const qe::Part& p, float largest) {
  s.scale->assign(static_cast<std::size_t>(s.n), 1.0f);
  const float least = largest == 448.0f ? 1.0f / (448.0f * 512.0f) : 1e-10f;
  qe::parallel_for(up(s.n, 64), [&](std::int64_t c) {
    for (std::int64_t r = c * 64; r < std::min(s.n, (c + 1) * 64); ++r) (*s.scale)[static_cast<std::size_t>(r)] = std::max(amax(s, p, r, 0, s.k) / largest, least);
  });
}

void scale_tensor(const Source& s, const qe::Part& p) {
  std::vector<float> rows(static_cast<std::size_t>(up(s.n, 64)));
  qe::parallel_for(up(s.n, 64), [&](std::int64_t c) {
    for (std::int64_t r = c * 64; r < std::min(s.n, (c + 1) * 64); ++r) rows[static_cast<std::size_t>(c)] = std::max(rows[static_cast<std::size_t>(c)], amax(s, p, r, 0, s.k));
  });
  const float m = rows.empty() ? 0.0f : *std::max_element(rows.begin(), rows.end());
  s.scale->assign(1, m == 0 ? 1.0f : m / 448.0f);
}

void scale_blocks(const Source& s, const qe::Part& p) {
  const std::int64_t across = up(s.k, kBlock);
  s.scale->assign(static_cast<std::size_t>(up(s.n, kBlock) * across), 0.0f);
  qe::parallel_for(up(s.n, kBlock), [&](std::int64_t b) {
    for (std::int64_t c = 0; c < across; ++c) {
      float m = 0;
      for (std::int64_t r = b * kBlock; r < std::min(s.n, (b + 1) * kBlock); ++r) m = std::max(m, amax(s, p, r, c * kBlock, std::min(s.k, (c + 1) * kBlock)));
      (*s.scale)[static_cast<std::size_t>(b * across + c)] = std::max(m, 1e-4f) / 448.0f;
    }
  });
}

void scale_mx(const Source& s, const qe::Part& p, int emax) {
  const std::int64_t across = up(s.k, 32);
  s.scale->assign(static_cast<std::size_t>(s.n * across), 0.0f);
  qe::parallel_for(up(s.n, 64), [&](std::int64_t c) {
    for (std::int64_t r = c * 64; r < std::min(s.n, (c + 1) * 64); ++r)
      for (std::int64_t g = 0; g < across; ++g)
        // Exponents below 1 would be subnormal scales: never needed for weights, and slow.
        (*s.scale)[static_cast<std::size_t>(r * across + g)] = std::max(qe::act::mx_scale(amax(s, p, r, g * 32, std::min(s.k, (g + 1) * 32)), emax), 0x1p-126f);
  });
}

}  // namespace qengine::online
