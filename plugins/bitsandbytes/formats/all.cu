#include <qe/format_cuda.cuh>

#include "../format.hpp"

QE_FORMAT_CUDA(qengine::bnb::Nf4)
QE_FORMAT_CUDA(qengine::bnb::Fp4)
QE_FORMAT_CUDA(qengine::bnb::Int8)
