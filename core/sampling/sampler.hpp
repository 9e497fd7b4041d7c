// Sampler: logits of one position -> one token, for one request.
//
// Order, as in vLLM (serving.md 3.2): raw logprobs; constraint and allowed ids; bad words; min_tokens;
// logit bias; repetition, frequency, presence penalty; temperature; min_p; top_k; top_p. Ids the
// tokenizer does not know are never chosen; of equals the lowest id wins.
//
// Random numbers come from (seed, number of tokens generated so far): a preempted request, or the same
// request in another batch, draws the same ones.
//
// One call at a time per Sampler; different ones in parallel.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/sampling/logprobs.hpp"
#include "core/sampling/params.hpp"

namespace qengine {

struct SampleResult {
  enum class Status { kOk, kNonFinite, kNothingAllowed };
  Status status = Status::kOk;
  std::int32_t token = -1;
  TokenLogprob logprob;           // with logprobs >= 0
  std::vector<TokenLogprob> top;  // with logprobs > 0, best first
};

class Sampler {
 public:
  // `end_ids`: tokens that end the request, kept out until min_tokens were generated. `limit`: ids
  // from there on are never chosen. `params` is borrowed and outlives the sampler.
  Sampler(const SamplingParams& params, std::int32_t limit, std::span<const std::int32_t> prompt,
          std::vector<std::int32_t> end_ids, std::uint64_t seed);

  SampleResult sample(std::span<const float> logits) const;
  void accept(std::int32_t token);  // it joined the text

  // The next token is the largest logit below the limit, and nothing else is asked for.
  bool plain_greedy() const;

  std::int64_t generated() const { return static_cast<std::int64_t>(output_.size()); }

 private:
  bool changes_logits() const;
  void change(std::span<const float> logits, std::vector<float>& row) const;
  std::int32_t draw(std::span<const float> row, float largest) const;

  const SamplingParams& params_;
  std::int32_t limit_;
  std::vector<std::int32_t> end_ids_;
  std::uint64_t seed_;
  std::vector<std::int32_t> prompt_ids_;  // distinct; only for the repetition penalty
  std::vector<std::int32_t> output_;
  std::unordered_map<std::int32_t, std::int32_t> counts_;  // of output_; only when a penalty needs it
};

// Uniform in [0, 1) from a seed and a counter.
double uniform(std::uint64_t seed, std::uint64_t counter);

}  // namespace qengine
