// The source of kernels_ref.cpp and kernels_avx2.cpp: everything written once over `V`, eight floats.
//
// Included inside an unnamed namespace after V is defined, by those two files only; no header of the
// library may come in through here, or its inline functions would be compiled for AVX2 and could be
// linked into code that must run anywhere.

#define QE_UNROLL _Pragma("GCC unroll 8")

// exp to about 1 ulp: 2^n * e^r with |r| <= ln2/2, e^r by its series to r^7 (error 5e-9). Below -87.3
// it is 0 exactly, so a masked score adds nothing; NaN stays NaN.
inline V exp8(V x) {
  const V lo = V::set1(-87.33654f), hi = V::set1(88.0f);
  const V c = V::max(lo, V::min(hi, x));  // second operand wins on NaN
  const V n = V::round(V::mul(c, V::set1(1.44269504088896341f)));
  V r = V::fma(n, V::set1(-0.693145751953125f), c);
  r = V::fma(n, V::set1(-1.42860682030941723212e-6f), r);
  V p = V::set1(1.0f / 5040);
  p = V::fma(p, r, V::set1(1.0f / 720));
  p = V::fma(p, r, V::set1(1.0f / 120));
  p = V::fma(p, r, V::set1(1.0f / 24));
  p = V::fma(p, r, V::set1(1.0f / 6));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::zero_where_less(x, lo, V::mul(p, V::pow2(n)));
}

inline float exp1(float x) { return exp8(V::set1(x)).lane0(); }

// ---- rows ----------------------------------------------------------------------------------------

inline float sum_squares(const float* x, std::int64_t n) {
  V a = V::zero(), b = V::zero(), c = V::zero(), d = V::zero();
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const V x0 = V::load(x + i), x1 = V::load(x + i + 8), x2 = V::load(x + i + 16), x3 = V::load(x + i + 24);
    a = V::fma(x0, x0, a), b = V::fma(x1, x1, b), c = V::fma(x2, x2, c), d = V::fma(x3, x3, d);
  }
  for (; i < n; i += 8) {
    const V y = V::load_n(x + i, n - i);
    a = V::fma(y, y, a);
  }
  return V::add(V::add(a, b), V::add(c, d)).sum();
}

void rms_norm(const float* x, const float* w, float eps, std::int64_t n, float* out) {
  const float r = 1.0f / V::sqrt1(sum_squares(x, n) / static_cast<float>(n) + eps);
  const V s = V::set1(r);
  for (std::int64_t i = 0; i < n; i += 8)
    V::mul(V::mul(V::load_n(x + i, n - i), s), V::load_n(w + i, n - i)).store_n(out + i, n - i);
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8) V::add(V::load_n(x + i, n - i), V::load_n(y + i, n - i)).store_n(x + i, n - i);
}

void scale(float* x, float s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8) V::mul(V::load_n(x + i, n - i), V::set1(s)).store_n(x + i, n - i);
}

void silu_mul(float* gate, const float* up, std::int64_t n) {
  const V one = V::set1(1.0f);
  for (std::int64_t i = 0; i < n; i += 8) {
    const V g = V::load_n(gate + i, n - i);
    const V s = V::div(g, V::add(one, exp8(V::sub(V::zero(), g))));
    V::mul(s, V::load_n(up + i, n - i)).store_n(gate + i, n - i);
  }
}

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
void gelu_tanh_mul(float* gate, const float* up, std::int64_t n) {
  const V one = V::set1(1.0f);
  for (std::int64_t i = 0; i < n; i += 8) {
    const V g = V::load_n(gate + i, n - i);
    const V u = V::mul(V::mul(g, V::fma(V::mul(g, g), V::set1(0.044715f), one)), V::set1(-2.0f * 0.7978845608028654f));
    V::mul(V::div(g, V::add(one, exp8(u))), V::load_n(up + i, n - i)).store_n(gate + i, n - i);
  }
}

void rope(float* x, const float* cos, const float* sin, float s, std::int64_t half) {
  const V scl = V::set1(s);
  for (std::int64_t i = 0; i < half; i += 8) {
    const std::int64_t n = half - i;
    const V a = V::load_n(x + i, n), b = V::load_n(x + half + i, n);
    const V c = V::load_n(cos + i, n), d = V::load_n(sin + i, n);
    V::mul(V::sub(V::mul(a, c), V::mul(b, d)), scl).store_n(x + i, n);
    V::mul(V::add(V::mul(b, c), V::mul(a, d)), scl).store_n(x + half + i, n);
  }
}

float round_f16(float* x, std::int64_t n) {
  V big = V::zero();
  for (std::int64_t i = 0; i < n; i += 8) {
    const V y = V::load_n(x + i, n - i);
    big = V::max(big, V::abs(y));
    V::from_f16(V::to_f16(y)).store_n(x + i, n - i);
  }
  return big.max_lane();
}

float amax(const float* x, std::int64_t n) {
  V big = V::zero(), bad = V::zero();
  for (std::int64_t i = 0; i < n; i += 8) {
    const V y = V::load_n(x + i, n - i);
    big = V::max(big, V::abs(y));
    bad = V::add(bad, V::sub(y, y));  // NaN for Inf and NaN
  }
  const float m = big.max_lane();
  return bad.sum() == 0.0f ? m : m > 3.4e38f ? m : __builtin_nanf("");
}

Argmax argmax(const float* x, std::int64_t n) {
  V big = V::set1(-__builtin_inff()), big2 = big, bad = V::zero(), bad2 = V::zero();
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V a = V::load(x + i), b = V::load(x + i + 8);
    big = V::max(a, big), big2 = V::max(b, big2);
    bad = V::fma(a, V::zero(), bad), bad2 = V::fma(b, V::zero(), bad2);
  }
  Argmax r;
  r.value = V::max(big, big2).max_lane();
  float rest = V::add(bad, bad2).sum();
  for (; i < n; ++i) {
    if (x[i] > r.value) r.value = x[i];
    rest += x[i] * 0.0f;
  }
  r.finite = rest == 0.0f;
  const V want = V::set1(r.value);
  for (i = 0; i + 8 <= n; i += 8)
    if (const unsigned hit = V::equal_mask(V::load(x + i), want)) {
      r.index = static_cast<std::int32_t>(i + __builtin_ctz(hit));
      return r;
    }
  for (; i < n; ++i)
    if (x[i] == r.value) {
      r.index = static_cast<std::int32_t>(i);
      return r;
    }
  return r;
}

double sum_exp(const float* x, float shift, float s, std::int64_t n, float* out) {
  const V sh = V::set1(shift), sc = V::set1(s);
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += 4096) {  // float sums of 512 a lane, then double
    const std::int64_t end = begin + 4096 < n ? begin + 4096 : n;
    V sum = V::zero();
    std::int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      const V e = exp8(V::mul(V::sub(V::load(x + i), sh), sc));
      if (out) e.store(out + i);
      sum = V::add(sum, e);
    }
    if (i < end) {
      float tail[8] = {};
      exp8(V::mul(V::sub(V::load_n(x + i, end - i), sh), sc)).store(tail);
      for (std::int64_t j = end - i; j < 8; ++j) tail[j] = 0;
      if (out) V::load(tail).store_n(out + i, end - i);
      sum = V::add(sum, V::load(tail));
    }
    total += sum.sum();
  }
  return total;
}

// ---- the cache -----------------------------------------------------------------------------------

// load2: sixteen neighbours as two vectors in whatever order is cheap; order2 puts them in theirs.
struct F32 {
  using T = float;
  static V load(const T* p) { return V::load(p); }
  static void load2(const T* p, V& a, V& b) { a = V::load(p), b = V::load(p + 8); }
  static void order2(V&, V&) {}
  static void store(T* p, V v) { v.store(p); }
};
struct F16 {
  using T = std::uint16_t;
  static V load(const T* p) { return V::load_f16(p); }
  static void load2(const T* p, V& a, V& b) { a = V::load_f16(p), b = V::load_f16(p + 8); }
  static void order2(V&, V&) {}
  static void store(T* p, V v) { v.store_f16(p); }
};
struct Bf16 {
  using T = std::uint16_t;
  static V load(const T* p) { return V::load_bf16(p); }
  static void load2(const T* p, V& a, V& b) { V::load_bf16_even_odd(p, a, b); }
  static void order2(V& a, V& b) { V::zip(a, b); }
  static void store(T* p, V v) { v.store_bf16(p); }
};

template <class S>
void store_k_as(const float* k, std::int64_t d, std::int64_t stride, void* dst) {
  auto* out = static_cast<typename S::T*>(dst);
  typename S::T row[8];
  for (std::int64_t i = 0; i < d; i += 8) {
    S::store(row, V::load_n(k + i, d - i));
    for (std::int64_t j = 0; j < 8 && i + j < d; ++j) out[(i + j) * stride] = row[j];
  }
}

template <class S>
void store_v_as(const float* v, std::int64_t d, std::int64_t pad, void* dst) {
  auto* out = static_cast<typename S::T*>(dst);
  for (std::int64_t i = 0; i < pad; i += 8) S::store(out + i, V::load_n(v + i, d - i));
}

void store_k(KvDtype t, const float* k, std::int64_t d, std::int64_t stride, void* dst) {
  if (t == KvDtype::kBf16) store_k_as<Bf16>(k, d, stride, dst);
  else if (t == KvDtype::kF16) store_k_as<F16>(k, d, stride, dst);
  else store_k_as<F32>(k, d, stride, dst);
}

void store_v(KvDtype t, const float* v, std::int64_t d, std::int64_t pad, void* dst) {
  if (t == KvDtype::kBf16) store_v_as<Bf16>(v, d, pad, dst);
  else if (t == KvDtype::kF16) store_v_as<F16>(v, d, pad, dst);
  else store_v_as<F32>(v, d, pad, dst);
}

// Scores of R rows against NB groups of 16 keys. Each score is one chain of fused multiply-adds over
// the dimensions, in order, whatever R and NB.
template <class S, int R, int NB>
inline void qk(const float* const* q, int d, int stride, const void* const* groups, float* s) {
  const typename S::T* k[NB];
  V acc[R][2 * NB];
  QE_UNROLL for (int b = 0; b < NB; ++b) k[b] = static_cast<const typename S::T*>(groups[b]);
  QE_UNROLL for (int r = 0; r < R; ++r)
    QE_UNROLL for (int c = 0; c < 2 * NB; ++c) acc[r][c] = V::zero();
  for (int j = 0; j < d; ++j) {
    V x[2 * NB];
    QE_UNROLL for (int b = 0; b < NB; ++b) {
      S::load2(k[b] + static_cast<std::int64_t>(j) * stride, x[2 * b], x[2 * b + 1]);
    }
    QE_UNROLL for (int r = 0; r < R; ++r) {
      const V y = V::set1(q[r][j]);
      QE_UNROLL for (int c = 0; c < 2 * NB; ++c) acc[r][c] = V::fma(x[c], y, acc[r][c]);
    }
  }
  QE_UNROLL for (int r = 0; r < R; ++r)
    QE_UNROLL for (int c = 0; c < 2 * NB; c += 2) {
      S::order2(acc[r][c], acc[r][c + 1]);
      acc[r][c].store(s + r * kAttnTile + 8 * c);
      acc[r][c + 1].store(s + r * kAttnTile + 8 * c + 8);
    }
}

template <class S, int R, int NB>
void qk_row(const AttnTile& t, int row, int g0, int g1, float* s) {
  int g = g0;
  for (; g + NB <= g1; g += NB) qk<S, R, NB>(t.q + row, t.head_dim, t.block_size, t.k + g, s + g * kAttnGroup);
  if constexpr (NB > 1)
    for (; g < g1; ++g) qk<S, R, 1>(t.q + row, t.head_dim, t.block_size, t.k + g, s + g * kAttnGroup);
}

// acc[r][c..] = sum over keys of p[r][key] * v[key][c..], key after key.
template <class S, int R, int NV>
inline void pv(const AttnTile& t, const float* p, int row, int begin, int end, int c) {
  V acc[R][NV];
  QE_UNROLL for (int r = 0; r < R; ++r)
    QE_UNROLL for (int j = 0; j < NV; ++j) acc[r][j] = V::zero();
  for (int key = begin; key < end;) {
    const int stop = (key / kAttnGroup + 1) * kAttnGroup < end ? (key / kAttnGroup + 1) * kAttnGroup : end;
    const auto* v = static_cast<const typename S::T*>(t.v[key / kAttnGroup]) +
                    static_cast<std::int64_t>(key % kAttnGroup) * t.head_pad + c;
    for (; key < stop; ++key, v += t.head_pad) {
      V x[NV];
      if constexpr (NV == 1) {
        x[0] = S::load(v);
      } else {
        QE_UNROLL for (int j = 0; j < NV; j += 2) S::load2(v + 8 * j, x[j], x[j + 1]);
      }
      QE_UNROLL for (int r = 0; r < R; ++r) {
        const V y = V::set1(p[r * kAttnTile + key]);
        QE_UNROLL for (int j = 0; j < NV; ++j) acc[r][j] = V::fma(x[j], y, acc[r][j]);
      }
    }
  }
  if constexpr (NV > 1)
    QE_UNROLL for (int r = 0; r < R; ++r)
      QE_UNROLL for (int j = 0; j < NV; j += 2) S::order2(acc[r][j], acc[r][j + 1]);
  QE_UNROLL for (int r = 0; r < R; ++r)
    QE_UNROLL for (int j = 0; j < NV; ++j) acc[r][j].store(t.acc + static_cast<std::int64_t>(row + r) * t.head_pad + c + 8 * j);
}

template <class S, int R, int NV>
void pv_row(const AttnTile& t, const float* p, int row, int begin, int end) {
  int c = 0;
  for (; c + 8 * NV <= t.head_pad; c += 8 * NV) pv<S, R, NV>(t, p, row, begin, end, c);
  if constexpr (NV > 1)
    for (; c < t.head_pad; c += 8) pv<S, R, 1>(t, p, row, begin, end, c);
}

template <class S>
void attn_tile_as(const AttnTile& t) {
  alignas(32) float s[kAttnRows * kAttnTile];
  int lo = kAttnTile, hi = 0;
  for (int r = 0; r < t.rows; ++r) {
    if (t.lo[r] >= t.hi[r]) continue;
    lo = t.lo[r] < lo ? t.lo[r] : lo;
    hi = t.hi[r] > hi ? t.hi[r] : hi;
  }
  if (lo >= hi) lo = hi = 0;
  const int g0 = lo / kAttnGroup, g1 = (hi + kAttnGroup - 1) / kAttnGroup;
  int r = 0;
  for (; r + 6 <= t.rows; r += 6) qk_row<S, 6, 1>(t, r, g0, g1, s + r * kAttnTile);
  switch (t.rows - r) {
    case 5: qk_row<S, 5, 1>(t, r, g0, g1, s + r * kAttnTile); break;
    case 4: qk_row<S, 4, 1>(t, r, g0, g1, s + r * kAttnTile); break;
    case 3: qk_row<S, 3, 2>(t, r, g0, g1, s + r * kAttnTile); break;
    case 2: qk_row<S, 2, 2>(t, r, g0, g1, s + r * kAttnTile); break;
    case 1: qk_row<S, 1, 4>(t, r, g0, g1, s + r * kAttnTile); break;
    default: break;
  }
  const float none = -__builtin_inff();
  for (r = 0; r < t.rows; ++r) {
    float* p = s + r * kAttnTile;
    const int a = g0 * kAttnGroup, b = g1 * kAttnGroup;
    for (int i = a; i < b && i < t.lo[r]; ++i) p[i] = none;
    for (int i = t.hi[r] > a ? t.hi[r] : a; i < b; ++i) p[i] = none;
    if (t.lo[r] >= t.hi[r]) {
      for (int i = a; i < b; ++i) p[i] = 0;
      t.m[r] = none;
      t.l[r] = 0;
      continue;
    }
    V big = V::set1(none), sum = V::zero();
    for (int i = a; i < b; i += 8) big = V::max(V::load(p + i), big);
    t.m[r] = big.max_lane();
    const V m = V::set1(t.m[r]);
    for (int i = a; i < b; i += 8) {
      const V e = exp8(V::sub(V::load(p + i), m));
      e.store(p + i);
      sum = V::add(sum, e);
    }
    t.l[r] = sum.sum();
  }
  r = 0;
  for (; r + 6 <= t.rows; r += 6) pv_row<S, 6, 2>(t, s + r * kAttnTile, r, lo, hi);
  switch (t.rows - r) {
    case 5: pv_row<S, 5, 2>(t, s + r * kAttnTile, r, lo, hi); break;
    case 4: pv_row<S, 4, 2>(t, s + r * kAttnTile, r, lo, hi); break;
    case 3: pv_row<S, 3, 4>(t, s + r * kAttnTile, r, lo, hi); break;
    case 2: pv_row<S, 2, 4>(t, s + r * kAttnTile, r, lo, hi); break;
    case 1: pv_row<S, 1, 8>(t, s + r * kAttnTile, r, lo, hi); break;
    default: break;
  }
}

void attn_tile(KvDtype dtype, const AttnTile& t) {
  if (dtype == KvDtype::kBf16) attn_tile_as<Bf16>(t);
  else if (dtype == KvDtype::kF16) attn_tile_as<F16>(t);
  else attn_tile_as<F32>(t);
}

void attn_merge(float* m, float* l, float* acc, float tm, float tl, const float* tacc, std::int64_t n) {
  if (tl == 0.0f) return;
  if (*l == 0.0f) {
    *m = tm, *l = tl;
    for (std::int64_t i = 0; i < n; ++i) acc[i] = tacc[i];
    return;
  }
  const float big = *m > tm ? *m : tm;
  const float a = exp1(*m - big), b = exp1(tm - big);
  *l = *l * a + tl * b;
  *m = big;
  const V va = V::set1(a), vb = V::set1(b);
  for (std::int64_t i = 0; i < n; i += 8)
    V::add(V::mul(V::load_n(acc + i, n - i), va), V::mul(V::load_n(tacc + i, n - i), vb)).store_n(acc + i, n - i);
}

#undef QE_UNROLL

constexpr Kernels table(const char* name) {
  return {name, rms_norm, add, silu_mul, gelu_tanh_mul, rope, scale, store_k, store_v, attn_tile, attn_merge, round_f16, amax, argmax, sum_exp};
}
