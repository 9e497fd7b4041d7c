// From a CUDA status to an Error. For the .cpp files of a build with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/base/error.hpp"

namespace qengine {

// Throws Error E407: what was being done, and the driver's text.
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error("E407", std::string("the GPU failed in ") + what + ": " + cudaGetErrorString(status))
      .from(cudaGetErrorName(status))
      .hint("the process cannot go on after a kernel fault; dmesg and nvidia-smi -q tell whether the card is healthy");
}

}  // namespace qengine
