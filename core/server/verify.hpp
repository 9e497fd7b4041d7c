// Verify: may this model take over from that one? What a load by itself cannot show: that it computes, and that it answers
// about as the other does.
//
//   same     tokenizer, chat template and vocabulary are equal: a client must not notice
//   greedy   the fixed prompts run, and every logit on the way is finite
//   kl       next-token distributions along a fixed text, against those of the other model, within the gates
//
// The other model keeps answering meanwhile: its part is computed in short pieces between its steps.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.hpp"
#include "core/engine/format_class.hpp"

namespace qengine::server {

// [gates] of the profile; unset: by the coarser of the two formats.
struct GateOptions {
  std::optional<double> kl_mean_ok, kl_mean_fail, same_top_warn, ppl_ratio_fail;
};

struct Refusal : std::exception {
  std::string reason;   // one word, of a closed set: it becomes a label of a metric
  std::string message;
  Refusal(std::string r, std::string m) : reason(std::move(r)), message(std::move(m)) {}
  const char* what() const noexcept override { return message.c_str(); }
};

// The other model's side. Of a model that stays, read when it is needed; record() keeps what fits into little memory, for one
// that has to go before the new one can come.
class Reference {
 public:
  explicit Reference(Engine& engine);
  // REQUIRES: after it the engine is not used any more.
  void record(const std::atomic<bool>& stop);

  struct Piece {
    std::vector<std::int32_t> ids;
    std::vector<std::vector<float>> rows;  // logits of every position; empty until read
  };
  std::vector<Piece>& pieces() { return pieces_; }
  // Logits of a piece. Throws Refusal "busy" when the model has no room for it for long.
  std::vector<std::vector<float>> rows(const Piece& piece, const std::atomic<bool>& stop);

  const FormatClass& format() const { return format_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  std::int64_t vocabulary() const { return vocabulary_; }

 private:
  Engine* engine_;
  FormatClass format_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int64_t vocabulary_ = 0;
  std::vector<Piece> pieces_;
};

// Figures of the checks that passed. Throws Refusal with reason "tokenizer", "template", "nonfinite", "kl", "busy" or "stopped".
// `template_override`: the server has a template of its own, so that the model's does not count.
Json verify(Engine& fresh, Reference& reference, const GateOptions& gates, bool template_override, const std::atomic<bool>& stop);

}  // namespace qengine::server
