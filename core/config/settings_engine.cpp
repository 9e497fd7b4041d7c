// Device, memory and batching.
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& engine_settings() {
  static const SettingGroup group{
      "Engine",
      {
          {.name = "device", .value = "auto|cpu|cuda[:N]", .fallback = "auto", .key = "engine.device",
           .help = "where to run"},
          {.name = "threads", .kind = Kind::kInt, .value = "N", .shown = "physical cores", .key = "engine.threads", .reload = Reload::kSwap,
           .help = "CPU threads", .least = 1, .most = 1024},
          {.name = "max-model-len", .kind = Kind::kInt, .value = "N|auto", .shown = "from config.json",
           .key = "model.max_model_len", .reload = Reload::kSwap, .help = "longest prompt plus answer; auto: what fits",
           .least = -1},
          {.name = "max-num-seqs", .kind = Kind::kInt, .value = "N", .shown = "by device", .key = "engine.max_num_seqs", .reload = Reload::kSwap,
           .help = "sequences in one step", .least = 1},
          {.name = "max-num-batched-tokens", .kind = Kind::kInt, .value = "N", .shown = "by device",
           .key = "engine.max_num_batched_tokens", .reload = Reload::kSwap, .help = "tokens in one step", .least = 1},
          {.name = "kv-cache-memory-bytes", .kind = Kind::kBytes, .value = "BYTES", .shown = "by device",
           .key = "engine.kv_cache_memory_bytes", .reload = Reload::kSwap, .help = "memory of the KV cache", .least = 1},
          {.name = "num-gpu-blocks-override", .kind = Kind::kInt, .value = "N", .key = "engine.num_gpu_blocks_override", .reload = Reload::kSwap,
           .help = "blocks of the KV cache, whatever fits", .least = 1},
          {.name = "gpu-memory-utilization", .kind = Kind::kNumber, .value = "F", .fallback = "0.92",
           .key = "engine.gpu_memory_utilization", .reload = Reload::kSwap, .help = "share of a GPU's memory to use", .least = 0.01, .most = 1},
          {.name = "block-size", .kind = Kind::kInt, .value = "N", .fallback = "16", .key = "engine.block_size", .reload = Reload::kSwap,
           .help = "token slots in a KV block, a multiple of 16", .least = 16, .most = 256},
          {.name = "enable-prefix-caching", .kind = Kind::kBool, .fallback = "true", .key = "engine.enable_prefix_caching", .reload = Reload::kSwap,
           .help = "share the KV blocks of equal prompt beginnings"},
          {.name = "enable-chunked-prefill", .kind = Kind::kBool, .fallback = "true",
           .key = "engine.enable_chunked_prefill", .reload = Reload::kSwap, .help = "cut prompts to the token budget"},
          {.name = "tensor-parallel-size", .kind = Kind::kInt, .value = "N", .fallback = "1",
           .key = "engine.tensor_parallel_size", .help = "GPUs that share one model (-tp)", .least = 1, .most = 64,
           .wave = 2},
          {.name = "seed", .kind = Kind::kInt, .value = "N", .fallback = "0", .key = "engine.seed", .reload = Reload::kSwap,
           .help = "seed of the random numbers", .least = 0},
          {.name = "enforce-eager", .kind = Kind::kBool, .fallback = "false", .key = "engine.enforce_eager", .reload = Reload::kSwap,
           .help = "no graph capture"},
          {.name = "max-logprobs", .kind = Kind::kInt, .value = "N", .fallback = "20", .key = "engine.max_logprobs",
           .reload = Reload::kLive, .help = "most logprobs a request may ask for; -1: all", .least = -1},
          {.name = "logprobs-mode", .kind = Kind::kChoice, .value = "raw_logprobs", .fallback = "raw_logprobs",
           .key = "engine.logprobs_mode", .help = "what logprobs are taken from", .hidden = true},
      }};
  return group;
}

}  // namespace qengine
