#include <qe/format_cuda.cuh>

#include "../block_format.hpp"

QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q2_K>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q3_K>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q4_K>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q5_K>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q6_K>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::IQ4_XS>)
