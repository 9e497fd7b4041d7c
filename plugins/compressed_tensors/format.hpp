// What compressed-tensors (and ModelOpt, for FP4 and MX) write beside FP8 and packed integers:
//
//   int-quantized, naive-quantized   P.weight I8 [N, K], P.weight_scale [1] | [N, 1] | [N, K/g], P.weight_zero_point I8 when asymmetric,
//                                    static activations: P.input_scale, P.input_zero_point
//   mxfp8-quantized                  P.weight E4M3 [N, K], P.weight_scale U8 (E8M0) [N, K/32]
//   mxfp4-pack-quantized             P.weight_packed U8 [N, K/2], P.weight_scale U8 (E8M0) [N, K/32]
//   nvfp4-pack-quantized             P.weight_packed U8 [N, K/2], P.weight_scale E4M3 [N, K/16], P.weight_global_scale F32 [1], a divisor
//   ModelOpt NVFP4                   P.weight U8 [N, K/2], P.weight_scale E4M3 [N, K/16], P.weight_scale_2 F32 [], a multiplier
//   ModelOpt MXFP8                   as mxfp8-quantized
//
// Sources: vllm-project/compressed-tensors compressors/{naive_quantized,mxfp4,mxfp8,nvfp4}; NVIDIA Model-Optimizer export/.
#pragma once

#include <qe/plugin.hpp>

#include "shared/compressed_tensors_config.hpp"
#include "shared/fp8_format.hpp"
#include "shared/nibble_format.hpp"

namespace qengine::ct {

enum class Kind { kNone, kInt8Row, kInt8Zero, kMxFp8, kMxFp4, kNvFp4, kNvFp4Multiplier };

struct Module {
  Kind kind = Kind::kNone;
  std::string reason, note, scheme;
  packed::QuantArgs weights;
  bool modelopt = false, static_input = false;
  qe::Activation activation;
};

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k);
int detect(const qe_model& model, qe::Reason& why);

packed::ByteMatrix bind_bytes(qe::Io& io, const qe::Part& part, const Module& module);
packed::NibbleMatrix bind_nibbles(qe::Io& io, const qe::Part& part, const Module& module);

// Integers with zero points, or with a scale for each group of inputs.
struct Int8ZeroSource : packed::ByteMatrix {
  const std::int8_t* zero = nullptr;  // as the scales lie; nullptr: 0
};
Int8ZeroSource bind_int8_zero(qe::Io& io, const qe::Part& part, const Module& module);

inline Module describe(const qe::Part& p) { return describe(p.model(), p.name(), p.role(), p.n(), p.k()); }

struct Int8Row : packed::ByteRow<packed::Int8Value> {
  static packed::ByteMatrix bind(qe::Io& io, const qe::Part& p) { return bind_bytes(io, p, describe(p)); }
};
struct Int8Zero {
  using Planes = qe::Planes<8>;
  using Meta = qe::meta::ScaleF32ZeroU8;
  using Source = Int8ZeroSource;
  static Source bind(qe::Io& io, const qe::Part& p) { return bind_int8_zero(io, p, describe(p)); }
  static std::int64_t group(const Source& s) { return s.scale.inputs >= s.k ? 0 : s.scale.inputs; }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return s.q[n * s.k + k] ^ 0x80; }
  static Meta::Value meta(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t i = n / s.scale.rows * s.scale.row_stride + k / s.scale.inputs;
    return {s.scale.at(i), static_cast<std::uint8_t>((s.zero ? s.zero[i] : 0) + 128)};
  }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const std::uint8_t* from = s.q + n * s.k + k0;
    for (int i = 0; i < count; ++i) out[i] = from[i] ^ 0x80;
  }
  static qe::Activation activation(const Source& s) { return s.activation; }
};
struct MxFp8 : packed::ByteFormat<packed::E4M3Value, qe::meta::E8M0> {
  static constexpr int kGroups[] = {32};
  static qe::e8m0 meta(const packed::ByteMatrix& s, std::int64_t n, std::int64_t k) { return {s.scale.byte(n * s.scale.row_stride + k / 32)}; }
  static packed::ByteMatrix bind(qe::Io& io, const qe::Part& p) { return bind_bytes(io, p, describe(p)); }
};
struct MxFp4 : packed::MxFp4 {
  static packed::NibbleMatrix bind(qe::Io& io, const qe::Part& p) { return bind_nibbles(io, p, describe(p)); }
};
template <bool kDivide>
struct NvFp4Of : packed::NvFp4<kDivide> {
  static packed::NibbleMatrix bind(qe::Io& io, const qe::Part& p) { return bind_nibbles(io, p, describe(p)); }
};
using NvFp4 = NvFp4Of<true>;
using NvFp4Multiplier = NvFp4Of<false>;

}  // namespace qengine::ct
