// qe/cpu/cpuid.hpp: which of the kernels' instruction sets this machine runs, asked of the processor itself: compilers differ in the names
// that __builtin_cpu_supports takes (clang 14 has no f16c).
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace qe::cpu {

enum class Isa : int { scalar = 0, avx2 = 1, avx512 = 2 };  // avx2 with FMA and F16C; avx512 with VL, BW, DQ and VNNI

// The best one that the processor has, and whose registers the operating system keeps.
inline Isa machine_isa() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kNarrow = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C, kWide = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kNarrow) != kNarrow) return Isa::scalar;
  // XCR0, which may be read where OSXSAVE is set: what is saved with a thread. Bits 1 and 2 are xmm and ymm; 5, 6 and 7 the masks, the
  // upper halves of zmm0-15, and zmm16-31.
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  const unsigned saved = a;
  if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return Isa::scalar;
  if ((saved & 0xe6) != 0xe6 || (b & kWide) != kWide || !(c & bit_AVX512VNNI)) return Isa::avx2;
  return Isa::avx512;
#else
  return Isa::scalar;
#endif
}

}  // namespace qe::cpu
