// qe/cpu/x86.hpp: the vector kernels for AVX2 (with FMA and F16C) and for AVX-512 with VNNI, compiled
// whatever the flags are and chosen at run time.
#pragma once

#include <qe/cpu/kernels.hpp>
#include <qe/format_ops.hpp>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define QE_X86 1
// GCC 12's AVX-512 headers start from registers that they leave undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

// Clang drops a whole target attribute that names a preferred width, and needs none: the intrinsics' own width is kept there.
#ifdef __clang__
#define QE_UNROLL _Pragma("unroll")
#define QE_WIDTH_512
#else
#define QE_UNROLL _Pragma("GCC unroll 32")
#define QE_WIDTH_512 ",prefer-vector-width=512"
#endif

#define QE_ISA avx2
#define QE_TARGET "avx2,fma,f16c"
#include <qe/cpu/x86_avx2.inl>
#include <qe/cpu/x86.inl>
#undef QE_ISA
#undef QE_TARGET

#define QE_ISA avx512
#define QE_TARGET "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni" QE_WIDTH_512
#include <qe/cpu/x86_avx512.inl>
#include <qe/cpu/x86.inl>
#undef QE_ISA
#undef QE_TARGET
#else
#define QE_X86 0
#endif
