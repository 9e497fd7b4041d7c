#include "tests/sdk/linear_cases.hpp"

namespace {

// Planes, record, meaning.
using Formats = testing::Types<
    Made<Planes<4>, meta::ScaleF16, Ramp<-8>>, Made<Planes<4>, meta::ScaleOffsetF16, Ramp<0>>, Made<Planes<4>, meta::ScaleF16ZeroU8, Ramp<0>>,
    Made<Planes<4>, meta::TwoLevelScaleMin, Ramp<0>>, Made<Planes<4>, meta::E8M0, E2M1>, Made<Planes<4>, meta::ScaleF16, Iq4>, Made<Planes<4>, meta::ScaleF32, Nf4>,
    Made<Planes<4>, meta::ScaleZero24, Ramp<0>>>;
INSTANTIATE_TYPED_TEST_SUITE_P(FourBits, LinearTest, Formats);

}  // namespace
