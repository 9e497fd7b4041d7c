#include "core/engine/cpu_runner.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"

namespace qengine {
namespace {

// Elements of row work (a few cycles each) from which a second thread pays.
constexpr std::int64_t kParallelElements = 24'000;

}  // namespace

CpuRunner::CpuRunner(const ModelConfig& config, Weights weights, std::unique_ptr<KvCache> cache, std::unique_ptr<PluginKv> plugin_kv, int block_size,
                     ThreadPool& pool, const Options& options)
    : config_(config), weights_(std::move(weights)), pool_(pool), kernels_(kernels()), cache_(std::move(cache)), plugin_kv_(std::move(plugin_kv)),
      block_size_(block_size),
      attention_(kernels_, pool, config.num_heads, config.num_kv_heads, config.head_dim),
      rope_([&] {
        float factor = 1;
        auto freq = rope_inv_freq(config, &factor);
        return RopeRows(std::move(freq), factor, options.max_rows);
      }()),
      max_rows_(options.max_rows), a_stride_(std::max(config.hidden_size, config.q_size())),
      b_stride_(std::max({config.q_size() + 2 * config.kv_size(), 2 * config.intermediate_size, config.hidden_size})), f16_(options.f16) {
  // Not cleared: a page costs nothing until a batch is large enough to reach it.
  x_.reset(new float[static_cast<std::size_t>(max_rows_ * config.hidden_size)]);
  a_.reset(new float[static_cast<std::size_t>(max_rows_ * a_stride_)]);
  b_.reset(new float[static_cast<std::size_t>(max_rows_ * b_stride_)]);
  ids_.reserve(static_cast<std::size_t>(max_rows_));
  positions_.reserve(static_cast<std::size_t>(max_rows_));
  slots_.reserve(static_cast<std::size_t>(max_rows_));
}

CpuRunner::~CpuRunner() = default;

std::uint64_t CpuRunner::workspace_bytes() const {
  return static_cast<std::uint64_t>(max_rows_ * (config_.hidden_size + a_stride_ + b_stride_)) * sizeof(float) + rope_.bytes();
}

template <class F>
void CpuRunner::for_rows(std::int64_t rows, std::int64_t cost, F&& f) {
  if (rows == 1 || rows * cost < kParallelElements || pool_.threads() == 1) {
    for (std::int64_t r = 0; r < rows; ++r) f(r);
    return;
  }
  const std::int64_t chunk = std::max<std::int64_t>(1, rows / (4 * pool_.threads()));
  pool_.parallel_for(ceil_div(rows, chunk), [&](std::int64_t i) {
    for (std::int64_t r = i * chunk; r < std::min(rows, (i + 1) * chunk); ++r) f(r);
  });
}

void CpuRunner::activations(float* x, std::int64_t n) {
  float largest = 0;
  if (f16_) largest = kernels_.round_f16(x, n);
  if (!trace_) return;
  const float now = kernels_.amax(x, n);
  if (trace_->layer < 0 && !std::isfinite(now)) trace_->layer = trace_->now;
  if (!f16_) largest = now;
  if (trace_->layer < 0 || trace_->layer == trace_->now)
    if (std::isfinite(largest)) trace_->largest = std::max(trace_->largest, largest);
}

// Bias, q/k norm, rotary and cache, for one token.
void CpuRunner::finish_qkv(int index, std::int64_t row) {
  const Weights::Layer& w = weights_.layers[static_cast<std::size_t>(index)];
  float* qkv = b_.get() + row * b_stride_;
  const std::int64_t hd = config_.head_dim, heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  if (!w.qkv_bias.empty()) kernels_.add(qkv, w.qkv_bias.data(), std::ssize(w.qkv_bias));
  activations(qkv, (heads + 2 * kv_heads) * hd);
  const float *cos = rope_.cos(row), *sin = rope_.sin(row);
  for (std::int64_t h = 0; h < heads + kv_heads; ++h) {
    float* x = qkv + h * hd;
    const bool is_q = h < heads;
    const std::vector<float>& norm = is_q ? w.q_norm : w.k_norm;
    if (!norm.empty()) kernels_.rms_norm(x, norm.data(), config_.rms_eps, hd, x);
    kernels_.rope(x, cos, sin, 1.0f, rope_.half());
  }
  activations(qkv, (heads + kv_heads) * hd);
  kernels_.scale(qkv, config_.attention_scale, heads * hd);
  if (!cache_) return;
  const std::int64_t slot = slots_[static_cast<std::size_t>(row)];
  const auto block = static_cast<BlockId>(slot / block_size_);
  const int offset = static_cast<int>(slot % block_size_);
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const int head = static_cast<int>(h);
    kernels_.store_k(cache_->dtype(), qkv + (heads + h) * hd, hd, block_size_, cache_->k_at(index, block, head, offset));
    kernels_.store_v(cache_->dtype(), qkv + (heads + kv_heads + h) * hd, hd, cache_->shape().head_pad(), cache_->v_at(index, block, head, offset));
  }
}

// From b, which holds q, k and v, to a.
void CpuRunner::attend(int index, std::int64_t m) {
  float *a = a_.get(), *b = b_.get();
  const std::int64_t window = config_.window.empty() ? 0 : config_.window[static_cast<std::size_t>(index)];
  if (cache_) return attention_.run(*cache_, index, window, b, b_stride_, a, a_stride_);
  const float* k = b + config_.q_size();
  plugin_kv_->store(index, k, k + config_.kv_size(), b_stride_, std::span(slots_).first(static_cast<std::size_t>(m)));
  for (const auto& [begin, end] : plugin_kv_->groups(seqs_)) {
    plugin_kv_->fetch(index, std::span(seqs_).subspan(begin, end - begin), fetched_);
    attention_.plan(fetched_);
    attention_.run(plugin_kv_->scratch(), 0, window, b, b_stride_, a, a_stride_);
  }
}

void CpuRunner::run_layer(int index, std::int64_t m) {
  const Weights::Layer& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t hidden = config_.hidden_size, inter = config_.intermediate_size;
  float *x = x_.get(), *a = a_.get(), *b = b_.get();

  // a holds the normed rows already.
  w.qkv->run(a, a_stride_, b, b_stride_, m);
  for_rows(m, 4 * w.qkv->n(), [&](std::int64_t r) { finish_qkv(index, r); });
  if (observer_) observer_->keys_values(index, b + config_.q_size(), b + config_.q_size() + config_.kv_size(), m, b_stride_);
  attend(index, m);
  if (f16_ || trace_) for_rows(m, hidden, [&](std::int64_t r) { activations(a + r * a_stride_, config_.q_size()); });
  w.o->run(a, a_stride_, b, b_stride_, m);
  const auto join = [&](std::int64_t r, float* delta, const std::vector<float>& bias, const std::vector<float>* norm) {
    float* row = x + r * hidden;
    if (!bias.empty()) kernels_.add(delta, bias.data(), hidden);
    activations(delta, hidden);
    kernels_.add(row, delta, hidden);
    activations(row, hidden);
    if (!norm) return;
    kernels_.rms_norm(row, norm->data(), config_.rms_eps, hidden, a + r * a_stride_);
    activations(a + r * a_stride_, hidden);
  };
  for_rows(m, 2 * hidden, [&](std::int64_t r) { join(r, b + r * b_stride_, w.o_bias, &w.post_norm); });
  w.gate_up->run(a, a_stride_, b, b_stride_, m);
  for_rows(m, 6 * inter, [&](std::int64_t r) {
    float* row = b + r * b_stride_;
    if (!w.gate_up_bias.empty()) kernels_.add(row, w.gate_up_bias.data(), 2 * inter);
    activations(row, 2 * inter);
    switch (config_.activation) {
      case Activation::kSilu: kernels_.silu_mul(row, row + inter, inter); break;
      case Activation::kGeluTanh: kernels_.gelu_tanh_mul(row, row + inter, inter); break;
      case Activation::kGelu:
        for (std::int64_t i = 0; i < inter; ++i) row[i] = 0.5f * row[i] * (1.0f + std::erf(row[i] * 0.70710678f)) * row[inter + i];
        break;
    }
    activations(row, inter);
  });
  w.down->run(b, b_stride_, a, a_stride_, m);
  const bool last = index + 1 == config_.num_layers;
  const std::vector<float>* next = last ? nullptr : &weights_.layers[static_cast<std::size_t>(index) + 1].input_norm;
  for_rows(m, 2 * hidden, [&](std::int64_t r) { join(r, a + r * a_stride_, w.down_bias, next); });
}

void CpuRunner::forward(std::span<const RunSpan> spans) {
  ids_.clear();
  positions_.clear();
  slots_.clear();
  seqs_.clear();
  for (const RunSpan& s : spans) {
    seqs_.push_back({s.blocks.data(), s.first, std::ssize(s.tokens), std::ssize(ids_)});
    for (std::int64_t i = 0; i < std::ssize(s.tokens); ++i) {
      const std::int64_t p = s.first + i;
      ids_.push_back(s.tokens[static_cast<std::size_t>(i)]);
      positions_.push_back(static_cast<std::int32_t>(p));
      slots_.push_back(std::int64_t{s.blocks[static_cast<std::size_t>(p / block_size_)]} * block_size_ + p % block_size_);
    }
  }
  const std::int64_t m = std::ssize(ids_), hidden = config_.hidden_size;
  if (m == 0) return;
  rope_.fill(positions_);
  if (cache_) attention_.plan(seqs_);
  const Linear& embed = weights_.embedding();
  if (embed.has_rows()) embed.rows(ids_.data(), m, x_.get());
  else
    for (std::int64_t r = 0; r < m; ++r) embed.dequant(ids_[static_cast<std::size_t>(r)], ids_[static_cast<std::size_t>(r)] + 1, x_.get() + r * hidden);
  for_rows(m, 2 * hidden, [&](std::int64_t r) {
    activations(x_.get() + r * hidden, hidden);
    kernels_.rms_norm(x_.get() + r * hidden, weights_.layers.front().input_norm.data(), config_.rms_eps, hidden, a_.get() + r * a_stride_);
    activations(a_.get() + r * a_stride_, hidden);
  });
  for (int l = 0; l < config_.num_layers; ++l) {
    if (trace_) trace_->now = l;
    run_layer(l, m);
    if (observer_) observer_->after_layer(l, x_.get(), m, hidden);
  }
}

void CpuRunner::logits(std::span<const std::int32_t> rows, float* out) {
  const std::int64_t hidden = config_.hidden_size, n = std::ssize(rows);
  for (std::int64_t i = 0; i < n; ++i) {
    float* a = a_.get() + i * a_stride_;
    kernels_.rms_norm(x_.get() + rows[static_cast<std::size_t>(i)] * hidden, weights_.final_norm.data(), config_.rms_eps, hidden, a);
    activations(a, hidden);
  }
  weights_.head->run(a_.get(), a_stride_, out, vocab_size(), n);
}

std::string CpuRunner::diagnose(const RunSpan& token) {
  ActivationTrace trace;
  trace_ = &trace;
  forward({&token, 1});
  trace_ = nullptr;
  return trace.text(f16_ ? "float16" : "float32");
}

}  // namespace qengine
