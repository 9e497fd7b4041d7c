#include "tests/bench/bench.hpp"

namespace {

template <qe::Wide W>
struct Plain {
  static constexpr qe::Wide kWide = W;
  using Planes = qe::Planes<W == qe::Wide::f32 ? 32 : 16>;
  using Meta = qe::meta::None;
  using Source = qe_test::Source;
  static constexpr int kGroups[] = {0};
  static Source bind(qe::Io&, const qe::Part&) { return {}; }
  static std::uint32_t code(const Source&, std::int64_t n, std::int64_t k) { return std::uint32_t(n + k); }
  static Meta::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static float value(std::uint32_t) { return 0; }
};
using Bf16 = Plain<qe::Wide::bf16>;
using F16 = Plain<qe::Wide::f16>;
using F32 = Plain<qe::Wide::f32>;

QE_BENCH(bf16, Bf16, 0);
QE_BENCH(f16, F16, 0);
QE_BENCH(f32, F32, 0);

}  // namespace
