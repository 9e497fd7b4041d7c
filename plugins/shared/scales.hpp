// Scales of floating-point checkpoints: which shapes one number, one a row, one a block may have, read as
// stored, and the checks every reader makes of them.
//
// Source: formats.md of the format pages; vllm-project/compressed-tensors quant_args.py; NVIDIA Model-Optimizer.
#pragma once

#include <qe/plugin.hpp>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>

namespace qengine::packed {

// scale(n, k) = data[n / rows * row_stride + k / inputs]; a stride of 0 is one number for all rows.
struct ScaleGrid {
  const void* data = nullptr;
  std::int32_t dtype = QE_F32;  // F32, F16, BF16; E8M0 (also as U8), E4M3
  std::int64_t rows = 1, inputs = 1, row_stride = 0;
  std::int64_t count = 0;

  float at(std::int64_t i) const {
    switch (dtype) {
      case QE_F32: return static_cast<const float*>(data)[i];
      case QE_F16: return qe::f16_to_f32(word(i));
      case QE_BF16: return qe::bf16_to_f32(word(i));
      case QE_E4M3: return qe::e4m3_to_f32(byte(i));
      default: return qe::e8m0_to_f32(byte(i));
    }
  }
  float get(std::int64_t n, std::int64_t k) const { return at(n / rows * row_stride + k / inputs); }
  std::uint8_t byte(std::int64_t i) const { return static_cast<const std::uint8_t*>(data)[i]; }

 private:
  std::uint16_t word(std::int64_t i) const {  // files promise no alignment
    std::uint16_t h;
    std::memcpy(&h, static_cast<const std::byte*>(data) + 2 * i, 2);
    return h;
  }
};

inline std::int64_t elements(const qe_tensor& t) {
  std::int64_t n = 1;
  for (int i = 0; i < t.rank && i < 4; ++i) n *= t.dim[i];
  return n;
}

inline constexpr std::uint64_t kScaleFloats = qe::dtype_bit(QE_F32) | qe::dtype_bit(QE_F16) | qe::dtype_bit(QE_BF16);

// One number, of whatever rank: [], [1], [1, 1].
inline float one_number(qe::Io& io, const qe::Part& p, const char* suffix, qe::Need need = qe::Need::required, float absent = 1.0f) {
  const qe_tensor t = io.tensor(p, suffix, kScaleFloats, {}, need, -1);
  if (!t.data) return absent;
  if (elements(t) != 1)
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, suffix), qe::format("has %lld values, expected 1", static_cast<long long>(elements(t))));
  const float v = ScaleGrid{t.data, t.dtype, 1, 1, 0, 1}.at(0);
  if (!std::isfinite(v) || v <= 0)
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, suffix), qe::format("is %g, expected a positive number", static_cast<double>(v)),
                    "the file is damaged or the quantizer failed");
  return v;
}

// NaN, Inf and negative scales never mean anything; a zero one means a pruned row.
inline void require_scales(const ScaleGrid& s, const std::string& tensor, bool e8m0 = false) {
  if (!s.data) return;
  for (std::int64_t i = 0; i < s.count; ++i) {
    const float v = s.at(i);
    if (e8m0 ? s.byte(i) == 0xff : !std::isfinite(v) || v < 0) {
      const char* what = e8m0 || std::isnan(v) ? "NaN" : v < 0 ? "negative" : "infinite";
      std::int64_t n = 0;
      for (std::int64_t j = i; j < s.count; ++j) n += e8m0 ? s.byte(j) == 0xff : !std::isfinite(s.at(j)) || s.at(j) < 0;
      throw qe::Error(QE_E_CHECKPOINT, tensor, qe::format("has %lld %s values (first at %lld)", static_cast<long long>(n), what, static_cast<long long>(i)),
                      "the file is damaged or the quantizer failed; check all of it: qengine inspect --check");
    }
  }
}

// Codes that decode to NaN, counted while packing by any thread.
using BadCodes = std::shared_ptr<std::atomic<std::int64_t>>;

inline void require_no_nan_codes(const BadCodes& bad, const std::string& tensor) {
  if (const std::int64_t n = bad->load())
    throw qe::Error(QE_E_CHECKPOINT, tensor, qe::format("has %lld codes that mean NaN (E4M3 0x7f or 0xff)", static_cast<long long>(n)),
                    "the file is damaged or the quantizer overflowed");
}

}  // namespace qengine::packed
