// The kernel that the kit puts before and behind a plugin's: it copies, as late as it is told to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace qengine::conformance {

struct Copies {
  static constexpr int kMost = 4;
  struct Copy {
    void* to;
    const void* from;
    std::uint64_t bytes;
  } list[kMost];
  int n = 0;
  bool waits = true;                  // for the kernels before it; false: as a kernel that forgets to
  std::uint32_t late_us = 0;          // between the wait and the first copy
  const std::uint32_t* go = nullptr;  // memory of the host: no copy before it holds 1, or 2 s have passed

  // Nothing when `bytes` is 0. REQUIRES: at most kMost.
  Copies& add(void* to, const void* from, std::uint64_t bytes) {
    if (bytes) list[n++] = {to, from, bytes};
    return *this;
  }
};

// Lets the kernel behind it start, waits for those before, is late, copies. `programmatic`: may start while the kernel
// before it runs. One block, so that nearly the whole device is free for others meanwhile.
cudaError_t enqueue_copies(const Copies& c, bool programmatic, cudaStream_t stream);

}  // namespace qengine::conformance
