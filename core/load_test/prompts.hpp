// Prompts of load tests: random ones of fixed lengths, or a user's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/load_test/load_run.hpp"

namespace qengine {

struct RandomPrompts {
  std::int64_t count = 1000, input_len = 1024, output_len = 128;
  double range_ratio = 0;      // lengths are drawn from [len * (1 - r), len * (1 + r)]
  std::int64_t vocab_size = 0;  // 0: words as text, about one token each
  std::uint64_t seed = 0;
};
// All distinct, so that no prefix cache answers for the model. The same seed gives the same prompts.
std::vector<LoadRequest> random_prompts(const RandomPrompts& options);

// One JSON object a line: {"prompt": TEXT or [ids], "output_tokens": N}. `text` is the file's content, `name` stands for it in
// messages. Throws Error E101 naming file and line.
std::vector<LoadRequest> prompts_of_jsonl(const std::string& text, const std::string& name, std::int64_t output_len);

}  // namespace qengine
