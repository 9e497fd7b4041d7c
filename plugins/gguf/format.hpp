// GGUF block types: where each value's code lies in a block, what it means, and the exact weight.
//
//   simple block  w[i] = d * value(code[i])                  Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4
//                 w[i] = d * value(code[i]) + m              Q4_1 Q5_1
//   super-block   w[i] = (d*s[j]) * value(code[i])           Q3_K Q6_K IQ4_XS     j = i / kSub
//                 w[i] = (d*s[j]) * code[i] - (dmin*m[j])    Q2_K Q4_K Q5_K
//
// Every product and sum is one float32 rounding, in the order written: golden rows are compared bit
// for bit. `code` is the definition, one value at a time; `codes` gives all codes of a block and must
// agree with it (tests/format_test.cpp). Codes are unsigned and `kBits` wide; `value` is what a code
// means before scale and offset: code - kZero, or a table where kTable says so.
//
// Blocks lie along K, so a row is a whole number of blocks and rows may be permuted as they are.
// Source of the layouts: ggml-org/ggml, src/ggml-common.h and docs/gguf.md.
#pragma once

#include <qe/numbers.hpp>

#include <array>
#include <cstdint>
#include <cstring>

namespace qe_gguf {

inline constexpr bool finite(qe::f16 h) { return (h.bits & 0x7c00) != 0x7c00; }

// GGUF's numbers of the types read here.
enum Type : std::int32_t {
  kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11, kQ4_K = 12,
  kQ5_K = 13, kQ6_K = 14, kIQ4_NL = 20, kIQ4_XS = 23, kBF16 = 30, kMXFP4 = 39,
};

// The sixteen levels of IQ4_NL and IQ4_XS.
inline constexpr std::array<float, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// E2M1: sign, two exponent bits, one mantissa bit; ggml has no negative zero.
inline constexpr std::array<float, 16> kE2m1 = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};

namespace detail {

// A 32-value block of nibbles: byte j holds value j below and value j + 16 above.
inline std::uint32_t split_nibble(const std::uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
inline void split_nibbles(const std::uint8_t* qs, std::uint8_t* __restrict out) {
  for (int j = 0; j < 16; ++j) out[j] = qs[j] & 15, out[j + 16] = qs[j] >> 4;
}

// Bit i of 32 put above the four bits of code i.
inline void add_fifth_bits(const std::uint8_t* bits, std::uint8_t* __restrict out) {
  for (int i = 0; i < 32; i += 8) {
    // Byte j keeps bit j alone; adding 0x7f carries it to the byte's top, whichever bit it is.
    const std::uint64_t own = bits[i / 8] * 0x0101010101010101u & 0x8040201008040201u;
    std::uint64_t codes;
    std::memcpy(&codes, out + i, 8);
    codes |= ((own + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
    std::memcpy(out + i, &codes, 8);
  }
}

// The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K, from 12 bytes.
struct ScaleMin {
  std::uint8_t scale, min;
};
inline ScaleMin scale_min(const std::uint8_t* s, unsigned j) {
  if (j < 4) return {std::uint8_t(s[j] & 63), std::uint8_t(s[j + 4] & 63)};
  return {std::uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6) << 4), std::uint8_t(s[j + 4] >> 4 | (s[j] >> 6) << 4)};
}

}  // namespace detail

// Blocks are read where the file has them, at any address.
#pragma pack(push, 1)

// ---- simple blocks: 32 values, one scale ---------------------------------------------------------

struct Q4_0 {
  static constexpr Type kId = kQ4_0;
  static constexpr int kValues = 32, kSub = 32, kBits = 4, kZero = 8;
  static constexpr bool kOffset = false, kTable = false;
  struct Block {
    qe::f16 d;
    std::uint8_t qs[16];
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i); }
  static void codes(const Block& b, std::uint8_t* __restrict out) { detail::split_nibbles(b.qs, out); }
  static constexpr float value(std::uint32_t c) { return float(int(c) - 8); }
  static float scale(const Block& b, int) { return b.d; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct Q4_1 {
  static constexpr Type kId = kQ4_1;
  static constexpr int kValues = 32, kSub = 32, kBits = 4, kZero = 0;
  static constexpr bool kOffset = true, kTable = false;
  struct Block {
    qe::f16 d, m;
    std::uint8_t qs[16];
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i); }
  static void codes(const Block& b, std::uint8_t* __restrict out) { detail::split_nibbles(b.qs, out); }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static float scale(const Block& b, int) { return b.d; }
  static float offset(const Block& b, int) { return b.m; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d) && qe_gguf::finite(b.m); }
};

struct Q5_0 {
  static constexpr Type kId = kQ5_0;
  static constexpr int kValues = 32, kSub = 32, kBits = 5, kZero = 16;
  static constexpr bool kOffset = false, kTable = false;
  struct Block {
    qe::f16 d;
    std::uint8_t qh[4];  // bit i: the fifth bit of value i
    std::uint8_t qs[16];
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i) | (b.qh[i / 8] >> i % 8 & 1) << 4; }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    detail::split_nibbles(b.qs, out);
    detail::add_fifth_bits(b.qh, out);
  }
  static constexpr float value(std::uint32_t c) { return float(int(c) - 16); }
  static float scale(const Block& b, int) { return b.d; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct Q5_1 {
  static constexpr Type kId = kQ5_1;
  static constexpr int kValues = 32, kSub = 32, kBits = 5, kZero = 0;
  static constexpr bool kOffset = true, kTable = false;
  struct Block {
    qe::f16 d, m;
    std::uint8_t qh[4];
    std::uint8_t qs[16];
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i) | (b.qh[i / 8] >> i % 8 & 1) << 4; }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    detail::split_nibbles(b.qs, out);
    detail::add_fifth_bits(b.qh, out);
  }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static float scale(const Block& b, int) { return b.d; }
  static float offset(const Block& b, int) { return b.m; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d) && qe_gguf::finite(b.m); }
};

struct Q8_0 {
  static constexpr Type kId = kQ8_0;
  static constexpr int kValues = 32, kSub = 32, kBits = 8, kZero = 128;
  static constexpr bool kOffset = false, kTable = false;
  struct Block {
    qe::f16 d;
    std::uint8_t qs[32];  // int8
  };
  static std::uint32_t code(const Block& b, int i) { return b.qs[i] ^ 128; }  // + 128
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) out[i] = b.qs[i] ^ 128;
  }
  static constexpr float value(std::uint32_t c) { return float(int(c) - 128); }
  static float scale(const Block& b, int) { return b.d; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct IQ4_NL {
  static constexpr Type kId = kIQ4_NL;
  static constexpr int kValues = 32, kSub = 32, kBits = 4, kZero = 0;
  static constexpr bool kOffset = false, kTable = true;
  using Block = Q4_0::Block;
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i); }
  static void codes(const Block& b, std::uint8_t* __restrict out) { detail::split_nibbles(b.qs, out); }
  static constexpr float value(std::uint32_t c) { return kIq4Levels[c]; }
  static float scale(const Block& b, int) { return b.d; }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct MXFP4 {
  static constexpr Type kId = kMXFP4;
  static constexpr int kValues = 32, kSub = 32, kBits = 4, kZero = 0;
  static constexpr bool kOffset = false, kTable = true;
  struct Block {
    std::uint8_t e;
    std::uint8_t qs[16];
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs, i); }
  static void codes(const Block& b, std::uint8_t* __restrict out) { detail::split_nibbles(b.qs, out); }
  static constexpr float value(std::uint32_t c) { return kE2m1[c]; }
  static float scale(const Block& b, int) { return qe::e8m0_to_f32(b.e); }
  static bool finite(const Block& b) { return b.e != 255; }
};

// ---- K-quants: 256 values, scales in two levels --------------------------------------------------
// In Q2_K, Q3_K and Q6_K value i is (h, t, u, l): half h = i/128, plane or quarter t = i/32 % 4,
// sub-half u = i/16 % 2, l = i % 16; the scale is number 8h + 2t + u = i/16.

struct Q2_K {
  static constexpr Type kId = kQ2_K;
  static constexpr int kValues = 256, kSub = 16, kBits = 2, kZero = 0;
  static constexpr bool kOffset = true, kTable = false;
  struct Block {
    std::uint8_t scales[16];  // scale below, minimum above
    std::uint8_t qs[64];
    qe::f16 d, dmin;
  };
  static std::uint32_t code(const Block& b, int i) { return b.qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3; }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int g = 0; g < 8; ++g)
      for (int l = 0; l < 32; ++l) out[32 * g + l] = b.qs[32 * (g / 4) + l] >> 2 * (g % 4) & 3;
  }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static int sub_scale(const Block& b, unsigned j) { return b.scales[j] & 15; }
  static int sub_min(const Block& b, unsigned j) { return b.scales[j] >> 4; }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static float offset(const Block& b, unsigned j) { return -(float(b.dmin) * float(sub_min(b, j))); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d) && qe_gguf::finite(b.dmin); }
};

struct Q3_K {
  static constexpr Type kId = kQ3_K;
  static constexpr int kValues = 256, kSub = 16, kBits = 3, kZero = 4;
  static constexpr bool kOffset = false, kTable = false;
  struct Block {
    std::uint8_t hmask[32];  // bit i/32 of byte i % 32: the third bit
    std::uint8_t qs[64];
    std::uint8_t scales[12];
    qe::f16 d;
  };
  static std::uint32_t code(const Block& b, int i) {
    return (b.qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3) | (b.hmask[i % 32] >> i / 32 & 1) << 2;
  }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int g = 0; g < 8; ++g)
      for (int l = 0; l < 32; ++l)
        out[32 * g + l] = std::uint8_t((b.qs[32 * (g / 4) + l] >> 2 * (g % 4) & 3) | (b.hmask[l] >> g & 1) << 2);
  }
  static constexpr float value(std::uint32_t c) { return float(int(c) - 4); }
  // -32 .. 31
  static int sub_scale(const Block& b, unsigned j) {
    return ((b.scales[j % 8] >> 4 * (j / 8) & 15) | (b.scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
  }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct Q4_K {
  static constexpr Type kId = kQ4_K;
  static constexpr int kValues = 256, kSub = 32, kBits = 4, kZero = 0;
  static constexpr bool kOffset = true, kTable = false;
  struct Block {
    qe::f16 d, dmin;
    std::uint8_t scales[12];
    std::uint8_t qs[128];  // 32 bytes for two sub-blocks: the even one below, the odd one above
  };
  static std::uint32_t code(const Block& b, int i) { return b.qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15; }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int p = 0; p < 4; ++p)
      for (int l = 0; l < 32; ++l) out[64 * p + l] = b.qs[32 * p + l] & 15, out[64 * p + 32 + l] = b.qs[32 * p + l] >> 4;
  }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static int sub_scale(const Block& b, unsigned j) { return detail::scale_min(b.scales, j).scale; }
  static int sub_min(const Block& b, unsigned j) { return detail::scale_min(b.scales, j).min; }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static float offset(const Block& b, unsigned j) { return -(float(b.dmin) * float(sub_min(b, j))); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d) && qe_gguf::finite(b.dmin); }
};

struct Q5_K {
  static constexpr Type kId = kQ5_K;
  static constexpr int kValues = 256, kSub = 32, kBits = 5, kZero = 0;
  static constexpr bool kOffset = true, kTable = false;
  struct Block {
    qe::f16 d, dmin;
    std::uint8_t scales[12];
    std::uint8_t qh[32];  // bit i/32 of byte i % 32: the fifth bit
    std::uint8_t qs[128];
  };
  static std::uint32_t code(const Block& b, int i) {
    return (b.qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15) | (b.qh[i % 32] >> i / 32 & 1) << 4;
  }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int p = 0; p < 4; ++p)
      for (int l = 0; l < 32; ++l) {
        out[64 * p + l] = std::uint8_t((b.qs[32 * p + l] & 15) | (b.qh[l] >> 2 * p & 1) << 4);
        out[64 * p + 32 + l] = std::uint8_t((b.qs[32 * p + l] >> 4) | (b.qh[l] >> (2 * p + 1) & 1) << 4);
      }
  }
  static constexpr float value(std::uint32_t c) { return float(c); }
  static int sub_scale(const Block& b, unsigned j) { return detail::scale_min(b.scales, j).scale; }
  static int sub_min(const Block& b, unsigned j) { return detail::scale_min(b.scales, j).min; }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static float offset(const Block& b, unsigned j) { return -(float(b.dmin) * float(sub_min(b, j))); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d) && qe_gguf::finite(b.dmin); }
};

struct Q6_K {
  static constexpr Type kId = kQ6_K;
  static constexpr int kValues = 256, kSub = 16, kBits = 6, kZero = 32;
  static constexpr bool kOffset = false, kTable = false;
  struct Block {
    std::uint8_t ql[128];  // half h, byte 64h + 32(t%2) + i%32: quarters t and t + 2
    std::uint8_t qh[64];   // half h, byte 32h + i%32: two bits a quarter
    std::int8_t scales[16];
    qe::f16 d;
  };
  static std::uint32_t code(const Block& b, int i) {
    const int h = i / 128, t = i / 32 % 4, l = i % 32;
    return (b.ql[64 * h + 32 * (t % 2) + l] >> 4 * (t / 2) & 15) | (b.qh[32 * h + l] >> 2 * t & 3) << 4;
  }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int h = 0; h < 2; ++h)
      for (int l = 0; l < 32; ++l) {
        const std::uint8_t a = b.ql[64 * h + l], c = b.ql[64 * h + 32 + l], x = b.qh[32 * h + l];
        std::uint8_t* y = out + 128 * h + l;
        y[0] = std::uint8_t((a & 15) | (x & 3) << 4);
        y[32] = std::uint8_t((c & 15) | (x >> 2 & 3) << 4);
        y[64] = std::uint8_t(a >> 4 | (x >> 4 & 3) << 4);
        y[96] = std::uint8_t(c >> 4 | x >> 6 << 4);
      }
  }
  static constexpr float value(std::uint32_t c) { return float(int(c) - 32); }
  static int sub_scale(const Block& b, unsigned j) { return b.scales[j]; }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

struct IQ4_XS {
  static constexpr Type kId = kIQ4_XS;
  static constexpr int kValues = 256, kSub = 32, kBits = 4, kZero = 0;
  static constexpr bool kOffset = false, kTable = true;
  struct Block {
    qe::f16 d;
    std::uint8_t scales_h[2];
    std::uint8_t scales_l[4];
    std::uint8_t qs[128];  // sub-block j: 16 bytes, ordered as Q4_0
  };
  static std::uint32_t code(const Block& b, int i) { return detail::split_nibble(b.qs + 16 * (i / 32), i % 32); }
  static void codes(const Block& b, std::uint8_t* __restrict out) {
    for (int j = 0; j < 8; ++j) detail::split_nibbles(b.qs + 16 * j, out + 32 * j);
  }
  static constexpr float value(std::uint32_t c) { return kIq4Levels[c]; }
  // -32 .. 31
  static int sub_scale(const Block& b, unsigned j) {
    return ((b.scales_l[j / 2] >> 4 * (j % 2) & 15) | (b.scales_h[j / 4] >> 2 * (j % 4) & 3) << 4) - 32;
  }
  static float scale(const Block& b, unsigned j) { return float(b.d) * float(sub_scale(b, j)); }
  static bool finite(const Block& b) { return qe_gguf::finite(b.d); }
};

#pragma pack(pop)

static_assert(sizeof(Q4_0::Block) == 18 && sizeof(Q4_1::Block) == 20 && sizeof(Q5_0::Block) == 22 && sizeof(Q5_1::Block) == 24);
static_assert(sizeof(Q8_0::Block) == 34 && sizeof(MXFP4::Block) == 17);
static_assert(sizeof(Q2_K::Block) == 84 && sizeof(Q3_K::Block) == 110 && sizeof(Q4_K::Block) == 144 && sizeof(Q5_K::Block) == 176);
static_assert(sizeof(Q6_K::Block) == 210 && sizeof(IQ4_XS::Block) == 136);
static_assert(alignof(Q4_K::Block) == 1);

// The weight itself.
template <class T>
float weight(const typename T::Block& b, int i) {
  const int j = i / T::kSub;
  const float product = T::scale(b, j) * T::value(T::code(b, i));
  if constexpr (T::kOffset) return product + T::offset(b, j);
  return product;
}

// Calls f(T{}) with the block type of that number; false when it is none of the quantized types here.
template <class F>
bool with_type(std::int32_t id, F&& f) {
  switch (id) {
    case kQ4_0: return f(Q4_0{}), true;
    case kQ4_1: return f(Q4_1{}), true;
    case kQ5_0: return f(Q5_0{}), true;
    case kQ5_1: return f(Q5_1{}), true;
    case kQ8_0: return f(Q8_0{}), true;
    case kQ2_K: return f(Q2_K{}), true;
    case kQ3_K: return f(Q3_K{}), true;
    case kQ4_K: return f(Q4_K{}), true;
    case kQ5_K: return f(Q5_K{}), true;
    case kQ6_K: return f(Q6_K{}), true;
    case kIQ4_NL: return f(IQ4_NL{}), true;
    case kIQ4_XS: return f(IQ4_XS{}), true;
    case kMXFP4: return f(MXFP4{}), true;
    default: return false;
  }
}

// How many values a block of a type read here holds, and its bytes; {0, 0} for other types.
struct BlockSize {
  std::int64_t values, bytes;
};
BlockSize block_size(std::int32_t id);

// "Q4_K"; nullptr for a number that GGUF does not define. Known types that are not read here have names too.
const char* type_name(std::int32_t id);

// Which row of the file holds row n of the model. In files of architecture "llama" the rows of q and
// k are stored so that the two numbers a rotation mixes are neighbours: inside a head of `head_dim`
// rows, file row 2i + s is model row s * head_dim/2 + i (s = 0, 1). Elsewhere rows lie in order.
struct RowOrder {
  std::int64_t head_dim = 0;  // 0: in order
  std::int64_t file_row(std::int64_t n) const {
    if (head_dim == 0) return n;
    const std::int64_t head = n / head_dim, r = n % head_dim, half = head_dim / 2;
    return head * head_dim + 2 * (r % half) + r / half;
  }
};

}  // namespace qe_gguf
