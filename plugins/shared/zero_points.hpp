// Zero points where there should be none.
#pragma once

#include <algorithm>

#include "shared/scales.hpp"

namespace qengine::packed {

// Zero points of symmetric weights or activations: some writers store them, and they are zero. Others would move every value.
inline void require_no_offset(qe::Io& io, const qe::Part& p, const char* suffix) {
  const qe_tensor t = io.tensor(p, suffix, qe::dtype_bit(QE_I8) | qe::dtype_bit(QE_U8) | qe::dtype_bit(QE_E4M3) | qe::dtype_bit(QE_I32) | kScaleFloats, {}, qe::Need::optional, -1);
  if (!t.data || !io.loading()) return;
  const std::int64_t width = t.dtype == QE_F32 || t.dtype == QE_I32 ? 4 : t.dtype == QE_F16 || t.dtype == QE_BF16 ? 2 : 1;
  const auto* byte = static_cast<const std::uint8_t*>(t.data);
  if (std::any_of(byte, byte + elements(t) * width, [](std::uint8_t b) { return b != 0; }))
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, suffix), "is not zero, though symmetric is true",
                    "symmetric in quantization_config is not what the tensors were made with");
}

}  // namespace qengine::packed
