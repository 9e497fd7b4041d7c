// Weights, cache and runner on a GPU.
//
// Order: weights, activations, graphs (captured once with a cache of a single block, so that their
// memory is measured rather than guessed), then the cache gets what --gpu-memory-utilization leaves, and
// the graphs are captured again for its addresses.
#include <chrono>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/device/cuda_check.hpp"
#include "core/engine/cuda_runner.hpp"
#include "core/engine/load.hpp"
#include "core/kv/kv_size.hpp"
#include "core/plugin_host/kv_format.hpp"

namespace qengine {
namespace {

using Clock = std::chrono::steady_clock;

// With less for activations, graphs and cache nothing can be served.
constexpr std::uint64_t kLeastKvBytes = 256u << 20;

// Whoever stores the cache, as the kernels of core read it.
struct Cache {
  std::unique_ptr<KvFormat> format;  // null: core's own bf16
  CudaKvShape shape;
  std::vector<float> k_scale, v_scale;  // [layers * kv_heads]
};

Cache choose_cache(Engine::Impl& s) {
  const EngineOptions& o = s.options;
  Cache c;
  c.shape = {s.config.num_layers, s.config.num_kv_heads, s.config.head_dim, o.block_size, cuda::KvType::kBf16};
  c.format = KvFormat::make(*s.plugins, s.checkpoint, s.config, {.dtype = o.kv_cache_dtype, .plugin = o.kv_plugin, .block_tokens = o.block_size, .device = o.format.device}, *s.pool);
  if (!c.format) return c;
  const qe_kv_plan& p = c.format->plan();
  const std::uint64_t bytes = static_cast<std::uint64_t>(o.block_size) * static_cast<std::uint64_t>(s.config.num_kv_heads) * static_cast<std::uint64_t>(s.config.head_dim);
  if ((p.encoding != QE_KV_E4M3_TENSOR && p.encoding != QE_KV_E4M3_HEAD) || p.block_bytes_k != bytes || p.block_bytes_v != bytes || p.block_bytes_scale != 0)
    throw Error("E304", c.format->plugin().name + " stores the cache in a way that attention on the GPU does not read").from(c.format->why()).hint("--kv-cache-dtype bfloat16 or fp8_e4m3, or --device cpu");
  c.shape.type = cuda::KvType::kE4m3;
  std::vector<float> k, v;
  for (int l = 0; l < s.config.num_layers; ++l) {
    c.format->scales(l, k, v);
    c.k_scale.insert(c.k_scale.end(), k.begin(), k.end());
    c.v_scale.insert(c.v_scale.end(), v.begin(), v.end());
  }
  return c;
}

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

}  // namespace

LoadedDevice load_on_gpu(Engine::Impl& s, const GpuInfo& info, const std::function<void(double)>& progress) {
  EngineOptions& o = s.options;
  Gpu& gpu = Gpu::open(info.device.ordinal);
  const bool bytes_asked = o.kv_cache_memory_bytes > 0 || o.num_gpu_blocks_override > 0;
  const auto budget = static_cast<std::uint64_t>(std::ceil(static_cast<double>(gpu.total_bytes()) * o.gpu_memory_utilization));
  if (const std::uint64_t free = gpu.free_bytes() + gpu.ledger().total(); !bytes_asked && free < budget)
    throw Error("E405", info.label() + " has " + gib(free) + " free; --gpu-memory-utilization " + std::to_string(o.gpu_memory_utilization).substr(0, 4) + " asks for " + gib(budget))
        .from("in use by other processes: " + gib(gpu.total_bytes() - free))
        .hint("stop them, or --gpu-memory-utilization " + std::to_string(std::floor(100.0 * static_cast<double>(free) / static_cast<double>(gpu.total_bytes())) / 100).substr(0, 4));

  if (const std::uint64_t need = s.format->weight_bytes(), free = gpu.free_bytes(); need > free)
    throw Error("E403", "does not fit: the weights take " + gib(need) + ", and " + info.label() + " has " + gib(free) + " free of " + gib(gpu.total_bytes()))
        .from("held here: " + gpu.ledger().text())
        .hint("a format of fewer bits (qengine plan --compare), another device, or --device cpu");

  if (o.admit) {
    // Of the cache only what was asked for is known here; else it gets what is left, which must be something.
    const std::uint64_t used = gpu.bytes_at_open() + gpu.driver_bytes();
    o.admit({info.label(), s.format->weight_bytes(), s.format->load_temp_bytes(), o.kv_cache_memory_bytes > 0 ? static_cast<std::uint64_t>(o.kv_cache_memory_bytes) : kLeastKvBytes,
             bytes_asked ? gpu.free_bytes() : budget - std::min(budget, used)});
  }

  const auto reading = Clock::now();
  gpu.expect_weights(s.format->weight_bytes() + 256 * 4 * static_cast<std::uint64_t>(s.config.num_layers + 1));
  Weights weights = Weights::load(*s.format, s.config, *s.pool, progress);
  gpu.wait();
  s.load_phases.emplace_back("read", seconds_since(reading));
  log("engine").info("Loading weights took {:.2f} seconds", s.load_phases.back().second);
  s.device_memory = [&gpu] {
    return DeviceMemory{gpu.total_bytes(), gpu.free_bytes(), gpu.ledger().held(MemoryOwner::kGraphs), gpu.ledger().held(MemoryOwner::kLoading), gpu.bytes_at_open()};
  };
  s.read_bandwidth = [&gpu] {
    constexpr std::uint64_t kBytes = 512ull << 20;
    const std::lock_guard turn(gpu.turn());
    double bytes_s = 0;
    cuda_check(cudaSetDevice(gpu.info().device.ordinal), "choosing the device");
    if (void* zeros = gpu.try_alloc(kBytes, MemoryOwner::kWorkspace)) {
      gpu.zero(zeros, kBytes);
      const cudaError_t status = cuda::read_bandwidth(zeros, kBytes, static_cast<cudaStream_t>(gpu.stream()), &bytes_s);
      gpu.free(zeros);
      cuda_check(status, "measuring the memory's bandwidth");
    }
    return bytes_s;
  };
  s.weights_bytes = weights.bytes();

  Cache cache = choose_cache(s);
  const bool asked = o.max_model_len > 0;
  const std::int64_t longest = asked ? o.max_model_len : std::max<std::int64_t>(1, s.config.max_position);
  const std::int64_t block_bytes = cache.shape.block_bytes();
  const auto warm = Clock::now();
  auto runner = std::make_unique<CudaRunner>(s.config, std::move(weights), gpu,
                                             CudaRunner::Options{.max_rows = gpu_forward_rows(o), .max_seqs = o.max_num_seqs, .max_model_len = longest, .block_size = o.block_size,
                                                                 .graphs = !o.enforce_eager, .pdl = o.programmatic_launch});
  const auto make_cache = [&](std::int64_t blocks) { return std::make_unique<CudaKv>(gpu, cache.shape, blocks, cache.k_scale, cache.v_scale); };
  std::uint64_t graphs = 0;
  double capture_seconds = 0;
  if (!o.enforce_eager) {
    runner->set_cache(make_cache(1));
    const std::uint64_t before = gpu.free_bytes();
    const auto capturing = Clock::now();
    runner->capture();
    capture_seconds += seconds_since(capturing);
    const std::uint64_t after = gpu.free_bytes();
    graphs = before - std::min(before, after);
    log("engine").info("Graph capturing finished in {:.2f} secs, took {}", capture_seconds, gib(graphs));
    runner->set_cache(nullptr);
  }

  // What is left. Graphs are gone again, and will take as much as they took.
  KvLimits limits{.block_bytes = block_bytes, .block_size = o.block_size, .bytes = o.kv_cache_memory_bytes, .max_model_len = longest, .max_model_len_asked = asked, .max_num_seqs = o.max_num_seqs};
  if (o.num_gpu_blocks_override > 0) limits.bytes = o.num_gpu_blocks_override * block_bytes;
  if (!bytes_asked) {
    const std::uint64_t used = gpu.bytes_at_open() + gpu.driver_bytes() + graphs;
    if (used + static_cast<std::uint64_t>(block_bytes) > budget)
      throw Error("E403", "does not fit: " + gib(used + static_cast<std::uint64_t>(block_bytes) - budget) + " short on " + info.label())
          .from(gpu.ledger().text() + ", graphs " + gib(graphs) + ", context " + gib(gpu.bytes_at_open()) + "; allowed " + gib(budget) + " of " + gib(gpu.total_bytes()))
          .hint("any one of: a larger --gpu-memory-utilization; a smaller --max-num-batched-tokens or --max-num-seqs; a format of fewer bits");
    limits.bytes = static_cast<std::int64_t>(budget - used);
  }
  const KvSize size = kv_size(limits);
  if (size.max_model_len < limits.max_model_len)
    log("kv").warn("the KV cache holds {} tokens; requests are limited to that instead of the model's {} (--max-model-len, --gpu-memory-utilization, --kv-cache-memory-bytes)", size.max_model_len,
                   limits.max_model_len);
  s.max_model_len = o.max_model_len = size.max_model_len;
  if (!o.chunked_prefill) o.max_num_batched_tokens = std::max(o.max_num_batched_tokens, s.max_model_len);
  o.kv_cache_memory_bytes = size.num_blocks * block_bytes;

  runner->set_cache(make_cache(size.num_blocks));
  const std::uint64_t before = gpu.free_bytes();
  const auto capturing = Clock::now();
  runner->capture();
  capture_seconds += seconds_since(capturing);
  s.load_phases.emplace_back("capture", capture_seconds);
  s.load_phases.emplace_back("warmup", seconds_since(warm) - capture_seconds);
  const std::uint64_t after = gpu.free_bytes();
  runner->account_for_graphs(before - std::min(before, after));
  log("engine").info("init engine (profile, create kv cache, warmup model) took {:.2f} s", seconds_since(warm));

  const KvFormat* format = cache.format.get();
  o.kv_cache_dtype = format ? format->scheme() : "bfloat16";
  s.kv_report = {{"plugin", format ? format->plugin().name : "core"}, {"dtype", o.kv_cache_dtype}, {"bytes_per_token", block_bytes / o.block_size}, {"scale_source", format ? format->scale_source() : "none"}};
  const std::string identity = format ? format->plugin().id + " " + format->plugin().version + " " + format->scheme() + " " + format->scale_source() : "core bfloat16";

  const std::uint64_t ledger = gpu.ledger().total(), driver = gpu.driver_bytes();
  const double difference = driver ? std::fabs(static_cast<double>(driver) - static_cast<double>(ledger)) / static_cast<double>(driver) : 0;
  log("device").info("{}: {}; together {}, the driver says {} ({} apart)", info.label(), gpu.ledger().text(), gib(ledger), gib(driver), percent(difference));
  if (difference > 0.02)
    log("device").warn("{}", Error("W402", "memory on " + info.label() + " is " + gib(driver) + "; what is accounted for says " + gib(ledger)).hint("please report it with the lines of this start").what());
  s.runner = std::move(runner);
  return {size.num_blocks, identity};
}

}  // namespace qengine
