#include "tests/bench/bench.hpp"

namespace {
using namespace qe_test;

// E4M3 with a factor per row.
struct Fp8Channel : Made<qe::Planes<8>, qe::meta::None, E4M3> {
  static float row_scale(const Source&, std::int64_t) { return 0.01f; }
};
struct Int8Channel : Made<qe::Planes<8>, qe::meta::None, Ramp<-128>> {
  static float row_scale(const Source&, std::int64_t) { return 0.01f; }
};
using Q8 = Made<qe::Planes<8>, qe::meta::ScaleF16, Ramp<-128>>;
using Gptq8 = Made<qe::Planes<8>, qe::meta::ScaleF16ZeroU8, Ramp<0>>;
using Fp8Block = Made<qe::Planes<8>, qe::meta::Shared<qe::meta::ScaleF32>, E4M3>;

QE_BENCH(q8_0, Q8, 32);
QE_BENCH(gptq8_g128, Gptq8, 128);
QE_BENCH(int8_channel, Int8Channel, 0);
QE_BENCH(fp8_channel, Fp8Channel, 0);
QE_BENCH(fp8_block, Fp8Block, 128);

}  // namespace
