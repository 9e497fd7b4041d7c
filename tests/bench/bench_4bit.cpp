#include "tests/bench/bench.hpp"

namespace {
using namespace qe_test;

using Q40 = Made<qe::Planes<4>, qe::meta::ScaleF16, Ramp<-8>>;
using Q41 = Made<qe::Planes<4>, qe::meta::ScaleOffsetF16, Ramp<0>>;
using Gptq4 = Made<qe::Planes<4>, qe::meta::ScaleF16ZeroU8, Ramp<0>>;
using Mxfp4 = Made<qe::Planes<4>, qe::meta::E8M0, E2M1>;
using Nf4Block = Made<qe::Planes<4>, qe::meta::ScaleF32, Nf4>;

QE_BENCH(q4_0, Q40, 32);
QE_BENCH(q4_1, Q41, 32);
QE_BENCH(gptq4_g128, Gptq4, 128);
QE_BENCH(gptq4_g128_act_order, Gptq4, 128, 0, true);
QE_BENCH(mxfp4, Mxfp4, 32);
QE_BENCH(nf4, Nf4Block, 64);
QE_BENCH(q4_0_exact, Q40, 32, QE_LAYER_EXACT);

}  // namespace
