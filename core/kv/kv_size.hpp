// How many blocks the KV cache gets: the rule of --kv-cache-memory-bytes on a CPU.
#pragma once

#include <cstdint>

namespace qengine {

struct KvLimits {
  std::int64_t block_bytes = 0;     // of one block over all layers
  int block_size = 16;
  std::int64_t bytes = 0;           // --kv-cache-memory-bytes; 0: the rule
  std::int64_t free_bytes = 0;      // of the machine (or the cgroup); 0: unknown
  std::int64_t max_model_len = 0;   // tokens
  bool max_model_len_asked = false; // named by the user: never lowered
  std::int64_t max_num_seqs = 0;
};

struct KvSize {
  std::int64_t num_blocks = 0;
  std::int64_t max_model_len = 0;  // lowered to what fits, when it was not asked for
};

// The least of 4 GiB, a quarter of the free memory, and what max_num_seqs sequences of max_model_len
// can use. Throws Error E404 when one sequence of an asked length does not fit.
KvSize kv_size(const KvLimits& limits);

std::int64_t total_memory();  // of the machine, or what the cgroup allows when that is less
std::int64_t free_memory();  // MemAvailable, or what the cgroup leaves when that is less

}  // namespace qengine
