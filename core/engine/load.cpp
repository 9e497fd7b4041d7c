// Engine::load: files -> tokenizer (beside the weights, on its own thread), plan, weights, cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/engine/cpu_runner.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/kv/kv_size.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// Rows of one forward pass: enough that a product reads its weights seldom, few enough that the
// workspace stays small beside a small model.
constexpr std::int64_t kForwardRows = 256;

std::string compute_dtype(const std::string& asked, const ModelConfig& config) {
  if (asked == "half" || asked == "float16") return "float16";
  if (asked == "bfloat16" || asked == "float32") return asked;
  if (asked == "float") return "float32";
  if (asked != "auto")
    throw Error("E107", "--dtype is " + asked).hint("allowed: auto, half, float16, bfloat16, float, float32");
  return config.dtype.empty() ? "bfloat16" : config.dtype;
}

// Core's own cache: as named, else float32 on the exact path, else as the model computes.
KvDtype own_kv_dtype(const EngineOptions& o) {
  const std::string& name = o.kv_cache_dtype != "auto" ? o.kv_cache_dtype : o.exact ? "float32" : o.dtype;
  if (name == "float32" || name == "float" || name == "f32") return KvDtype::kF32;
  return name == "float16" || name == "half" ? KvDtype::kF16 : KvDtype::kBf16;
}

bool has_tokenizer(const fs::path& path, const Checkpoint& checkpoint) {
  if (!path.empty()) return true;
  if (checkpoint.kind() == Checkpoint::Kind::kGguf) return checkpoint.gguf_metadata().contains("tokenizer.ggml.model");
  std::error_code ec;
  return fs::exists(checkpoint.folder() / "tokenizer.json", ec);
}

}  // namespace

std::unique_ptr<Engine> Engine::load(const EngineOptions& given) {
  const auto start = Clock::now();
  auto impl = std::make_unique<Impl>();
  Impl& s = *impl;
  s.options = given;
  EngineOptions& o = s.options;
  const auto say = [&](double fraction, const char* what) {
    if (o.progress) o.progress(fraction, what);
  };

  if (o.device != "auto" && o.device != "cpu")
    throw Error("E402", "no usable GPU: " + o.device + " was asked for, and this build has no GPU support")
        .hint("--device cpu works with every shipped plugin");
  o.device = "cpu";
  if (o.block_size < 16 || o.block_size > 256 || o.block_size % 16 != 0)
    throw Error("E107", "--block-size is " + std::to_string(o.block_size)).hint("allowed: multiples of 16 up to 256");

  say(0, "opening");
  s.checkpoint = Checkpoint::open(o.model);
  for (const std::string& w : s.checkpoint->warnings()) log("model").warn("{}", w);

  std::future<std::shared_ptr<const Tokenizer>> tokenizer;
  if (o.need_tokenizer || has_tokenizer(o.tokenizer, *s.checkpoint))
    tokenizer = std::async(std::launch::async, [&] { return o.tokenizer.empty() ? Tokenizer::load(*s.checkpoint) : Tokenizer::load(o.tokenizer); });

  s.config = read_model_config(*s.checkpoint);
  for (const std::string& w : s.config.warnings) log("model").warn("{}", w);
  o.dtype = compute_dtype(o.dtype, s.config);
  // float32 holds everything that bfloat16 and float16 do; only who asks for float16 gets its limits.
  s.f16 = o.dtype == "float16" && given.dtype != "auto";

  s.plugins = std::make_unique<PluginHost>(o.plugins);
  s.plugins->scan();
  o.format.exact = o.exact;
  o.format.m_max = kForwardRows;
  s.format = FormatPlan::make(*s.plugins, s.checkpoint, s.config, o.format);
  s.pool = std::make_unique<ThreadPool>(o.threads);
  o.threads = s.pool->threads();

  // Limits before weights: a length that cannot fit is refused before anything is read.
  const KvShape shape{s.config.num_layers, s.config.num_kv_heads, s.config.head_dim, o.block_size, own_kv_dtype(o)};
  std::unique_ptr<KvFormat> kv_format;  // null: core's own
  if (!o.exact || o.kv_cache_dtype != "auto" || !o.kv_plugin.empty())
    kv_format = KvFormat::make(*s.plugins, s.checkpoint, s.config, {.dtype = o.kv_cache_dtype, .plugin = o.kv_plugin, .block_tokens = o.block_size}, *s.pool);
  const std::int64_t block_bytes = kv_format ? PluginKv::block_bytes(*kv_format, s.config.num_layers) : shape.block_bytes();
  if (o.max_num_seqs <= 0) o.max_num_seqs = 256;
  if (o.max_num_batched_tokens <= 0) o.max_num_batched_tokens = 4096;
  const bool asked = o.max_model_len > 0;
  if (asked && s.config.max_position > 0 && o.max_model_len > s.config.max_position)
    throw Error("E107", "--max-model-len is " + std::to_string(o.max_model_len) + "; the model has " + std::to_string(s.config.max_position) + " positions")
        .from("max_position_embeddings of the model's config")
        .hint("at most " + std::to_string(s.config.max_position));
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

  const auto reading = Clock::now();
  Weights weights = Weights::load(*s.format, s.config, *s.pool, [&](double f) { say(0.02 + 0.96 * f, "weights"); });
  log("engine").info("Loading weights took {:.2f} seconds", seconds(reading));
  s.weights_bytes = weights.bytes();

  if (tokenizer.valid()) s.tokenizer = tokenizer.get();
  s.checkpoint->release_all();
  const auto num_blocks = static_cast<std::int32_t>(size.num_blocks);
  auto plugin_kv = kv_format ? std::make_unique<PluginKv>(std::move(kv_format), shape, num_blocks, s.max_model_len, *s.pool) : nullptr;
  auto cache = plugin_kv ? nullptr : std::make_unique<KvCache>(shape, num_blocks);
  s.runner = std::make_unique<CpuRunner>(s.config, std::move(weights), std::move(cache), std::move(plugin_kv), o.block_size, *s.pool,
                                         CpuRunner::Options{.max_rows = kForwardRows, .f16 = s.f16});
  s.logits.reset(new float[static_cast<std::size_t>(s.runner->max_logit_rows() * s.config.vocab_size)]);

  s.scheduler = std::make_unique<Scheduler>(
      SchedulerLimits{.max_num_seqs = o.max_num_seqs, .token_budget = o.max_num_batched_tokens, .chunked_prefill = o.chunked_prefill,
                      .prefix_caching = o.prefix_caching, .cache_identity = identity},
      num_blocks, o.block_size);

  s.setup.tokenizer = s.tokenizer;
  s.setup.limit = static_cast<std::int32_t>(s.config.vocab_size);
  s.setup.max_model_len = s.max_model_len;
  s.setup.eos = s.config.eos_ids;
  if (s.tokenizer) {
    s.setup.limit = std::min(s.setup.limit, s.tokenizer->size());
    for (const std::int32_t id : s.tokenizer->eos()) s.setup.eos.push_back(id);
    std::ranges::sort(s.setup.eos);
    s.setup.eos.erase(std::ranges::unique(s.setup.eos).begin(), s.setup.eos.end());
  }
  s.publish();
  s.load_seconds = seconds(start);
  const std::int64_t tokens = size.num_blocks * o.block_size;
  log("engine").info("Model loading took {} memory and {:.6f} seconds", gib(s.weights_bytes), s.load_seconds);
  log("kv").info("Available KV cache memory: {}", gib(s.runner->kv_bytes()));
  log("kv").info("CPU KV cache size: {:L} tokens, Maximum concurrency for {:L} tokens per request: {:.2f}x", tokens, s.max_model_len,
                 static_cast<double>(tokens) / static_cast<double>(s.max_model_len));
  log("kv").info("{} blocks x {} tokens, {} ({})", size.num_blocks, o.block_size, o.kv_cache_dtype,
                 given.kv_cache_dtype != "auto" ? "--kv-cache-dtype" : o.exact ? "--exact" : "--kv-cache-dtype auto");
  say(1, "ready");
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

}  // namespace qengine
