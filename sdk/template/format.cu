// The same format on NVIDIA GPUs. Built where nvcc is; nothing is written again.
#include <qe/format_cuda.cuh>

#include "format.hpp"

QE_FORMAT_CUDA(Format)
