#include <qe/format_cuda.cuh>

#include "../formats.hpp"

QE_FORMAT_CUDA(qengine::gptq::W6)
QE_FORMAT_CUDA(qengine::gptq::W7)
QE_FORMAT_CUDA(qengine::gptq::W8)
QE_FORMAT_CUDA(qengine::gptq::W4F32)
QE_FORMAT_CUDA(qengine::gptq::WxF32)
