// Kernels in AVX2, FMA and F16C. Compiled for them alone: reached only after the CPU was asked.
#include <qe/cpu/cpuid.hpp>

#include <cstdint>
#include <cstring>

#include "core/layers/kernels.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace qengine {
namespace {

alignas(32) constexpr std::int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

inline __m256i first_n(std::int64_t n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n)); }

struct V {
  __m256 v;

  static V zero() { return {_mm256_setzero_ps()}; }
  static V set1(float x) { return {_mm256_set1_ps(x)}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static V load_n(const float* p, std::int64_t n) {
    return n >= 8 ? load(p) : n <= 0 ? zero() : V{_mm256_maskload_ps(p, first_n(n))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_n(float* p, std::int64_t n) const {
    if (n >= 8) store(p);
    else if (n > 0) _mm256_maskstore_ps(p, first_n(n), v);
  }
  static V add(V a, V b) { return {_mm256_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) { return {_mm256_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) { return {_mm256_mul_ps(a.v, b.v)}; }
  static V div(V a, V b) { return {_mm256_div_ps(a.v, b.v)}; }
  static V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static V max(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
  static V min(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
  static V abs(V a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
  static V round(V a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static V pow2(V n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
  }
  static V zero_where_less(V x, V limit, V y) { return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ), y.v)}; }
  static float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
  static unsigned equal_mask(V a, V b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
  }
  float lane0() const { return _mm256_cvtss_f32(v); }
  float sum() const {
    const __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }
  float max_lane() const {
    alignas(32) float x[8];
    _mm256_store_ps(x, v);
    float m = x[0];
    for (int i = 1; i < 8; ++i) m = x[i] > m ? x[i] : m;
    return m;
  }

  static __m128i to_f16(V a) { return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V from_f16(__m128i h) { return {_mm256_cvtph_ps(h)}; }
  static __m128i load128(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static V load_f16(const std::uint16_t* p) { return from_f16(load128(p)); }
  void store_f16(std::uint16_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16(*this)); }
  static V load_bf16(const std::uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16))};
  }
  static void load_bf16_even_odd(const std::uint16_t* p, V& even, V& odd) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even.v = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    odd.v = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<std::int32_t>(0xffff0000))));
  }
  static void zip(V& a, V& b) {
    const __m256 lo = _mm256_unpacklo_ps(a.v, b.v), hi = _mm256_unpackhi_ps(a.v, b.v);
    a.v = _mm256_permute2f128_ps(lo, hi, 0x20);
    b.v = _mm256_permute2f128_ps(lo, hi, 0x31);
  }
  void store_bf16(std::uint16_t* p) const {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd)), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
};

#include "core/layers/kernels_impl.hpp"

constexpr Kernels kTable = table("avx2");

}  // namespace

const Kernels* kernels_avx2() {
  static const bool there = qe::cpu::machine_isa() >= qe::cpu::Isa::avx2;
  return there ? &kTable : nullptr;
}

}  // namespace qengine

#else

namespace qengine {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace qengine

#endif
