// bitsandbytes, 4 bits and LLM.int8().
//
//   4 bits  P.weight                 U8 (or another storage type) of ceil(N*K/2) bytes; high nibble first; blocks run over the flat [N, K]
//           P.weight.absmax          F32 [nb], or U8 [nb] when nested; nb = ceil(N*K / blocksize)
//           P.weight.quant_map       F32 [16]: the built-in table, compared
//           P.weight.nested_absmax   F32 [ceil(nb/256)], P.weight.nested_quant_map F32 [256]
//           P.weight.quant_state.bitsandbytes__nf4 | __fp4   U8: JSON {quant_type, blocksize, shape, nested_*}
//           W = table[code] * absmax[flat / blocksize], one rounding; absmax = map[u8] * nested_absmax[i/256] + offset when nested
//   8 bits  P.weight I8 [N, K], P.SCB F32 [N]: W = q * SCB[n] / 127; P.weight_format U8 []: 0 = row-major
//
// Outlier columns of LLM.int8() are not split off: weights are multiplied as they are, which is more accurate.
// Source: bitsandbytes functional.py QuantState.as_dict, backends/default/ops.py, nn/modules.py.
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <memory>
#include <numeric>
#include <vector>

#include "shared/fp8_format.hpp"

namespace qengine::bnb {

enum class Kind { kNone, kNf4, kFp4, kInt8 };

struct Module {
  Kind kind = Kind::kNone;
  std::string reason;
};
Module describe(const qe_model& model, std::string_view name, int role);
int detect(const qe_model& model, qe::Reason& why);

struct FourBit {
  const std::uint8_t* q = nullptr;
  std::int64_t n = 0, k = 0, blocksize = 64;
  std::shared_ptr<const std::vector<float>> absmax;  // resolved
};
FourBit bind_four(qe::Io& io, const qe::Part& part, Kind kind);
packed::ByteMatrix bind_int8(qe::Io& io, const qe::Part& part);

inline constexpr float kNf4[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
                                   -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                                   0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
inline constexpr float kFp4Magnitude[8] = {0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12};
inline constexpr float fp4_value(std::uint32_t c) { return c > 8 ? -kFp4Magnitude[c & 7] : kFp4Magnitude[c & 7]; }  // code 8 is +0 too

template <Kind kKind>
struct Four {
  using Planes = qe::Planes<4>;
  using Meta = qe::meta::ScaleF32;
  using Source = FourBit;
  static Source bind(qe::Io& io, const qe::Part& p) { return bind_four(io, p, kKind); }
  // Blocks of the flat matrix may cross rows: within a row these many inputs always share one.
  static std::int64_t group(const Source& s) { return std::gcd(s.k, s.blocksize); }
  static constexpr float value(std::uint32_t c) { return kKind == Kind::kNf4 ? kNf4[c & 15] : fp4_value(c); }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t i = n * s.k + k;
    return s.q[i / 2] >> (i % 2 ? 0 : 4) & 15;
  }
  static float meta(const Source& s, std::int64_t n, std::int64_t k) { return (*s.absmax)[static_cast<std::size_t>((n * s.k + k) / s.blocksize)]; }
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const std::int64_t at = n * s.k + k0;
    for (int i = 0; i < count; ++i) out[i] = s.q[(at + i) / 2] >> ((at + i) % 2 ? 0 : 4) & 15;
  }
};
using Nf4 = Four<Kind::kNf4>;
using Fp4 = Four<Kind::kFp4>;

struct Int8 : packed::ByteRow<packed::Int8Value> {
  static packed::ByteMatrix bind(qe::Io& io, const qe::Part& p) { return bind_int8(io, p); }
  static constexpr float weight(float value, qe::Terms, float row) { return value * row / 127.0f; }
  static constexpr float row_factor(float row) { return row / 127.0f; }
};

}  // namespace qengine::bnb
