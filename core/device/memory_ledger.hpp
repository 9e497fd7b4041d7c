// MemoryLedger: bytes of one device's memory by who owns them.
//
// What is counted is what was taken from the driver, so that the sum can be held against the driver's
// own figure; a plugin's bytes are counted once more, to the byte, by its PluginServices.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace qengine {

enum class MemoryOwner { kWeights, kState, kLoading, kWorkspace, kGraphs, kKvCache };
inline constexpr int kMemoryOwners = 6;
const char* to_string(MemoryOwner);  // "weights", "plugin state", "loading", "workspace", "graphs", "kv cache"

class MemoryLedger {
 public:
  void take(MemoryOwner owner, std::uint64_t bytes);
  void give(MemoryOwner owner, std::uint64_t bytes);  // REQUIRES: they were taken
  void reset_peaks();                                 // to what is held now

  std::uint64_t held(MemoryOwner owner) const { return held_[index(owner)].load(std::memory_order_relaxed); }
  std::uint64_t peak(MemoryOwner owner) const { return peak_[index(owner)].load(std::memory_order_relaxed); }
  std::uint64_t total() const;

  // "weights 2.48 GiB, workspace 0.31 GiB", largest first; "nothing" when nothing is held.
  std::string text() const;

 private:
  static std::size_t index(MemoryOwner o) { return static_cast<std::size_t>(o); }
  std::array<std::atomic<std::uint64_t>, kMemoryOwners> held_{}, peak_{};
};

}  // namespace qengine
