// Log-probabilities: natural log of the softmax over the whole row, before masks, penalties and
// temperature. One formula for chosen and best tokens, so that equal tokens print equal bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qengine {

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
  std::int32_t rank = 0;  // 1: the most likely; ids with equal logits by number
};

class RawLogprobs {
 public:
  // `limit`: ids from there on exist in the head but not in the tokenizer; they count in the sum and
  // never appear. The row is borrowed.
  RawLogprobs(std::span<const float> logits, std::int32_t limit);

  TokenLogprob of(std::int32_t id) const;  // rank over ids below limit
  float logprob(std::int32_t id) const;    // without the pass that the rank costs
  std::vector<TokenLogprob> best(std::int32_t k) const;  // best first

 private:
  std::span<const float> logits_;
  std::int32_t limit_;
  double log_sum_;
};

}  // namespace qengine
