#include <qe/format_cuda.cuh>

#include "format.hpp"

QE_FORMAT_CUDA(bf16_ref::F32)
QE_FORMAT_CUDA(bf16_ref::F16)
QE_FORMAT_CUDA(bf16_ref::BF16)
