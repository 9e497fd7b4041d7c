#include "core/kv/kv_size.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
  return text;
}

std::int64_t number_in(const char* file) {  // -1: absent or "max"
  std::ifstream in(file);
  std::int64_t n = 0;
  return in >> n ? n : -1;
}

std::int64_t in_meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string key; in >> key;) {
    if (std::int64_t kib = 0; key == name && in >> kib) return kib * 1024;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

std::int64_t total_memory() {
  const std::int64_t total = in_meminfo("MemTotal:"), limit = number_in("/sys/fs/cgroup/memory.max");
  return limit > 0 ? std::min(total, limit) : total;
}

std::int64_t free_memory() {
  std::int64_t available = in_meminfo("MemAvailable:");
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

KvSize kv_size(const KvLimits& l) {
  KvSize r;
  r.max_model_len = l.max_model_len;
  const std::int64_t one = ceil_div(l.max_model_len, l.block_size);  // blocks of one whole sequence
  // A sequence never shares its last block: round each one up.
  const std::int64_t usable = checked_mul(one, l.max_num_seqs).value_or(std::numeric_limits<std::int64_t>::max());
  std::int64_t bytes = l.bytes;
  if (bytes == 0) {
    bytes = 4 * kGiB;
    if (l.free_bytes > 0) bytes = std::min(bytes, l.free_bytes / 4);
  }
  r.num_blocks = std::min({bytes / l.block_bytes, usable, std::int64_t{std::numeric_limits<std::int32_t>::max()}});
  if (r.num_blocks >= one) return r;
  const std::int64_t fits = r.num_blocks * l.block_size;
  if (l.max_model_len_asked || fits == 0)
    throw Error("E404", "one request of --max-model-len " + std::to_string(l.max_model_len) + " needs " + gib(one * l.block_bytes) +
                            " of KV cache; " + gib(bytes) + " are available")
        .hint(fits == 0 ? "--kv-cache-memory-bytes " + std::to_string(l.block_bytes) + " is the least that holds a block"
                        : "--max-model-len " + std::to_string(fits) + " (or auto) is the longest that fits");
  r.max_model_len = fits;
  return r;
}

}  // namespace qengine
