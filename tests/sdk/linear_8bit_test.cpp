#include "tests/sdk/linear_cases.hpp"

namespace {

// Planes, record, meaning.
using Formats = testing::Types<
    Made<Planes<8>, meta::ScaleF16, Ramp<-128>>, Made<Planes<8>, meta::ScaleBF16ZeroU8, Ramp<0>>, Made<Planes<8>, meta::ScaleF32, E4M3>,
    Made<Planes<8>, meta::Shared<meta::ScaleF32>, E4M3>, Made<Planes<8>, meta::E8M0, E4M3>, Made<Planes<8>, meta::None, E5M2>,
    Made<Planes<8>, meta::ScaleOffsetF32, Ramp<-127>>>;
INSTANTIATE_TYPED_TEST_SUITE_P(EightBits, LinearTest, Formats);

}  // namespace
