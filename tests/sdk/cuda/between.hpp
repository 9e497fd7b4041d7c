#pragma once

#include <driver_types.h>

namespace qe_test {

cudaError_t between(cudaStream_t stream, bool pdl);

}  // namespace qe_test
