// SamplingParams: how one request wants its tokens chosen. Field names are those of the HTTP API.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace qengine {

struct SamplingParams {
  std::int64_t max_tokens = 16;
  std::int64_t min_tokens = 0;
  double temperature = 1.0;  // < 1e-5: greedy
  double top_p = 1.0;
  double min_p = 0.0;
  std::int64_t top_k = 0;  // 0 and -1: off
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  std::map<std::int32_t, float> logit_bias;
  std::optional<std::int64_t> seed;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::int32_t logprobs = -1;         // -1: none; 0: the chosen one; k: and the k best
  std::int32_t prompt_logprobs = -1;  // likewise, over the prompt
};

}  // namespace qengine
