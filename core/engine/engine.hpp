// Engine: one loaded model that answers requests. The only room that knows all the others.
//
// Requests come from any thread; one engine thread schedules, runs steps and calls back. Under one
// engine every running sequence shares each step (continuous batching); prompts are cut into chunks
// under the token budget; when the KV cache is full the youngest sequence gives its blocks back and
// is recomputed later.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/config.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "core/plugin_host/plugin_host.hpp"
#include "core/sampling/logprobs.hpp"
#include "core/sampling/params.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace qengine {

struct DummyModel;

// What a load is about to take of its device's memory, known before a byte of weights is read.
struct LoadPlan {
  std::string device;
  std::uint64_t weights_bytes = 0, load_temp_bytes = 0, kv_bytes = 0;
  std::uint64_t free_bytes = 0;  // of what this load may use
  std::uint64_t need_bytes() const { return weights_bytes + load_temp_bytes + kv_bytes; }
};

struct EngineOptions {
  std::filesystem::path model;
  std::shared_ptr<const DummyModel> dummy;  // instead of `model`: made-up weights
  std::filesystem::path tokenizer;      // empty: the model's
  PluginHostOptions plugins;
  FormatOptions format;
  std::string device = "auto";
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";  // auto bfloat16 float16 float32 fp8 fp8_e4m3 fp8_e5m2
  std::string kv_plugin;
  std::int64_t kv_cache_memory_bytes = 0;  // 0: serving.md 1.3's rule
  std::int64_t max_model_len = 0;          // 0: from config.json, or what fits; -1: the longest that fits
  std::int64_t max_num_seqs = 0;           // 0: default
  std::int64_t max_num_batched_tokens = 0;  // 0: by device
  bool serving = false;  // many clients wait for their next token: defaults of shorter steps
  std::int32_t block_size = 16;
  bool chunked_prefill = true;
  bool prefix_caching = true;
  std::uint64_t seed = 0;
  int threads = 0;
  bool exact = false;
  bool need_tokenizer = true;  // false: only token ids go in and out
  double gpu_memory_utilization = 0.92;
  std::int64_t num_gpu_blocks_override = 0;  // 0: as many KV blocks as fit
  bool enforce_eager = false;
  bool programmatic_launch = true;  // on a GPU: kernels may start while the one before ends
  std::int32_t max_logprobs = 20;            // most that a request may ask for; -1: all
  // Called once everything is planned and nothing is read: what it throws ends the load. May be empty.
  std::function<void(const LoadPlan&)> admit;
  // 0..1 while loading; may be empty.
  std::function<void(double fraction, const std::string& what)> progress;
};

enum class FinishReason { kNone, kStop, kLength, kAborted, kError };
const char* to_string(FinishReason);  // "stop", "length", "abort", "error"

// What one step gave one sequence. Called on the engine thread: must not block.
struct Output {
  std::int32_t token = -1;  // -1: no token in this event (abort, error, prompt logprobs)
  std::string text;         // whole characters that may be shown now; stop strings never leak
  float logprob = 0;              // with logprobs >= 0
  std::int32_t rank = 0;          // likewise; 1: the most likely
  std::vector<TokenLogprob> top;  // best first, as many as asked for
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;        // the stop string or token id that hit
  std::string error;              // the whole text, "E406 ..." first, with finish kError
  bool stop_token = false;        // `token` is an end or stop token: its text is not shown
  // First event only, when prompt_logprobs = k was asked for: [prompt_len], entry 0 empty; the others
  // hold the prompt's own token, then the k best, best first (it may be among them again).
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  std::int32_t cached_tokens = 0;
  double queue_s = 0;  // first event only: from submit to the first step
};

struct Request {
  std::vector<std::int32_t> prompt;  // not empty
  SamplingParams sampling;
  std::string cache_salt;
  std::function<void(const Output&)> on_output;
};

class RunObserver;

using RequestId = std::uint64_t;

// How many tokens steps held: 1, up to 8, up to 16, ... up to 16384, more.
inline constexpr std::array<std::int64_t, 13> kStepTokenEdges = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

struct EngineStats {
  std::int64_t running = 0, waiting = 0, kv_blocks_total = 0, kv_blocks_used = 0, preemptions = 0;
  std::int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0, prefix_queries = 0, prefix_hits = 0;
  std::int64_t nonfinite = 0;  // requests that ended with E406
  std::array<std::int64_t, kStepTokenEdges.size() + 1> steps_of{};  // steps by their tokens
  std::int64_t step_tokens = 0;                                     // of all steps
};

// A device's memory, whoever holds it.
struct DeviceMemory {
  std::uint64_t total = 0, free = 0;                  // free as the driver or the system says, now
  std::uint64_t graphs = 0, loading = 0, context = 0;  // held by this process beyond MemoryReport; context: and by others when it came
};

struct MemoryReport {
  std::uint64_t weights_bytes = 0, kv_bytes = 0, workspace_bytes = 0, peak_rss_bytes = 0;
};

class Engine {
 public:
  // Throws Error. The engine thread starts with the first submit.
  static std::unique_ptr<Engine> load(const EngineOptions& options);
  ~Engine();  // aborts what still runs

  const ModelConfig& config() const;
  std::shared_ptr<const Tokenizer> tokenizer() const;  // null when not needed and absent
  const Checkpoint& checkpoint() const;
  const FormatPlan& format() const;
  const PluginHost& plugins() const;
  const EngineOptions& options() const;  // with every default filled in
  std::int64_t max_model_len() const;
  double load_seconds() const;
  // Its phases, in order: open, read (packing included: pages are read while they are packed), and on a GPU warmup and capture.
  const std::vector<std::pair<std::string, double>>& load_phases() const;
  MemoryReport memory() const;
  DeviceMemory device_memory() const;  // [any]
  // Bytes a second that the memory of the weights is read at, measured now, which takes under a second; 0 when a GPU has no
  // memory left to measure in. [any], when no request runs.
  double read_bandwidth() const;
  EngineStats stats() const;  // [any]
  // Forgets every prefix: running requests keep their blocks, but no new one joins them. Waits for the step that runs.
  void drop_prefix_cache();
  Json kv_report() const;     // {"plugin","dtype","bytes_per_token","scale_source"}

  // [any thread]. Throws Error E502 when prompt + max_tokens does not fit, E1xx for bad parameters.
  RequestId submit(Request request);
  // All or none of them; an engine that has nothing else to do begins them in one step, so that what shares a step does not
  // depend on how fast the caller is.
  std::vector<RequestId> submit(std::vector<Request> requests);
  void cancel(RequestId id);  // its last Output has FinishReason::kAborted; unknown ids are ignored
  // A paused request keeps its place and its blocks but takes part in no step: its reader is slow.
  void pause(RequestId id, bool paused);

  // Convenience: submit and wait; outputs in order. `stop` (may be null) cancels when set.
  std::vector<std::vector<Output>> generate(std::vector<Request> requests, const std::atomic<bool>* stop = nullptr);

  // Logits of every position of one sequence, rows handed out in order: sink(position, row [V]).
  // Goes through the same layers and KV cache as a request, in chunks, on the engine's thread: requests that run wait
  // for the whole of it. Throws Error E404 when they leave too few blocks.
  void all_logits(std::span<const std::int32_t> ids,
                  const std::function<void(std::int64_t position, std::span<const float> logits)>& sink);

  // The same without logits: one sequence through the layers, shown to `observer` in chunks of rows. Throws Error E107 where
  // the device cannot show them.
  void observe(std::span<const std::int32_t> ids, RunObserver& observer);

  struct Impl;

 private:
  explicit Engine(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qengine
