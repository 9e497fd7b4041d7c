// qe/cpu/input.hpp: from a call's activations to what the kernels read, once a call.
//
//   emulated activation quantization -> columns in the layer's order, padded -> int8 per 32 with sums
#pragma once

#include <qe/cpu/kernels.hpp>
#include <qe/format_ops.hpp>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace qe::cpu {

// The best instruction set of this machine; QENGINE_CPU_ISA=scalar|avx2 asks for less. Tests set it.
inline Isa& isa() {
  static Isa best = [] {
    Isa found = Isa::scalar;
    const char* wish = std::getenv("QENGINE_CPU_ISA");
    if (wish && std::string_view(wish) == "scalar") return found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) found = Isa::avx2;
#endif
    return found;
  }();
  return best;
}

inline const char* isa_name(Isa i) { return i == Isa::vnni ? "vnni" : i == Isa::avx2 ? "avx2" : "scalar"; }

// What the parts of a layer want of an input.
struct Need {
  std::int64_t k = 0, columns = 0, spans = 0, span = 0;
  bool integer = false, mapped = false, act = false;
};

struct Workspace {
  std::uint64_t act = 0, x = 0, q = 0, scale = 0, sums = 0, total = 0;  // offsets
};
inline Workspace workspace(const Need& need, std::int64_t m) {
  Workspace w;
  std::uint64_t at = 0;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t here = at;
    at += (bytes + 63) / 64 * 64;
    return here;
  };
  const bool copies = need.mapped || need.columns != need.k;
  if (need.act) w.act = take(std::uint64_t(m * need.k) * 4);
  if (need.integer || copies) w.x = take(std::uint64_t((need.integer ? 1 : m) * need.columns) * 4);
  if (need.integer) {
    w.q = take(std::uint64_t(m * need.columns));
    w.scale = take(std::uint64_t(m * (need.columns / kBlock)) * 4);
    w.sums = take(std::uint64_t(m * need.spans) * 4);
  }
  w.total = at;
  return w;
}
// Never less for more tokens, and m tokens fit in 64 + m times the bytes of one.
inline std::uint64_t workspace_bytes(const Need& need, std::int64_t m) { return workspace(need, m).total; }

inline Input prepare(const Need& need, const Activation& activation, const std::int32_t* map, const float* x, std::int64_t stride,
                     std::int64_t m, void* memory, Isa) {
  const Workspace w = workspace(need, m);
  std::byte* base = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t{63});
  if (activation.kind != Activation::none) {
    float* y = reinterpret_cast<float*>(base + w.act);
    for (std::int64_t t = 0; t < m; ++t) act::quantize_dequantize(activation, x + t * stride, y + t * need.k, need.k);
    x = y;
    stride = need.k;
  }
  const bool copies = need.mapped || need.columns != need.k;
  Input in;
  in.m = m;
  in.columns = need.columns;
  in.spans = need.spans;
  float* columns = reinterpret_cast<float*>(base + w.x);
  const auto order = [&](std::int64_t t, float* to) {
    const float* from = x + t * stride;
    if (map) {
      for (std::int64_t c = 0; c < need.columns; ++c) to[c] = map[c] >= 0 ? from[map[c]] : 0.0f;
    } else {
      std::copy(from, from + need.k, to);
      std::fill(to + need.k, to + need.columns, 0.0f);
    }
  };
  if (!need.integer) {
    if (copies)
      for (std::int64_t t = 0; t < m; ++t) order(t, columns + t * need.columns);
    in.x = copies ? columns : x;
    in.x_stride = copies ? need.columns : stride;
    return in;
  }
  auto* q = reinterpret_cast<std::int8_t*>(base + w.q);
  auto* scale = reinterpret_cast<float*>(base + w.scale);
  auto* sums = reinterpret_cast<float*>(base + w.sums);
  const std::int64_t blocks = need.columns / kBlock;
  for (std::int64_t t = 0; t < m; ++t) {
    const float* from = x + t * stride;
    if (copies) order(t, columns), from = columns;
    for (std::int64_t b = 0; b < blocks; ++b) scale[t * blocks + b] = scalar::quantize_block(from + b * kBlock, q + t * need.columns + b * kBlock);
    scalar::span_sums(q + t * need.columns, scale + t * blocks, need.columns, need.span, sums + t * need.spans);
  }
  in.q = q;
  in.scale = scale;
  in.sums = sums;
  return in;
}

}  // namespace qe::cpu
