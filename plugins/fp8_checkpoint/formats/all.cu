#include <qe/format_cuda.cuh>

#include "../format.hpp"

QE_FORMAT_CUDA(qengine::fp8::Row)
QE_FORMAT_CUDA(qengine::fp8::Block)
QE_FORMAT_CUDA(qengine::fp8::Group)
