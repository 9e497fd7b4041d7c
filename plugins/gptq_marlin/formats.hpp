// The formats of this plugin: one for each number of bits with 16-bit scales, and for 32-bit scales one for
// 4 bits and one for the rest, whose codes then take a byte each. Each is compiled in formats/NAME.cpp.
#pragma once

#include <qe/meta.hpp>

#include "format.hpp"
#include "shared/int_format.hpp"

namespace qengine::gptq {

template <int Bits, class M>
struct Gptq : packed::IntFormat<Bits, M> {
  static packed::IntMatrix bind(qe::Io& io, const qe::Part& part) {
    return gptq::bind(io, part, describe(part.model(), part.name(), part.role(), part.n(), part.k()));
  }
};

using W2 = Gptq<2, qe::meta::ScaleZero24>;
using W3 = Gptq<3, qe::meta::ScaleZero24>;
using W4 = Gptq<4, qe::meta::ScaleZero24>;
using W5 = Gptq<5, qe::meta::ScaleZero24>;
using W6 = Gptq<6, qe::meta::ScaleZero24>;
using W7 = Gptq<7, qe::meta::ScaleZero24>;
using W8 = Gptq<8, qe::meta::ScaleZero24>;
using W4F32 = Gptq<4, qe::meta::ScaleF32ZeroU8>;
using WxF32 = Gptq<packed::kAnyBits, qe::meta::ScaleF32ZeroU8>;

}  // namespace qengine::gptq
