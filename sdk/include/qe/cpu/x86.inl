// qe/cpu/x86.inl: the products of kernels.hpp with vectors of rows. Included once for each instruction
// set, after the file that defines its vectors (x86_avx2.inl, x86_avx512.inl): kLanes rows, kPer panels.
//
// Integers: one load serves a vector's rows x 4 columns, one broadcast the activations of these columns.
// Floats: a few tokens multiply with codes as they stream by; for more, the codes of a few panels go to a
// buffer in L1 as [column][row], then register tiles of rows x tokens run over it.
//
// The target attribute must stand on every function, so there are no lambdas here.

namespace qe::cpu::QE_ISA {

// ---- activations -----------------------------------------------------------------------------------
// scalar::quantize_token, the same numbers in the order of store_input.
QE_FN inline void quantize_token(const float* x, std::int64_t columns, std::int64_t span, const TokenOut& out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), ones = _mm256_set1_epi16(1);
  const bool half = span == 16;
  const std::int64_t width = out.width;
  std::byte* q = out.q + out.lane * kInputBytes;
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
    const float inverse = zero || !finite ? 0.0f : float(kLevels) / amax, s = !finite ? std::bit_cast<float>(0x7fc00000u) : zero ? 0.0f : amax / float(kLevels);
    const __m256 f = _mm256_set1_ps(inverse);
    const __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(v0, f)), i1 = _mm256_cvtps_epi32(_mm256_mul_ps(v1, f));
    const __m256i i2 = _mm256_cvtps_epi32(_mm256_mul_ps(v2, f)), i3 = _mm256_cvtps_epi32(_mm256_mul_ps(v3, f));
    __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(i0, i1), 0xd8), high = _mm256_permute4x64_epi64(_mm256_packs_epi32(i2, i3), 0xd8);
    if (!finite) low = high = _mm256_setzero_si256();
    store_input(q + b * width * kInputBytes, low, high);
    scale[b * width] = s;
    // sums of 16: [low low high high] twice over
    const __m256i pairs = _mm256_hadd_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_hadd_epi32(four, four);
    const std::int32_t a = _mm_cvtsi128_si32(four), z = _mm_extract_epi32(four, 1);
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

// ---- the rows of a vector --------------------------------------------------------------------------
// Vector v of a part: panels [v * kPer, v * kPer + kPer), of which the last may be missing.
struct Rows {
  Panel panel;
  std::int64_t panels;  // that exist: at most kPer
  Mask mask;

  QE_FN Two head(const Layout& l, std::int64_t c) const {
    const std::byte* a = panel.head(l, c);
    return {a, panels > 1 ? a + l.head_of(c) : a};
  }
};
QE_FN inline Rows rows_at(const Layout& l, const std::byte* base, std::int64_t first_panel) {
  const std::int64_t panels = std::min<std::int64_t>(kPer, l.panels - first_panel);
  return {panel_at(l, base, first_panel), panels, mask_of(panels)};
}

// Bits [from, from + bits) of every byte moved to bit `to` (constants after inlining).
QE_INLINE vi field(vi x, int bits, int from, int to) {
  const int shift = from - to;
  if (shift > 0) x = i_shr16(x, shift);
  if (shift < 0) x = i_shl16(x, -shift);
  return bits == 8 ? x : i_and(x, i_bytes(((1 << bits) - 1) << to));
}

// Vector j of a block whose units are `step` apart: byte 4r + i is the code of row r, column 4j + i.
template <class F, class M>
QE_INLINE vi code_vector(const std::byte* p, std::int64_t step, M mask, int j) {
  vi w{};
  int shift = 0;
  QE_UNROLL for (int i = 0; i < F::Planes::kCount; ++i) {
    const int bits = F::Planes::kBits[std::size_t(i)], vectors = bits;  // 8 / (8 / bits)
    const vi f = field(load_bytes(p + step * (j % vectors), mask), bits, bits * (j / vectors), shift);
    w = i == 0 ? f : i_or(w, f);
    p += step * vectors;
    shift += bits;
  }
  return w;
}

// ---- records ---------------------------------------------------------------------------------------
// 8-bit floats, the code in the top byte of each lane, as 2^-120 (2^-112) times their value: sign,
// exponent and mantissa moved to their places. NaN and infinite codes are refused at load.
QE_INLINE vf e4m3_tiny(vi top) { return f_bits(i_and(i_sar(top, 4), i_set(int(0x87f00000u)))); }
QE_INLINE vf e5m2_tiny(vi top) { return f_bits(i_and(i_sar(top, 3), i_set(int(0x8fe00000u)))); }
QE_INLINE vf e4m3_value(vi top) { return f_mul(e4m3_tiny(top), f_set(0x1p120f)); }
QE_INLINE vf e5m2_value(vi top) { return f_mul(e5m2_tiny(top), f_set(0x1p112f)); }

struct TermsV {
  vf scale, offset, zero;
};

// The terms of a vector's rows for the records at `record` (and `super`).
template <class M>
QE_INLINE TermsV terms_v(Two super, Two record) {
  TermsV t{f_set(1.0f), f_zero(), f_zero()};
  if constexpr (M::kBytes == 0) {
  } else if constexpr (meta_shared<M>) {
    const Terms a = terms_of<M>(super.a, record.a), b = kPer > 1 ? terms_of<M>(super.b, record.b) : a;
    t = {f_two(a.scale, b.scale), f_two(a.offset, b.offset), f_two(a.zero, b.zero)};
  } else if constexpr (std::is_same_v<M, meta::ScaleF16>) {
    t.scale = f16s(record);
  } else if constexpr (std::is_same_v<M, meta::ScaleBF16>) {
    t.scale = bf16s(record);
  } else if constexpr (std::is_same_v<M, meta::ScaleF32>) {
    t.scale = f32s(record);
  } else if constexpr (std::is_same_v<M, meta::E8M0>) {
    t.scale = e8m0s(record);
  } else if constexpr (std::is_same_v<M, meta::E4M3>) {
    t.scale = e4m3_value(i_shl(u8s(record), 24));
  } else if constexpr (std::is_same_v<M, meta::ScaleOffsetF16>) {
    f16_pairs(record, t.scale, t.offset);
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScale>) {
    t.scale = f_mul(f16s(super), f_of(i8s(record)));
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScaleMin>) {
    const vi both = u16s(record);
    vf d, dmin;
    f16_pairs(super, d, dmin);
    t.scale = f_mul(d, f_of(i_and(both, i_set(255))));
    t.offset = f_neg(f_mul(dmin, f_of(i_shr(both, 8))));
  } else if constexpr (std::is_same_v<M, meta::TwoLevelScaleMin4>) {
    const vi both = u8s(record);
    vf d, dmin;
    f16_pairs(super, d, dmin);
    t.scale = f_mul(d, f_of(i_and(both, i_set(15))));
    t.offset = f_neg(f_mul(dmin, f_of(i_shr(both, 4))));
  } else if constexpr (std::is_same_v<M, meta::ScaleZero24>) {
    const vi words = u32s(record);
    t.scale = f_bits(i_and(words, i_set(int(0xffffff00u))));
    t.zero = f_of(i_and(words, i_set(255)));
  } else if constexpr (std::is_same_v<M, meta::ScaleOffsetF32>) {
    f32_pairs(record, t.scale, t.offset);
  } else {
    alignas(64) float scale[kLanes], offset[kLanes], zero[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const Terms one = r < kRows ? terms_of<M>(super.a + r * meta_super_bytes<M>, record.a + r * M::kBytes)
                                  : terms_of<M>(super.b + (r - kRows) * meta_super_bytes<M>, record.b + (r - kRows) * M::kBytes);
      scale[r] = one.scale, offset[r] = one.offset, zero[r] = one.zero;
    }
    t = {f_load(scale), f_load(offset), f_load(zero)};
  }
  return t;
}
template <class F>
QE_INLINE TermsV terms_at_v(const Rows& rows, const Layout& l, std::int64_t column) {
  using M = typename F::Meta;
  if constexpr (M::kBytes == 0) {
    return terms_v<M>({}, {});
  } else {
    const std::int64_t other = rows.panels > 1 ? l.head_of(column / l.chunk) : 0;
    const std::byte *super = super_at<F>(l, rows.panel, column), *record = record_at<F>(l, rows.panel, column);
    return terms_v<M>({super, super + other}, {record, record + other});
  }
}

// The row factors of a vector, through Factor: row_factor<F> or none.
template <class F, bool Factor>
QE_INLINE void row_numbers(const Rows& rows, float (&f)[kLanes]) {
  for (int r = 0; r < kLanes; ++r) {
    f[r] = 1.0f;
    if constexpr (HasRowScale<F>) {
      if (r >= rows.panels * kRows) continue;
      std::memcpy(&f[r], rows.panel.row + 4 * r, 4);  // the factors of a strip's panels lie side by side
      if constexpr (Factor) f[r] = row_factor<F>(f[r]);
    }
  }
}
template <class F>
QE_INLINE vf row_factors(const Rows& rows) {
  alignas(64) float f[kLanes];
  row_numbers<F, true>(rows, f);
  return f_load(f);
}

// Weights to come, asked for ahead of what the hardware's own prefetcher asks: it stops at every page, and a product that computes
// between its loads gives it little to go by. `units` of a block, `step` bytes apart: a line or less.
inline constexpr std::int64_t kAhead = 1024;
QE_INLINE void ask_ahead(const std::byte* codes, std::int64_t units, std::int64_t step) {
  QE_UNROLL for (std::int64_t u = 0; u < units; ++u) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + u * step), _MM_HINT_T0);
}

// ---- integers --------------------------------------------------------------------------------------
// Operands of the byte product: unsigned. Signed ones are raised by 128, and the sum of the activations starts 128
// times lower (Input::bias).
template <class F>
QE_INLINE vi operand(const std::byte* block, std::int64_t step, Mask mask, int j) {
  using Op = Operand<F>;
  vi w = code_vector<F>(block, step, mask, j);
  if constexpr (Op::kSteps) {
    alignas(16) static constexpr auto table = [] {
      std::array<std::uint8_t, 16> t{};
      for (int c = 0; c < (1 << F::Planes::bits); ++c) t[std::size_t(c)] = std::uint8_t(Op::of(std::uint32_t(c)) + (Op::kSigned ? 128 : 0));
      return t;
    }();
    w = i_bytes_of(table.data(), w);
  }
  return w;
}

// d[t][v] = start[t] + the exact sum over vectors J .. J + Count of a block, one block for each of V vectors of rows, times the
// activations at q.
template <class F, int J, int Count, int T, int V>
QE_INLINE void block_dots(const std::byte* const (&block)[V], std::int64_t step, const Rows (&rows)[V], const std::byte* q, const std::int32_t* start, vi (&d)[T][V]) {
  if constexpr (kStepwise) {
    start_dots<T, V>(start, d);
    constexpr int kTwin = F::Planes::bits == 4 && Count == 8 ? 2 : 1;  // vectors j and j + 4 share their bytes
    QE_UNROLL for (int i = 0; i < Count; ++i) {
      const int j = J + i / kTwin + i % kTwin * (Count / 2);
      vi w[V];
      QE_UNROLL for (int v = 0; v < V; ++v) w[v] = operand<F>(block[v], step, rows[v].mask, j);
      add_dots<T, V>(w, q + 8 * j, d);
    }
  } else {
    vi w[V][Count];
    QE_UNROLL for (int v = 0; v < V; ++v)
      QE_UNROLL for (int j = 0; j < Count; ++j) w[v][j] = operand<F>(block[v], step, rows[v].mask, J + j);
    dots<T, V, J, Count>(w, q, start, d);
  }
}

// What the sum of a span's inputs is multiplied with: offset, zero and the base of the operands.
template <class F>
QE_INLINE vf correction(const TermsV& t) {
  using M = typename F::Meta;
  if constexpr (Operand<F>::kBase == 0 && !meta_has_zero<M>) return t.offset;
  vf base = f_set(Operand<F>::kBase * Operand<F>::kStep);
  if constexpr (meta_has_zero<M>) base = f_sub(base, t.zero);
  base = f_mul(t.scale, base);
  if constexpr (meta_has_offset<M>) base = f_add(base, t.offset);
  return base;
}

// How a span meets blocks of 32 columns.
enum class Spans { half, one, many };

inline constexpr int kTwoPanels = 2 / kPer;  // vectors of an integer strip

// One strip times the tile of T tokens that starts at `token`.
template <class F, int T, Spans S>
QE_FN void integer_tile(const Rows (&rows)[kTwoPanels], const Layout& l, const Input& in, std::int64_t token, float* out, std::int64_t out_stride,
                        std::int64_t valid) {
  using M = typename F::Meta;
  using Op = Operand<F>;
  constexpr int V = kTwoPanels;
  constexpr bool kHalf = S == Spans::half;
  const std::int64_t blocks = l.columns / kBlock, span_blocks = S == Spans::many ? l.span / kBlock : 1, chunk_blocks = l.chunk / kBlock;
  const std::int64_t step = rows[0].panel.step;
  const std::byte* q = in.q + token * in.columns * 2;
  const float* scale = in.scale + token * blocks;
  const float* sums = in.sums + token * in.spans;
  const std::int32_t* bias = in.bias + token * (kHalf ? 2 * blocks : blocks);
  vf acc[T][V];
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) acc[t][v] = f_zero();
  std::int64_t left = blocks;
  for (std::int64_t c = 0; left > 0; ++c) {
    const std::byte* block[V];
    Two super[V], record[V];
    std::int64_t chunk = std::min(chunk_blocks, left), until_super = kSuperSpan / kBlock;
    QE_UNROLL for (int v = 0; v < V; ++v) {
      block[v] = rows[v].panel.codes(l, c);
      super[v] = record[v] = rows[v].head(l, c);
      if constexpr (kSuperBytes<F> > 0) record[v] = record[v] + (chunk + until_super - 1) / until_super * kSuperBytes<F>;
    }
    left -= chunk;
    while (chunk > 0) {
      vi d[T][V];
      std::int64_t span = std::min(span_blocks, chunk);
      chunk -= span;
      if constexpr (kHalf) {
        ask_ahead(block[0], kUnits<F>, step);
        QE_UNROLL for (int half = 0; half < 2; ++half) {
          if (half == 0) block_dots<F, 0, 4>(block, step, rows, q, Op::kSigned ? bias : nullptr, d);
          else block_dots<F, 4, 4>(block, step, rows, q, Op::kSigned ? bias + T : nullptr, d);
          QE_UNROLL for (int v = 0; v < V; ++v) {
            const TermsV a = terms_v<M>(super[v], record[v] + half * kRecordBytes<F>);
            const vf by = f_mul(a.scale, f_set(Op::kStep));
            [[maybe_unused]] const vf base = correction<F>(a);
            QE_UNROLL for (int t = 0; t < T; ++t) {
              acc[t][v] = f_fma(f_mul(f_of(d[t][v]), f_all(scale + t)), by, acc[t][v]);
              if constexpr (kCorrects<F>) acc[t][v] = f_fma(base, f_all(sums + half * T + t), acc[t][v]);
            }
          }
        }
        QE_UNROLL for (int v = 0; v < V; ++v) record[v] = record[v] + 2 * kRecordBytes<F>, block[v] += kUnits<F> * step;
        bias += 2 * T, sums += 2 * T, q += kInputBytes * T, scale += T;
      } else {
        vf chain[T][V];
        if constexpr (S == Spans::many) {
          QE_UNROLL for (int t = 0; t < T; ++t)
            QE_UNROLL for (int v = 0; v < V; ++v) chain[t][v] = f_zero();
        }
        do {
          ask_ahead(block[0], kUnits<F>, step);
          block_dots<F, 0, 8>(block, step, rows, q, Op::kSigned ? bias : nullptr, d);
          QE_UNROLL for (int t = 0; t < T; ++t)
            QE_UNROLL for (int v = 0; v < V; ++v)
              chain[t][v] = S == Spans::many ? f_fma(f_of(d[t][v]), f_all(scale + t), chain[t][v]) : f_mul(f_of(d[t][v]), f_all(scale + t));
          QE_UNROLL for (int v = 0; v < V; ++v) block[v] += kUnits<F> * step;
          q += kInputBytes * T, scale += T, bias += T;
        } while (S == Spans::many && --span > 0);
        QE_UNROLL for (int v = 0; v < V; ++v) {
          const TermsV a = terms_v<M>(super[v], record[v]);
          const vf by = f_mul(a.scale, f_set(Op::kStep));
          [[maybe_unused]] const vf base = correction<F>(a);
          QE_UNROLL for (int t = 0; t < T; ++t) {
            acc[t][v] = f_fma(chain[t][v], by, acc[t][v]);
            if constexpr (kCorrects<F>) acc[t][v] = f_fma(base, f_all(sums + t), acc[t][v]);
          }
          record[v] = record[v] + kRecordBytes<F>;
        }
        sums += T;
      }
      if constexpr (kSuperBytes<F> > 0) {
        until_super -= span_blocks;
        if (until_super == 0) {
          QE_UNROLL for (int v = 0; v < V; ++v) super[v] = super[v] + kSuperBytes<F>;
          until_super = kSuperSpan / kBlock;
        }
      }
    }
  }
  QE_UNROLL for (int v = 0; v < V; ++v) {
    [[maybe_unused]] vf row{};
    if constexpr (HasRowScale<F>) row = row_factors<F>(rows[v]);
    if (valid <= v * kLanes) break;
    QE_UNROLL for (int t = 0; t < T; ++t) {
      vf y = acc[t][v];
      if constexpr (HasRowScale<F>) y = f_mul(y, row);
      f_store_rows(out + (token + t) * out_stride + v * kLanes, y, valid - v * kLanes);
    }
  }
}

template <class F, Spans S>
QE_FN void integer_panels(const Job& j) {
  const Layout& l = *j.layout;
  // Tokens in blocks whose inputs stay in L2 while the panels pass by.
  const std::int64_t block = std::max<std::int64_t>(8, (std::int64_t{192} << 10) / std::max<std::int64_t>(1, 2 * l.columns) / 8 * 8);
  for (std::int64_t t0 = 0; t0 < j.in->m; t0 += block) {
    const std::int64_t t1 = std::min(j.in->m, t0 + block);
    for (std::int64_t p = j.begin; p < j.end; p += 2) {
      Rows rows[kTwoPanels];
      // of a lone panel a second vector repeats the first
      QE_UNROLL for (int v = 0; v < kTwoPanels; ++v) rows[v] = rows_at(l, j.base, std::min(p + v * kPer, l.panels - 1));
      const std::int64_t valid = std::min<std::int64_t>(2 * kRows, l.n - p * kRows);
      float* out = j.out + p * kRows;
      std::int64_t t = t0;
      if constexpr (kWidest == 8)
        for (; t + 8 <= t1; t += 8) integer_tile<F, 8, S>(rows, l, *j.in, t, out, j.out_stride, valid);
      for (; t + 4 <= t1; t += 4) integer_tile<F, 4, S>(rows, l, *j.in, t, out, j.out_stride, valid);
      if (t + 2 <= t1) integer_tile<F, 2, S>(rows, l, *j.in, t, out, j.out_stride, valid), t += 2;
      if (t < t1) integer_tile<F, 1, S>(rows, l, *j.in, t, out, j.out_stride, valid);
    }
  }
}

// ---- floats ----------------------------------------------------------------------------------------
// What the values of codes are made with.
template <class F>
struct Values {
  static constexpr bool kTable16 = (kKind<F> == Kind::table || kKind<F> == Kind::steps) && F::Planes::bits <= 4;
  static constexpr bool kTable = (kKind<F> == Kind::table || kKind<F> == Kind::steps) && F::Planes::bits > 4;
  // 8-bit floats enter tiny: what a sum of their products is short of.
  static constexpr float kTiny = kKind<F> == Kind::e4m3 ? 0x1p120f : kKind<F> == Kind::e5m2 ? 0x1p112f : 1.0f;
  alignas(64) static constexpr auto all = [] {
    constexpr std::size_t count = kTable16 || kTable ? std::size_t{1} << F::Planes::bits : 1;
    std::array<float, count < 16 ? 16 : count> t{};
    if constexpr (kTable16 || kTable)
      for (std::size_t c = 0; c < count; ++c) t[c] = F::value(std::uint32_t(c));
    return t;
  }();
  Table16 sixteen;

  QE_FN Values() : sixteen(table16(all.data())) {}

  // Column i of four.
  template <bool Tiny>
  QE_INLINE vf of(vi codes, int i) const {
    if constexpr (kKind<F> == Kind::e4m3) {
      const vi top = i_shl(codes, 24 - 8 * i);
      return Tiny ? e4m3_tiny(top) : e4m3_value(top);
    } else if constexpr (kKind<F> == Kind::e5m2) {
      const vi top = i_shl(codes, 24 - 8 * i);
      return Tiny ? e5m2_tiny(top) : e5m2_value(top);
    } else if constexpr (kTable16) {
      return look_up(sixteen, codes, 8 * i);
    } else {
      const vi c = i_and(i_shr(codes, 8 * i), i_set(255));
      if constexpr (kTable) return gather(all.data(), c);
      else return f_add(f_of(c), f_set(F::value(0)));
    }
  }
};

template <class F, class M>
QE_INLINE vf wide_vector(const std::byte* p, M mask) {
  if constexpr (F::kWide == Wide::f32) return load_f32(p, mask);
  else if constexpr (F::kWide == Wide::bf16) return load_bf16(p, mask);
  else return load_f16(p, mask);
}

// value() of the 32 columns of a block of one vector, column c at out + c * ld.
template <class F>
QE_INLINE void decode_values(const Values<F>& values, const std::byte* p, std::int64_t step, Mask mask, float* out, std::int64_t ld) {
  if constexpr (kKind<F> == Kind::wide) {
    QE_UNROLL for (int c = 0; c < kBlock; ++c) f_store(out + ld * c, wide_vector<F>(p + c * step, mask));
  } else {
    QE_UNROLL for (int j = 0; j < 8; ++j) {
      const vi w = code_vector<F>(p, step, mask, j);
      QE_UNROLL for (int i = 0; i < 4; ++i) f_store(out + ld * (4 * j + i), values.template of<false>(w, i));
    }
  }
}

// The exact weights of a block, laid out the same way.
template <class F>
QE_FN void exact_block(const Values<F>& values, const Rows& rows, const Layout& l, std::int64_t block, float* out, std::int64_t ld) {
  using M = typename F::Meta;
  decode_values<F>(values, block_at<F>(l, rows.panel, block), rows.panel.step, rows.mask, out, ld);
  if constexpr (M::kBytes == 0 && !HasRowScale<F> && !HasWeight<F>) return;
  const std::int64_t column = block * kBlock;
  alignas(64) float row[kLanes];
  row_numbers<F, false>(rows, row);
  QE_UNROLL for (int half = 0; half < 2; ++half) {
    const TermsV t = terms_at_v<F>(rows, l, column + 16 * half);
    if constexpr (HasWeight<F>) {
      alignas(64) float scale[kLanes], offset[kLanes], zero[kLanes];
      f_store(scale, t.scale), f_store(offset, t.offset), f_store(zero, t.zero);
      for (int c = 16 * half; c < 16 * half + 16; ++c)
        for (int r = 0; r < kLanes; ++r) out[ld * c + r] = F::weight(out[ld * c + r], Terms{scale[r], offset[r], zero[r]}, row[r]);
    } else {
      for (int c = 16 * half; c < 16 * half + 16; ++c) {
        vf w = f_load(out + ld * c);
        if constexpr (meta_has_zero<M>) w = f_sub(w, t.zero);
        if constexpr (meta_has_scale<M>) w = f_mul(t.scale, w);
        if constexpr (meta_has_offset<M>) w = f_add(w, t.offset);
        if constexpr (HasRowScale<F>) w = f_mul(w, f_load(row));
        f_store(out + ld * c, w);
      }
    }
  }
}

// chain[t][v] += columns of buf times tokens x[t]. chain is [T][V] vectors, buf [columns][V].
template <int V, int T>
QE_FN void multiply(const float* buf, int columns, const float* x, std::int64_t x_stride, float* chain) {
  vf c[T][V];
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) c[t][v] = f_load(chain + kLanes * (t * V + v));
  for (int k = 0; k < columns; ++k) {
    vf w[V];
    QE_UNROLL for (int v = 0; v < V; ++v) w[v] = f_load(buf + kLanes * (k * V + v));
    QE_UNROLL for (int t = 0; t < T; ++t) {
      const vf a = f_all(x + t * x_stride + k);
      QE_UNROLL for (int v = 0; v < V; ++v) c[t][v] = f_fma(w[v], a, c[t][v]);
    }
  }
  QE_UNROLL for (int t = 0; t < T; ++t)
    QE_UNROLL for (int v = 0; v < V; ++v) f_store(chain + kLanes * (t * V + v), c[t][v]);
}

template <int V>
QE_FN void multiply_tokens(const float* buf, int columns, const float* x, std::int64_t x_stride, std::int64_t m, float* chain) {
  constexpr int wide = kLanes == 16 || V == 2 ? 6 : 2;  // V * wide accumulators: 24 of 32 registers, 12 or 8 of 16
  std::int64_t t = 0;
  for (std::int64_t left = m; left >= wide && !(wide == 6 && left == 8); left -= wide, t += wide) multiply<V, wide>(buf, columns, x + t * x_stride, x_stride, chain + kLanes * V * t);
  if constexpr (wide > 4)
    for (; t + 4 <= m; t += 4) multiply<V, 4>(buf, columns, x + t * x_stride, x_stride, chain + kLanes * V * t);
  if constexpr (wide > 2)
    for (; t + 2 <= m; t += 2) multiply<V, 2>(buf, columns, x + t * x_stride, x_stride, chain + kLanes * V * t);
  for (; t < m; ++t) multiply<V, 1>(buf, columns, x + t * x_stride, x_stride, chain + kLanes * V * t);
}

inline constexpr int kFloatTokens = 48;  // tokens of one pass: accumulators and chains stay near

// V vectors from panel p0 on times tokens [t0, t0 + m), m <= kFloatTokens. Vectors past the part's end repeat the last.
template <class F, int V, bool Exact>
QE_FN void float_panels(const Job& j, std::int64_t p0, std::int64_t t0, std::int64_t m) {
  using M = typename F::Meta;
  const Layout& l = *j.layout;
  constexpr int kTile = V * kLanes;
  constexpr int kPiece = kTile > 16 ? 64 : kSegment;  // columns decoded at a time, 16 KB
  alignas(64) float buffer[kPiece * kTile];
  alignas(64) float acc[kFloatTokens * kTile], chain[kFloatTokens * kTile];
  std::memset(acc, 0, std::size_t(m) * kTile * sizeof(float));
  std::memset(chain, 0, std::size_t(m) * kTile * sizeof(float));
  const float* x = j.in->x + t0 * j.in->x_stride;
  const Values<F> values;
  Rows rows[V];
  QE_UNROLL for (int v = 0; v < V; ++v) rows[v] = rows_at(l, j.base, std::min(p0 + v * kPer, (l.panels - 1) / kPer * kPer));
  const std::int64_t span = Exact || !meta_has_scale<M> ? l.columns : l.span;
  for (std::int64_t c = 0; c < l.columns;) {
    const std::int64_t span_end = std::min(l.columns, c + span);
    while (c < span_end) {
      const std::int64_t end = std::min(span_end, c + kSegment);
      // one chain: columns [c, end), decoded by pieces of whole blocks
      while (c < end) {
        const std::int64_t block = c / kBlock, skip = c % kBlock;
        const int take = int(std::min<std::int64_t>(end - c, kPiece - skip));
        for (int v = 0; v < V; ++v)
          for (std::int64_t b = 0; b < (skip + take + kBlock - 1) / kBlock; ++b) {
            float* to = buffer + b * kBlock * kTile + v * kLanes;
            if constexpr (Exact) exact_block<F>(values, rows[v], l, block + b, to, kTile);
            else decode_values<F>(values, block_at<F>(l, rows[v].panel, block + b), rows[v].panel.step, rows[v].mask, to, kTile);
          }
        multiply_tokens<V>(buffer + skip * kTile, take, x + c, j.in->x_stride, m, chain);
        c += take;
      }
      if constexpr (!Exact && meta_has_scale<M>) {
        QE_UNROLL for (int v = 0; v < V; ++v) {
          const vf scale = terms_at_v<F>(rows[v], l, end - 1).scale;
          for (std::int64_t t = 0; t < m; ++t) {
            float* a = acc + kLanes * (t * V + v);
            f_store(a, f_fma(f_load(chain + kLanes * (t * V + v)), scale, f_load(a)));
          }
        }
      } else {
        for (std::int64_t i = 0; i < m * kTile; i += kLanes) f_store(acc + i, f_add(f_load(acc + i), f_load(chain + i)));
      }
      std::memset(chain, 0, std::size_t(m) * kTile * sizeof(float));
    }
  }
  for (int v = 0; v < V; ++v) {
    const std::int64_t panel = p0 + v * kPer, valid = l.n - panel * kRows;
    if (panel >= j.end || valid <= 0) break;
    [[maybe_unused]] vf row{};
    if constexpr (!Exact && HasRowScale<F>) row = row_factors<F>(rows[v]);
    for (std::int64_t t = 0; t < m; ++t) {
      vf y = f_load(acc + kLanes * (t * V + v));
      if constexpr (!Exact && HasRowScale<F>) y = f_mul(y, row);
      f_store_rows(j.out + (t0 + t) * j.out_stride + panel * kRows, y, valid);
    }
  }
}

// A few tokens: the weights are used straight from the stream, whole strips of four panels side by side so
// that the chains do not wait for each other; with sixteen registers and more than two tokens half a strip at a time.
template <class F>
inline constexpr bool kStreams = kKind<F> == Kind::wide || kKind<F> == Kind::e4m3 || kKind<F> == Kind::e5m2 || (kKind<F> == Kind::table && F::Planes::bits <= 4);
// Most tokens of a stream: while unpacking again for every four of them costs less than a buffer.
template <class F>
inline constexpr int kStreamTokens = kLanes == 16 || kKind<F> != Kind::table ? 8 : 2;

inline constexpr int kQuad = 4 / kPer;  // vectors of a strip

// Q vectors of each of S strips times T tokens from t0 on, of which those past `last` repeat it. The vectors begin at panel p0; strips past
// the end repeat the first.
template <class F, int S, int Q, int T>
QE_FN void stream_strips(const Job& j, std::int64_t p0, std::int64_t strips, std::int64_t t0, std::int64_t tokens) {
  using M = typename F::Meta;
  constexpr int V = S * Q;
  static_assert(S == 1 || Q == kQuad);
  constexpr std::int64_t kStep = 4 * kUnitBytes<F>, kVector = kPer * kUnitBytes<F>;
  const Layout& l = *j.layout;
  // What tiny codes are short of is lent by the side that has fewer vectors: tokens, or weights.
  constexpr bool kTiny = Values<F>::kTiny != 1.0f && T <= V / 2;
  constexpr float kLift = !kTiny ? 1.0f : kKind<F> == Kind::e4m3 ? 0x1p64f : 0x1p56f, kRest = kTiny ? 0x1p56f : 1.0f;
  const float* x[T];
  QE_UNROLL for (int t = 0; t < T; ++t) x[t] = j.in->x + (t0 + std::min<std::int64_t>(t, tokens - 1)) * j.in->x_stride;
  const Values<F> values;
  Panel panel[S];
  const std::byte* at[S];
  QE_UNROLL for (int s = 0; s < S; ++s) {
    panel[s] = panel_at(l, j.base, s < strips ? p0 + 4 * s : p0);
    at[s] = panel[s].codes(l, 0);
  }
  alignas(64) float acc[T * V * kLanes];
  std::memset(acc, 0, sizeof acc);
  const std::int64_t span = meta_has_scale<M> ? l.span : l.columns;
  const std::int64_t chunk_blocks = l.chunk / kBlock;
  for (std::int64_t c = 0, chunk = 0, in_chunk = 0; c < l.columns;) {
    const std::int64_t span_end = std::min(l.columns, c + span);
    while (c < span_end) {
      const std::int64_t end = std::min(span_end, c + kSegment);
      vf chain[T][V];
      QE_UNROLL for (int t = 0; t < T; ++t)
        QE_UNROLL for (int v = 0; v < V; ++v) chain[t][v] = f_zero();
      for (; c < end; c += kBlock) {
        if constexpr (kKind<F> == Kind::wide) {  // little to compute: the hardware's prefetcher keeps up
          QE_UNROLL for (int i = 0; i < kBlock; ++i) {
            vf w[V];
            QE_UNROLL for (int v = 0; v < V; ++v) w[v] = wide_vector<F>(at[v / Q] + i * kStep + v % Q * kVector, All{});
            QE_UNROLL for (int t = 0; t < T; ++t) {
              const vf a = f_all(x[t] + c + i);
              QE_UNROLL for (int v = 0; v < V; ++v) chain[t][v] = f_fma(w[v], a, chain[t][v]);
            }
          }
        } else {
          QE_UNROLL for (int s = 0; s < S; ++s) ask_ahead(at[s], kUnits<F> * kStep / 64, 64);
          QE_UNROLL for (int g = 0; g < 8; ++g) {
            vi codes[V];
            QE_UNROLL for (int v = 0; v < V; ++v) codes[v] = code_vector<F>(at[v / Q] + v % Q * kVector, kStep, All{}, g);
            QE_UNROLL for (int i = 0; i < 4; ++i) {
              vf w[V];
              QE_UNROLL for (int v = 0; v < V; ++v) w[v] = values.template of<kTiny>(codes[v], i);
              QE_UNROLL for (int t = 0; t < T; ++t) {
                vf a = f_all(x[t] + c + 4 * g + i);
                if constexpr (kTiny) a = f_mul(a, f_set(kLift));
                QE_UNROLL for (int v = 0; v < V; ++v) chain[t][v] = f_fma(w[v], a, chain[t][v]);
              }
            }
          }
        }
        QE_UNROLL for (int s = 0; s < S; ++s) at[s] += kUnits<F> * kStep;
        if (++in_chunk == chunk_blocks && c + kBlock < l.columns) {
          ++chunk, in_chunk = 0;
          QE_UNROLL for (int s = 0; s < S; ++s) at[s] = panel[s].codes(l, chunk);
        }
      }
      QE_UNROLL for (int v = 0; v < V; ++v) {
        [[maybe_unused]] vf scale{};
        if constexpr (meta_has_scale<M>) {
          const int s = v / Q;
          scale = terms_at_v<F>(rows_at(l, j.base, (s < strips ? p0 + 4 * s : p0) + v % Q * kPer), l, end - 1).scale;
        }
        QE_UNROLL for (int t = 0; t < T; ++t) {
          vf sum = chain[t][v];
          float* a = acc + kLanes * (t * V + v);
          if constexpr (kTiny) sum = f_mul(sum, f_set(kRest));
          f_store(a, meta_has_scale<M> ? f_fma(sum, scale, f_load(a)) : f_add(f_load(a), sum));
        }
      }
    }
  }
  for (int v = 0; v < V; ++v) {
    const std::int64_t p = p0 + v * kPer, valid = l.n - p * kRows;
    if (v / Q >= strips || valid <= 0) break;
    [[maybe_unused]] vf row{};
    if constexpr (HasRowScale<F>) row = row_factors<F>(rows_at(l, j.base, p));
    for (int t = 0; t < std::min<std::int64_t>(T, tokens); ++t) {
      vf y = f_load(acc + kLanes * (t * V + v));
      if constexpr (HasRowScale<F>) y = f_mul(y, row);
      f_store_rows(j.out + (t0 + t) * j.out_stride + p * kRows, y, valid);
    }
  }
}

// Whole strips; answers the first panel that is left.
template <class F, int S, int Q, int T>
QE_FN std::int64_t stream(const Job& j, std::int64_t t0, std::int64_t tokens) {
  const std::int64_t whole = std::min(j.end, j.layout->panels / 4 * 4);
  for (std::int64_t p = j.begin; p < whole; p += S * Q * kPer)
    for (std::int64_t t = 0; t < tokens; t += T)
      stream_strips<F, S, Q, T>(j, p, Q < kQuad ? 1 : std::min<std::int64_t>(S, (whole - p) / 4), t0 + t, std::min<std::int64_t>(T, tokens - t));
  return std::max(j.begin, whole);
}

template <class F, bool Exact>
QE_FN void floats(const Job& j) {
  for (std::int64_t t0 = 0; t0 < j.in->m; t0 += kFloatTokens) {
    const std::int64_t m = std::min<std::int64_t>(kFloatTokens, j.in->m - t0);
    std::int64_t p = j.begin;
    if constexpr (!Exact && kStreams<F>) {
      if (m <= kStreamTokens<F> && (!meta_has_scale<typename F::Meta> || j.layout->span != 16)) {
        constexpr int S = kPer;  // four vectors
        if constexpr (kLanes == 16) p = m == 1 ? stream<F, S, kQuad, 1>(j, t0, m) : m == 2 ? stream<F, S, kQuad, 2>(j, t0, m) : m <= 4 ? stream<F, S, kQuad, 4>(j, t0, m) : stream<F, 1, kQuad, 8>(j, t0, m);
        else if constexpr (kStreamTokens<F> == 2) p = m == 1 ? stream<F, S, kQuad, 1>(j, t0, m) : stream<F, S, kQuad, 2>(j, t0, m);
        else p = m == 1 ? stream<F, S, kQuad, 1>(j, t0, m) : m == 2 ? stream<F, S, kQuad, 2>(j, t0, m) : stream<F, 1, kQuad / 2, 4>(j, t0, m);
      }
    }
    constexpr int wide = 4, narrow = kLanes == 16 ? 4 : 2;
    if (m <= 2)
      for (; p < j.end; p += wide * kPer) float_panels<F, wide, Exact>(j, p, t0, m);
    for (; p < j.end; p += narrow * kPer) float_panels<F, narrow, Exact>(j, p, t0, m);
  }
}

// Panels [j.begin, j.end): both are multiples of 4, or the part's end.
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
