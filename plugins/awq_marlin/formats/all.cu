#include <qe/format_cuda.cuh>

#include "../formats.hpp"

QE_FORMAT_CUDA(qengine::awq::W4)
QE_FORMAT_CUDA(qengine::awq::W4F32)
QE_FORMAT_CUDA(qengine::awq::W4Offset)
