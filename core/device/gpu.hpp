// Gpu: one NVIDIA device of this process: what it is, its memory by owner, its stream, its uploads.
//
// Declared without a CUDA header, and present in builds without CUDA, where list_gpus() is empty and
// says so. The run-time library is linked statically: a program built with CUDA starts on a machine
// without a driver.
#pragma once

#include <qe/plugin.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device/memory_ledger.hpp"

namespace qengine {

struct GpuInfo {
  qe_device device{};  // as plugins see it
  std::string name;    // "NVIDIA H200"
  std::string label() const { return "cuda:" + std::to_string(device.ordinal); }
};

struct GpuList {
  std::vector<GpuInfo> gpus;
  std::string why;  // when there are none: the driver's own text, or that this build has no GPU support
};

// Asks the driver once per process. Takes no memory on any device.
const GpuList& list_gpus();

// --device. Null: the CPU. "auto" takes the first GPU when there is one. Throws Error E402 for a GPU
// that is not there, E107 for a spelling that is none.
const GpuInfo* choose_device(const std::string& text, const GpuList& gpus);

class Gpu {
 public:
  // Opened at first use and kept until the process ends. Throws Error E402.
  static Gpu& open(int ordinal);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuInfo& info() const { return info_; }
  qe_stream stream() const { return stream_; }
  MemoryLedger& ledger() { return ledger_; }
  // Held while work is enqueued and until its results are read. Two models of one process share the stream: while one is
  // captured or fills its buffers, the other must not put anything between.
  std::recursive_mutex& turn() { return turn_; }

  // Weights and plugin state come from slabs, the rest straight from the driver. Null: no more.
  void* try_alloc(std::uint64_t bytes, MemoryOwner owner);
  // Throws Error E403, naming `what`, who holds the memory, and what to change.
  void* alloc(std::uint64_t bytes, MemoryOwner owner, const std::string& what);
  void free(void* p);
  // The weights to come, so that they lie in one slab.
  void expect_weights(std::uint64_t bytes);

  // Copies through pinned memory. `src` may be reused on return; the stream is not waited for.
  qe_status upload(void* dst, const void* src, std::uint64_t bytes, qe_stream stream);
  void zero(void* dst, std::uint64_t bytes);  // on stream()
  void download(void* dst, const void* src, std::uint64_t bytes);  // waits
  void wait();  // for stream(). Throws Error E407 when a kernel failed.

  std::uint64_t total_bytes() const { return info_.device.mem_bytes; }
  std::uint64_t free_bytes() const;       // the driver's figure, now
  std::uint64_t bytes_at_open() const { return used_at_open_; }  // context and other processes
  std::uint64_t driver_bytes() const;     // what this process took since: the ledger's total, as the driver sees it

  struct Impl;

 private:
  Gpu();
  ~Gpu();
  GpuInfo info_;
  MemoryLedger ledger_;
  qe_stream stream_ = nullptr;
  std::uint64_t used_at_open_ = 0;
  std::recursive_mutex turn_;
  std::unique_ptr<Impl> impl_;
};

// Device memory with an owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Gpu& gpu, std::uint64_t bytes, MemoryOwner owner, const std::string& what) : gpu_(&gpu), data_(gpu.alloc(bytes, owner, what)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& o) noexcept { *this = std::move(o); }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_) gpu_->free(data_);
  }

  template <class T = void>
  T* get() const { return static_cast<T*>(data_); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Gpu* gpu_ = nullptr;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace qengine
