// CpuRunner: the forward pass in float32 on the pool's threads.
//
//   x  [rows, hidden]                     the residual stream
//   a  [rows, max(hidden, q)]             what a product reads: normed rows, attention's result
//   b  [rows, max(q+2kv, 2 inter, hidden)] what a product writes
//
// Per layer: norm, qkv, (bias, q/k norm, rope, store), attention, o, add and norm, gate_up, act, down,
// add. Work on rows is done by the calling thread when there is little of it: a decode step is then
// four products and, at short context, no further region of the pool.
//
// With `f16` every activation is rounded to float16 where a float16 engine would store one, so that
// what overflows there overflows here.
#pragma once

#include <memory>
#include <vector>

#include "core/base/thread_pool.hpp"
#include "core/engine/activation_trace.hpp"
#include "core/engine/plugin_kv.hpp"
#include "core/engine/runner.hpp"
#include "core/engine/weights.hpp"
#include "core/kv/kv_cache.hpp"
#include "core/layers/attention.hpp"
#include "core/layers/kernels.hpp"
#include "core/layers/rope.hpp"

namespace qengine {

class CpuRunner final : public Runner {
 public:
  struct Options {
    std::int64_t max_rows = 256;
    bool f16 = false;
  };
  // One of `cache` and `plugin_kv` is there. `config` and `pool` are borrowed.
  CpuRunner(const ModelConfig& config, Weights weights, std::unique_ptr<KvCache> cache, std::unique_ptr<PluginKv> plugin_kv, int block_size,
            ThreadPool& pool, const Options& options);
  ~CpuRunner() override;

  std::int64_t max_rows() const override { return max_rows_; }
  std::int64_t max_logit_rows() const override { return 32; }
  std::int64_t vocab_size() const override { return config_.vocab_size; }
  void forward(std::span<const RunSpan> spans) override;
  void logits(std::span<const std::int32_t> rows, float* out) override;
  std::string diagnose(const RunSpan& token) override;
  void observe(RunObserver* observer) override { observer_ = observer; }
  std::uint64_t kv_bytes() const override { return cache_ ? cache_->bytes() : plugin_kv_->bytes(); }
  std::uint64_t workspace_bytes() const override;

  const Weights& weights() const { return weights_; }

 private:
  template <class F>
  void for_rows(std::int64_t rows, std::int64_t cost, F&& f);
  void run_layer(int index, std::int64_t m);
  void finish_qkv(int index, std::int64_t row);
  void attend(int index, std::int64_t m);
  void activations(float* x, std::int64_t n);  // rounds and, when asked, watches

  const ModelConfig& config_;
  Weights weights_;
  ThreadPool& pool_;
  const Kernels& kernels_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<PluginKv> plugin_kv_;
  int block_size_;
  Attention attention_;
  RopeRows rope_;
  std::int64_t max_rows_, a_stride_, b_stride_;
  bool f16_;
  std::unique_ptr<float[]> x_, a_, b_;
  std::vector<std::int32_t> ids_, positions_;
  std::vector<std::int64_t> slots_;  // block * block_size + offset
  std::vector<AttnSeq> seqs_, fetched_;
  ActivationTrace* trace_ = nullptr;  // only in diagnose()
  RunObserver* observer_ = nullptr;
};

}  // namespace qengine
