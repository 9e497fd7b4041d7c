// libqe_kernel_times.so: writes when each kernel of a program began and ended, one line a kernel. Kernels of a graph with
// programmatic edges overlap, which profilers that run one kernel at a time do not show.
//
//   CUDA_INJECTION64_PATH=build/bin/libqe_kernel_times.so QE_KERNEL_TIMES=FILE qengine bench latency ...
//   tests/bench/kernel_times.py FILE
//
// A line: begin and end in ns, grid, threads of a block, registers of a thread, bytes of shared memory, name.
// Source: CUPTI activity API, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* out;

void CUPTIAPI wanted(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void CUPTIAPI filled(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  for (CUpti_Activity* record = nullptr; cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS;) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& k = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu %llu %d,%d,%d %d %d %d %s\n", static_cast<unsigned long long>(k.start), static_cast<unsigned long long>(k.end), k.gridX, k.gridY, k.gridZ, k.blockX,
                 k.registersPerThread, k.dynamicSharedMemory, k.name);
  }
  std::free(buffer);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("QE_KERNEL_TIMES");
  out = std::fopen(path ? path : "kernel_times.txt", "w");
  if (!out) return std::perror("kernel_times"), 0;
  cuptiActivityRegisterCallbacks(wanted, filled);
  if (const CUptiResult r = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); r != CUPTI_SUCCESS) return std::fprintf(stderr, "kernel_times: CUPTI says %d\n", r), 0;
  std::atexit([] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), std::fclose(out); });
  return 1;
}
