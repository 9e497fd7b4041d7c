// qe/cuda/decode.cuh: from the words of a lane to numbers, derived from a Format.
//
//   Words<P>     the words of one unit that a lane holds, loaded as k-steps need them
//   raw          A registers of a k-step for the tensor cores: bf16 pairs in which
//                value(code) = raw * kUnitScale + kAdd                          (exact but for tables, see below)
//   exact_values the two weights of a pair as float32, as format.hpp defines them
//
// How `raw` is made follows from `value` (qe::cuda::kDecoding):
//   ramp, at most 7 bits   0x4300 | code is 128 + code
//   ramp, 8 bits           (128 + low 7 bits) - (128 or 256), the code as a signed byte
//   e4m3                   the bits moved into place, which leaves a factor of 2^120
//   16 codes or fewer      a table of bf16 in eight registers, by byte permutation; rounded where bf16 is too
//                          short for a value (NF4)
//   other tables           bf16 in shared memory
//   16 and 32 bits         bf16 as it is; f16 and f32 as exact sums of two and three bf16
#pragma once

#include <qe/cuda/container.hpp>
#include <qe/cuda/words.cuh>

#include <bit>
#include <type_traits>

namespace qe::cuda {

// A half that converts with one instruction.
struct DeviceHalf {
  std::uint16_t bits;
  __device__ operator float() const { return __half2float(__ushort_as_half(bits)); }
};

template <int I> using Int = std::integral_constant<int, I>;

// f(Int<0>{}), ..., f(Int<N-1>{})
template <int N, class Body, int... I>
__device__ __forceinline__ void unrolled_(Body&& f, std::integer_sequence<int, I...>) { (f(Int<I>{}), ...); }
template <int N, class Body>
__device__ __forceinline__ void unrolled(Body&& f) { unrolled_<N>(f, std::make_integer_sequence<int, N>{}); }

template <class P, int I>
constexpr int plane_offset() {
  int at = 0;
  for (int i = 0; i < I; ++i) at += 256 * P::kBits[std::size_t(i)];
  return at;
}
template <class P, int I>
constexpr int plane_shift() {
  int at = 0;
  for (int i = 0; i < I; ++i) at += P::kBits[std::size_t(i)];
  return at;
}

template <class P>
struct Words {
  static constexpr int kBuffer = P::kBits[0] == 32 ? 8 : 4;
  uint32_t w[P::kCount][kBuffer];

  // What k-step S needs and no step before it loaded. `unit` in shared or global memory.
  template <int S>
  __device__ __forceinline__ void load(const uint8_t* unit, int lane) {
    unrolled<P::kCount>([&](auto i) {
      constexpr int I = decltype(i)::value, b = kPlaneBits<P, I>;
      const uint8_t* plane = unit + plane_offset<P, I>();
      if constexpr (b == 1) {
        if constexpr (S == 0) {
          const uint2 v = *reinterpret_cast<const uint2*>(plane + lane * 8);
          w[I][0] = v.x, w[I][1] = v.y;
        }
      } else if constexpr (b == 32) {
        get<I, 0>(plane + 2 * S * 512 + lane * 16);
        get<I, 4>(plane + (2 * S + 1) * 512 + lane * 16);
      } else if constexpr (S % (16 / b) == 0) {
        get<I, 0>(plane + S * b / 16 * 512 + lane * 16);
      }
    });
  }
  // Word of plane I with pair p = 4 * S + R, and where the pair begins in it.
  template <int I, int S, int R>
  __device__ __forceinline__ uint32_t word() const {
    constexpr int b = kPlaneBits<P, I>, p = 4 * S + R;
    if constexpr (b == 1) return w[I][p / 16];
    else if constexpr (b == 32) return w[I][2 * R];
    else return w[I][p / (16 / b) % 4];
  }
  template <int I, int S, int R>
  static constexpr int first_bit() {
    constexpr int b = kPlaneBits<P, I>;
    if constexpr (b == 32) return 0;
    else return (4 * S + R) % (16 / b) * b;
  }

 private:
  template <int I, int At>
  __device__ __forceinline__ void get(const uint8_t* from) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    w[I][At] = v.x, w[I][At + 1] = v.y, w[I][At + 2] = v.z, w[I][At + 3] = v.w;
  }
};

// The words that one k-step needs, at an address that is known only when it runs: for code that loops over steps.
template <class P>
struct StepWords {
  static constexpr int per_step(int b) { return b <= 4 ? 1 : b / 4; }
  uint32_t w[P::kCount][P::kBits[0] == 32 ? 8 : 4];
  int step;

  __device__ __forceinline__ StepWords(const uint8_t* unit, int lane, int s) : step(s) {
    unrolled<P::kCount>([&](auto i) {
      constexpr int I = decltype(i)::value, b = kPlaneBits<P, I>, n = per_step(b);
      const uint8_t* plane = unit + plane_offset<P, I>();
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const int word = b >= 4 ? s * n + j : s * b / 4;
        w[I][j] = *reinterpret_cast<const uint32_t*>(plane + (b == 1 ? lane * 8 + word * 4 : word / 4 * 512 + lane * 16 + word % 4 * 4));
      }
    });
  }
  // The code of pair R in both halves. Not for 32 bits.
  template <int R>
  __device__ __forceinline__ uint32_t codes() const {
    uint32_t c = 0;
    unrolled<P::kCount>([&](auto i) {
      constexpr int I = decltype(i)::value, b = kPlaneBits<P, I>;
      if constexpr (b == 16) {
        c = w[I][R];
      } else {
        constexpr uint32_t mask = (1u << b) - 1, both = mask | mask << 16;
        const int first = (4 * step + R) % (16 / b) * b;
        c |= (w[I][b == 8 ? R / 2 : 0] >> first & both) << plane_shift<P, I>();
      }
    });
    return c;
  }
};

template <class F>
struct Decode {
  using P = typename F::Planes;
  using M = typename F::Meta;
  static constexpr bool kRamp7 = kDecoding<F> == Decoding::ramp && P::bits <= 7;
  static constexpr bool kRamp8 = kDecoding<F> == Decoding::ramp && P::bits == 8;
  static constexpr bool kE4M3 = kDecoding<F> == Decoding::e4m3;
  static constexpr bool kNibbles = !kRamp7 && P::bits == 4 && P::kCount == 1;
  static constexpr bool kWideCodes = kDecoding<F> == Decoding::wide;
  static constexpr bool kTable = !kRamp7 && !kRamp8 && !kE4M3 && !kNibbles && !kWideCodes;
  // bf16 numbers whose sum a weight is
  static constexpr int wide_parts() {
    if constexpr (kWideCodes) return F::kWide == Wide::bf16 ? 1 : F::kWide == Wide::f16 ? 2 : 3;
    else return 1;
  }
  static constexpr int kParts = wide_parts();
  static constexpr float kUnitScale = kE4M3 ? 0x1p120f : 1.0f;
  static constexpr float add() {
    if constexpr (kRamp7) return F::value(0) - 128.0f;
    else if constexpr (kRamp8) return F::value(0) + 128.0f;
    else return 0.0f;
  }
  static constexpr float kAdd = add();
  // Whether a product needs the sum of its inputs.
  static constexpr bool kSums = kAdd != 0.0f || meta_has_zero<M> || meta_has_offset<M>;
  // Whether codes less zero points are exact in bf16: integers of at most 256. Then a product needs no sum.
  static constexpr bool folds() {
    if constexpr ((kRamp7 || kRamp8) && !meta_has_offset<M>) return F::value(0) <= 0.0f && F::value(0) >= (meta_has_zero<M> ? 0.0f : -128.0f);
    else return false;
  }
  static constexpr bool kFolds = folds();
  static constexpr int kTableSize = kTable ? 1 << P::bits : 0;

  static constexpr uint32_t table_bits(int c) {
    if constexpr (kNibbles || kTable) return f32_to_bf16(F::value(uint32_t(c)));
    else return 0;
  }
  // Bytes 4i..4i+3 of the low (or high) halves of the sixteen values.
  static constexpr uint32_t table_word(int i, bool high) {
    uint32_t w = 0;
    for (int j = 0; j < 4; ++j) w |= (table_bits(4 * i + j) >> (high ? 8 : 0) & 255u) << 8 * j;
    return w;
  }
};

// The sum of plane bits: code of pair (S, R) in both halves, for up to 8 bits in a word of two halves.
template <class F, int S, int R, class W>
__device__ __forceinline__ uint32_t code_pair(const W& words, uint32_t start) {
  using P = typename F::Planes;
  uint32_t r = start;
  unrolled<P::kCount>([&](auto i) {
    constexpr int I = decltype(i)::value, b = kPlaneBits<P, I>, low = plane_shift<P, I>();
    constexpr uint32_t mask = ((1u << b) - 1) << low;
    r = and_or(shift<low - Words<P>::template first_bit<I, S, R>()>(words.template word<I, S, R>()), mask | mask << 16, r);
  });
  return r;
}

// Four codes of sixteen values: hi and lo bytes of bf16.
template <class F>
__device__ __forceinline__ void lookup4(uint32_t nibbles, uint32_t& low, uint32_t& high) {
  using D = Decode<F>;
  constexpr uint32_t l0 = D::table_word(0, false), l1 = D::table_word(1, false), l2 = D::table_word(2, false), l3 = D::table_word(3, false);
  constexpr uint32_t h0 = D::table_word(0, true), h1 = D::table_word(1, true), h2 = D::table_word(2, true), h3 = D::table_word(3, true);
  const uint32_t index = nibbles & 0x7777u, upper = (nibbles & 0x8888u) >> 1 | 0x3210u;
  low = __byte_perm(__byte_perm(l0, l1, index), __byte_perm(l2, l3, index), upper);
  high = __byte_perm(__byte_perm(h0, h1, index), __byte_perm(h2, h3, index), upper);
}

// a[part] for k-step S: registers 0..3 as mma.m16n8k16 has them.
template <class F, int S, class W>
__device__ __forceinline__ void raw(const W& words, const uint16_t* table, uint32_t (&a)[Decode<F>::kParts][4]) {
  using D = Decode<F>;
  using P = typename F::Planes;
  if constexpr (D::kNibbles) {
    const uint32_t w = words.template word<0, S, 0>();
    uint32_t l0, h0, l1, h1;  // of elements 0 and 1
    lookup4<F>(w, l0, h0);
    lookup4<F>(w >> 16, l1, h1);
    const uint32_t a01 = __byte_perm(l0, h0, 0x5140), a23 = __byte_perm(l0, h0, 0x7362);  // element 0 of registers 0, 1 and 2, 3
    const uint32_t b01 = __byte_perm(l1, h1, 0x5140), b23 = __byte_perm(l1, h1, 0x7362);
    a[0][0] = __byte_perm(a01, b01, 0x5410), a[0][1] = __byte_perm(a01, b01, 0x7632);
    a[0][2] = __byte_perm(a23, b23, 0x5410), a[0][3] = __byte_perm(a23, b23, 0x7632);
  } else {
    unrolled<4>([&](auto r) {
      constexpr int R = decltype(r)::value;
      if constexpr (D::kRamp7) {
        a[0][R] = code_pair<F, S, R>(words, 0x43004300u);
      } else if constexpr (D::kRamp8) {
        const uint32_t w = shift<-Words<P>::template first_bit<0, S, R>()>(words.template word<0, S, R>());
        a[0][R] = sub_bf16x2(and_or(w, 0x007f007fu, 0x43004300u), and_or(w, 0x00800080u, 0x43004300u));
      } else if constexpr (D::kE4M3) {
        const uint32_t w = words.template word<0, S, R>();
        if constexpr (R % 2 == 0) a[0][R] = and_or(w << 4, 0x07f007f0u, (w << 8) & 0x80008000u);
        else a[0][R] = and_or(w >> 4, 0x07f007f0u, w & 0x80008000u);
      } else if constexpr (D::kTable) {
        const uint32_t c = code_pair<F, S, R>(words, 0);
        a[0][R] = uint32_t(table[c & 0xffffu]) | uint32_t(table[c >> 16]) << 16;
      } else if constexpr (F::kWide == Wide::bf16) {
        a[0][R] = words.template word<0, S, R>();
      } else {
        float2 v;
        if constexpr (F::kWide == Wide::f16) {
          const uint32_t w = words.template word<0, S, R>();
          v = __half22float2(__halves2half2(__ushort_as_half(uint16_t(w)), __ushort_as_half(uint16_t(w >> 16))));
        } else {
          v = make_float2(__uint_as_float(words.w[0][2 * R]), __uint_as_float(words.w[0][2 * R + 1]));
        }
#pragma unroll
        for (int part = 0; part < D::kParts; ++part) {
          a[part][R] = bf16x2(v.x, v.y);
          v.x -= __uint_as_float(a[part][R] << 16), v.y -= __uint_as_float(a[part][R] & 0xffff0000u);
        }
      }
    });
  }
}

// value(code) of the two elements of pair (S, R). `table`: float values of all codes, for formats that need one.
template <class F>
inline constexpr bool kNeedsTable = Decode<F>::kNibbles || Decode<F>::kTable;

template <class F, int R>
__device__ __forceinline__ float2 exact_values(const StepWords<typename F::Planes>& words, const float* table) {
  using D = Decode<F>;
  if constexpr (D::kWideCodes) {
    if constexpr (F::kWide == Wide::f32) {
      return make_float2(__uint_as_float(words.w[0][2 * R]), __uint_as_float(words.w[0][2 * R + 1]));
    } else {
      const uint32_t w = words.w[0][R];
      if constexpr (F::kWide == Wide::bf16) return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
      else return make_float2(float(DeviceHalf{uint16_t(w)}), float(DeviceHalf{uint16_t(w >> 16)}));
    }
  } else {
    uint32_t c = words.template codes<R>();
    if constexpr (kFlipTop<F>) c ^= 0x00800080u;
    if constexpr (D::kE4M3) {
      return make_float2(e4m3_to_f32(uint8_t(c)), e4m3_to_f32(uint8_t(c >> 16)));
    } else if constexpr (kNeedsTable<F>) {
      return make_float2(table[c & 0xffffu], table[c >> 16]);
    } else {
      constexpr float first = F::value(0);
      return make_float2(float(c & 0xffffu) + first, float(c >> 16) + first);
    }
  }
}

// ---- records ------------------------------------------------------------------------------------------------------
// Records that hold halves.
template <class M> struct DeviceMeta { using type = M; };
template <template <class> class S> struct DeviceMeta<S<f16>> { using type = S<DeviceHalf>; };
struct DeviceTwoLevelScale {
  __device__ static Terms terms(const std::byte* super, const std::byte* in) {
    return {float(meta::detail::get<DeviceHalf>(super)) * float(meta::detail::get<std::int8_t>(in))};
  }
};
struct DeviceTwoLevelScaleMin {
  __device__ static Terms terms(const std::byte* super, const std::byte* in) {
    return {float(meta::detail::get<DeviceHalf>(super)) * float(std::uint8_t(in[0])), -(float(meta::detail::get<DeviceHalf>(super + 2)) * float(std::uint8_t(in[1])))};
  }
};
struct DeviceTwoLevelScaleMin4 {
  __device__ static Terms terms(const std::byte* super, const std::byte* in) {
    const unsigned v = std::uint8_t(in[0]);
    return {float(meta::detail::get<DeviceHalf>(super)) * float(v & 15), -(float(meta::detail::get<DeviceHalf>(super + 2)) * float(v >> 4))};
  }
};
template <> struct DeviceMeta<meta::TwoLevelScale> { using type = DeviceTwoLevelScale; };
template <> struct DeviceMeta<meta::TwoLevelScaleMin> { using type = DeviceTwoLevelScaleMin; };
template <> struct DeviceMeta<meta::TwoLevelScaleMin4> { using type = DeviceTwoLevelScaleMin4; };
template <class M>
__device__ __forceinline__ Terms device_terms(const std::byte* super, const std::byte* record) {
  using D = typename DeviceMeta<M>::type;
  if constexpr (meta_super_bytes<M> > 0) return D::terms(super, record);
  else return D::terms(record);
}

// Terms of rows g and g + 8 of the lane, span `sub` of the unit.
struct TwoTerms {
  Terms of[2];
};
template <class F>
__device__ __forceinline__ TwoTerms two_terms(const uint8_t* unit, int g, int sub) {
  using M = typename F::Meta;
  TwoTerms t;
  if constexpr (M::kBytes > 0) {
    constexpr int kBytes = kRecord<M>, kBoth = 2 * kBytes, kSupers = 2 * kSuper<M>;
    alignas(16) std::byte record[kBoth < 4 ? 4 : kBoth], super[kSupers < 4 ? 4 : kSupers];
    const uint8_t* at = unit + kPayload<F> + kSuperUnit<F> + (meta_shared<M> ? sub * kBoth : sub * kStrip * kBytes + g * kBoth);
    if constexpr (kBoth == 2) *reinterpret_cast<uint16_t*>(record) = *reinterpret_cast<const uint16_t*>(at);
    else if constexpr (kBoth == 4) *reinterpret_cast<uint32_t*>(record) = *reinterpret_cast<const uint32_t*>(at);
    else if constexpr (kBoth == 8) *reinterpret_cast<uint2*>(record) = *reinterpret_cast<const uint2*>(at);
    else
#pragma unroll
      for (int i = 0; i < kBoth / 16; ++i) reinterpret_cast<uint4*>(record)[i] = reinterpret_cast<const uint4*>(at)[i];
    if constexpr (kSupers > 0) {
      const uint8_t* s = unit + kPayload<F> + g * kSupers;
      if constexpr (kSupers == 4) *reinterpret_cast<uint32_t*>(super) = *reinterpret_cast<const uint32_t*>(s);
      else *reinterpret_cast<uint2*>(super) = *reinterpret_cast<const uint2*>(s);
    }
    t.of[0] = device_terms<M>(super, record);
    t.of[1] = device_terms<M>(super + kSuper<M>, record + kBytes);
  }
  return t;
}

// All that a lane needs of a unit, in registers: its words, and records of its rows. With several records a unit the
// four lanes of a row share them out and pass them on when they are used.
template <class F, int Run>
struct HeldUnit {
  using P = typename F::Planes;
  using M = typename F::Meta;
  static constexpr int kBoth = 2 * kRecord<M>, kSupers = 2 * kSuper<M>, kSpans = Run ? kUnit / Run : 1;
  static constexpr int kOwn = Run == 0 ? 0 : (kSpans + 3) / 4, kEach = (kBoth + 3) / 4;  // spans a lane loads, words of one
  static constexpr int kWords = 2 * P::bits + kOwn * kEach + (kSupers + 3) / 4;
  uint32_t w[2 * P::bits];
  uint32_t record[kOwn * kEach ? kOwn * kEach : 1], super[kSupers ? (kSupers + 3) / 4 : 1];

  __device__ __forceinline__ void load(const uint8_t* unit, int lane) {
    unrolled<P::kCount>([&](auto i) {
      constexpr int I = decltype(i)::value, b = kPlaneBits<P, I>, first = 2 * plane_shift<P, I>();
      const uint8_t* plane = unit + plane_offset<P, I>();
      if constexpr (b == 1) {
        stream_bytes<8>(plane + lane * 8, w + first);
      } else {
#pragma unroll
        for (int c = 0; c < b / 2; ++c) stream_bytes<16>(plane + c * 512 + lane * 16, w + first + 4 * c);
      }
    });
    const int g = lane >> 2, t = lane & 3;
    if constexpr (kSupers > 0) stream_bytes<kSupers>(unit + kPayload<F> + g * kSupers, super);
    if constexpr (kOwn > 0) {
      const uint8_t* records = unit + kPayload<F> + kSuperUnit<F> + (meta_shared<M> ? 0 : g * kBoth);
      constexpr int kStep = meta_shared<M> ? kBoth : kStrip * kRecord<M>;  // from span to span
#pragma unroll
      for (int i = 0; i < kOwn; ++i) stream_bytes<kBoth>(records + (kSpans == 1 ? 0 : t + 4 * i) * kStep, record + i * kEach);
    }
  }
  template <int I, int S, int R>
  __device__ __forceinline__ uint32_t word() const {
    constexpr int b = kPlaneBits<P, I>, p = 4 * S + R;
    return w[2 * plane_shift<P, I>() + p / (16 / b)];
  }
  template <int Span>
  __device__ __forceinline__ TwoTerms terms(int lane) const {
    TwoTerms t;
    if constexpr (kOwn > 0) {
      alignas(16) uint32_t now[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        now[i] = record[Span / 4 * kEach + i];
        if constexpr (kSpans > 1) now[i] = __shfl_sync(~0u, now[i], (lane & 28) | (Span % 4));
      }
      const auto* r = reinterpret_cast<const std::byte*>(now);
      const auto* s = reinterpret_cast<const std::byte*>(super);
      t.of[0] = device_terms<M>(s, r);
      t.of[1] = device_terms<M>(s + kSuper<M>, r + kRecord<M>);
    }
    return t;
  }
};

// What `raw` has too much, as pairs of bf16 for rows g and g + 8: 128 and the zero point (for 8 bits the zero point less
// 128), in two parts where one is not exact.
template <class F>
struct Folded {
  uint32_t part[2] = {}, rest[2] = {};
  bool two = false;
  __device__ __forceinline__ explicit Folded(const TwoTerms& terms) {
    if constexpr (Decode<F>::kFolds) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float off = -Decode<F>::kAdd, high = 0.0f;
        if constexpr (meta_has_zero<typename F::Meta>) {
          high = terms.of[h].zero >= 128.0f && off >= 128.0f ? 128.0f : 0.0f;
          off += terms.of[h].zero - high;
        }
        part[h] = bf16x2(off, off), rest[h] = bf16x2(high, high);
      }
      if constexpr (meta_has_zero<typename F::Meta> && Decode<F>::kRamp7) two = __any_sync(~0u, (rest[0] | rest[1]) != 0);
    }
  }
  __device__ __forceinline__ void take_off(uint32_t (&a)[4]) const {
    if constexpr (Decode<F>::kRamp7 || Decode<F>::kAdd != 0.0f || meta_has_zero<typename F::Meta>)
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = sub_bf16x2(a[r], part[r & 1]);
    if (two)
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = sub_bf16x2(a[r], rest[r & 1]);
  }
};

}  // namespace qe::cuda
