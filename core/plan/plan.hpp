// What a model in a format needs on a device, and how fast it can be there at best: integer arithmetic on
// shapes. No file is read, no device asked, no weight looked at.
//
// Bytes are integers; storage rounds up, capacity rounds down. GB = 10^9, GiB = 2^30.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qengine {

// The dimensions of a decoder model. With experts, the MLP is a router and `experts` MLPs a layer.
struct Shape {
  std::string name;
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, max_position = 0;
  bool tied = false, qk_norm = false;
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false, mlp_bias = false;
  std::int64_t experts = 0, experts_used = 0, expert_intermediate = 0;
  std::vector<std::int32_t> window;  // [layers]; 0 or none: full attention

  std::int64_t linear_params() const;     // matrices of the layers, without router
  std::int64_t norm_params() const;
  std::int64_t embedding_params() const { return vocab * hidden; }  // one table
  std::int64_t bias_params() const;
  std::int64_t router_params() const { return layers * experts * hidden; }
  std::int64_t params() const;  // all, a tied table once
};

// Bytes of a matrix [n, k] in a format: codes, then records of groups, rows and the whole.
struct WeightFormat {
  std::string name, label;
  std::vector<std::string> aliases;
  std::int64_t bits = 0, group = 0, group_rows = 1, group_bits = 0, nested = 0, row_bytes = 0, matrix_bytes = 0;
  bool flat = false, gguf = false;
  std::string math;               // "fp8", "fp4": what a card must multiply natively to gain more than room
  std::string quantization;       // what plugins call it; "" when it comes with a checkpoint
  std::string quant_config_json;  // of a checkpoint in this format; "" for none
  struct Fill {  // tensors, by the last part of their names, whose codes of `bits` bits all are `code`
    std::string tensor;
    std::uint32_t code = 0;
    int bits = 8;
  };
  std::vector<Fill> fills;

  std::int64_t bytes(std::int64_t n, std::int64_t k) const;
};

struct Card {
  std::string name, label;
  std::int32_t sm = 0;  // 89 = 8.9; 0: a CPU
  std::int64_t memory_bytes = 0;
  std::int64_t bandwidth = 0;   // bytes a second
  std::int64_t bf16_flops = 0;  // a second, dense; 0: unknown
  bool fp8 = false, fp4 = false;
};

enum class HeadFormat { kSame, kFp8, kInt8 };  // of lm_head: --quantize-lm-head

struct WeightBytes {
  std::int64_t resident = 0;
  std::int64_t read = 0;     // in every step, without experts: no embedding rows
  std::int64_t experts = 0;  // of all experts, in `resident`
  std::int64_t load_temp = 0;  // of the largest fused layer while it is loaded
  // `resident` by owner, where a formula knows them: the layers' matrices and the codes among them,
  // tables of embedding and head, the rest (norms, biases, router).
  std::int64_t matrices = 0, codes = 0, tables = 0, small = 0;
};
// From the format's formula alone.
WeightBytes stored_weights(const Shape& shape, const WeightFormat& format, HeadFormat head = HeadFormat::kSame);

struct Reserve {
  std::int64_t context = 512ll << 20, workspace = 96ll << 20, graphs = 256ll << 20;
};

struct PlanInput {
  Shape shape;
  WeightBytes weights;
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t kv_block_bytes = 0;  // 0: block_size times that
  std::int64_t block_size = 16;
  Card card;
  double utilization = 0.92;
  Reserve reserve;
  std::int64_t max_num_seqs = 256, max_num_batched_tokens = 2048;
  std::int64_t context = 0, concurrency = 1, max_model_len = 0;
  std::int64_t kv_memory_bytes = 0;  // asked for; 0: what is left
  std::int64_t num_blocks = 0;       // asked for; 0: what fits
};

struct Plan {
  std::int64_t requested = 0, weights = 0, context = 0, workspace = 0, graphs = 0;
  std::int64_t kv_available = 0;  // below zero: the weights alone do not fit
  std::int64_t load_temp = 0, load_peak = 0;
  std::int64_t bytes_per_token = 0, block_size = 0, block_bytes = 0, blocks = 0, tokens = 0;
  double max_concurrency = 0;     // requests of max_model_len
  std::int64_t blocks_needed = 0, kv_needed = 0;  // of the context and concurrency asked for
  bool fits = false;
  std::int64_t short_bytes = 0;   // when it does not fit
  std::int64_t spare_bytes = 0;   // when it does: beyond what was asked for
};

Plan make_plan(const PlanInput& in);
// Activations of a step of T tokens and the logits of S sequences.
std::int64_t activation_bytes(const Shape& shape, std::int64_t tokens, std::int64_t seqs);
std::int64_t kv_bytes_per_token(const Shape& shape, std::int64_t bits);

// What one step of `concurrency` sequences at `context` reads.
std::int64_t read_bytes(const PlanInput& in, std::int64_t concurrency, std::int64_t context);
struct Ceiling {
  double tok_s = 0;  // over all sequences
  bool compute_bound = false;
};
Ceiling ceiling(const PlanInput& in, std::int64_t concurrency, std::int64_t context);

// Tokens held from which on `a` needs more than `b`: (W_b - W_a) / (kv_a - kv_b). nullopt when the lines
// do not cross, that is when one needs at most as much as the other everywhere.
std::optional<std::int64_t> crossover(std::int64_t weights_a, std::int64_t kv_a, std::int64_t weights_b, std::int64_t kv_b);

// The longest context of one sequence that the pool of the plan holds.
std::int64_t longest_context(const Plan& plan, std::int64_t concurrency);
// Total memory that a card must report for this plan to fit.
std::int64_t memory_needed(const PlanInput& in);

}  // namespace qengine
