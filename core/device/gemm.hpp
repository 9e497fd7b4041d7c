// The host service qe.gemm/1 (qe/gemm.h): dense products through cuBLASLt, opened when first asked for.
#pragma once

#include <qe/gemm.h>

#include <string>

namespace qengine {

// Null where the library is not installed or cannot be used; why_no_gemm() then says what was tried.
const qe_gemm_v1* dense_gemm();
const std::string& why_no_gemm();
// "libcublasLt.so.13 13.0.2", "" when there is none. Does not open it by itself.
std::string dense_gemm_library();

}  // namespace qengine
