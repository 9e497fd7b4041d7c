#include <qe/format_cuda.cuh>

#include "../formats.hpp"

QE_FORMAT_CUDA(qengine::gptq::W2)
QE_FORMAT_CUDA(qengine::gptq::W3)
QE_FORMAT_CUDA(qengine::gptq::W4)
QE_FORMAT_CUDA(qengine::gptq::W5)
