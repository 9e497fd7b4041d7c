#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/base/log.hpp"
#include "core/device/arena.hpp"
#include "core/device/cuda_check.hpp"
#include "core/device/gpu.hpp"

namespace qengine {
namespace {

constexpr std::uint64_t kStage = 8ull << 20;  // bytes of a pinned buffer
constexpr int kStages = 4;

GpuList find_gpus() {
  GpuList list;
  int n = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&n); e != cudaSuccess || n == 0) {
    cudaGetLastError();
    list.why = e == cudaSuccess || e == cudaErrorNoDevice ? "no NVIDIA GPU is visible" : cudaGetErrorString(e);
    if (e == cudaErrorInsufficientDriver) {
      int driver = 0;
      cudaDriverGetVersion(&driver);
      list.why = driver == 0 ? "no NVIDIA driver is installed" : "the driver supports CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10) +
                                                                     ", and this build needs " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
    }
    return list;
  }
  int driver = 0;
  cudaDriverGetVersion(&driver);
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      list.why = cudaGetErrorString(cudaGetLastError());
      continue;
    }
    GpuInfo g;
    g.name = p.name;
    g.device.struct_size = sizeof g.device;
    g.device.kind = QE_CUDA;
    g.device.ordinal = i;
    g.device.sm = p.major * 10 + p.minor;
    g.device.sm_count = p.multiProcessorCount;
    g.device.driver = driver;
    g.device.smem_optin = p.sharedMemPerBlockOptin;
    g.device.l2_bytes = static_cast<std::uint64_t>(p.l2CacheSize);
    g.device.mem_bytes = p.totalGlobalMem;
    list.gpus.push_back(std::move(g));
  }
  return list;
}

}  // namespace

const GpuList& list_gpus() {
  static const GpuList list = find_gpus();
  return list;
}

struct Gpu::Impl {
  struct Direct {
    std::uint64_t bytes;
    MemoryOwner owner;
  };
  struct Stage {
    void* data = nullptr;
    cudaEvent_t done = nullptr;
  };
  std::mutex mutex;
  std::unordered_map<void*, Direct> direct;
  std::unique_ptr<Arena> weights, state;
  Stage stages[kStages];
  int next_stage = 0;
  std::mutex upload_mutex;
};

Gpu::Gpu() = default;
Gpu::~Gpu() = default;

Gpu& Gpu::open(int ordinal) {
  static std::mutex mutex;
  static std::unordered_map<int, Gpu*> opened;  // never closed: plugins and handles may outlive any order of ends
  const std::lock_guard lock(mutex);
  if (const auto it = opened.find(ordinal); it != opened.end()) {
    cudaSetDevice(ordinal);
    return *it->second;
  }
  const auto unusable = [&](cudaError_t e) { return Error("E402", std::string("no usable GPU: ") + cudaGetErrorString(e)).from("cuda:" + std::to_string(ordinal)).hint("--device cpu works with every shipped plugin"); };
  const GpuInfo* info = choose_device("cuda:" + std::to_string(ordinal), list_gpus());
  if (const cudaError_t e = cudaSetDevice(ordinal); e != cudaSuccess) throw unusable(e);
  auto* gpu = new Gpu;
  gpu->info_ = *info;
  gpu->impl_ = std::make_unique<Impl>();
  cudaStream_t stream = nullptr;
  if (const cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); e != cudaSuccess) throw unusable(e);
  gpu->stream_ = stream;
  std::size_t free = 0, total = 0;
  if (const cudaError_t e = cudaMemGetInfo(&free, &total); e != cudaSuccess) throw unusable(e);
  gpu->info_.device.mem_bytes = total;
  gpu->used_at_open_ = total - free;
  const auto arena = [gpu](MemoryOwner owner) {
    return std::make_unique<Arena>(Arena::Backing{[gpu, owner](std::uint64_t bytes) -> void* {
                                                    void* p = nullptr;
                                                    if (cudaMalloc(&p, bytes) != cudaSuccess) return cudaGetLastError(), nullptr;
                                                    gpu->ledger_.take(owner, bytes);
                                                    return p;
                                                  },
                                                  [gpu, owner](void* p, std::uint64_t bytes) {
                                                    cudaFree(p);
                                                    gpu->ledger_.give(owner, bytes);
                                                  }});
  };
  gpu->impl_->weights = arena(MemoryOwner::kWeights);
  gpu->impl_->state = arena(MemoryOwner::kState);
  opened.emplace(ordinal, gpu);
  return *gpu;
}

void* Gpu::try_alloc(std::uint64_t bytes, MemoryOwner owner) {
  const std::lock_guard lock(impl_->mutex);
  if (owner == MemoryOwner::kWeights) return impl_->weights->allocate(bytes);
  if (owner == MemoryOwner::kState) return impl_->state->allocate(bytes);
  void* p = nullptr;
  if (cudaMalloc(&p, std::max<std::uint64_t>(bytes, 1)) != cudaSuccess) return cudaGetLastError(), nullptr;
  impl_->direct.emplace(p, Impl::Direct{bytes, owner});
  ledger_.take(owner, bytes);
  return p;
}

void* Gpu::alloc(std::uint64_t bytes, MemoryOwner owner, const std::string& what) {
  if (void* p = try_alloc(bytes, owner)) return p;
  char text[160];
  std::snprintf(text, sizeof text, "%s of %.2f GiB does not fit on %s: %.2f of %.2f GiB are free", what.c_str(), static_cast<double>(bytes) / (1 << 30), info_.label().c_str(),
                static_cast<double>(free_bytes()) / (1 << 30), static_cast<double>(total_bytes()) / (1 << 30));
  throw Error("E403", text).from("held: " + ledger_.text()).hint("any one of: a smaller --gpu-memory-utilization, --kv-cache-memory-bytes or --max-num-batched-tokens; a format of fewer bits");
}

void Gpu::free(void* p) {
  if (!p) return;
  const std::lock_guard lock(impl_->mutex);
  if (impl_->weights->owns(p)) return impl_->weights->free(p);
  if (impl_->state->owns(p)) return impl_->state->free(p);
  const auto it = impl_->direct.find(p);
  if (it == impl_->direct.end()) return;
  cudaFree(p);
  ledger_.give(it->second.owner, it->second.bytes);
  impl_->direct.erase(it);
}

void Gpu::expect_weights(std::uint64_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->weights->expect(bytes);
}

qe_status Gpu::upload(void* dst, const void* src, std::uint64_t bytes, qe_stream stream) {
  const std::lock_guard lock(impl_->upload_mutex);
  const auto s = static_cast<cudaStream_t>(stream ? stream : stream_);
  for (std::uint64_t done = 0; done < bytes;) {
    Impl::Stage& stage = impl_->stages[impl_->next_stage];
    impl_->next_stage = (impl_->next_stage + 1) % kStages;
    if (!stage.data) {
      if (cudaMallocHost(&stage.data, kStage) != cudaSuccess) return cudaGetLastError(), QE_E_OOM;
      if (cudaEventCreateWithFlags(&stage.done, cudaEventDisableTiming) != cudaSuccess) return cudaGetLastError(), QE_E_DEVICE;
    } else if (cudaEventSynchronize(stage.done) != cudaSuccess) {
      return QE_E_DEVICE;
    }
    const std::uint64_t n = std::min(kStage, bytes - done);
    std::memcpy(stage.data, static_cast<const char*>(src) + done, n);
    if (cudaMemcpyAsync(static_cast<char*>(dst) + done, stage.data, n, cudaMemcpyHostToDevice, s) != cudaSuccess) return QE_E_DEVICE;
    if (cudaEventRecord(stage.done, s) != cudaSuccess) return QE_E_DEVICE;
    done += n;
  }
  return QE_OK;
}

void Gpu::zero(void* dst, std::uint64_t bytes) { cuda_check(cudaMemsetAsync(dst, 0, bytes, static_cast<cudaStream_t>(stream_)), "clearing memory"); }

void Gpu::download(void* dst, const void* src, std::uint64_t bytes) {
  cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream_)), "a copy to the host");
  wait();
}

void Gpu::wait() { cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)), "a kernel"); }

std::uint64_t Gpu::free_bytes() const {
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "asking for its memory");
  return free;
}

std::uint64_t Gpu::driver_bytes() const {
  const std::uint64_t used = total_bytes() - free_bytes();
  return used - std::min(used, used_at_open_);
}

}  // namespace qengine
