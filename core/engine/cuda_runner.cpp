#include "core/engine/cuda_runner.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/device/cuda_check.hpp"
#include "core/engine/batch_buckets.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kPdlFrom = 90;  // sm

cuda::Act act_of(Activation a) {
  return a == Activation::kSilu ? cuda::Act::kSilu : a == Activation::kGeluTanh ? cuda::Act::kGeluTanh : cuda::Act::kGelu;
}

qe_tensor matrix(std::int32_t dtype, const void* data, std::int64_t rows, std::int64_t columns) {
  return {dtype, 2, {rows, columns, 0, 0}, {columns, 1, 0, 0}, const_cast<void*>(data)};
}

}  // namespace

struct CudaRunner::Graph {
  cudaGraphExec_t exec = nullptr;  // null: launched kernel by kernel
  std::int64_t rows = 0;
  int splits = 1;
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
};

CudaRunner::CudaRunner(const ModelConfig& config, Weights weights, Gpu& gpu, const Options& options)
    : config_(config), weights_(std::move(weights)), gpu_(gpu), o_(options), stream_(static_cast<cudaStream_t>(gpu.stream())),
      a_width_(std::max({config.hidden_size, config.q_size(), config.intermediate_size})),
      b_width_(std::max({config.q_size() + 2 * config.kv_size(), 2 * config.intermediate_size, config.hidden_size})) {
  if (gpu.info().device.sm < kPdlFrom) o_.pdl = false;
  o_.max_seqs = std::min(o_.max_seqs, o_.max_rows);
  in_ = std::make_unique<CudaInputs>(gpu, CudaInputs::Limits{.rows = o_.max_rows, .seqs = o_.max_seqs, .blocks_per_seq = (o_.max_model_len + o_.block_size - 1) / o_.block_size,
                                                             .picks = o_.max_seqs, .block_size = o_.block_size,
                                                             .tile_tokens = cuda::prefill_tile_tokens(config.num_heads, config.num_kv_heads)});
  upload_vectors();
  const auto work = [&](std::int64_t bytes, const char* what) { return DeviceBuffer(gpu, static_cast<std::uint64_t>(bytes), MemoryOwner::kWorkspace, what); };
  x_ = work(o_.max_rows * config.hidden_size * 4, "the residual stream");
  xb_ = work(o_.max_seqs * config.hidden_size * 2, "the residual stream");
  a_ = work(o_.max_rows * a_width_ * 2, "activations");
  b_ = work(o_.max_rows * b_width_ * 2, "activations");
  logits_ = work(o_.max_seqs * config.vocab_size * 4, "logits");
  std::uint64_t most = 0;
  const auto ask = [&](const std::unique_ptr<Linear>& l) {
    if (l) most = std::max(most, l->workspace_bytes());
  };
  for (const Weights::Layer& l : weights_.layers) ask(l.qkv), ask(l.o), ask(l.gate_up), ask(l.down);
  ask(weights_.embed), ask(weights_.head);
  if (most) workspace_ = work(static_cast<std::int64_t>(most), "workspace of the products");
  // The most partial results that any batch leaves: splits shrink as the batch grows.
  std::int64_t partial = 0;
  for (std::int64_t n = 1; n <= o_.max_seqs; ++n)
    partial = std::max(partial, cuda::partial_floats(static_cast<int>(n), config.num_heads, config.head_dim, cuda::decode_splits(static_cast<int>(n), config.num_kv_heads, gpu.info().device.sm_count, o_.max_model_len)));
  partial_ = work(partial * 4, "partial results of attention");
  const std::int64_t counters = cuda::decode_counters(static_cast<int>(o_.max_seqs), config.num_heads);
  counters_ = work(counters * 4, "counters");
  gpu.zero(counters_.get(), counters_.bytes());
  best_ = work(o_.max_seqs * (cuda::kBestChunks + 1) * static_cast<std::int64_t>(sizeof(cuda::Best)), "candidates");
  for (Results& r : results_) {
    void* p = nullptr;
    cuda_check(cudaMallocHost(&p, static_cast<std::size_t>(o_.max_seqs) * sizeof(cuda::Best)), "taking pinned memory");
    r.best = static_cast<cuda::Best*>(p);
    cuda_check(cudaEventCreateWithFlags(&r.there, cudaEventDisableTiming), "making an event");
  }
  limit_at_ = work(16, "a number");
  gpu.zero(limit_at_.get(), 16);
  gpu.wait();
}

CudaRunner::~CudaRunner() {
  const std::lock_guard mine(gpu_.turn());
  cudaStreamSynchronize(stream_);
  graphs_.clear();
  account_for_graphs(0);
  for (Results& r : results_) {
    if (r.best) cudaFreeHost(r.best);
    if (r.there) cudaEventDestroy(r.there);
  }
}

// Norms and biases, and the table of the rotation: cos and sin of every position.
void CudaRunner::upload_vectors() {
  std::vector<float> all;
  std::vector<std::pair<const float**, std::size_t>> where;
  layers_.resize(weights_.layers.size());
  const auto put = [&](const std::vector<float>& v, const float*& to) {
    if (v.empty()) return;
    while (all.size() % 4) all.push_back(0);  // rows of four are read at once
    where.emplace_back(&to, all.size());
    all.insert(all.end(), v.begin(), v.end());
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Weights::Layer& w = weights_.layers[i];
    LayerVectors& l = layers_[i];
    put(w.input_norm, l.input_norm), put(w.post_norm, l.post_norm), put(w.q_norm, l.q_norm), put(w.k_norm, l.k_norm);
    put(w.qkv_bias, l.qkv_bias), put(w.o_bias, l.o_bias), put(w.gate_up_bias, l.gate_up_bias), put(w.down_bias, l.down_bias);
  }
  put(weights_.final_norm, final_norm_);
  vectors_ = DeviceBuffer(gpu_, all.size() * sizeof(float), MemoryOwner::kWeights, "norms and biases");
  for (const auto& [to, at] : where) *to = vectors_.get<float>() + at;
  if (gpu_.upload(vectors_.get(), all.data(), all.size() * sizeof(float), nullptr)) throw Error("E407", "norms and biases could not be copied to " + gpu_.info().label());

  float factor = 1;
  const std::vector<float> freq = rope_inv_freq(config_, &factor);
  const std::size_t half = freq.size();
  std::vector<float> table(static_cast<std::size_t>(o_.max_model_len) * half * 2);
  for (std::int64_t p = 0; p < o_.max_model_len; ++p) {
    float* row = table.data() + static_cast<std::size_t>(p) * half * 2;
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * freq[i];
      row[i] = std::cos(angle) * factor;
      row[half + i] = std::sin(angle) * factor;
    }
  }
  rope_ = DeviceBuffer(gpu_, std::max<std::size_t>(table.size(), 1) * sizeof(float), MemoryOwner::kWorkspace, "rotary table");
  if (gpu_.upload(rope_.get(), table.data(), table.size() * sizeof(float), nullptr)) throw Error("E407", "the rotary table could not be copied to " + gpu_.info().label());
}

void CudaRunner::set_cache(std::unique_ptr<CudaKv> kv) {
  graphs_.clear();
  captured_ = nullptr;
  ahead_ = false;
  kv_ = std::move(kv);
}

void CudaRunner::account_for_graphs(std::uint64_t bytes) {
  gpu_.ledger().give(MemoryOwner::kGraphs, graph_bytes_);
  gpu_.ledger().take(MemoryOwner::kGraphs, graph_bytes_ = bytes);
}

void CudaRunner::check(cudaError_t status) const { cuda_check(status, "a launch"); }

void CudaRunner::product(const Linear& l, const void* in, void* out, std::int32_t out_dtype, std::int64_t m, std::int64_t out_columns, const Around& around) {
  qe_run r{};
  r.struct_size = sizeof r;
  r.flags = capturing_ ? QE_RUN_CAPTURING : 0;
  if (o_.pdl) r.flags |= QE_RUN_PDL | (around.product_before ? 0 : QE_RUN_OTHER_BEFORE) | (around.product_behind ? 0 : QE_RUN_OTHER_BEHIND);
  r.n_before = static_cast<std::uint32_t>(around.before.size());
  r.n_after = static_cast<std::uint32_t>(around.after.size());
  r.before = around.before.data();
  r.after = around.after.data();
  r.m = m;
  r.in = matrix(QE_BF16, in, m, l.k());
  r.out = matrix(out_dtype, out, m, out_columns);
  r.workspace = workspace_.get();
  r.workspace_bytes = workspace_.bytes();
  r.stream = stream_;
  l.enqueue(r);
}

// From the product in b to attention's result in a.
void CudaRunner::finish_and_attend(int index, std::int64_t m, bool bias, int decodes, const std::int32_t* singles, int tiles, int splits) {
  const LayerVectors& v = layers_[static_cast<std::size_t>(index)];
  const cuda::At at{stream_, o_.pdl};
  const std::int64_t q = config_.q_size(), qkv = q + 2 * config_.kv_size();
  auto *a = a_.get<__nv_bfloat16>(), *b = b_.get<__nv_bfloat16>();
  const cuda::KvPool pool = kv_->pool(index);
  const cuda::QkvFinish finish{.qkv = b, .stride = qkv, .bias = bias ? v.qkv_bias : nullptr, .q_norm = v.q_norm, .k_norm = v.k_norm, .eps = config_.rms_eps, .cos_sin = rope_.get<float>(),
                               .position = in_->positions(), .slot = in_->slots(), .pool = pool, .rows = static_cast<int>(m), .heads = config_.num_heads, .kv_heads = config_.num_kv_heads,
                               .head_dim = config_.head_dim, .rot_dim = config_.rope.rot_dim};
  const bool together = tiles == 0 && !singles && cuda::decode_finishes(config_.num_heads, config_.num_kv_heads, config_.head_dim);
  if (!together) check(cuda::qkv_finish(finish, at));
  const cuda::Attention attention{.q = b, .q_stride = qkv, .out = a, .out_stride = q, .pool = pool, .block_table = in_->block_table(), .table_stride = in_->table_stride(),
                                  .seq_len = in_->seq_len(), .cu_q = in_->cu_q(), .scale = config_.attention_scale, .heads = config_.num_heads, .kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim, .window = config_.window.empty() ? 0 : config_.window[static_cast<std::size_t>(index)]};
  cuda::Decode decode{.a = attention, .seqs = singles, .n_seqs = decodes, .splits = splits, .cluster = cuda::decode_cluster(splits, gpu_.info().device.sm), .partial = partial_.get<float>(), .counters = counters_.get<std::uint32_t>(),
                      .finishes = together, .finish = finish};
  check(cuda::attention_decode(decode, at));
  check(cuda::attention_prefill({.a = attention, .tiles = in_->tile_list(), .n_tiles = tiles}, at));
}

// a = norm of xb.
void CudaRunner::norm_stream(const float* w, std::int64_t m) {
  const std::int64_t hidden = config_.hidden_size;
  check(cuda::add_norm({.x = x_.get<float>(), .delta = xb_.get<__nv_bfloat16>(), .delta_stride = hidden, .w = w, .out = a_.get<__nv_bfloat16>(), .out_stride = hidden, .eps = config_.rms_eps,
                        .n = static_cast<int>(hidden), .rows = static_cast<int>(m), .set = true},
                       {stream_, o_.pdl}));
}

// Whether every o and down of m rows adds the residual by itself.
bool CudaRunner::takes_stream(std::int64_t m) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Weights::Layer& w = weights_.layers[i];
    if (w.o->regime(m).n_after != 1u + !w.o_bias.empty() || w.down->regime(m).n_after != 1u + !w.down_bias.empty()) return false;
  }
  return true;
}

void CudaRunner::fused_layer(int index, std::int64_t m, int splits) {
  const Weights::Layer& w = weights_.layers[static_cast<std::size_t>(index)];
  const LayerVectors& v = layers_[static_cast<std::size_t>(index)];
  const std::int64_t hidden = config_.hidden_size, inter = config_.intermediate_size;
  void *a = a_.get(), *b = b_.get(), *xb = xb_.get();
  const auto vector = [](const float* data, std::int64_t n) { return qe_tensor{QE_F32, 1, {n, 0, 0, 0}, {1, 0, 0, 0}, const_cast<float*>(data)}; };
  const auto norm_step = [&](const float* weight) {
    qe_step_norm s{};
    s.head = {sizeof s, QE_STEP_RMS_NORM};
    s.weight = vector(weight, hidden);
    s.eps = config_.rms_eps;
    return s;
  };
  const auto bias_step = [&](const float* bias, std::int64_t n) {
    qe_step_simple s{};
    s.head = {sizeof s, QE_STEP_BIAS};
    s.value = vector(bias, n);
    return s;
  };
  qe_step_simple residual{};
  residual.head = {sizeof residual, QE_STEP_RESIDUAL};
  residual.value = matrix(QE_BF16, xb, m, hidden);

  const auto norms_itself = [&](const Linear& l) { return l.regime(m).n_before == 1; };
  const auto with_norm = [&](const Linear& l, const float* weight, void* out, std::int64_t columns, std::span<const qe_step* const> after, bool product_before, bool product_behind) {
    const qe_step_norm step = norm_step(weight);
    const qe_step* before[] = {&step.head};
    if (norms_itself(l)) return product(l, xb, out, QE_BF16, m, columns, {before, after, product_before, product_behind});
    norm_stream(weight, m);
    product(l, a, out, QE_BF16, m, columns, {{}, after, false, product_behind});
  };

  const qe_step_simple qkv_bias = bias_step(v.qkv_bias, w.qkv->n());
  const qe_step* qkv_after[] = {&qkv_bias.head};
  const bool takes_bias = v.qkv_bias && w.qkv->regime(m).n_after >= 1;
  with_norm(*w.qkv, v.input_norm, b, w.qkv->n(), std::span(qkv_after).first(takes_bias ? 1 : 0), index > 0, false);
  finish_and_attend(index, m, !takes_bias, static_cast<int>(m), nullptr, 0, splits);

  const qe_step_simple o_bias = bias_step(v.o_bias, hidden), down_bias = bias_step(v.down_bias, hidden);
  const qe_step *o_after[] = {&o_bias.head, &residual.head}, *down_after[] = {&down_bias.head, &residual.head};
  product(*w.o, a, xb, QE_BF16, m, hidden, {{}, std::span(o_after).subspan(v.o_bias ? 0 : 1), false, norms_itself(*w.gate_up)});

  const qe_step_simple gate_bias = bias_step(v.gate_up_bias, 2 * inter);
  qe_step_simple act{};
  act.head = {sizeof act, QE_STEP_ACT_MUL};
  act.variant = config_.activation == Activation::kGeluTanh ? 1 : 0;
  std::vector<const qe_step*> gate_after;
  if (v.gate_up_bias) gate_after.push_back(&gate_bias.head);
  if (config_.activation != Activation::kGelu) gate_after.push_back(&act.head);
  const std::size_t taken = std::min<std::size_t>(w.gate_up->regime(m).n_after, gate_after.size());
  const bool acted = taken > 0 && gate_after[taken - 1] == &act.head;
  with_norm(*w.gate_up, v.post_norm, b, acted ? inter : 2 * inter, std::span<const qe_step* const>(gate_after).first(taken), true, acted);
  if (!acted)
    check(cuda::act_mul({.g = static_cast<__nv_bfloat16*>(b), .g_stride = 2 * inter, .bias = taken ? nullptr : v.gate_up_bias, .out = static_cast<__nv_bfloat16*>(a), .out_stride = inter,
                         .n = static_cast<int>(inter), .rows = static_cast<int>(m), .act = act_of(config_.activation)},
                        {stream_, o_.pdl}));
  const bool more = index + 1 < config_.num_layers && norms_itself(*weights_.layers[static_cast<std::size_t>(index) + 1].qkv);
  product(*w.down, acted ? b : a, xb, QE_BF16, m, hidden, {{}, std::span(down_after).subspan(v.down_bias ? 0 : 1), acted, more});
}

void CudaRunner::run_layer(int index, std::int64_t m, int decodes, const std::int32_t* singles, int tiles, int splits) {
  const Weights::Layer& w = weights_.layers[static_cast<std::size_t>(index)];
  const LayerVectors& v = layers_[static_cast<std::size_t>(index)];
  const cuda::At at{stream_, o_.pdl};
  const std::int64_t hidden = config_.hidden_size, inter = config_.intermediate_size;
  auto *a = a_.get<__nv_bfloat16>(), *b = b_.get<__nv_bfloat16>();
  const int rows = static_cast<int>(m);

  // a holds the normed rows already.
  product(*w.qkv, a, b, QE_BF16, m);
  finish_and_attend(index, m, true, decodes, singles, tiles, splits);
  product(*w.o, a, b, QE_BF16, m);
  check(cuda::add_norm({.x = x_.get<float>(), .delta = b, .delta_stride = hidden, .bias = v.o_bias, .w = v.post_norm, .out = a, .out_stride = hidden, .eps = config_.rms_eps,
                        .n = static_cast<int>(hidden), .rows = rows},
                       at));
  product(*w.gate_up, a, b, QE_BF16, m);
  check(cuda::act_mul({.g = b, .g_stride = 2 * inter, .bias = v.gate_up_bias, .out = a, .out_stride = inter, .n = static_cast<int>(inter), .rows = rows, .act = act_of(config_.activation)}, at));
  product(*w.down, a, b, QE_BF16, m);
  const bool last = index + 1 == config_.num_layers;
  check(cuda::add_norm({.x = x_.get<float>(), .delta = b, .delta_stride = hidden, .bias = v.down_bias, .w = last ? nullptr : layers_[static_cast<std::size_t>(index) + 1].input_norm, .out = a,
                        .out_stride = hidden, .eps = config_.rms_eps, .n = static_cast<int>(hidden), .rows = rows},
                       at));
  if (trace_) watch(index, m);
}

// From ids to the residual stream after the last layer.
void CudaRunner::enqueue(std::int64_t m, int decodes, const std::int32_t* singles, int tiles, int splits) {
  const cuda::At at{stream_, o_.pdl};
  const std::int64_t hidden = config_.hidden_size;
  weights_.embedding().enqueue_rows(in_->ids(), m, matrix(QE_BF16, b_.get(), m, hidden), stream_);
  check(cuda::add_norm({.x = x_.get<float>(), .delta = b_.get<__nv_bfloat16>(), .delta_stride = hidden, .w = layers_.front().input_norm, .out = a_.get<__nv_bfloat16>(), .out_stride = hidden,
                        .eps = config_.rms_eps, .n = static_cast<int>(hidden), .rows = static_cast<int>(m), .set = true},
                       at));
  for (int l = 0; l < config_.num_layers; ++l) run_layer(l, m, decodes, singles, tiles, splits);
}

// What a captured step does, from the state before it to the choice of the next tokens.
void CudaRunner::enqueue_decode(std::int64_t rows, int splits) {
  const cuda::At at{stream_, o_.pdl};
  check(cuda::advance(in_->advance(rows), at));
  if (takes_stream(rows)) {
    weights_.embedding().enqueue_rows(in_->ids(), rows, matrix(QE_BF16, xb_.get(), rows, config_.hidden_size), stream_);
    for (int l = 0; l < config_.num_layers; ++l) fused_layer(l, rows, splits);
    norm_stream(final_norm_, rows);
    product(*weights_.head, a_.get(), logits_.get(), QE_F32, rows);
  } else {
    enqueue(rows, static_cast<int>(rows), nullptr, 0, splits);
    head(nullptr, rows, at);
  }
  choose(rows, at);
}

void CudaRunner::capture() {
  const std::lock_guard mine(gpu_.turn());
  for (const std::int64_t rows : batch_buckets(o_.max_seqs)) {
    const int splits = cuda::decode_splits(static_cast<int>(rows), config_.num_kv_heads, gpu_.info().device.sm_count, o_.max_model_len);
    auto graph = std::make_unique<Graph>();
    graph->rows = rows;
    graph->splits = splits;
    if (!o_.graphs) {
      graphs_.emplace(rows, std::move(graph));
      continue;
    }
    // Padding alone: it touches no slot, and whatever is lazy in a kernel's first launch happens here.
    in_->fill_before({}, rows);
    enqueue_decode(rows, splits);
    gpu_.wait();
    cudaGraph_t captured = nullptr;
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    capturing_ = true;
    try {
      enqueue_decode(rows, splits);
    } catch (...) {
      capturing_ = false;
      cudaStreamEndCapture(stream_, &captured);
      if (captured) cudaGraphDestroy(captured);
      throw;
    }
    capturing_ = false;
    cuda_check(cudaStreamEndCapture(stream_, &captured), "ending a capture");
    const cudaError_t made = cudaGraphInstantiate(&graph->exec, captured, 0);
    cudaGraphDestroy(captured);
    cuda_check(made, "making a graph");
    graphs_.emplace(rows, std::move(graph));
  }
}

void CudaRunner::launch(const Graph& graph, std::int64_t rows) {
  if (graph.exec) cuda_check(cudaGraphLaunch(graph.exec, stream_), "launching a graph");
  else enqueue_decode(graph.rows, graph.splits);
  turn_ ^= 1;
  cuda_check(cudaMemcpyAsync(results_[turn_].best, best_.get(), static_cast<std::size_t>(rows) * sizeof(cuda::Best), cudaMemcpyDeviceToHost, stream_), "a copy to the host");
  cuda_check(cudaEventRecord(results_[turn_].there, stream_), "recording an event");
}

// Whether the step that runs ahead is the one that is asked for: the same sequences in the same rows, each
// one token further, and the token the one that was chosen for it.
bool CudaRunner::ran_ahead(std::span<const RunSpan> spans) const {
  if (!ahead_ || std::ssize(spans) != std::ssize(rows_)) return false;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Row& r = rows_[i];
    if (spans[i].tokens[0] != r.chosen || spans[i].first != r.position + 1 || std::ssize(spans[i].blocks) < std::ssize(r.blocks) ||
        !std::equal(r.blocks.begin(), r.blocks.end(), spans[i].blocks.begin()))
      return false;
  }
  return true;
}

void CudaRunner::forward(std::span<const RunSpan> spans) {
  const std::lock_guard mine(gpu_.turn());
  std::int64_t m = 0, singles = 0;
  for (const RunSpan& s : spans) m += std::ssize(s.tokens), singles += s.tokens.size() == 1;
  captured_ = nullptr;
  if (m == 0) return;
  const auto it = singles == std::ssize(spans) && !trace_ ? graphs_.lower_bound(m) : graphs_.end();
  if (it == graphs_.end()) {
    ahead_ = false;
    in_->fill(spans);
    enqueue(m, in_->decodes(), in_->single_seqs(), in_->tiles(), cuda::decode_splits(in_->decodes(), config_.num_kv_heads, gpu_.info().device.sm_count, in_->longest()));
    return;
  }
  captured_ = it->second.get();
  const bool there = ran_ahead(spans);
  ahead_ = false;
  if (!there) {
    in_->fill_before(spans, it->first);
    launch(*captured_, m);
  }
  bool new_blocks = false;
  rows_.resize(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Row& r = rows_[i];
    new_blocks |= r.blocks.size() != spans[i].blocks.size();
    r.position = spans[i].first;
    r.blocks.assign(spans[i].blocks.begin(), spans[i].blocks.end());
  }
  if (there && new_blocks) in_->fill_new_blocks(spans);
}

// The step after this one, before anybody knows what this one chose. Enqueued behind it, so what it
// writes into the cache is overwritten by whoever gets those slots instead.
void CudaRunner::run_ahead() {
  if (!o_.run_ahead || !captured_->exec) return;
  for (const Row& r : rows_)
    if (r.position + 2 > o_.max_model_len || (r.position + 1) / o_.block_size >= std::ssize(r.blocks)) return;
  launch(*captured_, std::ssize(rows_));
  ahead_ = true;
}

// logits_ of the picked rows, or of the first n.
void CudaRunner::head(const std::int32_t* picks, std::int64_t n, cuda::At at) {
  const std::int64_t hidden = config_.hidden_size;
  check(cuda::add_norm({.x = x_.get<float>(), .w = final_norm_, .out = a_.get<__nv_bfloat16>(), .out_stride = hidden, .pick = picks, .eps = config_.rms_eps, .n = static_cast<int>(hidden),
                        .rows = static_cast<int>(n)},
                       at));
  product(*weights_.head, a_.get(), logits_.get(), QE_F32, n);
}

void CudaRunner::choose(std::int64_t n, cuda::At at) {
  cuda::Best* best = best_.get<cuda::Best>();
  check(cuda::argmax({.x = logits_.get<float>(), .stride = config_.vocab_size, .n = static_cast<int>(config_.vocab_size), .rows = static_cast<int>(n), .limit_at = limit_at_.get<std::int32_t>(),
                      .partial = best + o_.max_seqs, .counters = counters_.get<std::uint32_t>(), .out = best, .token = in_->tokens()},
                     at));
}

bool CudaRunner::is_whole(std::span<const std::int32_t> rows) const {
  if (!captured_ || std::ssize(rows) != std::ssize(rows_)) return false;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != static_cast<std::int32_t>(i)) return false;
  return true;
}

void CudaRunner::logits(std::span<const std::int32_t> rows, float* out) {
  const std::lock_guard mine(gpu_.turn());
  if (!is_whole(rows)) {  // a captured step has left those of all rows
    in_->fill_picks(rows);
    head(in_->picks(), std::ssize(rows), {stream_, false});
  }
  gpu_.download(out, logits_.get(), rows.size() * static_cast<std::size_t>(config_.vocab_size) * sizeof(float));
}

bool CudaRunner::greedy(std::span<const std::int32_t> rows, std::int32_t limit, Greedy* out) {
  const std::lock_guard mine(gpu_.turn());
  const bool whole = is_whole(rows) && limit == limit_;
  if (whole) {
    const int which = turn_;
    run_ahead();
    cuda_check(cudaEventSynchronize(results_[which].there), "a step");
    for (std::size_t i = 0; i < rows.size(); ++i) rows_[i].chosen = results_[which].best[i].index;
    for (std::size_t i = 0; i < rows.size(); ++i) out[i] = {results_[which].best[i].index, results_[which].best[i].finite != 0};
    return true;
  }
  if (limit != limit_) {
    limit_ = limit;
    if (gpu_.upload(limit_at_.get(), &limit_, sizeof limit_, nullptr)) throw Error("E407", "a number could not be copied to " + gpu_.info().label());
  }
  if (!is_whole(rows)) {
    in_->fill_picks(rows);
    head(in_->picks(), std::ssize(rows), {stream_, false});
  }
  choose(std::ssize(rows), {stream_, false});
  cuda_check(cudaMemcpyAsync(results_[turn_].best, best_.get(), rows.size() * sizeof(cuda::Best), cudaMemcpyDeviceToHost, stream_), "a copy to the host");
  gpu_.wait();
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = {results_[turn_].best[i].index, results_[turn_].best[i].finite != 0};
  return true;
}

void CudaRunner::watch(int layer, std::int64_t m) {
  std::vector<float> x(static_cast<std::size_t>(m * config_.hidden_size));
  gpu_.download(x.data(), x_.get(), x.size() * sizeof(float));
  for (const float v : x) {
    if (std::isfinite(v)) trace_->largest = std::max(trace_->largest, std::fabs(v));
    else if (trace_->layer < 0) trace_->layer = layer;
  }
}

std::string CudaRunner::diagnose(const RunSpan& token) {
  const std::lock_guard mine(gpu_.turn());
  ActivationTrace trace;
  trace_ = &trace;
  forward({&token, 1});
  trace_ = nullptr;
  return trace.text("bfloat16");
}

}  // namespace qengine
