#include "tests/sdk/linear_cases.hpp"

namespace {

// Planes, record, meaning.
using Formats = testing::Types<
    Made<Planes<2, 1>, meta::ScaleF32ZeroU8, Ramp<0>>, Made<Planes<4, 1>, meta::ScaleF16, Ramp<-16>>, Made<Planes<4, 2>, meta::TwoLevelScale, Ramp<-32>>,
    Made<Planes<2>, meta::TwoLevelScaleMin4, Ramp<0>>, Made<Planes<2, 1>, meta::TwoLevelScale, Ramp<-4>>, Made<Planes<4, 1>, meta::TwoLevelScaleMin, Ramp<0>>,
    Made<Planes<4, 2, 1>, meta::ScaleBF16, Ramp<-64>>, Made<Planes<4, 2>, meta::E4M3, Cube>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OddBits, LinearTest, Formats);

}  // namespace
