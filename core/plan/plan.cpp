#include "core/plan/plan.hpp"

#include <algorithm>
#include <cmath>

namespace qengine {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Matrix {
  std::int64_t n, k;
  int fused;  // matrices of one layer with the same number share their input and run as one product
};

std::vector<Matrix> attention(const Shape& s) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return {{q, s.hidden, 0}, {kv, s.hidden, 0}, {kv, s.hidden, 0}, {s.hidden, q, 1}};
}

std::vector<Matrix> mlp(const Shape& s) {
  const std::int64_t i = s.experts ? s.expert_intermediate : s.intermediate;
  return {{i, s.hidden, 2}, {i, s.hidden, 2}, {s.hidden, i, 3}};
}

std::int64_t params_of(const std::vector<Matrix>& matrices) {
  std::int64_t sum = 0;
  for (const Matrix& m : matrices) sum += m.n * m.k;
  return sum;
}

// In millionths, so that 0.92 of a size is the same integer everywhere.
std::int64_t share(std::int64_t total, double utilization) {
  const __int128 millionths = std::llround(utilization * 1e6);
  return static_cast<std::int64_t>((static_cast<__int128>(total) * millionths + 999'999) / 1'000'000);
}

}  // namespace

std::int64_t Shape::linear_params() const { return layers * (params_of(attention(*this)) + std::max<std::int64_t>(1, experts) * params_of(mlp(*this))); }
std::int64_t Shape::norm_params() const { return layers * (2 * hidden + (qk_norm ? 2 * head_dim : 0)) + hidden; }

std::int64_t Shape::bias_params() const {
  const std::int64_t q = heads * head_dim, kv = kv_heads * head_dim;
  return layers * ((q_bias ? q : 0) + (k_bias ? kv : 0) + (v_bias ? kv : 0) + (o_bias ? hidden : 0) + (mlp_bias ? 2 * intermediate + hidden : 0));
}

std::int64_t Shape::params() const { return linear_params() + norm_params() + bias_params() + router_params() + embedding_params() * (tied ? 1 : 2); }

std::int64_t WeightFormat::bytes(std::int64_t n, std::int64_t k) const {
  std::int64_t sum = ceil_div(n * k * bits, 8) + row_bytes * n + matrix_bytes;
  if (group > 0) {
    const std::int64_t groups = flat ? ceil_div(n * k, group) : ceil_div(n, group_rows) * ceil_div(k, group);
    sum += ceil_div(groups * group_bits, 8);
    if (nested > 0) sum += 4 * ceil_div(groups, nested);
  }
  return sum;
}

WeightBytes stored_weights(const Shape& s, const WeightFormat& format, HeadFormat head) {
  WeightBytes w;
  const WeightFormat wide{.bits = 16};
  // What is made at load is read in 16 bits.
  const WeightFormat& source = format.quantization.empty() ? format : wide;
  const auto layer = [&](const std::vector<Matrix>& matrices, std::int64_t count) {
    std::int64_t sum = 0, fused[4] = {};
    for (const Matrix& m : matrices) {
      sum += format.bytes(m.n, m.k);
      fused[m.fused] += source.bytes(m.n, m.k);
    }
    w.load_temp = std::max(w.load_temp, *std::max_element(fused, fused + 4));
    w.matrices += sum * count;
    w.codes += params_of(matrices) * format.bits / 8 * count;
    return sum * count;
  };
  w.read = layer(attention(s), s.layers);
  if (s.experts) w.experts = layer(mlp(s), s.layers * s.experts);
  else w.read += layer(mlp(s), s.layers);

  w.small = 2 * (s.norm_params() + s.bias_params() + s.router_params());
  const std::int64_t table = 2 * s.embedding_params();
  std::int64_t head_bytes = table;
  if (head == HeadFormat::kFp8) head_bytes = s.embedding_params() + 4;
  if (head == HeadFormat::kInt8) head_bytes = s.embedding_params() + 2 * s.vocab;
  w.read += w.small + head_bytes;
  // One table serves both ends of a tied model until its head gets a format of its own.
  w.tables = head_bytes + (s.tied && head == HeadFormat::kSame ? 0 : table);
  w.resident = w.matrices + w.tables + w.small;
  return w;
}

std::int64_t activation_bytes(const Shape& s, std::int64_t tokens, std::int64_t seqs) {
  const std::int64_t inner = s.experts ? s.experts_used * s.expert_intermediate : s.intermediate;
  return tokens * 2 * (2 * s.hidden + std::max(2 * (s.heads + s.kv_heads) * s.head_dim, 3 * inner)) + seqs * s.vocab * 4;
}

std::int64_t kv_bytes_per_token(const Shape& s, std::int64_t bits) { return ceil_div(s.layers * 2 * s.kv_heads * s.head_dim * bits, 8); }

Plan make_plan(const PlanInput& in) {
  Plan p;
  p.requested = share(in.card.memory_bytes, in.utilization);
  p.weights = in.weights.resident;
  p.context = in.reserve.context;
  p.workspace = in.reserve.workspace + activation_bytes(in.shape, in.max_num_batched_tokens, in.max_num_seqs);
  p.graphs = in.reserve.graphs;
  p.kv_available = p.requested - p.weights - p.context - p.workspace - p.graphs;
  p.load_temp = in.weights.load_temp;
  p.load_peak = p.weights + p.context + p.load_temp;

  p.bytes_per_token = in.kv_bytes_per_token;
  p.block_size = in.block_size;
  p.block_bytes = in.kv_block_bytes ? in.kv_block_bytes : in.block_size * in.kv_bytes_per_token;
  std::int64_t pool = in.kv_memory_bytes > 0 ? std::min(in.kv_memory_bytes, p.kv_available) : p.kv_available;
  p.blocks = std::max<std::int64_t>(0, pool) / p.block_bytes;
  if (in.num_blocks > 0) p.blocks = std::min(p.blocks, in.num_blocks);
  p.tokens = p.blocks * p.block_size;
  p.max_concurrency = static_cast<double>(p.blocks) / static_cast<double>(ceil_div(std::max<std::int64_t>(1, in.max_model_len), p.block_size));

  p.blocks_needed = in.concurrency * ceil_div(in.context, p.block_size);
  p.kv_needed = p.blocks_needed * p.block_bytes;
  const std::int64_t missing = std::max({p.blocks_needed > p.blocks ? p.kv_needed - pool : 0, p.load_peak - p.requested});
  p.fits = p.blocks >= p.blocks_needed && p.load_peak <= p.requested;
  if (p.fits) p.spare_bytes = std::max<std::int64_t>(0, pool - p.kv_needed);
  else p.short_bytes = std::max<std::int64_t>(1, missing);
  return p;
}

std::int64_t read_bytes(const PlanInput& in, std::int64_t concurrency, std::int64_t context) {
  const Shape& s = in.shape;
  std::int64_t sum = in.weights.read + concurrency * 2 * s.hidden;
  if (s.experts) {
    const double used = static_cast<double>(s.experts_used) / static_cast<double>(s.experts);
    sum += std::llround(static_cast<double>(in.weights.experts) * (1 - std::pow(1 - used, static_cast<double>(concurrency))));
  }
  if (s.window.empty()) return sum + concurrency * context * in.kv_bytes_per_token;
  std::int64_t tokens = 0;  // over all layers
  for (const std::int32_t w : s.window) tokens += w > 0 ? std::min<std::int64_t>(w, context) : context;
  return sum + concurrency * tokens * in.kv_bytes_per_token / s.layers;
}

Ceiling ceiling(const PlanInput& in, std::int64_t concurrency, std::int64_t context) {
  const Shape& s = in.shape;
  Ceiling c;
  c.tok_s = static_cast<double>(concurrency) * static_cast<double>(in.card.bandwidth) / static_cast<double>(read_bytes(in, concurrency, context));
  if (in.card.bf16_flops == 0) return c;
  double active = static_cast<double>(s.linear_params());
  if (s.experts) active = static_cast<double>(s.layers) * static_cast<double>(params_of(attention(s)) + s.experts_used * params_of(mlp(s)));
  const double flops = 2 * (active + static_cast<double>(s.embedding_params())) +
                       4.0 * static_cast<double>(context) * static_cast<double>(s.heads * s.head_dim * s.layers);
  const double compute = static_cast<double>(in.card.bf16_flops) / flops;
  if (compute < c.tok_s) c = {compute, true};
  return c;
}

std::optional<std::int64_t> crossover(std::int64_t weights_a, std::int64_t kv_a, std::int64_t weights_b, std::int64_t kv_b) {
  const std::int64_t weights = weights_b - weights_a, kv = kv_a - kv_b;
  if (weights <= 0 || kv <= 0) return std::nullopt;
  return weights / kv;
}

std::int64_t longest_context(const Plan& p, std::int64_t concurrency) { return p.blocks / std::max<std::int64_t>(1, concurrency) * p.block_size; }

std::int64_t memory_needed(const PlanInput& in) {
  const Plan p = make_plan(in);
  const std::int64_t use = std::max(p.weights + p.context + p.workspace + p.graphs + p.kv_needed, p.load_peak);
  std::int64_t total = static_cast<std::int64_t>(std::ceil(static_cast<double>(use) / in.utilization));
  while (share(total - 1, in.utilization) >= use) --total;
  while (share(total, in.utilization) < use) ++total;
  return total;
}

}  // namespace qengine
