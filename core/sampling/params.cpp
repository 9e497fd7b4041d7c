#include "core/sampling/params.hpp"

#include <cmath>
#include <sstream>

#include "core/base/error.hpp"

namespace qengine {
namespace {

template <class T>
[[noreturn]] void refuse(const char* field, const T& value, const std::string& allowed) {
  std::ostringstream text;
  text << field << " is " << value;
  throw Error("E107", text.str()).hint("allowed: " + allowed);
}

void range(const char* field, double value, double lo, double hi, const char* allowed) {
  if (!(value >= lo && value <= hi)) refuse(field, value, allowed);
}

}  // namespace

void check(const SamplingParams& p, std::int64_t vocab_size) {
  if (p.max_tokens < 0) refuse("max_tokens", p.max_tokens, "0 and above");
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) refuse("min_tokens", p.min_tokens, "0 to max_tokens (" + std::to_string(p.max_tokens) + ")");
  range("temperature", p.temperature, 0, 1e4, "0 and above");
  range("top_p", p.top_p, 1e-300, 1, "above 0, at most 1");
  range("min_p", p.min_p, 0, 1, "0 to 1");
  if (p.top_k < -1) refuse("top_k", p.top_k, "-1 or 0 (off), 1 and above");
  range("repetition_penalty", p.repetition_penalty, 1e-6, 1e6, "above 0");
  range("presence_penalty", p.presence_penalty, -2, 2, "-2 to 2");
  range("frequency_penalty", p.frequency_penalty, -2, 2, "-2 to 2");
  if (p.logprobs < -1) refuse("logprobs", p.logprobs, "0 and above");
  if (p.prompt_logprobs < -1) refuse("prompt_logprobs", p.prompt_logprobs, "0 and above");
  const auto id = [&](const char* field, std::int32_t token) {
    if (token < 0 || (vocab_size > 0 && token >= vocab_size))
      refuse(field, token, vocab_size > 0 ? "token ids 0 to " + std::to_string(vocab_size - 1) : "token ids");
  };
  for (const auto& [token, bias] : p.logit_bias) {
    id("logit_bias", token);
    range("logit_bias", bias, -100, 100, "-100 to 100");
  }
  for (const std::int32_t t : p.stop_token_ids) id("stop_token_ids", t);
  for (const std::int32_t t : p.allowed_token_ids) id("allowed_token_ids", t);
  for (const auto& word : p.bad_words) {
    if (word.empty()) refuse("bad_words", "an empty sequence", "at least one token each");
    for (const std::int32_t t : word) id("bad_words", t);
  }
  for (const std::string& s : p.stop)
    if (s.empty()) refuse("stop", "an empty string", "strings of at least one character");
}

}  // namespace qengine
