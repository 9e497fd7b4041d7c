// qe/cpu/x86_avx512.inl: what x86.inl needs of AVX-512 with VNNI. A vector is 16 rows, two panels side by side;
// where a strip ends with one panel, a mask keeps the other half from being read.

#define QE_FN __attribute__((target(QE_TARGET)))
#define QE_INLINE __attribute__((target(QE_TARGET), always_inline)) inline

namespace qe::cpu::QE_ISA {

using vf = __m512;
using vi = __m512i;
inline constexpr int kLanes = 16;  // rows of a vector
inline constexpr int kPer = 2;     // panels of a vector
inline constexpr int kWidest = 8;  // tokens of the widest integer tile

// Which lanes of a vector exist.
struct All {};
using Mask = __mmask16;
QE_INLINE Mask mask_of(std::int64_t panels) { return panels >= 2 ? Mask(0xffff) : panels == 1 ? Mask(0x00ff) : Mask(0); }

// Bytes that belong to a vector's two panels.
struct Two {
  const std::byte *a, *b;
  Two operator+(std::int64_t n) const { return {a + n, b + n}; }
};

QE_INLINE vf f_zero() { return _mm512_setzero_ps(); }
QE_INLINE vf f_set(float v) { return _mm512_set1_ps(v); }
QE_INLINE vf f_two(float a, float b) { return _mm512_mask_mov_ps(_mm512_set1_ps(a), 0xff00, _mm512_set1_ps(b)); }
QE_INLINE vf f_load(const float* p) { return _mm512_loadu_ps(p); }
QE_INLINE void f_store(float* p, vf v) { _mm512_storeu_ps(p, v); }
QE_INLINE vf f_all(const float* p) { return _mm512_set1_ps(*p); }
QE_INLINE vf f_add(vf a, vf b) { return _mm512_add_ps(a, b); }
QE_INLINE vf f_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
QE_INLINE vf f_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
QE_INLINE vf f_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
QE_INLINE vf f_neg(vf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
QE_INLINE vf f_of(vi a) { return _mm512_cvtepi32_ps(a); }
QE_INLINE vf f_bits(vi a) { return _mm512_castsi512_ps(a); }
QE_INLINE void f_store_rows(float* p, vf v, std::int64_t rows) {
  if (rows >= kLanes) return _mm512_storeu_ps(p, v);
  _mm512_mask_storeu_ps(p, Mask((1u << rows) - 1), v);
}

QE_INLINE vi i_zero() { return _mm512_setzero_si512(); }
QE_INLINE vi i_set(std::int32_t v) { return _mm512_set1_epi32(v); }
QE_INLINE vi i_bytes(int v) { return _mm512_set1_epi8(char(v)); }
QE_INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
QE_INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
QE_INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
QE_INLINE vi i_shr16(vi a, int n) { return _mm512_srli_epi16(a, unsigned(n)); }
QE_INLINE vi i_shl16(vi a, int n) { return _mm512_slli_epi16(a, unsigned(n)); }
QE_INLINE vi i_shr(vi a, int n) { return _mm512_srli_epi32(a, unsigned(n)); }
QE_INLINE vi i_shl(vi a, int n) { return _mm512_slli_epi32(a, unsigned(n)); }
QE_INLINE vi i_sar(vi a, int n) { return _mm512_srai_epi32(a, unsigned(n)); }
QE_INLINE vi i_bytes_of(const void* table16, vi index) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(static_cast<const __m128i*>(table16))), index); }

// Codes of a unit.
QE_INLINE vi load_bytes(const std::byte* p, All) { return _mm512_loadu_si512(p); }
QE_INLINE vi load_bytes(const std::byte* p, Mask m) { return _mm512_maskz_loadu_epi32(m, p); }
QE_INLINE vf load_f32(const std::byte* p, All) { return _mm512_loadu_ps(p); }
QE_INLINE vf load_f32(const std::byte* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
QE_INLINE vf bf16_of(__m256i x) { return f_bits(i_shl(_mm512_cvtepu16_epi32(x), 16)); }
QE_INLINE vf load_bf16(const std::byte* p, All) { return bf16_of(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
QE_INLINE vf load_bf16(const std::byte* p, Mask m) { return bf16_of(_mm256_maskz_loadu_epi16(m, p)); }
QE_INLINE vf load_f16(const std::byte* p, All) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
QE_INLINE vf load_f16(const std::byte* p, Mask m) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p)); }

// Numbers of a record, one a row.
QE_INLINE __m256i join16(Two p) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p.a))), _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.b)), 1);
}
QE_INLINE __m128i join8(Two p) {
  return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.a)), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.b)));
}
QE_INLINE vi u32s(Two p) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.a))), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.b)), 1);
}
QE_INLINE vf f32s(Two p) { return f_bits(u32s(p)); }
QE_INLINE vf bf16s(Two p) { return bf16_of(join16(p)); }
QE_INLINE vf f16s(Two p) { return _mm512_cvtph_ps(join16(p)); }
QE_INLINE vi u8s(Two p) { return _mm512_cvtepu8_epi32(join8(p)); }
QE_INLINE vi i8s(Two p) { return _mm512_cvtepi8_epi32(join8(p)); }
QE_INLINE vi u16s(Two p) { return _mm512_cvtepu16_epi32(join16(p)); }
// Pairs: the first and the second numbers.
QE_INLINE void f16_pairs(Two p, vf& first, vf& second) {
  alignas(64) static constexpr std::uint16_t order[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i y = _mm512_permutexvar_epi16(_mm512_load_si512(order), u32s(p));
  first = _mm512_cvtph_ps(_mm512_castsi512_si256(y));
  second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(y, 1));
}
QE_INLINE void f32_pairs(Two p, vf& first, vf& second) {
  const __m512 a = _mm512_loadu_ps(p.a), b = _mm512_loadu_ps(p.b);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  first = _mm512_permutex2var_ps(a, even, b);
  second = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}
// 0 and 255 are the odd ones of E8M0: 2^-127 and NaN.
QE_INLINE vf e8m0s(Two p) {
  const __m512i e = u8s(p);
  __m512i bits = i_shl(e, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, i_zero()), i_set(0x00400000));
  return f_bits(_mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, i_set(255)), i_set(0x7fc00000)));
}

// Values of a table: of 16, by the low four bits of each lane of `codes` shifted right by `shift`; of more, by `index`.
struct Table16 {
  vf all;
};
QE_INLINE Table16 table16(const float* t) { return {_mm512_loadu_ps(t)}; }
QE_INLINE vf look_up(const Table16& t, vi codes, int shift) { return _mm512_permutexvar_ps(i_shr(codes, shift), t.all); }
QE_INLINE vf gather(const float* table, vi index) { return _mm512_i32gather_ps(index, table, 4); }

// ---- integers --------------------------------------------------------------------------------------
// Activations: 32 high bytes, then 32 low ones, both signed.
QE_INLINE void store_input(std::byte* to, __m256i low, __m256i high) {
  const __m256i half = _mm256_set1_epi16(128), byte = _mm256_set1_epi16(255);
  const __m256i h = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_add_epi16(low, half), 8), _mm256_srai_epi16(_mm256_add_epi16(high, half), 8));
  const __m256i l = _mm256_packus_epi16(_mm256_and_si256(low, byte), _mm256_and_si256(high, byte));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(h, 0xd8));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), _mm256_permute4x64_epi64(l, 0xd8));
}

QE_INLINE vi four_of(const std::byte* q) {
  std::int32_t v;
  std::memcpy(&v, q, 4);
  return _mm512_set1_epi32(v);
}

// Thirty-two registers: all vectors of a block are unpacked first, since the sums of the high bytes are shifted before the low ones join.
inline constexpr bool kStepwise = false;

// d[t][v] = start[t] + exact sum over the unsigned bytes w[v][j] of vectors J + j of a block times the activations.
template <int T, int V, int J, int Count>
QE_INLINE void dots(const vi (&w)[V][Count], const std::byte* q, const std::int32_t* start, vi (&d)[T][V]) {
  constexpr bool kApart = T * V <= 2;  // few chains: the low bytes in chains of their own
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) d[t][v] = i_zero();
  QE_UNROLL for (int j = 0; j < Count; ++j)
    QE_UNROLL for (int t = 0; t < T; ++t)
      QE_UNROLL for (int v = 0; v < V; ++v) d[t][v] = _mm512_dpbusd_epi32(d[t][v], w[v][j], four_of(q + kInputBytes * t + 4 * (J + j)));
  vi low[T][V];
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) {
      d[t][v] = i_shl(d[t][v], 8);
      low[t][v] = kApart ? i_zero() : d[t][v];
      if (start) low[t][v] = i_add(low[t][v], i_set(start[t]));
    }
  QE_UNROLL for (int j = 0; j < Count; ++j)
    QE_UNROLL for (int t = 0; t < T; ++t)
      QE_UNROLL for (int v = 0; v < V; ++v) low[t][v] = _mm512_dpbusd_epi32(low[t][v], w[v][j], four_of(q + kInputBytes * t + 32 + 4 * (J + j)));
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) d[t][v] = kApart ? i_add(d[t][v], low[t][v]) : low[t][v];
}

}  // namespace qe::cpu::QE_ISA
