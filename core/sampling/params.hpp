// SamplingParams: how one request wants its tokens chosen. Field names are those of the HTTP API.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace qengine {

class TokenConstraint;

// Text before the answer proper in which stop strings mean nothing: from `open`, where the output begins
// with it (white space may come first), or from the first token on when the prompt has `begun` it, to `close`.
struct Prelude {
  std::string open, close;  // empty: there is none
  bool begun = false;
};

struct SamplingParams {
  std::int64_t max_tokens = 16;
  std::int64_t min_tokens = 0;
  double temperature = 1.0;  // < 1e-5: greedy
  double top_p = 1.0;
  double min_p = 0.0;
  std::int64_t top_k = 0;  // 0 and -1: off
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  std::map<std::int32_t, float> logit_bias;
  std::vector<std::int32_t> allowed_token_ids;             // empty: all
  std::vector<std::vector<std::int32_t>> bad_words;        // token sequences that must not be completed
  std::optional<std::int64_t> seed;
  std::vector<std::string> stop;
  Prelude prelude;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::int32_t logprobs = -1;         // -1: none; 0: the chosen one; k: and the k best
  std::int32_t prompt_logprobs = -1;  // likewise, over the prompt
  std::shared_ptr<TokenConstraint> constraint;  // structured output; its state belongs to this request
};

// Throws Error E107 naming the first field that is out of range (serving.md 3.2), what it holds and
// what is allowed. `vocab_size` bounds token ids; 0: not known yet.
void check(const SamplingParams& params, std::int64_t vocab_size);

}  // namespace qengine
