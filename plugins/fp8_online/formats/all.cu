#include <qe/format_cuda.cuh>

#include "../format.hpp"

QE_FORMAT_CUDA(qengine::online::PerTensor)
QE_FORMAT_CUDA(qengine::online::PerChannel)
QE_FORMAT_CUDA(qengine::online::PerBlock)
QE_FORMAT_CUDA(qengine::online::MxFp8)
QE_FORMAT_CUDA(qengine::online::MxFp4)
QE_FORMAT_CUDA(qengine::online::Int8)
