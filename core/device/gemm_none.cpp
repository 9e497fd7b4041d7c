#include "core/device/gemm.hpp"

namespace qengine {

const qe_gemm_v1* dense_gemm() { return nullptr; }
const std::string& why_no_gemm() {
  static const std::string why = "this build has no GPU support";
  return why;
}
std::string dense_gemm_library() { return ""; }

}  // namespace qengine
