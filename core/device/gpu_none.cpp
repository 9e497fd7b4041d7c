// A build without CUDA.
#include "core/base/error.hpp"
#include "core/device/gpu.hpp"

namespace qengine {

struct Gpu::Impl {};

const GpuList& list_gpus() {
  static const GpuList none{{}, "this build has no GPU support"};
  return none;
}

Gpu::Gpu() = default;
Gpu::~Gpu() = default;
Gpu& Gpu::open(int) { throw Error("E402", "no usable GPU: " + list_gpus().why).hint("--device cpu works with every shipped plugin"); }
void* Gpu::try_alloc(std::uint64_t, MemoryOwner) { return nullptr; }
void* Gpu::alloc(std::uint64_t, MemoryOwner, const std::string&) { return nullptr; }
void Gpu::free(void*) {}
void Gpu::expect_weights(std::uint64_t) {}
qe_status Gpu::upload(void*, const void*, std::uint64_t, qe_stream) { return QE_E_DEVICE; }
void Gpu::zero(void*, std::uint64_t) {}
void Gpu::download(void*, const void*, std::uint64_t) {}
void Gpu::wait() {}
std::uint64_t Gpu::free_bytes() const { return 0; }
std::uint64_t Gpu::driver_bytes() const { return 0; }

}  // namespace qengine
