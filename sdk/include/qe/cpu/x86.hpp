// qe/cpu/x86.hpp: the vector kernels for AVX2 (with FMA and F16C) and for AVX-512 with VNNI (still
// 256-bit vectors: twice the registers, one instruction for four products), compiled whatever the
// flags are and chosen at run time.
#pragma once

#include <qe/cpu/kernels.hpp>
#include <qe/format_ops.hpp>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define QE_X86 1
#include <immintrin.h>

#ifdef __clang__
#define QE_UNROLL _Pragma("unroll")
#else
#define QE_UNROLL _Pragma("GCC unroll 32")
#endif

#define QE_ISA avx2
#define QE_TARGET "avx2,fma,f16c"
#define QE_VNNI 0
#include <qe/cpu/x86.inl>
#undef QE_ISA
#undef QE_TARGET
#undef QE_VNNI

#define QE_ISA vnni
#define QE_TARGET "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,prefer-vector-width=256"
#define QE_VNNI 1
#include <qe/cpu/x86.inl>
#undef QE_ISA
#undef QE_TARGET
#undef QE_VNNI
#else
#define QE_X86 0
#endif
