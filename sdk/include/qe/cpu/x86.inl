// qe/cpu/x86.inl: the products of kernels.hpp with 256-bit vectors. Included once for each
// instruction set with QE_ISA (a namespace) and QE_TARGET (a target attribute) defined; QE_VNNI 1
// multiplies bytes with vpdpbusd.
//
// A vector is 8 rows of a panel. Integers: one load serves 8 rows x 4 columns, one broadcast four
// activations. Floats: codes of a few panels go to a buffer in L1 as [column][8], then register
// tiles of panels x tokens run over it.
//
// The target attribute must stand on every function, so there are no lambdas here.

#define QE_FN __attribute__((target(QE_TARGET)))
#define QE_INLINE __attribute__((target(QE_TARGET), always_inline)) inline

namespace qe::cpu::QE_ISA {

// ---- activations -----------------------------------------------------------------------------------
// scalar::quantize_token, the same bits.
QE_FN inline void quantize_token(const float* x, std::int64_t columns, std::int64_t span, const TokenOut& out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const bool half = span == 16;
  const std::int64_t width = out.width;
  std::int8_t* q = out.q + out.lane * kBlock;
  float *scale = out.scale + out.lane, *sums = out.sums + out.lane;
  std::int32_t* bias = out.bias + out.lane;
  float sum = 0;
  std::int64_t left = span / kBlock;
  for (std::int64_t b = 0; b < columns / kBlock; ++b) {
    const float* p = x + b * kBlock;
    const __m256 v0 = _mm256_loadu_ps(p), v1 = _mm256_loadu_ps(p + 8), v2 = _mm256_loadu_ps(p + 16), v3 = _mm256_loadu_ps(p + 24);
    __m256i top = _mm256_max_epi32(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(v0), magnitude), _mm256_and_si256(_mm256_castps_si256(v1), magnitude)),
                                   _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(v2), magnitude), _mm256_and_si256(_mm256_castps_si256(v3), magnitude)));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    const std::int32_t bits = _mm_cvtsi128_si32(m);
    const float amax = std::bit_cast<float>(bits);
    const bool finite = bits < 0x7f800000, zero = amax < 1e-30f;
    const float inverse = zero || !finite ? 0.0f : 127.0f / amax, s = !finite ? std::bit_cast<float>(0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
    const __m256 f = _mm256_set1_ps(inverse);
    __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(v0, f)), i1 = _mm256_cvtps_epi32(_mm256_mul_ps(v1, f));
    __m256i i2 = _mm256_cvtps_epi32(_mm256_mul_ps(v2, f)), i3 = _mm256_cvtps_epi32(_mm256_mul_ps(v3, f));
    // saturation to int16 and int8 does the clamping above, the maximum the one at -127
    __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(i0, i1), _mm256_packs_epi32(i2, i3));
    packed = _mm256_permutevar8x32_epi32(_mm256_max_epi8(packed, _mm256_set1_epi8(-127)), order);
    if (!finite) packed = _mm256_setzero_si256();
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + b * width * kBlock), packed);
    scale[b * width] = s;
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), packed), _mm256_set1_epi16(1));
    __m128i low = _mm256_castsi256_si128(fours), high = _mm256_extracti128_si256(fours, 1);
    low = _mm_hadd_epi32(low, high);
    low = _mm_hadd_epi32(low, low);
    const std::int32_t a = _mm_cvtsi128_si32(low), z = _mm_extract_epi32(low, 1);
    if (half) {
      sums[2 * b * width] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(s), _mm_set_ss(float(a)), _mm_setzero_ps()));
      sums[(2 * b + 1) * width] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(s), _mm_set_ss(float(z)), _mm_setzero_ps()));
      bias[2 * b * width] = -128 * a;
      bias[(2 * b + 1) * width] = -128 * z;
    } else {
      sum = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(s), _mm_set_ss(float(a + z)), _mm_set_ss(sum)));
      bias[b * width] = -128 * (a + z);
      if (--left == 0 || b + 1 == columns / kBlock) *sums = sum, sums += width, sum = 0, left = span / kBlock;
    }
  }
}

// ---- codes of a block ------------------------------------------------------------------------------
QE_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Bits [from, from + bits) of every byte moved to bit `to` (constants after inlining).
QE_INLINE __m256i field(__m256i x, int bits, int from, int to) {
  const int shift = from - to;
  if (shift > 0) x = _mm256_srli_epi16(x, shift);
  if (shift < 0) x = _mm256_slli_epi16(x, -shift);
  return bits == 8 ? x : _mm256_and_si256(x, _mm256_set1_epi8(char(((1 << bits) - 1) << to)));
}

// Vector j of a block whose units are `step` apart: byte 4r + i is the code of row r, column 4j + i.
template <class F>
QE_INLINE __m256i code_vector(const std::byte* p, std::int64_t step, int j) {
  __m256i w{};
  int shift = 0;
  QE_UNROLL for (int i = 0; i < F::Planes::kCount; ++i) {
    const int bits = F::Planes::kBits[std::size_t(i)], vectors = bits;  // 8 / (8 / bits)
    const __m256i f = field(load256(p + step * (j % vectors)), bits, bits * (j / vectors), shift);
    w = i == 0 ? f : _mm256_or_si256(w, f);
    p += step * vectors;
    shift += bits;
  }
  return w;
}

// ---- records ---------------------------------------------------------------------------------------
struct Terms8 {
  __m256 scale, offset, zero;
};

QE_INLINE __m256 load_f16x8(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
QE_INLINE __m256 load_bf16x8(const void* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}
QE_INLINE __m256i load_u8x8(const void* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
QE_INLINE __m256i load_i8x8(const void* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
// Low and high halves of 8 pairs of halfs.
QE_INLINE void load_f16_pairs(const void* p, __m256& low, __m256& high) {
  const __m256i x = load256(p), order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i y = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0xd8);
  low = _mm256_cvtph_ps(_mm256_castsi256_si128(y));
  high = _mm256_cvtph_ps(_mm256_extracti128_si256(y, 1));
}
// 8-bit floats, the code in the top byte of each lane, as 2^-120 (2^-112) times their value: sign,
// exponent and mantissa moved to their places. NaN and infinite codes are refused at load.
QE_INLINE __m256 e4m3_tiny(__m256i top) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(int(0x87f00000u))));
}
QE_INLINE __m256 e5m2_tiny(__m256i top) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(top, 3), _mm256_set1_epi32(int(0x8fe00000u))));
}
QE_INLINE __m256 e4m3x8(__m256i top) { return _mm256_mul_ps(e4m3_tiny(top), _mm256_set1_ps(0x1p120f)); }
QE_INLINE __m256 e5m2x8(__m256i top) { return _mm256_mul_ps(e5m2_tiny(top), _mm256_set1_ps(0x1p112f)); }

// The terms of the 8 rows for the record at `record` (and `super`).
template <class M>
QE_INLINE Terms8 terms8(const std::byte* super, const std::byte* record) {
  Terms8 t{_mm256_set1_ps(1.0f), _mm256_setzero_ps(), _mm256_setzero_ps()};
  if constexpr (M::kBytes == 0) {
  } else if constexpr (meta_shared<M>) {
    const Terms one = terms_of<M>(super, record);
    t = {_mm256_set1_ps(one.scale), _mm256_set1_ps(one.offset), _mm256_set1_ps(one.zero)};
  } else if constexpr (std::is_same_v<M, meta::ScaleF16>) {
    t.scale = load_f16x8(record);
  } else if constexpr (std::is_same_v<M, meta::ScaleBF16>) {
    t.scale = load_bf16x8(record);
  } else if constexpr (std::is_same_v<M, meta::ScaleF32>) {
    t.scale = _mm256_loadu_ps(reinterpret_cast<const float*>(record));
  } else if constexpr (std::is_same_v<M, meta::E8M0>) {  // 0 and 255 are the odd ones: 2^-127 and NaN
    const __m256i e = load_u8x8(record);
    __m256i bits = _mm256_slli_epi32(e, 23);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x00400000), _mm256_cmpeq_epi32(e, _mm256_setzero_si256()));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    t.scale = _mm256_castsi256_ps(bits);
  } else if constexpr (std::is_same_v<M, meta::E4M3>) {
    t.scale = e4m3x8(_mm256_slli_epi32(load_u8x8(record), 24));
  } else if constexpr (std::is_same_v<M, meta::ScaleOffsetF16>) {
    load_f16_pairs(record, t.scale, t.offset);
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScale>) {
    t.scale = _mm256_mul_ps(load_f16x8(super), _mm256_cvtepi32_ps(load_i8x8(record)));
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScaleMin>) {
    const __m256i both = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(record)));
    __m256 d, dmin;
    load_f16_pairs(super, d, dmin);
    t.scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(255))));
    t.offset = _mm256_xor_ps(_mm256_set1_ps(-0.0f), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 8))));
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScaleMin4>) {
    const __m256i both = load_u8x8(record);
    __m256 d, dmin;
    load_f16_pairs(super, d, dmin);
    t.scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))));
    t.offset = _mm256_xor_ps(_mm256_set1_ps(-0.0f), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4))));
  } else if constexpr (std::is_same_v<M, meta::ScaleZero24>) {
    const __m256i words = load256(record);
    t.scale = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(int(0xffffff00u))));
    t.zero = _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(255)));
  } else if constexpr (std::is_same_v<M, meta::ScaleOffsetF32>) {
    const auto* pairs = reinterpret_cast<const float*>(record);
    const __m256 low = _mm256_loadu_ps(pairs), high = _mm256_loadu_ps(pairs + 8);
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    t.scale = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(low, high, 0x88), order);
    t.offset = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(low, high, 0xdd), order);
  } else {
    alignas(32) float scale[8], offset[8], zero[8];
    for (int r = 0; r < kRows; ++r) {
      const Terms one = terms_of<M>(super + r * meta_super_bytes<M>, record + r * M::kBytes);
      scale[r] = one.scale, offset[r] = one.offset, zero[r] = one.zero;
    }
    t = {_mm256_load_ps(scale), _mm256_load_ps(offset), _mm256_load_ps(zero)};
  }
  return t;
}
template <class F>
QE_INLINE Terms8 terms8_at(const Panel& panel, const Layout& l, std::int64_t column) {
  using M = typename F::Meta;
  if constexpr (M::kBytes == 0) return terms8<M>(nullptr, nullptr);
  else return terms8<M>(super_at<F>(l, panel, column), record_at<F>(l, panel, column));
}

template <class F>
QE_INLINE __m256 row_factors(const Panel& panel) {
  alignas(32) float f[8];
  for (int r = 0; r < kRows; ++r) f[r] = row_factor<F>(row_at<F>(panel, r));
  return _mm256_load_ps(f);
}

// Stores the first `rows` of 8 outputs.
QE_INLINE void store_rows(float* out, __m256 v, int rows) {
  if (rows == kRows) return _mm256_storeu_ps(out, v);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(out, _mm256_cmpgt_epi32(_mm256_set1_epi32(rows), lane), v);
}

// ---- integers --------------------------------------------------------------------------------------
// Operands of the byte product. Unsigned ones, but for signed formats without VNNI; with it these are
// raised by 128, and the activations' sum starts 128 times lower (Input::bias).
template <class F>
QE_INLINE __m256i operand(const std::byte* block, int j) {
  using Op = Operand<F>;
  __m256i w = code_vector<F>(block, 32, j);
  if constexpr (Op::kSteps) {
    alignas(16) static constexpr auto table = [] {
      std::array<std::int8_t, 16> t{};
      for (int c = 0; c < (1 << F::Planes::bits); ++c) t[std::size_t(c)] = std::int8_t(Op::of(std::uint32_t(c)) + (QE_VNNI && Op::kSigned ? 128 : 0));
      return t;
    }();
    w = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.data()))), w);
  } else if constexpr (Op::kSigned && !QE_VNNI) {
    w = _mm256_xor_si256(w, _mm256_set1_epi8(char(0x80)));
  }
  return w;
}

QE_INLINE __m256i broadcast4(const std::int8_t* q) {
  std::int32_t v;
  std::memcpy(&v, q, 4);
  return _mm256_set1_epi32(v);
}

// d[t] = exact sum over vectors [J, J + Count) of a block, operand * activation, for 8 rows.
template <class F, int T, int J, int Count>
QE_INLINE void dots(const std::byte* block, const std::int8_t* q, const std::int32_t* bias, __m256i (&d)[T]) {
  using Op = Operand<F>;
#if QE_VNNI
  QE_UNROLL for (int t = 0; t < T; ++t) d[t] = Op::kSigned ? _mm256_set1_epi32(bias[t]) : _mm256_setzero_si256();
  QE_UNROLL for (int j = J; j < J + Count; ++j) {
    const __m256i w = operand<F>(block, j);
    QE_UNROLL for (int t = 0; t < T; ++t) d[t] = _mm256_dpbusd_epi32(d[t], w, broadcast4(q + kBlock * t + 4 * j));
  }
#else
  (void)bias;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i part[T];
  int added = 0;
  QE_UNROLL for (int j = J; j < J + Count; ++j) {
    const __m256i w = operand<F>(block, j);
    [[maybe_unused]] const __m256i magnitude = _mm256_abs_epi8(w);
    QE_UNROLL for (int t = 0; t < T; ++t) {
      const __m256i x = broadcast4(q + kBlock * t + 4 * j);
      const __m256i pairs = Op::kSigned ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
      part[t] = added == 0 ? pairs : _mm256_add_epi16(part[t], pairs);
    }
    if (++added == Op::kAdds || j + 1 == J + Count) {
      QE_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i four = _mm256_madd_epi16(part[t], ones);
        d[t] = j < J + Op::kAdds ? four : _mm256_add_epi32(d[t], four);
      }
      added = 0;
    }
  }
#endif
}

// What the sum of a span's inputs is multiplied with: offset, zero and the base of the operands.
template <class F>
QE_INLINE __m256 correction(const Terms8& t) {
  using M = typename F::Meta;
  __m256 base = _mm256_set1_ps(Operand<F>::kBase * Operand<F>::kStep);
  if constexpr (meta_has_zero<M>) base = _mm256_sub_ps(base, t.zero);
  base = _mm256_mul_ps(t.scale, base);
  if constexpr (meta_has_offset<M>) base = _mm256_add_ps(base, t.offset);
  return base;
}

// How a span meets blocks of 32 columns.
enum class Spans { half, one, many };

// One panel times the tile of T tokens that starts at `token`.
template <class F, int T, Spans S>
QE_FN void integer_tile(const Panel& panel, const Layout& l, const Input& in, std::int64_t token, float* out, std::int64_t out_stride, int rows) {
  using M = typename F::Meta;
  using Op = Operand<F>;
  constexpr bool kHalf = S == Spans::half;
  const std::int64_t blocks = l.columns / kBlock, span_blocks = S == Spans::many ? l.span / kBlock : 1, chunk_blocks = l.chunk / kBlock;
  const std::int8_t* q = in.q + token * in.columns;
  const float* scale = in.scale + token * blocks;
  const float* sums = in.sums + token * in.spans;
  const std::int32_t* bias = in.bias + token * (kHalf ? 2 * blocks : blocks);
  __m256 acc[T];
  QE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
  std::int64_t left = blocks;
  for (std::int64_t c = 0; left > 0; ++c) {
    const std::byte *super = panel.head(c), *block = panel.codes_of(l, c), *record = super;
    std::int64_t chunk = std::min(chunk_blocks, left), until_super = kSuperSpan / kBlock;
    if constexpr (kSuperBytes<F> > 0) record += (chunk + until_super - 1) / until_super * kSuperBytes<F>;
    left -= chunk;
    while (chunk > 0) {
      __m256i d[T];
      __m256 chain[T];
      std::int64_t span = std::min(span_blocks, chunk);
      chunk -= span;
      if constexpr (kHalf) {
        QE_UNROLL for (int half = 0; half < 2; ++half) {
          if (half == 0) dots<F, T, 0, 4>(block, q, bias, d);
          else dots<F, T, 4, 4>(block, q, bias + T, d);
          const Terms8 a = terms8<M>(super, record + half * kRecordBytes<F>);
          const __m256 step = _mm256_mul_ps(a.scale, _mm256_set1_ps(Op::kStep));
          [[maybe_unused]] const __m256 base = correction<F>(a);
          QE_UNROLL for (int t = 0; t < T; ++t) {
            acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(d[t]), _mm256_broadcast_ss(scale + t)), step, acc[t]);
            if constexpr (kCorrects<F>) acc[t] = _mm256_fmadd_ps(base, _mm256_broadcast_ss(sums + half * T + t), acc[t]);
          }
        }
        bias += 2 * T, sums += 2 * T, record += 2 * kRecordBytes<F>;
        q += kBlock * T, scale += T, block += kUnits<F> * 32;
      } else {
        if constexpr (S == Spans::one) {
          dots<F, T, 0, 8>(block, q, bias, d);
          QE_UNROLL for (int t = 0; t < T; ++t) chain[t] = _mm256_mul_ps(_mm256_cvtepi32_ps(d[t]), _mm256_broadcast_ss(scale + t));
          q += kBlock * T, scale += T, bias += T, block += kUnits<F> * 32;
        } else {
          QE_UNROLL for (int t = 0; t < T; ++t) chain[t] = _mm256_setzero_ps();
          do {
            dots<F, T, 0, 8>(block, q, bias, d);
            QE_UNROLL for (int t = 0; t < T; ++t) chain[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(d[t]), _mm256_broadcast_ss(scale + t), chain[t]);
            q += kBlock * T, scale += T, bias += T, block += kUnits<F> * 32;
          } while (--span > 0);
        }
        const Terms8 a = terms8<M>(super, record);
        const __m256 step = _mm256_mul_ps(a.scale, _mm256_set1_ps(Op::kStep));
        [[maybe_unused]] const __m256 base = correction<F>(a);
        QE_UNROLL for (int t = 0; t < T; ++t) {
          acc[t] = _mm256_fmadd_ps(chain[t], step, acc[t]);
          if constexpr (kCorrects<F>) acc[t] = _mm256_fmadd_ps(base, _mm256_broadcast_ss(sums + t), acc[t]);
        }
        sums += T, record += kRecordBytes<F>;
      }
      if constexpr (kSuperBytes<F> > 0) {
        until_super -= span_blocks;
        if (until_super == 0) super += kSuperBytes<F>, until_super = kSuperSpan / kBlock;
      }
    }
  }
  if constexpr (HasRowScale<F>) {
    const __m256 row = row_factors<F>(panel);
    QE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm256_mul_ps(acc[t], row);
  }
  QE_UNROLL for (int t = 0; t < T; ++t) store_rows(out + (token + t) * out_stride, acc[t], rows);
}

inline constexpr int kWidest = QE_VNNI ? 8 : 4;

template <class F, Spans S>
QE_FN void integer_panels(const Job& j) {
  const Layout& l = *j.layout;
  // Tokens in blocks whose int8 inputs stay in L2 while the panels pass by.
  const std::int64_t block = std::max<std::int64_t>(8, (std::int64_t{192} << 10) / std::max<std::int64_t>(1, l.columns) / 8 * 8);
  for (std::int64_t t0 = 0; t0 < j.in->m; t0 += block) {
    const std::int64_t t1 = std::min(j.in->m, t0 + block);
    for (std::int64_t p = j.begin; p < j.end; ++p) {
      const Panel panel = panel_at(l, j.base, p);
      const int rows = int(std::min<std::int64_t>(kRows, l.n - p * kRows));
      float* out = j.out + p * kRows;
      std::int64_t t = t0;
      if constexpr (kWidest == 8)
        for (; t + 8 <= t1; t += 8) integer_tile<F, 8, S>(panel, l, *j.in, t, out, j.out_stride, rows);
      for (; t + 4 <= t1; t += 4) integer_tile<F, 4, S>(panel, l, *j.in, t, out, j.out_stride, rows);
      if (t + 2 <= t1) integer_tile<F, 2, S>(panel, l, *j.in, t, out, j.out_stride, rows), t += 2;
      if (t < t1) integer_tile<F, 1, S>(panel, l, *j.in, t, out, j.out_stride, rows);
    }
  }
}

// ---- floats ----------------------------------------------------------------------------------------
// value() of the 32 columns of a block, out [32][8].
template <class F>
QE_INLINE void decode_values(const std::byte* p, std::int64_t step, float* out) {
  if constexpr (kKind<F> == Kind::wide) {
    if constexpr (F::kWide == Wide::f32) {
      for (int c = 0; c < kBlock; ++c) _mm256_storeu_ps(out + 8 * c, _mm256_loadu_ps(reinterpret_cast<const float*>(p + c * step)));
    } else {
      QE_UNROLL for (int c = 0; c < kBlock; ++c) _mm256_storeu_ps(out + 8 * c, F::kWide == Wide::bf16 ? load_bf16x8(p + c * step) : load_f16x8(p + c * step));
    }
  } else {
    alignas(32) static constexpr auto table = [] {
      std::array<float, (1 << F::Planes::bits) < 16 ? 16 : (1 << F::Planes::bits)> t{};
      for (std::size_t c = 0; c < (std::size_t{1} << F::Planes::bits); ++c) t[c] = F::value(std::uint32_t(c));
      return t;
    }();
    [[maybe_unused]] const __m256 low = _mm256_loadu_ps(table.data()), high = _mm256_loadu_ps(table.data() + 8);
    QE_UNROLL for (int j = 0; j < 8; ++j) {
      const __m256i w = code_vector<F>(p, step, j);
      QE_UNROLL for (int i = 0; i < 4; ++i) {
        __m256 v;
        if constexpr (kKind<F> == Kind::e4m3) {
          v = e4m3x8(_mm256_slli_epi32(w, 24 - 8 * i));
        } else if constexpr (kKind<F> == Kind::e5m2) {
          v = e5m2x8(_mm256_slli_epi32(w, 24 - 8 * i));
        } else if constexpr (kKind<F> == Kind::ramp) {
          const __m256i c = _mm256_and_si256(_mm256_srli_epi32(w, 8 * i), _mm256_set1_epi32(255));
          v = _mm256_add_ps(_mm256_cvtepi32_ps(c), _mm256_set1_ps(F::value(0)));
        } else if constexpr (F::Planes::bits <= 4) {  // the permutes read the low three bits, the blend the fourth
          const __m256i c = _mm256_srli_epi32(w, 8 * i);
          v = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, c), _mm256_permutevar8x32_ps(high, c), _mm256_castsi256_ps(_mm256_slli_epi32(w, 28 - 8 * i)));
        } else {
          const __m256i c = _mm256_and_si256(_mm256_srli_epi32(w, 8 * i), _mm256_set1_epi32(255));
          v = _mm256_i32gather_ps(table.data(), c, 4);
        }
        _mm256_storeu_ps(out + 8 * (4 * j + i), v);
      }
    }
  }
}

// The exact weights of a block, out [32][8].
template <class F>
QE_FN void exact_block(const Panel& panel, const Layout& l, std::int64_t block, float* out) {
  using M = typename F::Meta;
  decode_values<F>(block_at<F>(l, panel, block), panel.step, out);
  if constexpr (M::kBytes == 0 && !HasRowScale<F> && !HasWeight<F>) return;
  const std::int64_t column = block * kBlock;
  QE_UNROLL for (int half = 0; half < 2; ++half) {
    const Terms8 t = terms8_at<F>(panel, l, column + 16 * half);
    alignas(32) float row[8];
    for (int r = 0; r < kRows; ++r) row[r] = row_at<F>(panel, r);
    if constexpr (HasWeight<F>) {
      alignas(32) float scale[8], offset[8], zero[8];
      _mm256_store_ps(scale, t.scale), _mm256_store_ps(offset, t.offset), _mm256_store_ps(zero, t.zero);
      for (int c = 16 * half; c < 16 * half + 16; ++c)
        for (int r = 0; r < kRows; ++r) out[8 * c + r] = F::weight(out[8 * c + r], Terms{scale[r], offset[r], zero[r]}, row[r]);
    } else {
      for (int c = 16 * half; c < 16 * half + 16; ++c) {
        __m256 w = _mm256_loadu_ps(out + 8 * c);
        if constexpr (meta_has_zero<M>) w = _mm256_sub_ps(w, t.zero);
        if constexpr (meta_has_scale<M>) w = _mm256_mul_ps(t.scale, w);
        if constexpr (meta_has_offset<M>) w = _mm256_add_ps(w, t.offset);
        if constexpr (HasRowScale<F>) w = _mm256_mul_ps(w, _mm256_load_ps(row));
        _mm256_storeu_ps(out + 8 * c, w);
      }
    }
  }
}

// chain[t][p] += columns of buf[p] times tokens x[t]. chain is [T][P][8], buf P x [..][8].
template <int P, int T>
QE_FN void multiply(const float* const* buf, int columns, const float* x, std::int64_t x_stride, float* chain) {
  __m256 c[T][P];
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int p = 0; p < P; ++p) c[t][p] = _mm256_loadu_ps(chain + 8 * (t * P + p));
  const float* b[P];
  QE_UNROLL for (int p = 0; p < P; ++p) b[p] = buf[p];
  for (int k = 0; k < columns; ++k) {
    __m256 w[P];
    QE_UNROLL for (int p = 0; p < P; ++p) w[p] = _mm256_loadu_ps(b[p] + 8 * k);
    QE_UNROLL for (int t = 0; t < T; ++t) {
      const __m256 v = _mm256_broadcast_ss(x + t * x_stride + k);
      QE_UNROLL for (int p = 0; p < P; ++p) c[t][p] = _mm256_fmadd_ps(w[p], v, c[t][p]);
    }
  }
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int p = 0; p < P; ++p) _mm256_storeu_ps(chain + 8 * (t * P + p), c[t][p]);
}

template <int P>
QE_FN void multiply_tokens(const float* const* buf, int columns, const float* x, std::int64_t x_stride, std::int64_t m, float* chain) {
  constexpr int wide = P == 1 ? 8 : P == 2 ? 6 : 2;
  std::int64_t t = 0;
  for (std::int64_t left = m; left >= wide && !(P == 2 && left == 8); left -= wide, t += wide) multiply<P, wide>(buf, columns, x + t * x_stride, x_stride, chain + 8 * P * t);
  if constexpr (wide > 4)
    for (; t + 4 <= m; t += 4) multiply<P, 4>(buf, columns, x + t * x_stride, x_stride, chain + 8 * P * t);
  if constexpr (wide > 2)
    for (; t + 2 <= m; t += 2) multiply<P, 2>(buf, columns, x + t * x_stride, x_stride, chain + 8 * P * t);
  for (; t < m; ++t) multiply<P, 1>(buf, columns, x + t * x_stride, x_stride, chain + 8 * P * t);
}

inline constexpr int kFloatTokens = 48;  // tokens of one pass: accumulators and chains stay in L1

// Panels [p0, p0 + P) times tokens [t0, t0 + m), m <= kFloatTokens.
template <class F, int P, bool Exact>
QE_FN void float_panels(const Job& j, std::int64_t p0, std::int64_t t0, std::int64_t m) {
  using M = typename F::Meta;
  const Layout& l = *j.layout;
    constexpr int kPiece = P == 4 ? 64 : kSegment;  // columns decoded at a time
  alignas(64) float buffer[P * kPiece * kRows];
  alignas(64) float acc[kFloatTokens * P * kRows], chain[kFloatTokens * P * kRows];
  std::memset(acc, 0, std::size_t(m) * P * kRows * sizeof(float));
  std::memset(chain, 0, std::size_t(m) * P * kRows * sizeof(float));
  const float* x = j.in->x + t0 * j.in->x_stride;
  Panel panel[P];
  QE_UNROLL for (int p = 0; p < P; ++p) panel[p] = panel_at(l, j.base, p0 + p);
  const std::int64_t span = Exact || !meta_has_scale<M> ? l.columns : l.span;
  for (std::int64_t c = 0; c < l.columns;) {
    const std::int64_t span_end = std::min(l.columns, c + span);
    while (c < span_end) {
      const std::int64_t end = std::min(span_end, c + kSegment);
      // one chain: columns [c, end), decoded by pieces of whole blocks
      while (c < end) {
        const std::int64_t block = c / kBlock, skip = c % kBlock;
        const int take = int(std::min<std::int64_t>(end - c, kPiece - skip));
        const float* at[P];
        QE_UNROLL for (int p = 0; p < P; ++p) {
          float* to = buffer + p * kPiece * kRows;
          for (std::int64_t b = 0; b < (skip + take + kBlock - 1) / kBlock; ++b) {
            if constexpr (Exact) exact_block<F>(panel[p], l, block + b, to + b * kBlock * kRows);
            else decode_values<F>(block_at<F>(l, panel[p], block + b), panel[p].step, to + b * kBlock * kRows);
          }
          at[p] = to + skip * kRows;
        }
        multiply_tokens<P>(at, take, x + c, j.in->x_stride, m, chain);
        c += take;
      }
      if constexpr (!Exact && meta_has_scale<M>) {
        QE_UNROLL for (int p = 0; p < P; ++p) {
          const __m256 scale = terms8_at<F>(panel[p], l, end - 1).scale;
          for (std::int64_t t = 0; t < m; ++t) {
            float* a = acc + 8 * (t * P + p);
            _mm256_storeu_ps(a, _mm256_fmadd_ps(_mm256_loadu_ps(chain + 8 * (t * P + p)), scale, _mm256_loadu_ps(a)));
          }
        }
      } else {
        for (std::int64_t i = 0; i < m * P * kRows; i += 8) _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), _mm256_loadu_ps(chain + i)));
      }
      std::memset(chain, 0, std::size_t(m) * P * kRows * sizeof(float));
    }
  }
  QE_UNROLL for (int p = 0; p < P; ++p) {
    const int rows = int(std::min<std::int64_t>(kRows, l.n - (p0 + p) * kRows));
    [[maybe_unused]] __m256 row{};
    if constexpr (!Exact && HasRowScale<F>) row = row_factors<F>(panel[p]);
    for (std::int64_t t = 0; t < m; ++t) {
      __m256 y = _mm256_loadu_ps(acc + 8 * (t * P + p));
      if constexpr (!Exact && HasRowScale<F>) y = _mm256_mul_ps(y, row);
      store_rows(j.out + (t0 + t) * j.out_stride + (p0 + p) * kRows, y, rows);
    }
  }
}

// One or two tokens: the weights are used straight from the stream, four panels side by side so that
// the chains do not wait for each other.
template <class F>
inline constexpr bool kStreams = kKind<F> == Kind::wide || kKind<F> == Kind::e4m3 || kKind<F> == Kind::e5m2 || (kKind<F> == Kind::table && F::Planes::bits <= 4);

template <class F, int P, int T, bool Whole>
QE_FN void stream_panels(const Job& j, std::int64_t p0, std::int64_t t0) {
  using M = typename F::Meta;
  const Layout& l = *j.layout;
  // 8-bit floats enter tiny; the activations carry half of the power of two that is missing, the chain's end the rest.
  constexpr float kLift = kKind<F> == Kind::e4m3 ? 0x1p64f : kKind<F> == Kind::e5m2 ? 0x1p56f : 1.0f;
  constexpr float kRest = kKind<F> == Kind::e4m3 || kKind<F> == Kind::e5m2 ? 0x1p56f : 1.0f;
  const float* x[T];
  QE_UNROLL for (int t = 0; t < T; ++t) x[t] = j.in->x + (t0 + t) * j.in->x_stride;
  // Panels of one strip lie side by side: one pointer for all.
  const Panel panel = panel_at(l, j.base, p0);
  const std::byte* at = panel.codes_of(l, 0);
  const std::int64_t step = Whole ? P * kUnitBytes<F> : panel.step;
  [[maybe_unused]] __m256 low{}, high{};
  if constexpr (kKind<F> == Kind::table && F::Planes::bits <= 4) {
    alignas(32) static constexpr auto table = [] {
      std::array<float, 16> t{};
      for (std::size_t c = 0; c < (std::size_t{1} << F::Planes::bits); ++c) t[c] = F::value(std::uint32_t(c));
      return t;
    }();
    low = _mm256_load_ps(table.data()), high = _mm256_load_ps(table.data() + 8);
  }
  __m256 acc[P][T];
  QE_UNROLL for (int p = 0; p < P; ++p)
    QE_UNROLL for (int t = 0; t < T; ++t) acc[p][t] = _mm256_setzero_ps();
  const std::int64_t span = meta_has_scale<M> ? l.span : l.columns;
  const std::int64_t chunk_blocks = l.chunk / kBlock;
  for (std::int64_t c = 0, chunk = 0, in_chunk = 0; c < l.columns;) {
    const std::int64_t span_end = std::min(l.columns, c + span);
    while (c < span_end) {
      const std::int64_t end = std::min(span_end, c + kSegment);
      __m256 chain[P][T];
      QE_UNROLL for (int p = 0; p < P; ++p)
        QE_UNROLL for (int t = 0; t < T; ++t) chain[p][t] = _mm256_setzero_ps();
      for (; c < end; c += kBlock) {
        if constexpr (kKind<F> == Kind::wide) {
          QE_UNROLL for (int i = 0; i < kBlock; ++i) {
            __m256 v[T];
            QE_UNROLL for (int t = 0; t < T; ++t) v[t] = _mm256_broadcast_ss(x[t] + c + i);
            QE_UNROLL for (int p = 0; p < P; ++p) {
              const std::byte* from = at + i * step + p * kUnitBytes<F>;
              __m256 w;
              if constexpr (F::kWide == Wide::f32) w = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
              else w = F::kWide == Wide::bf16 ? load_bf16x8(from) : load_f16x8(from);
              QE_UNROLL for (int t = 0; t < T; ++t) chain[p][t] = _mm256_fmadd_ps(w, v[t], chain[p][t]);
            }
          }
        } else {
          QE_UNROLL for (int g = 0; g < 8; ++g) {
            __m256i codes[P];
            QE_UNROLL for (int p = 0; p < P; ++p) codes[p] = code_vector<F>(at + p * kUnitBytes<F>, step, g);
            QE_UNROLL for (int i = 0; i < 4; ++i) {
              __m256 v[T];
              QE_UNROLL for (int t = 0; t < T; ++t) v[t] = _mm256_mul_ps(_mm256_broadcast_ss(x[t] + c + 4 * g + i), _mm256_set1_ps(kLift));
              QE_UNROLL for (int p = 0; p < P; ++p) {
                __m256 w;
                if constexpr (kKind<F> == Kind::table) {
                  const __m256i k = _mm256_srli_epi32(codes[p], 8 * i);
                  w = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, k), _mm256_permutevar8x32_ps(high, k), _mm256_castsi256_ps(_mm256_slli_epi32(codes[p], 28 - 8 * i)));
                } else {
                  const __m256i top = _mm256_slli_epi32(codes[p], 24 - 8 * i);
                  w = kKind<F> == Kind::e4m3 ? e4m3_tiny(top) : e5m2_tiny(top);
                }
                QE_UNROLL for (int t = 0; t < T; ++t) chain[p][t] = _mm256_fmadd_ps(w, v[t], chain[p][t]);
              }
            }
          }
        }
        at += kUnits<F> * step;
        if (++in_chunk == chunk_blocks && c + kBlock < l.columns) at = panel.codes_of(l, ++chunk), in_chunk = 0;
      }
      QE_UNROLL for (int p = 0; p < P; ++p) {
        [[maybe_unused]] __m256 scale{};
        if constexpr (meta_has_scale<M>) scale = terms8_at<F>(panel_at(l, j.base, p0 + p), l, end - 1).scale;
        QE_UNROLL for (int t = 0; t < T; ++t) {
          __m256 sum = chain[p][t];
          if constexpr (kRest != 1.0f) sum = _mm256_mul_ps(sum, _mm256_set1_ps(kRest));
          acc[p][t] = meta_has_scale<M> ? _mm256_fmadd_ps(sum, scale, acc[p][t]) : _mm256_add_ps(acc[p][t], sum);
        }
      }
    }
  }
  QE_UNROLL for (int p = 0; p < P; ++p) {
    const int rows = int(std::min<std::int64_t>(kRows, l.n - (p0 + p) * kRows));
    [[maybe_unused]] __m256 row{};
    if constexpr (HasRowScale<F>) row = row_factors<F>(panel_at(l, j.base, p0 + p));
    QE_UNROLL for (int t = 0; t < T; ++t) {
      __m256 y = acc[p][t];
      if constexpr (HasRowScale<F>) y = _mm256_mul_ps(y, row);
      store_rows(j.out + (t0 + t) * j.out_stride + (p0 + p) * kRows, y, rows);
    }
  }
}

// Ranges of panels begin and end at strips, but for the last strip of a part.
template <class F, int T>
QE_FN void stream(const Job& j, std::int64_t t0) {
  std::int64_t p = j.begin;
  for (; p % 4 == 0 && p + 4 <= j.end; p += 4) stream_panels<F, 4, T, true>(j, p, t0);
  for (; p < j.end; ++p) stream_panels<F, 1, T, false>(j, p, t0);
}

template <class F, bool Exact>
QE_FN void floats(const Job& j) {
  for (std::int64_t t0 = 0; t0 < j.in->m; t0 += kFloatTokens) {
    const std::int64_t m = std::min<std::int64_t>(kFloatTokens, j.in->m - t0);
    std::int64_t p = j.begin;
    if constexpr (!Exact && kStreams<F>) {
      if (m <= 2 && (!meta_has_scale<typename F::Meta> || j.layout->span != 16)) {
        m == 1 ? stream<F, 1>(j, t0) : stream<F, 2>(j, t0);
        continue;
      }
    }
    if (m <= 2)
      for (; p + 4 <= j.end; p += 4) float_panels<F, 4, Exact>(j, p, t0, m);
    for (; p + 2 <= j.end; p += 2) float_panels<F, 2, Exact>(j, p, t0, m);
    for (; p < j.end; ++p) float_panels<F, 1, Exact>(j, p, t0, m);
  }
}

template <class F>
QE_FN void run(const Job& j, Path path) {
  if constexpr (kFastPath<F> == Path::integer) {
    if (path == Path::integer) {
      if (j.layout->span == 16) return integer_panels<F, Spans::half>(j);
      return j.layout->span == kBlock ? integer_panels<F, Spans::one>(j) : integer_panels<F, Spans::many>(j);
    }
  } else if constexpr (kFastPath<F> == Path::floating) {
    if (path == Path::floating) return floats<F, false>(j);
  }
  floats<F, true>(j);
}

}  // namespace qe::cpu::QE_ISA

#undef QE_FN
#undef QE_INLINE
