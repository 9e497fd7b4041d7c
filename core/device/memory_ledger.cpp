#include "core/device/memory_ledger.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace qengine {

const char* to_string(MemoryOwner owner) {
  switch (owner) {
    case MemoryOwner::kWeights: return "weights";
    case MemoryOwner::kState: return "plugin state";
    case MemoryOwner::kLoading: return "loading";
    case MemoryOwner::kWorkspace: return "workspace";
    case MemoryOwner::kGraphs: return "graphs";
    case MemoryOwner::kKvCache: return "kv cache";
  }
  return "";
}

void MemoryLedger::take(MemoryOwner owner, std::uint64_t bytes) {
  const std::size_t i = index(owner);
  const std::uint64_t now = held_[i].fetch_add(bytes) + bytes;
  for (std::uint64_t peak = peak_[i].load(); now > peak && !peak_[i].compare_exchange_weak(peak, now);) {
  }
}

void MemoryLedger::give(MemoryOwner owner, std::uint64_t bytes) { held_[index(owner)].fetch_sub(bytes); }

void MemoryLedger::reset_peaks() {
  for (std::size_t i = 0; i < held_.size(); ++i) peak_[i] = held_[i].load();
}

std::uint64_t MemoryLedger::total() const {
  std::uint64_t sum = 0;
  for (const auto& h : held_) sum += h.load(std::memory_order_relaxed);
  return sum;
}

std::string MemoryLedger::text() const {
  std::vector<std::pair<std::uint64_t, int>> rows;
  for (int i = 0; i < kMemoryOwners; ++i)
    if (const std::uint64_t n = held(static_cast<MemoryOwner>(i))) rows.emplace_back(n, i);
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); });
  std::string out;
  for (const auto& [bytes, i] : rows) {
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.2f GiB", out.empty() ? "" : ", ", to_string(static_cast<MemoryOwner>(i)), static_cast<double>(bytes) / (1 << 30));
    out += text;
  }
  return out.empty() ? "nothing" : out;
}

}  // namespace qengine
