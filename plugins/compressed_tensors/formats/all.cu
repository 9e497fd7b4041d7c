#include <qe/format_cuda.cuh>

#include "../format.hpp"

QE_FORMAT_CUDA(qengine::ct::Int8Row)
QE_FORMAT_CUDA(qengine::ct::Int8Zero)
QE_FORMAT_CUDA(qengine::ct::MxFp8)
QE_FORMAT_CUDA(qengine::ct::MxFp4)
QE_FORMAT_CUDA(qengine::ct::NvFp4)
QE_FORMAT_CUDA(qengine::ct::NvFp4Multiplier)
