#include <qe/format_cuda.cuh>

#include "tests/sdk/cuda/codes_formats.hpp"

QE_FORMAT_CUDA(qe_test::CodesRow)
QE_FORMAT_CUDA(qe_test::CodesBlock)
