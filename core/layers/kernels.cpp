#include "core/layers/kernels.hpp"

namespace qengine {

const Kernels& kernels() {
  static const Kernels& best = kernels_avx2() ? *kernels_avx2() : kernels_ref();
  return best;
}

}  // namespace qengine
