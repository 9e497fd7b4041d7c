// KitHost: the host table that the kit gives a plugin: what core's does, counted, and with faults on order.
//
// Configuration, patterns and logging behave as in core (the same functions answer); memory and
// tensors are the kit's own, so that allocations can fail, blocks have fences, and tensors can be
// missing, cut or poisoned.
#pragma once

#include <qe/plugin.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/thread_pool.hpp"
#include "core/device/gpu.hpp"
#include "core/plugin_host/host_table.hpp"

namespace qengine::conformance {

// Tensors of one case by name. Behind qe_ckpt.
struct KitTensors {
  struct Entry {
    std::int32_t dtype = 0;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> data;      // somebody else's, or `own`
    std::shared_ptr<std::vector<std::byte>> own;
  };
  std::map<std::string, Entry, std::less<>> entries;
  bool loading = false;  // as core: data of every size only in load
  mutable std::mutex mutex;
  mutable std::set<std::string, std::less<>> read;    // whose data was handed out while loading
  mutable std::vector<std::shared_ptr<std::byte[]>> aligned;

  qe_ckpt handle() { return reinterpret_cast<qe_ckpt>(this); }
  // A copy of the bytes that may be written.
  std::vector<std::byte>& writable(const std::string& name);
};

class KitHost {
 public:
  explicit KitHost(int threads = 2);
  ~KitHost();
  KitHost(const KitHost&) = delete;

  const qe_host* table() const { return &table_; }
  // From now on memory is that of this GPU, without fences.
  void use_gpu(Gpu& gpu) { gpu_ = &gpu; }
  // Ends the table before its newest field; what lies behind is rubbish.
  void shorten();

  // Bytes held now, and the most since reset_peak, by QE_MEM_*.
  std::uint64_t held(int mem) const { return held_[static_cast<std::size_t>(mem)]; }
  std::uint64_t peak(int mem) const { return peak_[static_cast<std::size_t>(mem)]; }
  void reset_peak() { peak_ = held_; }
  std::size_t blocks() const { return blocks_.size(); }
  // Blocks whose fences were written over, also those already freed; "" for none.
  std::string damage();

  // ---- faults on order -----------------------------------------------------------------------------
  int fail_alloc_at = -1;                // counts down; the allocation that finds 0 fails
  int allocations = 0;
  std::int64_t cancel_at = -1;           // the n-th question is answered with yes, and all after it
  std::atomic<std::int64_t> cancel_asked{0};
  bool serial = false;                   // parallel_for on the calling thread

  // ---- what was seen ---------------------------------------------------------------------------------
  std::vector<std::string> logged;
  std::vector<std::string> step_violations;  // services of [load] that a step asked for
  std::vector<std::string> bad_frees;

 private:
  struct Block {  // base null: on the GPU
    std::byte *base, *at;
    std::uint64_t bytes, whole;
    int mem;
  };
  static KitHost& me(void* self) { return *static_cast<KitHost*>(self); }
  qe_status alloc(std::uint64_t bytes, std::uint64_t align, int mem, void** out);
  void free(void* p);
  void only_outside_steps(const char* what);
  void count(int mem, std::uint64_t bytes);
  static bool fences_hold(const Block& b);

  qe_host table_{};
  PluginServices services_{"the plugin"};
  ThreadPool pool_;
  Gpu* gpu_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::array<std::uint64_t, 4> held_{}, peak_{};
  std::string damage_;
};

}  // namespace qengine::conformance
