#include "core/server/instruments.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

namespace qengine::server {
namespace {

const std::vector<double> kTtftEdges = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
const std::vector<double> kItlEdges = {.0005, .001, .002, .003, .004, .005, .0075, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kLatencyEdges = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

ArmInstruments arm_instruments(Metrics& metrics, const std::string& arm) {
  const auto requests = [&](const char* status) { return &metrics.counter("qengine:requests_total", "Requests that ended, by how: ok, error, abort (left by its client).", {{"arm", arm}, {"status", status}}); };
  return {requests("ok"), requests("error"), requests("abort"),
          &metrics.counter("qengine:structured_failures_total", "Requests under a grammar that ended with an error.", {{"arm", arm}}),
          &metrics.counter("qengine:tool_parse_failures_total", "Tool calls that did not parse and were returned as content.", {{"arm", arm}}),
          &metrics.histogram("qengine:arm_ttft_seconds", "Time from the arrival of a request to its first token.", kTtftEdges, {{"arm", arm}}),
          &metrics.histogram("qengine:arm_itl_seconds", "Time between two tokens of a sequence.", kItlEdges, {{"arm", arm}})};
}

}  // namespace

Instruments::Instruments(Metrics& metrics, const Router& router, const std::string& version, const Json& build)
    : metrics_(metrics), router_(router), version_(version), commit_(build.value("commit", std::string())), arms_{arm_instruments(metrics, "stable"), arm_instruments(metrics, "canary")} {
  const double longest = static_cast<double>(router.stable()->engine->max_model_len());
  ttft = &metrics.histogram("vllm:time_to_first_token_seconds", "Time from the arrival of a request to its first token.", kTtftEdges);
  itl = &metrics.histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.", kItlEdges);
  tpot = &metrics.histogram("vllm:request_time_per_output_token_seconds", "Mean time per output token of a request, the first left out.", kItlEdges);
  e2e = &metrics.histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", kLatencyEdges);
  queue = &metrics.histogram("vllm:request_queue_time_seconds", "Time in the queue, from submission to the first step.", kLatencyEdges);
  inference = &metrics.histogram("vllm:request_inference_time_seconds", "Time from the first step to the last token.", kLatencyEdges);
  prefill = &metrics.histogram("vllm:request_prefill_time_seconds", "Time from the first step to the first token.", kLatencyEdges);
  decode = &metrics.histogram("vllm:request_decode_time_seconds", "Time from the first token to the last.", kLatencyEdges);
  computed = &metrics.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were computed and not found in the prefix cache.", one_two_five(longest));
  prompt_tokens = &metrics.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", one_two_five(longest));
  generation_tokens = &metrics.histogram("vllm:request_generation_tokens", "Generated tokens of a choice.", one_two_five(longest));
  max_generation = &metrics.histogram("vllm:request_max_num_generation_tokens", "Most tokens generated for a choice of a request.", one_two_five(longest));
  params_max_tokens = &metrics.histogram("vllm:request_params_max_tokens", "The max_tokens that a request asked for.", one_two_five(longest));
  params_n = &metrics.histogram("vllm:request_params_n", "The n that a request asked for.", {1, 2, 5, 10, 20});
  auto& iteration = metrics.histogram("vllm:iteration_tokens_total", "Tokens of a step of the engine.", {kStepTokenEdges.begin(), kStepTokenEdges.end()});
  prompt_total = &metrics.counter("vllm:prompt_tokens_total", "Prompt tokens of accepted requests.");
  generation_total = &metrics.counter("vllm:generation_tokens_total", "Generated tokens.");
  rejected = &metrics.counter("vllm:admission_rejections_total", "Requests refused because the queue was full.", {{"reason", "max_num_queued_reqs"}});
  metrics.counter("vllm:admission_rejections_total", "Requests refused because the queue was full.", {{"reason", "max_num_queued_tokens"}});
  nonfinite = &metrics.counter("qengine:nonfinite_logits_total", "Requests ended because their logits were not finite.");
  corrupted = &metrics.counter("vllm:corrupted_requests_total", "Requests ended because their logits were not finite.");
  for (const FinishReason f : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAborted, FinishReason::kError})
    finished[static_cast<int>(f)] = &metrics.counter("vllm:request_success_total", "Finished choices by reason.", {{"finished_reason", to_string(f)}});

  auto& running = metrics.gauge("vllm:num_requests_running", "Sequences in the running batch.");
  auto& waiting = metrics.gauge("vllm:num_requests_waiting", "Sequences waiting for a place in the batch.");
  auto& capacity = metrics.gauge("vllm:num_requests_waiting_by_reason", "Waiting sequences by reason.", {{"reason", "capacity"}});
  metrics.gauge("vllm:num_requests_waiting_by_reason", "Waiting sequences by reason.", {{"reason", "deferred"}});
  auto& kv = metrics.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache blocks in use, 0 to 1.");
  auto& preemptions = metrics.counter("vllm:num_preemptions_total", "Sequences that gave their blocks back and were recomputed.");
  auto& queries = metrics.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  auto& hits = metrics.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  cached_total = &metrics.counter("vllm:prompt_tokens_cached_total", "Prompt tokens that came out of the prefix cache.");
  metrics.counter("qengine:swap_total", "Changes of the model behind the server, by how they ended.", {{"result", "switched"}, {"reason", "ok"}});
  canary_percent(0);
  for (const Arm a : {Arm::kStable, Arm::kCanary})
    for (const char* verdict : {"good", "bad"}) metrics.counter("qengine:feedback_total", "What clients said of answers.", {{"arm", to_string(a)}, {"verdict", verdict}});
  // No answer ends for that: the series is there for vLLM's dashboards.
  metrics.counter("vllm:request_success_total", "Finished choices by reason.", {{"finished_reason", "repetition"}});
  describe();

  auto level = [](Counter& c, std::int64_t total) { c.add(static_cast<double>(total) - c.value()); };
  metrics.on_render([this, &running, &waiting, &capacity, &kv, &preemptions, &queries, &hits, &iteration, level] {
    const EngineStats s = router_.totals();
    running.set(static_cast<double>(s.running));
    waiting.set(static_cast<double>(s.waiting));
    capacity.set(static_cast<double>(s.waiting));
    kv.set(s.kv_blocks_total ? static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks_total) : 0);
    level(preemptions, s.preemptions);
    level(queries, s.prefix_queries);
    level(hits, s.prefix_hits);
    level(*cached_total, s.prefix_hits);
    memory();
    iteration.set(s.steps_of, static_cast<double>(s.step_tokens));
  });
}

void Instruments::swapped(const std::string& result, const std::string& reason) {
  metrics_.counter("qengine:swap_total", "Changes of the model behind the server, by how they ended.", {{"result", result}, {"reason", reason}}).add();
}

void Instruments::canary_percent(double percent) {
  metrics_.gauge("qengine:canary_percent", "Share of the requests that each side gets.", {{"arm", "stable"}}).set(100 - percent);
  metrics_.gauge("qengine:canary_percent", "Share of the requests that each side gets.", {{"arm", "canary"}}).set(percent);
}

void Instruments::canary_returned(const std::string& reason) {
  metrics_.counter("qengine:canary_returned_total", "Canaries that were sent home, by the limit that they passed.", {{"reason", reason}}).add();
}

void Instruments::feedback(Arm arm, bool good) {
  metrics_.counter("qengine:feedback_total", "What clients said of answers.", {{"arm", to_string(arm)}, {"verdict", good ? "good" : "bad"}}).add();
}

void Instruments::describe() {
  static std::mutex one_at_a_time;  // swapper and canary each have a thread
  const std::lock_guard lock(one_at_a_time);
  using Values = std::vector<std::pair<Labels, double>>;
  Values config, info, scales, backends;
  // One series a (plugin, scheme, tier) and the like, summed over what is loaded.
  std::map<std::vector<std::string>, double> layers, fallbacks, bytes;
  for (const auto& b : router_.all()) {
    const Engine& engine = *b->engine;
    const EngineOptions& o = engine.options();
    const Json kv = engine.kv_report();
    char util[16];
    std::snprintf(util, sizeof util, "%.2f", o.gpu_memory_utilization);
    const Plugin* p = engine.plugins().find(b->plugin);
    const bool takes = b == router_.stable();
    backends.push_back({{{"backend", b->spec.name}, {"arm", takes ? "stable" : b == router_.canary() ? "canary" : "leaving"}, {"plugin", b->plugin}, {"scheme", b->scheme}, {"kv_cache_dtype", b->kv_dtype}}, 1});
    if (takes || config.empty()) {
      config = {{{{"block_size", std::to_string(o.block_size)}, {"cache_dtype", b->kv_dtype}, {"gpu_memory_utilization", util},
                  {"num_gpu_blocks", std::to_string(engine.stats().kv_blocks_total)}, {"enable_prefix_caching", o.prefix_caching ? "True" : "False"}}, 1}};
      info = {{{{"version", version_}, {"commit", commit_}, {"abi", std::to_string(QE_ABI_MAJOR) + "." + std::to_string(QE_ABI_MINOR)}, {"plugin", b->plugin},
                {"plugin_version", p ? p->version : ""}, {"plugin_sha256", p ? p->sha256 : ""}, {"scheme", b->scheme}, {"kv_cache_dtype", b->kv_dtype}, {"model_sha256", b->model_sha256}}, 1}};
      scales = {{{{"source", kv.value("scale_source", std::string("none"))}}, static_cast<double>(engine.config().num_layers)}};
      load_phases_ = engine.load_phases();
      load_phases_.emplace_back("total", engine.load_seconds());
    }
    for (const LayerReport& r : engine.format().report()) {
      const std::string tier = r.tier == "native" ? "1" : r.tier == "weight-only" ? "2" : "3";
      layers[{r.plugin, r.scheme, tier}] += 1;
      if (tier != "1") fallbacks[{r.plugin, r.tier}] += 1;
      bytes[{o.device, r.plugin}] += static_cast<double>(r.bytes);
    }
    if (counted_.insert(b->number).second)
      for (const std::string& alias : engine.plugins().deprecated_met()) metrics_.counter("qengine:deprecated_alias_total", "Loads that named something by a deprecated name.", {{"alias", alias}}).add();
  }
  const auto labelled = [](const auto& sums, auto labels) {
    Values out;
    for (const auto& [k, n] : sums) out.push_back({labels(k), n});
    return out;
  };
  metrics_.describe("vllm:cache_config_info", "How the KV cache is set up.", config);
  metrics_.describe("qengine:build_info", "What is running.", info);
  metrics_.describe("qengine:backend_info", "What is loaded: stable and canary take new requests, leaving finishes its own.", backends);
  metrics_.describe("qengine:kv_scale_source", "KV layers by where their scales come from.", scales);
  metrics_.describe("qengine:layers", "Matrices by plugin, scheme and tier (1 native, 2 weight-only, 3 reference).", labelled(layers, [](const auto& k) { return Labels{{"plugin", k[0]}, {"scheme", k[1]}, {"tier", k[2]}}; }));
  metrics_.describe("qengine:fallback_layers", "Matrices without a native kernel.", labelled(fallbacks, [](const auto& k) { return Labels{{"plugin", k[0]}, {"reason", k[1]}}; }));
  metrics_.describe("qengine:plugin_memory_bytes", "Bytes held by a plugin.", labelled(bytes, [](const auto& k) { return Labels{{"device", k[0]}, {"plugin", k[1]}, {"kind", "weights"}}; }));
  Values phases;
  for (const auto& [phase, seconds] : load_phases_) phases.push_back({{{"phase", phase}}, seconds});
  metrics_.describe("qengine:load_seconds", "Time of loading by phase.", phases);
}

// Every device's kinds add up to all of its memory.
void Instruments::memory() {
  struct Device {
    DeviceMemory all;
    MemoryReport held;
  };
  std::map<std::string, Device> devices;
  for (const auto& b : router_.all()) {
    Device& d = devices[b->engine->options().device];
    d.all = b->engine->device_memory();
    const MemoryReport m = b->engine->memory();
    d.held.weights_bytes += m.weights_bytes;
    d.held.kv_bytes += m.kv_bytes;
    d.held.workspace_bytes += m.workspace_bytes;
  }
  std::vector<std::pair<Labels, double>> values;
  for (const auto& [name, d] : devices) {
    std::uint64_t left = d.all.total;
    // A cache whose pages are not touched yet counts as held, though the system calls them free.
    for (const auto& [kind, bytes] : std::initializer_list<std::pair<const char*, std::uint64_t>>{
             {"weights", d.held.weights_bytes}, {"kv", d.held.kv_bytes}, {"workspace", d.held.workspace_bytes}, {"graphs", d.all.graphs}, {"load_temp", d.all.loading}, {"context", d.all.context}, {"free", d.all.free}, {"other", d.all.total}}) {
      const std::uint64_t share = std::string_view(kind) == "other" ? left : std::min(left, bytes);
      left -= share;
      values.push_back({{{"device", name}, {"kind", kind}}, static_cast<double>(share)});
    }
  }
  metrics_.describe("qengine:device_memory_bytes", "All bytes of a device by owner.", values);
}

}  // namespace qengine::server
