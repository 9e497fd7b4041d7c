#include <qe/format_cuda.cuh>

#include "../block_format.hpp"

QE_FORMAT_CUDA(qe_gguf::F32)
QE_FORMAT_CUDA(qe_gguf::F16)
QE_FORMAT_CUDA(qe_gguf::BF16)
