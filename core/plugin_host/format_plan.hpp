// FormatPlan: which plugin gets which matrix of a model, decided before any weight is read, and the
// only way to load them.
//
//   make()  detect (or the user's choice) -> plan every layer -> split fused layers, ask the next
//           plugin, fall back, or stop with every reason -> tensors(): nothing missing, nothing over
//   load()  one layer at a time; bytes() must equal plan
//
// Core speaks of roles and shapes only; formats live in the plugins.
#pragma once

#include <qe/plugin.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/config.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

class ThreadPool;

// One matrix of the model, as the architecture wants it.
struct PartSpec {
  int role = QE_ROLE_OTHER;
  std::string name;  // "model.layers.0.self_attn.q_proj"
  std::int64_t n = 0;
  bool bias = false;  // the architecture has one; core adds it from NAME.bias
  // Where the checkpoint holds it as rows [first, first + n) of a larger module: gate and up stored as one
  // gate_up_proj, an embedding with more rows than the vocabulary. Empty: it is a module of its own.
  std::string stored{};
  std::int64_t stored_n = 0, first = 0;

  const std::string& module() const { return stored.empty() ? name : stored; }
};

// Matrices that share their input, and that core would like to run as one product.
struct LayerSpec {
  std::string name;  // "model.layers.0.self_attn.qkv_proj"
  int index = -1;    // decoder layer, -1 for embed_tokens and lm_head
  std::int64_t k = 0;
  std::vector<PartSpec> parts;
};

// Every matrix that may be quantized, in forward order: qkv, o, gate_up, down of each layer, then
// embed_tokens (role EMBED; only when it is not tied) and lm_head (role LM_HEAD). FormatPlan::layers()
// is this list after a look at the tensors: a bias that the checkpoint has is set, and a tied model
// whose head has its own quantized tensors gets both roles. Embedding lookup goes through the EMBED
// entry when there is one, else through `rows` of LM_HEAD.
std::vector<LayerSpec> layer_specs(const ModelConfig& config);

// The description of this machine's CPU, as plugins see it.
qe_device cpu_device();

enum class Fallback { kError, kWarn, kAllow };
enum class ActivationQuant { kCheckpoint, kOff, kDynamic, kAuto };

struct OverrideRule {
  std::string match;   // exact, glob or "re:"
  std::string plugin;  // "ID[:SCHEME]"
  std::string origin;  // "qengine.toml:14"
};

struct FormatOptions {
  std::string plugin;        // --plugin
  std::string quantization;  // --quantization
  std::string quantize_lm_head;  // "", "fp8", "int8"
  std::vector<OverrideRule> overrides;
  std::vector<std::string> ignore_tensors;                        // --ignore-tensor
  std::vector<std::pair<std::string, std::string>> require_format;  // PATTERN=SCHEME
  Fallback fallback = Fallback::kWarn;
  ActivationQuant activation_quant = ActivationQuant::kCheckpoint;
  bool exact = false;
  std::int64_t m_max = 2048;
  int tensor_parallel = 1;  // above 1: only checked (E205), then refused: a model runs on one device
  qe_device device = cpu_device();
  const std::atomic<bool>* cancel = nullptr;  // set: plugins stop loading, load() throws
};

// A row of the start-up table, `inspect` and `run --json` (serving.md 1.7, 7.3).
struct LayerReport {
  std::string name, plugin, scheme, kernel, tier;  // tier: native, weight-only, reference
  std::uint64_t bytes = 0, persist_bytes = 0, load_temp_bytes = 0;
  std::string reason;
  int index = -1;
  bool tied = false;  // lm_head that is also the embedding
};

// The table of serving.md 7.3. Equal neighbours are merged unless `expand`.
struct TableRow {
  std::string layers, plugin, kernel, tier, bytes, why;
};
std::string format_table(std::span<const LayerReport> report, bool expand, std::span<const TableRow> more = {});
// "9.1 KiB", "280.5 MiB", "2.48 GiB".
std::string format_bytes(std::uint64_t bytes);

// A tensor that a plugin asks the checkpoint for.
struct TensorWish {
  std::string name;
  bool required = false;
  std::uint64_t dtypes = 0;         // 1 << dtype; 0: any
  std::vector<std::int64_t> shape;  // empty when not every dimension is said
};

struct PluginScore {
  const Plugin* plugin = nullptr;
  int score = 0;
  std::string why;
};

// A loaded product: one qe_linear, or several side by side when the parts do not fuse.
class Linear {
 public:
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  std::int64_t k() const;
  std::int64_t n() const;  // over all parts
  // out [m, n()] = in [m, k] * W^T, parts side by side, no bias. Row strides in elements. [step]
  void run(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride, std::int64_t m) const;
  // Rows [n_begin, n_end) of the dequantized matrix in the order of the parts, [n_end - n_begin, k].
  void dequant(std::int64_t n_begin, std::int64_t n_end, float* out) const;
  bool has_rows() const;
  void rows(const std::int32_t* ids, std::int64_t n, float* out) const;  // embedding lookup, [n, k]

  // ---- on a GPU: all pointers are the device's, work is enqueued and not waited for ----
  // What the product does at m rows: the steps around it that it takes over, and whether it may be
  // captured. Parts that did not fuse take no steps. REQUIRES: m at most the plan's m_max.
  qe_regime regime(std::int64_t m) const;
  std::uint64_t workspace_bytes() const;  // the most that any regime asks for
  // `run` as in qe_run, with `out` for all parts side by side. [step]
  void enqueue(const qe_run& run) const;
  void enqueue_rows(const std::int32_t* ids, std::int64_t n, qe_tensor out, qe_stream stream) const;
  std::uint64_t bytes(int mem) const;  // QE_MEM_*

  struct Impl;
  explicit Linear(std::unique_ptr<Impl>);

 private:
  std::unique_ptr<Impl> impl_;
};

class FormatPlan {
 public:
  // Throws E1xx to E4xx; warnings go to the log once. `checkpoint` may be config-only: then nothing is
  // promised about tensors. `host` must outlive the plan and what it loads.
  static std::unique_ptr<FormatPlan> make(const PluginHost& host, std::shared_ptr<const Checkpoint> checkpoint,
                                          const ModelConfig& config, const FormatOptions& options);
  ~FormatPlan();

  const std::vector<LayerSpec>& layers() const;
  const std::vector<LayerReport>& report() const;  // one row a product, in layer order
  const std::vector<PluginScore>& scores() const;  // every plugin's detect answer, best first
  const std::string& choice() const;               // why the winning plugin, one line
  std::vector<std::string> ignored_tensors() const;  // "NAME (rule)"
  std::vector<std::string> unused_rules() const;
  std::vector<std::string> warnings() const;       // the W-lines, for reports; already logged
  std::vector<TensorWish> wishes() const;          // of all layers, in layer order
  std::uint64_t weight_bytes() const;
  std::uint64_t load_temp_bytes() const;           // largest of any layer

  // layers()[i], loaded, each once; checks bytes() against the plan (E309). `pool` serves the
  // plugins' parallel_for while loading and running and must outlive the result, which may outlive
  // the plan. Linears of one plan share a workspace: run them one after another.
  std::unique_ptr<Linear> load(std::size_t i, ThreadPool& pool) const;

  // 16- or 32-bit tensors that core itself uses (norms and biases), as float32, biases in the order of
  // the model's rows. Missing: Error E202; wrong shape or dtype E204; not finite E206. make() has
  // checked all that the architecture needs.
  std::vector<float> dense(const std::string& name, std::span<const std::int64_t> shape) const;

  struct Impl;

 private:
  explicit FormatPlan(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qengine
