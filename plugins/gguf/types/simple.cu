#include <qe/format_cuda.cuh>

#include "../block_format.hpp"

QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q4_0>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q4_1>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q5_0>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q5_1>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::Q8_0>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::IQ4_NL>)
QE_FORMAT_CUDA(qe_gguf::BlockFormat<qe_gguf::MXFP4>)
