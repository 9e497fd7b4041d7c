// Unquantized weights: F32, F16 or BF16, kept in the type they are stored in.
//
//   P.weight  [N, K], row-major
#pragma once

#include <qe/format.hpp>
#include <qe/plugin.hpp>

#include <atomic>
#include <memory>

namespace bf16_ref {

template <qe::Wide W>
struct Plain {
  static constexpr qe::Wide kWide = W;
  using Planes = qe::Planes<W == qe::Wide::f32 ? 32 : 16>;
  using Meta = qe::meta::None;
  static constexpr int kGroups[] = {0};
  using Word = qe::Code<Plain>;
  static constexpr int kDtype = W == qe::Wide::f32 ? QE_F32 : W == qe::Wide::f16 ? QE_F16 : QE_BF16;

  struct Source {
    const Word* w = nullptr;
    std::int64_t k = 0;
    std::shared_ptr<std::atomic<std::int64_t>> bad;  // values that are not finite
  };
  static Source bind(qe::Io& io, const qe::Part& p) {
    const qe_tensor t = io.tensor(p, "weight", qe::dtype_bit(kDtype), {p.n(), p.k()});
    return {static_cast<const Word*>(t.data), p.k(), std::make_shared<std::atomic<std::int64_t>>(0)};
  }
  static std::uint32_t code(const Source& s, std::int64_t n, std::int64_t k) { return s.w[n * s.k + k]; }
  static qe::meta::None::Value meta(const Source&, std::int64_t, std::int64_t) { return {}; }
  static float value(std::uint32_t c) { return W == qe::Wide::f32 ? std::bit_cast<float>(c) : W == qe::Wide::bf16 ? qe::bf16_to_f32(std::uint16_t(c)) : qe::f16_to_f32(std::uint16_t(c)); }

  static void unpack(const Source& s, std::int64_t n, std::int64_t k0, int count, Word* out) {
    // exponent of all ones: infinite or NaN
    constexpr Word mask = W == qe::Wide::f32 ? Word(0x7f800000u) : W == qe::Wide::bf16 ? Word(0x7f80u) : Word(0x7c00u);
    const Word* from = s.w + n * s.k + k0;
    int bad = 0;
    for (int i = 0; i < count; ++i) {
      out[i] = from[i];
      bad += (from[i] & mask) == mask;
    }
    if (bad) s.bad->fetch_add(bad, std::memory_order_relaxed);
  }
  // One such value turns every later token into NaN.
  static void done(const Source& s, const qe::Part& p) {
    if (const std::int64_t bad = s.bad->load())
      throw qe::Error(QE_E_CHECKPOINT, std::string(p.name()) + ".weight", qe::format("has %lld values that are not finite", static_cast<long long>(bad)),
                      "the file is damaged; fetch it again");
  }
};

using F32 = Plain<qe::Wide::f32>;
using F16 = Plain<qe::Wide::f16>;
using BF16 = Plain<qe::Wide::bf16>;

}  // namespace bf16_ref
