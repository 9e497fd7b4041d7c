// CudaRunner: the forward pass on one NVIDIA GPU.
//
//   x  float32 [rows, hidden]                      the residual stream
//   a  bf16 [rows, max(hidden, q, inter)]          what a product reads: normed rows, attention's result
//   b  bf16 [rows, max(q + 2 kv, 2 inter, hidden)] what a product writes
//
// Per layer: qkv, qkv_finish, attention, o, add_norm, gate_up, act_mul, down, add_norm. Everything goes
// to one stream; forward() returns when it is enqueued, logits() and greedy() wait for their result.
//
// A step of single tokens is one graph launch: it begins by moving every row one token on, by what the
// step before chose, and ends by choosing. So the device needs nothing from the host between two steps,
// and after a greedy step the next one is enqueued before the first one's tokens are read: when the same
// sequences come back with those tokens, their step is already on its way; else it is run anew, and what
// ran ahead is overwritten before anybody reads it.
//
// Products are the plugins'. In a captured step a plugin may take over what surrounds its product, as its
// regime of that many rows says: where o and down of every layer take the residual, the stream is bf16 in
// b's place and lives in xb; norms before qkv and gate_up, biases and the activation go along where taken.
//
//   xb bf16 [max_seqs, hidden]
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "core/device/gpu.hpp"
#include "core/engine/activation_trace.hpp"
#include "core/engine/cuda_inputs.hpp"
#include "core/engine/cuda_kv.hpp"
#include "core/engine/runner.hpp"
#include "core/engine/weights.hpp"

namespace qengine {

class CudaRunner final : public Runner {
 public:
  struct Options {
    std::int64_t max_rows = 2048, max_seqs = 256, max_model_len = 0;
    int block_size = 16;
    bool graphs = true;  // else every step is launched kernel by kernel
    bool pdl = true;     // programmatic launches, where the device knows them
    bool run_ahead = true;  // with graphs: the step after a greedy one begins before its tokens are known
  };
  // `config` is borrowed. The cache comes later, when what is left of the memory is known.
  CudaRunner(const ModelConfig& config, Weights weights, Gpu& gpu, const Options& options);
  ~CudaRunner() override;

  void set_cache(std::unique_ptr<CudaKv> kv);
  // Makes the step of every batch bucket up to max_seqs, as a graph unless those are off. REQUIRES: set_cache().
  void capture();
  // What the graphs took of the device's memory, as the driver counts it: in the ledger until this ends.
  void account_for_graphs(std::uint64_t bytes);

  std::int64_t max_rows() const override { return o_.max_rows; }
  std::int64_t max_logit_rows() const override { return o_.max_seqs; }
  std::int64_t vocab_size() const override { return config_.vocab_size; }
  void forward(std::span<const RunSpan> spans) override;
  void logits(std::span<const std::int32_t> rows, float* out) override;
  bool greedy(std::span<const std::int32_t> rows, std::int32_t limit, Greedy* out) override;
  std::string diagnose(const RunSpan& token) override;
  std::uint64_t kv_bytes() const override { return kv_ ? kv_->bytes() : 0; }
  std::uint64_t workspace_bytes() const override { return gpu_.ledger().held(MemoryOwner::kWorkspace); }

  const Weights& weights() const { return weights_; }

 private:
  struct LayerVectors {
    const float *input_norm = nullptr, *post_norm = nullptr, *q_norm = nullptr, *k_norm = nullptr;
    const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  };
  struct Graph;

  void upload_vectors();
  // `before`, `after`: the steps that the plugin takes over, at most as many as its regime says.
  struct Around {
    std::span<const qe_step* const> before, after;
    bool product_before = false, product_behind = false;  // no other kernel comes in between
  };
  void product(const Linear& l, const void* in, void* out, std::int32_t out_dtype, std::int64_t m) { product(l, in, out, out_dtype, m, l.n(), {}); }
  void product(const Linear& l, const void* in, void* out, std::int32_t out_dtype, std::int64_t m, std::int64_t out_columns, const Around& around);
  bool takes_stream(std::int64_t m) const;
  void fused_layer(int index, std::int64_t m, int splits);
  void finish_and_attend(int index, std::int64_t m, bool bias, int decodes, const std::int32_t* singles, int tiles, int splits);
  void norm_stream(const float* w, std::int64_t m);
  void check(cudaError_t status) const;
  void enqueue(std::int64_t m, int decodes, const std::int32_t* singles, int tiles, int splits);
  void run_layer(int index, std::int64_t m, int decodes, const std::int32_t* singles, int tiles, int splits);
  void enqueue_decode(std::int64_t rows, int splits);
  void launch(const Graph& graph, std::int64_t rows);
  bool ran_ahead(std::span<const RunSpan> spans) const;
  void run_ahead();
  void head(const std::int32_t* picks, std::int64_t n, cuda::At at);
  void choose(std::int64_t n, cuda::At at);
  bool is_whole(std::span<const std::int32_t> rows) const;  // all rows of a captured step, in order

  const ModelConfig& config_;
  Weights weights_;
  Gpu& gpu_;
  Options o_;
  cudaStream_t stream_;
  bool capturing_ = false;
  std::int64_t a_width_, b_width_;
  std::unique_ptr<CudaInputs> in_;
  std::unique_ptr<CudaKv> kv_;
  DeviceBuffer vectors_, rope_;
  std::vector<LayerVectors> layers_;
  const float* final_norm_ = nullptr;
  DeviceBuffer x_, xb_, a_, b_, logits_, workspace_, partial_, counters_, best_, limit_at_;
  std::int32_t limit_ = 0;  // as limit_at_ has it
  std::map<std::int64_t, std::unique_ptr<Graph>> graphs_;  // by rows
  const Graph* captured_ = nullptr;                        // of the last forward(), if it was a step of single tokens
  struct Row {
    std::int64_t position = 0;
    std::int32_t chosen = -1;
    std::vector<BlockId> blocks;
  };
  std::vector<Row> rows_;  // of that step
  struct Results {
    cuda::Best* best = nullptr;  // pinned
    cudaEvent_t there = nullptr;
  };
  Results results_[2];
  int turn_ = 0;
  std::uint64_t graph_bytes_ = 0;
  bool ahead_ = false;  // a step behind the last forward() is enqueued
  ActivationTrace* trace_ = nullptr;  // only in diagnose()
  void watch(int layer, std::int64_t m);
};

}  // namespace qengine
