#include "tests/bench/bench.hpp"

namespace {
using namespace qe_test;

// 576 is no multiple of 256: the last super is short here, which files avoid and the container does not mind.
using Q4K = Made<qe::Planes<4>, qe::meta::TwoLevelScaleMin, Ramp<0>>;
using Q5K = Made<qe::Planes<4, 1>, qe::meta::TwoLevelScaleMin, Ramp<0>>;
using Q6K = Made<qe::Planes<4, 2>, qe::meta::TwoLevelScale, Ramp<-32>>;
using Q50 = Made<qe::Planes<4, 1>, qe::meta::ScaleF16, Ramp<-16>>;

QE_BENCH(q4_k, Q4K, 32);
QE_BENCH(q5_k, Q5K, 32);
QE_BENCH(q6_k, Q6K, 16);
QE_BENCH(q5_0, Q50, 32);

}  // namespace
