// Weights, cache and runner on the CPU.
#include <chrono>

#include "core/base/code_pages.hpp"
#include "core/base/log.hpp"
#include "core/base/read_bandwidth.hpp"
#include "core/engine/cpu_runner.hpp"
#include "core/engine/load.hpp"
#include "core/kv/kv_size.hpp"

namespace qengine {
namespace {

// Core's own cache: as named, else float32 on the exact path, else as the model computes.
KvDtype own_kv_dtype(const EngineOptions& o) {
  const std::string& name = o.kv_cache_dtype != "auto" ? o.kv_cache_dtype : o.exact ? "float32" : o.dtype;
  if (name == "float32" || name == "float" || name == "f32") return KvDtype::kF32;
  return name == "float16" || name == "half" ? KvDtype::kF16 : KvDtype::kBf16;
}

}  // namespace

LoadedDevice load_on_cpu(Engine::Impl& s, const std::function<void(double)>& progress) {
  EngineOptions& o = s.options;
  // Limits before weights: a length that cannot fit is refused before anything is read.
  const KvShape shape{s.config.num_layers, s.config.num_kv_heads, s.config.head_dim, o.block_size, own_kv_dtype(o)};
  std::unique_ptr<KvFormat> kv_format;  // null: core's own
  if (!o.exact || o.kv_cache_dtype != "auto" || !o.kv_plugin.empty())
    kv_format = KvFormat::make(*s.plugins, s.checkpoint, s.config, {.dtype = o.kv_cache_dtype, .plugin = o.kv_plugin, .block_tokens = o.block_size}, *s.pool);
  const std::int64_t block_bytes = kv_format ? PluginKv::block_bytes(*kv_format, s.config.num_layers) : shape.block_bytes();
  if (o.max_num_batched_tokens <= 0) o.max_num_batched_tokens = default_batched_tokens(nullptr, o.serving);
  const bool asked = o.max_model_len > 0;
  KvLimits limits{.block_bytes = block_bytes, .block_size = o.block_size, .bytes = o.kv_cache_memory_bytes,
                  .free_bytes = free_memory() - static_cast<std::int64_t>(s.format->weight_bytes()),
                  .max_model_len = asked ? o.max_model_len : std::max<std::int64_t>(1, s.config.max_position), .max_model_len_asked = asked,
                  .max_num_seqs = o.max_num_seqs};
  limits.free_bytes = std::max<std::int64_t>(limits.free_bytes, 256 << 20);
  if (o.num_gpu_blocks_override > 0) limits.bytes = o.num_gpu_blocks_override * block_bytes;
  const KvSize size = kv_size(limits);
  if (size.max_model_len < limits.max_model_len)
    log("kv").warn("the KV cache holds {} tokens; requests are limited to that instead of the model's {} (--max-model-len, --kv-cache-memory-bytes)",
                   size.max_model_len, limits.max_model_len);
  s.max_model_len = o.max_model_len = size.max_model_len;
  if (!o.chunked_prefill) o.max_num_batched_tokens = std::max(o.max_num_batched_tokens, s.max_model_len);
  o.kv_cache_memory_bytes = size.num_blocks * block_bytes;
  if (kv_format) {
    o.kv_cache_dtype = kv_format->scheme();
    s.kv_report = {{"plugin", kv_format->plugin().name}, {"dtype", o.kv_cache_dtype}, {"bytes_per_token", kv_format->bytes_per_token()}, {"scale_source", kv_format->scale_source()}};
  } else {
    o.kv_cache_dtype = kv_dtype_name(shape.dtype);
    s.kv_report = {{"plugin", "core"}, {"dtype", o.kv_cache_dtype}, {"bytes_per_token", shape.bytes_per_token()}, {"scale_source", "none"}};
  }
  // What the numbers in a block mean: blocks of another meaning are never shared.
  const std::string identity = kv_format ? kv_format->plugin().id + " " + kv_format->plugin().version + " " + kv_format->scheme() + " " + kv_format->scale_source()
                                         : "core " + o.kv_cache_dtype;

  if (o.admit)
    o.admit({o.device, s.format->weight_bytes(), s.format->load_temp_bytes(), static_cast<std::uint64_t>(size.num_blocks * block_bytes), static_cast<std::uint64_t>(std::max<std::int64_t>(0, free_memory()))});

  release_code_pages();  // before the weights fill memory
  const auto reading = std::chrono::steady_clock::now();
  Weights weights = Weights::load(*s.format, s.config, *s.pool, progress);
  s.load_phases.emplace_back("read", seconds_since(reading));
  log("engine").info("Loading weights took {:.2f} seconds", s.load_phases.back().second);
  s.device_memory = [] { return DeviceMemory{.total = static_cast<std::uint64_t>(total_memory()), .free = static_cast<std::uint64_t>(free_memory())}; };
  s.read_bandwidth = [threads = s.pool->threads()] { return read_bandwidth(threads); };
  s.weights_bytes = weights.bytes();

  const auto num_blocks = static_cast<std::int32_t>(size.num_blocks);
  auto plugin_kv = kv_format ? std::make_unique<PluginKv>(std::move(kv_format), shape, num_blocks, s.max_model_len, *s.pool) : nullptr;
  auto cache = plugin_kv ? nullptr : std::make_unique<KvCache>(shape, num_blocks);
  s.runner = std::make_unique<CpuRunner>(s.config, std::move(weights), std::move(cache), std::move(plugin_kv), o.block_size, *s.pool,
                                         CpuRunner::Options{.max_rows = kCpuForwardRows, .f16 = s.f16});
  return {size.num_blocks, identity};
}

}  // namespace qengine
