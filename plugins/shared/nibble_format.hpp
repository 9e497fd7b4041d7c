// E2M1 weights, two a byte, low nibble first, with a record for each 32 or 16 inputs.
//
//   MxFp4        E8M0 per 32: W = e2m1 * 2^(e-127)
//   NvFp4<true>  E4M3 per 16 and a divisor for the tensor: W = e2m1 * scale / G     (compressed-tensors)
//   NvFp4<false> the same with a multiplier:             W = e2m1 * scale * G     (ModelOpt)
//
// Source: OCP Microscaling Formats 1.0; compressed-tensors compressors/nvfp4; Model-Optimizer nvfp4_tensor.py.
#pragma once

#include <qe/activation.hpp>
#include <qe/format.hpp>

#include "shared/scales.hpp"

namespace qengine::packed {

struct NibbleMatrix {
  const std::uint8_t* q = nullptr;  // [N, K/2]
  std::int64_t n = 0, k = 0;
  ScaleGrid scale;  // rows 1, inputs 32 or 16
  float global = 1.0f;
  qe::Activation activation;
};

template <class M, int kInputs>
struct NibbleFormat {
  using Planes = qe::Planes<4>;
  using Meta = M;
  using Source = NibbleMatrix;
  static constexpr int kGroups[] = {kInputs};
  static constexpr float value(std::uint32_t c) { return qe::e2m1_to_f32(std::uint8_t(c)); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return s.q[(n * s.k + k) / 2] >> (k % 2 * 4) & 15; }
  static typename M::Value meta(const Source& s, std::int64_t n, std::int64_t k) { return {s.scale.byte(n * s.scale.row_stride + k / kInputs)}; }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const std::int64_t at = n * s.k + k0;
    for (int i = 0; i < count; ++i) out[i] = s.q[(at + i) / 2] >> ((at + i) % 2 * 4) & 15;
  }
  static qe::Activation activation(const Source& s) { return s.activation; }
};

using MxFp4 = NibbleFormat<qe::meta::E8M0, 32>;

template <bool kDivide>
struct NvFp4 : NibbleFormat<qe::meta::E4M3, 16> {
  static float row_scale(const NibbleMatrix& s, std::int64_t) { return s.global; }
  static constexpr float weight(float value, qe::Terms t, float row) {
    if constexpr (kDivide) return value * t.scale / row;
    else return value * t.scale * row;
  }
  static constexpr float row_factor(float row) { return kDivide ? 1.0f / row : row; }
};

}  // namespace qengine::packed
