// HQQ, 4 bits, axis 1: half-quadratic quantization as its authors' package writes it.
//
//   config      {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}, "skip_modules": [...]}
//   P.W_q       U8  [R/2, g]     R = N*K/g rows of g codes, in the order of W; row r is the high nibble of row r, row r + R/2 the low nibble
//   P.scale     F16, BF16 or F32 [R, 1]
//   P.zero      the same; not an integer
//   W[n,k]    = (code - zero) * scale,   row r = (n*K + k) / g
//
// Beside them lie small tensors that repeat the configuration (nbits, axis, shape, ...): checked or ignored, but asked for.
// Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023; hqq/core/quantize.py, bitpack.py.
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <cmath>
#include <cstring>

struct Hqq4 {
  using Planes = qe::Planes<4>;
  // scale * code + offset with offset = -zero * scale: in float32 that product is exact for halves, so that one rounding is left, as
  // in (code - zero) * scale.
  using Meta = qe::meta::ScaleOffsetF32;
  struct Source {
    const std::uint8_t* q;
    qe::Floats scale, zero;
    std::int64_t n, k, group, rows;
  };

  static std::int64_t group_of(const qe_model& m) { return qe::Config(m.cfg).i64("quant_config.weight_quant_params.group_size", 64); }

  static Source bind(qe::Io& io, const qe::Part& p) {
    const std::int64_t g = group_of(p.model()), rows = p.n() * p.k() / g;
    Source s{io.u8(p, "W_q", {rows / 2, g}), io.floats(p, "scale", {rows, 1}), io.floats(p, "zero", {rows, 1}), p.n(), p.k(), g, rows};
    for (const char* note : {"nbits", "axis", "group_size", "shape", "packing", "view_as_float", "unpack_view_dtype", "channel_wise", "optimize", "round_zero",
                             "quant_scale", "quant_zero", "offload_meta", "compute_dtype", "stores_quant_config"})
      io.tensor(p, note, 0, {}, qe::Need::optional, -1);
    return s;
  }

  static void prepare(Source& s, const qe::Part& p) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      if (!std::isfinite(s.scale[r])) refuse(p, "scale", r, s.group);
      if (!std::isfinite(s.zero[r])) refuse(p, "zero", r, s.group);
    }
    // What the file itself says of the layout beats the configuration.
    qe::Io io(p.model(), qe::Io::Mode::plan);
    for (const auto& [note, want] : {std::pair{"nbits", 4}, {"axis", 1}}) {
      const auto t = io.look(qe::Io::join(p, note));
      if (!t || !t->data || t->rank > 1) continue;
      std::int64_t value = want;
      if (t->dtype == QE_I64) std::memcpy(&value, t->data, 8);
      else if (t->dtype == QE_I32) value = *static_cast<const std::int32_t*>(t->data);
      if (value != want) throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, note), qe::format("is %lld; supported: %d", static_cast<long long>(value), want));
    }
  }

  static std::int64_t group(const Source& s) { return s.group; }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t r = (n * s.k + k) / s.group, half = s.rows / 2;
    return s.q[r % half * s.group + k % s.group] >> (r < half ? 4 : 0) & 15;
  }
  // The same for a run of inputs of one row, a group at a time.
  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, std::uint8_t* out) {
    const std::int64_t half = s.rows / 2;
    for (std::int64_t k = k0; k < k0 + count;) {
      const std::int64_t r = (n * s.k + k) / s.group, stop = std::min<std::int64_t>(k0 + count, (k / s.group + 1) * s.group);
      const std::uint8_t* from = s.q + r % half * s.group;
      const int shift = r < half ? 4 : 0;
      for (; k < stop; ++k) *out++ = std::uint8_t(from[k % s.group] >> shift & 15);
    }
  }
  static Meta::Value meta(const Source& s, std::int64_t n, std::int64_t k) {
    const std::int64_t r = (n * s.k + k) / s.group;
    return {s.scale[r], -(s.zero[r] * s.scale[r])};
  }
  static constexpr float value(std::uint32_t code) { return float(code); }

 private:
  [[noreturn]] static void refuse(const qe::Part& p, const char* tensor, std::int64_t r, std::int64_t group) {
    throw qe::Error(QE_E_CHECKPOINT, qe::Io::join(p, tensor), qe::format("has a value that is not finite (row %lld, input %lld)", static_cast<long long>(r * group / p.k()), static_cast<long long>(r * group % p.k())),
                    "the file is damaged or the quantizer failed");
  }
};
