// Engine::load: files -> tokenizer (beside the weights, on its own thread), plan, weights, cache.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <sstream>
#include <thread>

#include "core/base/code_pages.hpp"
#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/engine/dummy.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/engine/load.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string compute_dtype(const std::string& asked, const ModelConfig& config) {
  if (asked == "half" || asked == "float16") return "float16";
  if (asked == "bfloat16" || asked == "float32") return asked;
  if (asked == "float") return "float32";
  if (asked != "auto")
    throw Error("E107", "--dtype is " + asked).hint("allowed: auto, half, float16, bfloat16, float, float32");
  return config.dtype.empty() ? "bfloat16" : config.dtype;
}

// What was asked for that no GPU computes; "": nothing.
std::string only_on_cpu(const EngineOptions& o, const EngineOptions& given) {
  if (o.exact) return "--exact";
  if (given.dtype != "auto" && o.dtype != "bfloat16") return "--dtype " + o.dtype;
  if (o.kv_cache_dtype == "float16" || o.kv_cache_dtype == "float32" || o.kv_cache_dtype == "half" || o.kv_cache_dtype == "float") return "--kv-cache-dtype " + o.kv_cache_dtype;
  return "";
}

// Whether settings name plugins, or what only a plugin knows: then all are opened at once.
bool names_plugins(const EngineOptions& o) {
  return o.dummy || !o.format.plugin.empty() || !o.format.quantization.empty() || !o.format.quantize_lm_head.empty() || !o.format.overrides.empty() ||
         !o.kv_plugin.empty() || o.kv_cache_dtype != "auto" || !o.plugins.plugin_options.empty();
}

// The plan with the plugins that are open. Where that ends in an error more are opened: those for unquantized weights, of which
// quantized checkpoints have some, then all, so that the error tells what each of them says.
std::unique_ptr<FormatPlan> make_plan(Engine::Impl& s) {
  for (;;) {
    try {
      return FormatPlan::make(*s.plugins, s.checkpoint, s.config, s.options.format);
    } catch (const Error&) {
      if (!s.plugins->open_readers("none") && !s.plugins->open_rest()) throw;
    }
  }
}

std::unique_ptr<FormatPlan> plan_on(const GpuInfo& gpu, Engine::Impl& s) {
  EngineOptions& o = s.options;
  if (o.max_num_batched_tokens <= 0) o.max_num_batched_tokens = default_batched_tokens(&gpu, o.serving);
  o.format.device = gpu.device;
  o.format.m_max = gpu_forward_rows(o);
  return make_plan(s);
}

// What reading has left behind: file pages that were mapped, code that is done, and memory that was freed but is still ours.
void give_back(const Checkpoint& checkpoint) {
  checkpoint.release_all();
  release_code_pages();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// The start-up table, a line of the log a row.
void tell_format(const FormatPlan& plan) {
  std::istringstream table(format_table(plan.report(), /*expand=*/false));
  for (std::string row; std::getline(table, row);)
    if (!row.empty()) log("plugins").info("{}", row);
  log("plugins").info("total {} weights", format_bytes(plan.weight_bytes()));
}

bool has_tokenizer(const fs::path& path, const Checkpoint& checkpoint) {
  if (!path.empty()) return true;
  if (checkpoint.kind() == Checkpoint::Kind::kGguf) return checkpoint.gguf_metadata().contains("tokenizer.ggml.model");
  std::error_code ec;
  return fs::exists(checkpoint.folder() / "tokenizer.json", ec);
}

}  // namespace

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::unique_ptr<Engine> Engine::load(const EngineOptions& given) {
  const auto start = Clock::now();
  auto impl = std::make_unique<Impl>();
  Impl& s = *impl;
  s.options = given;
  EngineOptions& o = s.options;
  const auto say = [&](double fraction, const char* what) {
    if (o.progress) o.progress(fraction, what);
  };

  const GpuInfo* gpu = choose_device(o.device, list_gpus());
  const bool any_device = o.device == "auto";
  if (o.block_size < 16 || o.block_size > 256 || o.block_size % 16 != 0)
    throw Error("E107", "--block-size is " + std::to_string(o.block_size)).hint("allowed: multiples of 16 up to 256");

  say(0, "opening");
  s.plugins = std::make_unique<PluginHost>(o.plugins);
  s.plugins->scan(names_plugins(o) ? PluginHost::Open::kAll : PluginHost::Open::kLater);
  o.format.exact = o.exact;
  if (o.dummy) {
    FormatOptions format = o.format;
    format.device = gpu ? gpu->device : cpu_device();
    s.checkpoint = make_dummy(*o.dummy, *s.plugins, format);
  } else {
    s.checkpoint = Checkpoint::open(o.model, false, s.plugins->dialects());
  }
  s.plugins->open_readers(quant_method_of(*s.checkpoint));
  for (const std::string& w : s.checkpoint->warnings()) log("model").warn("{}", w);

  std::future<std::shared_ptr<const Tokenizer>> tokenizer;
  if (o.need_tokenizer || has_tokenizer(o.tokenizer, *s.checkpoint))
    tokenizer = std::async(std::launch::async, [&] {
      auto made = o.tokenizer.empty() ? Tokenizer::load(*s.checkpoint) : Tokenizer::load(o.tokenizer);
      give_back(*s.checkpoint);  // the pages of the token lists, before the weights fill memory
      return made;
    });

  s.config = read_model_config(*s.checkpoint);
  for (const std::string& w : s.config.warnings) log("model").warn("{}", w);
  o.dtype = compute_dtype(o.dtype, s.config);
  // float32 holds everything that bfloat16 and float16 do; only who asks for float16 gets its limits.
  s.f16 = o.dtype == "float16" && given.dtype != "auto";
  if (gpu)
    if (const std::string why = only_on_cpu(o, given); !why.empty()) {
      if (!any_device) throw Error("E107", why + " computes on the CPU only, and --device is " + given.device).hint("--device cpu, or leave " + why + " out");
      log("engine").info("{}: on the CPU", why);
      gpu = nullptr;
    }

  if (gpu) {
    try {
      s.format = plan_on(*gpu, s);
    } catch (const Error& e) {
      if (!any_device || e.code() != "E304") throw;
      log("engine").warn("not on {}: {}", gpu->label(), e.message());
      gpu = nullptr;
    }
  }
  o.device = gpu ? gpu->label() : "cpu";
  if (gpu) {
    o.dtype = "bfloat16";
    s.f16 = false;
    log("device").info("{}: {}, sm_{}, {} of memory, driver {}.{}", gpu->label(), gpu->name, gpu->device.sm, gib(gpu->device.mem_bytes), gpu->device.driver / 1000, gpu->device.driver % 1000 / 10);
  } else {
    o.max_num_batched_tokens = given.max_num_batched_tokens;
    o.format.device = cpu_device();
    o.format.m_max = kCpuForwardRows;
    s.format = make_plan(s);
  }
  s.pool = std::make_unique<ThreadPool>(o.threads);
  o.threads = s.pool->threads();

  if (o.max_num_seqs <= 0) o.max_num_seqs = 256;
  const bool asked = o.max_model_len > 0;
  if (asked && s.config.max_position > 0 && o.max_model_len > s.config.max_position)
    throw Error("E107", "--max-model-len is " + std::to_string(o.max_model_len) + "; the model has " + std::to_string(s.config.max_position) + " positions")
        .from("max_position_embeddings of the model's config")
        .hint("at most " + std::to_string(s.config.max_position));

  s.load_phases.emplace_back("open", seconds_since(start));
  const auto progress = [&](double f) { say(0.02 + 0.96 * f, "weights"); };
  const LoadedDevice device = gpu ? load_on_gpu(s, *gpu, progress) : load_on_cpu(s, progress);
  if (tokenizer.valid()) s.tokenizer = tokenizer.get();
  give_back(*s.checkpoint);
  s.logits.reset(new float[static_cast<std::size_t>(s.runner->max_logit_rows() * s.config.vocab_size)]);

  s.scheduler = std::make_unique<Scheduler>(
      SchedulerLimits{.max_num_seqs = o.max_num_seqs, .token_budget = o.max_num_batched_tokens, .chunked_prefill = o.chunked_prefill,
                      .prefix_caching = o.prefix_caching, .look_ahead_to = gpu ? s.max_model_len : 0, .cache_identity = device.identity},
      static_cast<std::int32_t>(device.num_blocks), o.block_size);

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
  s.load_seconds = seconds_since(start);
  const std::int64_t tokens = device.num_blocks * o.block_size;
  tell_format(*s.format);
  log("engine").info("Model loading took {} memory and {:.6f} seconds", gib(s.weights_bytes), s.load_seconds);
  log("kv").info("Available KV cache memory: {}", gib(s.runner->kv_bytes()));
  log("kv").info("{} KV cache size: {:L} tokens, Maximum concurrency for {:L} tokens per request: {:.2f}x", gpu ? "GPU" : "CPU", tokens, s.max_model_len,
                 static_cast<double>(tokens) / static_cast<double>(s.max_model_len));
  log("kv").info("{} blocks x {} tokens, {} ({})", device.num_blocks, o.block_size, o.kv_cache_dtype,
                 given.kv_cache_dtype != "auto" ? "--kv-cache-dtype" : o.exact ? "--exact" : "--kv-cache-dtype auto");
  say(1, "ready");
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

}  // namespace qengine
