// qe/cpu/x86_avx2.inl: what x86.inl needs of AVX2. A vector is 8 rows, one panel.

#define QE_FN __attribute__((target(QE_TARGET)))
#define QE_INLINE __attribute__((target(QE_TARGET), always_inline)) inline

namespace qe::cpu::QE_ISA {

using vf = __m256;
using vi = __m256i;
inline constexpr int kLanes = 8;   // rows of a vector
inline constexpr int kPer = 1;     // panels of a vector
inline constexpr int kWidest = 4;  // tokens of the widest integer tile

// Which lanes of a vector exist: all of them.
struct All {};
using Mask = All;
QE_INLINE Mask mask_of(std::int64_t) { return {}; }

// Bytes that belong to a vector's panels; both are the same here.
struct Two {
  const std::byte *a, *b;
  Two operator+(std::int64_t n) const { return {a + n, b + n}; }
};

QE_INLINE vf f_zero() { return _mm256_setzero_ps(); }
QE_INLINE vf f_set(float v) { return _mm256_set1_ps(v); }
QE_INLINE vf f_two(float a, float) { return _mm256_set1_ps(a); }
QE_INLINE vf f_load(const float* p) { return _mm256_loadu_ps(p); }
QE_INLINE void f_store(float* p, vf v) { _mm256_storeu_ps(p, v); }
QE_INLINE vf f_all(const float* p) { return _mm256_broadcast_ss(p); }
QE_INLINE vf f_add(vf a, vf b) { return _mm256_add_ps(a, b); }
QE_INLINE vf f_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
QE_INLINE vf f_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
QE_INLINE vf f_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
QE_INLINE vf f_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
QE_INLINE vf f_of(vi a) { return _mm256_cvtepi32_ps(a); }
QE_INLINE vf f_bits(vi a) { return _mm256_castsi256_ps(a); }
QE_INLINE void f_store_rows(float* p, vf v, std::int64_t rows) {
  if (rows >= kLanes) return _mm256_storeu_ps(p, v);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(int(rows)), lane), v);
}

QE_INLINE vi i_zero() { return _mm256_setzero_si256(); }
QE_INLINE vi i_set(std::int32_t v) { return _mm256_set1_epi32(v); }
QE_INLINE vi i_bytes(int v) { return _mm256_set1_epi8(char(v)); }
QE_INLINE vi i_and(vi a, vi b) { return _mm256_and_si256(a, b); }
QE_INLINE vi i_or(vi a, vi b) { return _mm256_or_si256(a, b); }
QE_INLINE vi i_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
QE_INLINE vi i_shr16(vi a, int n) { return _mm256_srli_epi16(a, n); }
QE_INLINE vi i_shl16(vi a, int n) { return _mm256_slli_epi16(a, n); }
QE_INLINE vi i_shr(vi a, int n) { return _mm256_srli_epi32(a, n); }
QE_INLINE vi i_shl(vi a, int n) { return _mm256_slli_epi32(a, n); }
QE_INLINE vi i_sar(vi a, int n) { return _mm256_srai_epi32(a, n); }
QE_INLINE vi i_bytes_of(const void* table16, vi index) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(table16))), index); }

// Codes of a unit.
QE_INLINE vi load_bytes(const std::byte* p, All) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
QE_INLINE vf load_f32(const std::byte* p, All) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
QE_INLINE vf load_bf16(const std::byte* p, All) { return f_bits(i_shl(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16)); }
QE_INLINE vf load_f16(const std::byte* p, All) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

// Numbers of a record, one a row.
QE_INLINE vf f32s(Two p) { return load_f32(p.a, All{}); }
QE_INLINE vf bf16s(Two p) { return load_bf16(p.a, All{}); }
QE_INLINE vf f16s(Two p) { return load_f16(p.a, All{}); }
QE_INLINE vi u8s(Two p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.a))); }
QE_INLINE vi i8s(Two p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.a))); }
QE_INLINE vi u16s(Two p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p.a))); }
QE_INLINE vi u32s(Two p) { return load_bytes(p.a, All{}); }
// Pairs: the first and the second numbers.
QE_INLINE void f16_pairs(Two p, vf& first, vf& second) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i y = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load_bytes(p.a, All{}), order), 0xd8);
  first = _mm256_cvtph_ps(_mm256_castsi256_si128(y));
  second = _mm256_cvtph_ps(_mm256_extracti128_si256(y, 1));
}
QE_INLINE void f32_pairs(Two p, vf& first, vf& second) {
  const auto* pairs = reinterpret_cast<const float*>(p.a);
  const __m256 low = _mm256_loadu_ps(pairs), high = _mm256_loadu_ps(pairs + 8);
  const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
  first = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(low, high, 0x88), order);
  second = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(low, high, 0xdd), order);
}
// 0 and 255 are the odd ones of E8M0: 2^-127 and NaN.
QE_INLINE vf e8m0s(Two p) {
  const __m256i e = u8s(p);
  __m256i bits = i_shl(e, 23);
  bits = _mm256_blendv_epi8(bits, i_set(0x00400000), _mm256_cmpeq_epi32(e, i_zero()));
  return f_bits(_mm256_blendv_epi8(bits, i_set(0x7fc00000), _mm256_cmpeq_epi32(e, i_set(255))));
}

// Values of a table: of 16, by the low four bits of each lane of `codes` shifted right by `shift`; of more, by `index`.
struct Table16 {
  vf low, high;
};
QE_INLINE Table16 table16(const float* t) { return {_mm256_loadu_ps(t), _mm256_loadu_ps(t + 8)}; }
QE_INLINE vf look_up(const Table16& t, vi codes, int shift) {  // the permutes read the low three bits, the blend the fourth
  const __m256i c = i_shr(codes, shift);
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, c), _mm256_permutevar8x32_ps(t.high, c), f_bits(i_shl(codes, 28 - shift)));
}
QE_INLINE vf gather(const float* table, vi index) { return _mm256_i32gather_ps(table, index, 4); }

// ---- integers --------------------------------------------------------------------------------------
// Activations: int16, of every four columns the even ones first, to meet the even and odd bytes of a vector.
QE_INLINE void store_input(std::byte* to, __m256i low, __m256i high) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(low, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), _mm256_shuffle_epi8(high, order));
}

QE_INLINE vi pair_of(const std::byte* q) {
  std::int32_t v;
  std::memcpy(&v, q, 4);
  return _mm256_set1_epi32(v);
}

// Sixteen registers: the products of one vector before the next is unpacked, or all of them lie on the stack.
inline constexpr bool kStepwise = true;

template <int T, int V>
QE_INLINE void start_dots(const std::int32_t* start, vi (&d)[T][V]) {
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) d[t][v] = start ? i_set(start[t]) : i_zero();
}

// A sum that stays as it is written: GCC would move all additions behind all products, and these onto the stack.
QE_INLINE void add_to(vi& sum, vi x) {
  sum = i_add(sum, x);
  __asm__("" : "+x"(sum));
}

// d[t][v] += exact sum over the unsigned bytes w[v] of a vector times the activations, of which q holds those of its four columns.
template <int T, int V>
QE_INLINE void add_dots(const vi (&w)[V], const std::byte* q, vi (&d)[T][V]) {
  vi even[V], odd[V];
  QE_UNROLL for (int v = 0; v < V; ++v) even[v] = i_and(w[v], _mm256_set1_epi16(255)), odd[v] = i_shr16(w[v], 8);
  QE_UNROLL for (int t = 0; t < T; ++t) {
    const vi a = pair_of(q + kInputBytes * t);
    QE_UNROLL for (int v = 0; v < V; ++v) add_to(d[t][v], _mm256_madd_epi16(even[v], a));
    const vi b = pair_of(q + kInputBytes * t + 4);
    QE_UNROLL for (int v = 0; v < V; ++v) add_to(d[t][v], _mm256_madd_epi16(odd[v], b));
  }
}

}  // namespace qe::cpu::QE_ISA
