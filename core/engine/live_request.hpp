// LiveRequest: a request from submit to its last output. Turns chosen tokens into text and decides
// when it ends; the engine thread is the only one that touches it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.hpp"
#include "core/sampling/sampler.hpp"
#include "core/sampling/stop.hpp"
#include "core/scheduler/sequence.hpp"

namespace qengine {

class LiveRequest {
 public:
  struct Setup {
    std::shared_ptr<const Tokenizer> tokenizer;  // may be null: no text comes out
    std::int32_t limit = 0;                      // ids the tokenizer knows
    std::int64_t max_model_len = 0;
    std::vector<std::int32_t> eos;
    std::uint64_t seed = 0;
  };
  LiveRequest(RequestId id, Request request, const Setup& setup);

  // `token` was chosen for the next position: appended, decoded, checked for an end. finished() tells.
  Output accept(const SampleResult& chosen);

  // An end without a token: its text so far is complete. Not after finished().
  Output end(FinishReason why, std::string error = {});

  bool finished() const { return finished_; }
  void begin();  // a step runs it; the first one ends its time in the queue
  void emit(Output&& out);  // adds what the first event carries, and calls back

  // Prompt log-probabilities still to be taken: logits of position p describe token p + 1.
  bool wants_prompt_row(std::int64_t position) const;
  void add_prompt_row(std::int64_t position, const RawLogprobs& logprobs);

  const RequestId id;
  Request request;
  Sequence seq;
  std::optional<Sampler> sampler;

 private:
  std::vector<std::int32_t> eos_, ends_;
  std::int64_t max_model_len_;
  std::optional<StreamDecoder> decoder_;
  StopChecker stop_;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs_;
  std::chrono::steady_clock::time_point submitted_ = std::chrono::steady_clock::now();
  double queue_s_ = -1;  // not begun
  bool first_ = true, finished_ = false;
};

}  // namespace qengine
