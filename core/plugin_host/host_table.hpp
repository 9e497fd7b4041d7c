// PluginServices: the qe_host table that one plugin gets, and what is behind it.
//
// One for each loaded library and process, never destroyed: plugins keep the pointer. What belongs to
// one model or one call (threads, cancel flag, options) comes through Call and the handles below.
//
// Memory is accounted for by kind, so that core can compare it with what the plugin planned.
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
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/plugin_host/match.hpp"

// The opaque handles of the ABI. All pointers are borrowed; null means "nothing there".
struct qe_cfg_s {
  const qengine::Json* quant = nullptr;    // the quantization config
  const qengine::Json* options = nullptr;  // this plugin's
  const qengine::Json* model = nullptr;    // config.json
  const qengine::Json* gguf = nullptr;     // flat: keys hold dots
};

struct qe_ckpt_s {
  const qengine::Checkpoint* checkpoint = nullptr;
  bool loading = false;                          // data of every size, not only up to 1 MiB
  std::mutex mutex;                              // of what follows
  bool record = false;                           // remember the names that are asked for
  std::set<std::string, std::less<>> found, missed;
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of tensors that begin at an odd address

  void forget_copies() { aligned.clear(); }
};

namespace qengine {

class Gpu;

class PluginServices {
 public:
  explicit PluginServices(std::string plugin);

  const qe_host* table() const { return &table_; }
  const std::string& plugin() const { return plugin_; }

  // Bytes that the plugin holds now, and the most since reset_peak, by QE_MEM_*.
  std::uint64_t held(int mem) const { return held_[mem].load(std::memory_order_relaxed); }
  std::uint64_t peak(int mem) const { return peak_[mem].load(std::memory_order_relaxed); }
  void reset_peak();

  // A load at a time, so that what it took can be told from what others took.
  std::mutex& load_mutex() { return load_mutex_; }

  qe_status alloc(const qe_device* device, std::uint64_t bytes, std::uint64_t align, int mem, void** out) noexcept;
  void free(void* p) noexcept;
  // To memory of alloc(), on whichever device it is; on a GPU `src` may be reused on return.
  qe_status upload(void* dst, const void* src, std::uint64_t bytes, qe_stream stream) noexcept;
  const Matcher& matcher() const { return matcher_; }

 private:
  qe_status alloc_on_gpu(const qe_device& device, std::uint64_t bytes, std::uint64_t align, int mem, void** out) noexcept;
  void count(int mem, std::uint64_t bytes) noexcept;

  struct Block {
    std::uint64_t bytes;
    int mem;
    bool mapped;
    Gpu* gpu;  // null: the host's memory
  };

  std::string plugin_;
  qe_host table_;
  Matcher matcher_;
  std::mutex mutex_, load_mutex_;
  std::map<void*, Block> blocks_;
  std::array<std::atomic<std::uint64_t>, 4> held_{}, peak_{};
};

// The value at a path of plugin.h's kind, null when absent (a JSON null counts as absent).
const Json* find_path(const qe_cfg_s& cfg, std::string_view path);

// Text of a plugin, made fit for a message: one line, no control characters, at most `max` bytes.
std::string plugin_text(std::string_view text, std::size_t max = 400);

}  // namespace qengine
