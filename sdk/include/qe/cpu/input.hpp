// qe/cpu/input.hpp: from a call's activations to what the kernels read, once a call.
//
//   emulated activation quantization -> columns in the layer's order, padded -> int16 per 32 with sums
#pragma once

#include <qe/cpu/cpuid.hpp>
#include <qe/cpu/kernels.hpp>
#include <qe/cpu/x86.hpp>
#include <qe/format_ops.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace qe::cpu {

// The instruction set that is used: the best of this machine; QENGINE_CPU_ISA=scalar|avx2 asks for less. Tests set it.
inline Isa& isa() {
  static Isa best = [] {
    const char* text = std::getenv("QENGINE_CPU_ISA");
    const std::string_view wish = text ? text : "";
    return wish == "scalar" ? Isa::scalar : wish == "avx2" ? std::min(machine_isa(), Isa::avx2) : machine_isa();
  }();
  return best;
}

inline const char* isa_name(Isa i) { return i == Isa::avx512 ? "avx512" : i == Isa::avx2 ? "avx2" : "scalar"; }

// What the parts of a layer want of an input.
struct Need {
  std::int64_t k = 0, columns = 0, spans = 0, span = 0;
  bool integer = false, mapped = false, act = false;
  std::int64_t halves() const { return columns / (span == 16 ? 16 : kBlock); }  // integer sums of a token
};

struct Workspace {
  std::uint64_t act = 0, x = 0, q = 0, scale = 0, sums = 0, bias = 0, total = 0;  // offsets
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
  if (copies) w.x = take(std::uint64_t(m * need.columns) * 4);
  if (need.integer) {
    w.q = take(std::uint64_t(m * need.columns) * 2);
    w.scale = take(std::uint64_t(m * (need.columns / kBlock)) * 4);
    w.sums = take(std::uint64_t(m * need.spans) * 4);
    w.bias = take(std::uint64_t(m * need.halves()) * 4);
  }
  w.total = at;
  return w;
}
// Never less for more tokens, and m tokens fit in 64 + m times the bytes of one.
inline std::uint64_t workspace_bytes(const Need& need, std::int64_t m) { return workspace(need, m).total; }

// The tokens of one call. `each` spreads body(first, last) over the tokens when there are enough of them.
template <class Each>
Input prepare(const Need& need, const Activation& activation, const std::int32_t* map, const float* x, std::int64_t stride, std::int64_t m,
              void* memory, Isa isa, Each&& each) {
  const Workspace w = workspace(need, m);
  std::byte* base = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t{63});
  const bool copies = need.mapped || need.columns != need.k, act = activation.kind != Activation::none;
  auto* emulated = reinterpret_cast<float*>(base + w.act);
  auto* ordered = reinterpret_cast<float*>(base + w.x);
  std::byte* q = base + w.q;
  auto* scale = reinterpret_cast<float*>(base + w.scale);
  auto* sums = reinterpret_cast<float*>(base + w.sums);
  auto* bias = reinterpret_cast<std::int32_t*>(base + w.bias);
  const std::int64_t blocks = need.columns / kBlock;
#if QE_X86
  const int widest = isa == Isa::avx512 ? avx512::kWidest : isa == Isa::avx2 ? avx2::kWidest : 1;
#else
  const int widest = 1;
  (void)isa;
#endif
  if (act || copies || need.integer)
    each([&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const float* from = x + t * stride;
        if (act) {
          act::quantize_dequantize(activation, from, emulated + t * need.k, need.k);
          from = emulated + t * need.k;
        }
        if (copies) {
          float* to = ordered + t * need.columns;
          if (map) {
            for (std::int64_t c = 0; c < need.columns; ++c) to[c] = map[c] >= 0 ? from[map[c]] : 0.0f;
          } else {
            std::copy(from, from + need.k, to);
            std::fill(to + need.k, to + need.columns, 0.0f);
          }
          from = to;
        }
        if (need.integer) {
          const std::int64_t width = tile_width(t, m, widest), lane = t % width, at = t - lane;
          const TokenOut out{q + at * need.columns * 2, scale + at * blocks, sums + at * need.spans, bias + at * need.halves(), width, lane};
#if QE_X86
          if (isa == Isa::avx512) {
            avx512::quantize_token(from, need.columns, need.span, out);
            continue;
          }
          if (isa == Isa::avx2) {
            avx2::quantize_token(from, need.columns, need.span, out);
            continue;
          }
#endif
          scalar::quantize_token(from, need.columns, need.span, out);
        }
      }
    });
  Input in;
  in.m = m;
  in.columns = need.columns;
  in.spans = need.spans;
  in.x = copies ? ordered : act ? emulated : x;
  in.x_stride = copies ? need.columns : act ? need.k : stride;
  in.widest = widest;
  in.q = q;
  in.scale = scale;
  in.sums = sums;
  in.bias = bias;
  return in;
}

}  // namespace qe::cpu
