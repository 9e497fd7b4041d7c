// The formats of this plugin, which differ in what a record holds. Each is compiled in formats/NAME.cpp.
#pragma once

#include <qe/meta.hpp>

#include "format.hpp"
#include "shared/int_format.hpp"

namespace qengine::awq {

template <class M>
struct Awq : packed::IntFormat<4, M> {
  static packed::IntMatrix bind(qe::Io& io, const qe::Part& part) {
    return awq::bind(io, part, describe(part.model(), part.name(), part.role(), part.n(), part.k()));
  }
};

using W4 = Awq<qe::meta::ScaleZero24>;             // 16-bit scales
using W4F32 = Awq<qe::meta::ScaleF32ZeroU8>;     // 32-bit scales
using W4Offset = Awq<qe::meta::ScaleOffsetF32>;  // gemv_fast: offsets in place of zero points

}  // namespace qengine::awq
