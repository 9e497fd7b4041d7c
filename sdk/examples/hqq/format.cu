// The same format on NVIDIA GPUs.
#include <qe/format_cuda.cuh>

#include "format.hpp"

QE_FORMAT_CUDA(Hqq4)
