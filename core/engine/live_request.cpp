#include "core/engine/live_request.hpp"

#include <algorithm>
#include <utility>

#include "core/sampling/constraint.hpp"

namespace qengine {

LiveRequest::LiveRequest(RequestId number, Request r, const Setup& setup)
    : id(number), request(std::move(r)), eos_(setup.eos), max_model_len_(setup.max_model_len),
      stop_(request.sampling.stop, request.sampling.include_stop_str_in_output, request.sampling.prelude) {
  const SamplingParams& p = request.sampling;
  seq.prompt_len = std::ssize(request.prompt);
  seq.tokens.reserve(request.prompt.size() + static_cast<std::size_t>(std::min<std::int64_t>(p.max_tokens, 4096)));
  seq.tokens.assign(request.prompt.begin(), request.prompt.end());
  seq.cache_salt = request.cache_salt;
  seq.read_prefix_cache = p.prompt_logprobs < 0;  // every position's logits are wanted
  if (p.ignore_eos) eos_.clear();
  ends_ = eos_;
  ends_.insert(ends_.end(), p.stop_token_ids.begin(), p.stop_token_ids.end());
  sampler.emplace(p, setup.limit, request.prompt, ends_, setup.seed);
  if (setup.tokenizer) decoder_.emplace(setup.tokenizer, p.skip_special_tokens);
  if (p.prompt_logprobs >= 0) prompt_logprobs_.resize(request.prompt.size());
}

bool LiveRequest::wants_prompt_row(std::int64_t position) const {
  return position + 1 < std::ssize(prompt_logprobs_) && prompt_logprobs_[static_cast<std::size_t>(position) + 1].empty();
}

void LiveRequest::add_prompt_row(std::int64_t position, const RawLogprobs& logprobs) {
  auto& entry = prompt_logprobs_[static_cast<std::size_t>(position) + 1];
  entry.push_back(logprobs.of(request.prompt[static_cast<std::size_t>(position) + 1]));
  if (request.sampling.prompt_logprobs > 0)
    for (const TokenLogprob& t : logprobs.best(request.sampling.prompt_logprobs)) entry.push_back(t);
}

void LiveRequest::begin() {
  if (queue_s_ < 0) queue_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - submitted_).count();
}

Output LiveRequest::accept(const SampleResult& chosen) {
  const SamplingParams& p = request.sampling;
  const std::int32_t token = chosen.token;
  seq.tokens.push_back(token);
  sampler->accept(token);
  Output out;
  out.token = token;
  out.logprob = chosen.logprob.logprob;
  out.rank = chosen.logprob.rank;
  out.top = chosen.top;

  if (std::ranges::find(ends_, token) != ends_.end()) {
    out.stop_token = true;
    out.finish = p.constraint && p.constraint->cut() ? FinishReason::kLength : FinishReason::kStop;
    if (std::ranges::find(eos_, token) == eos_.end()) {
      out.stop_reason = std::to_string(token);
      if (decoder_ && p.include_stop_str_in_output) out.text = stop_.push(decoder_->push(token), false).text;
    }
    if (decoder_) out.text += stop_.push(decoder_->flush(), false).text + stop_.flush();
    finished_ = true;
    return out;
  }
  if (p.constraint && !p.constraint->accept(token)) return end(FinishReason::kError, "E000 the grammar refuses a token that it had allowed");
  if (decoder_) {
    const auto shown = stop_.push(decoder_->push(token), sampler->generated() > p.min_tokens);
    out.text = shown.text;
    if (shown.stop) {
      out.finish = FinishReason::kStop;
      out.stop_reason = *shown.stop;
      finished_ = true;
      return out;
    }
  }
  if (p.constraint && p.constraint->complete()) {
    Output last = end(p.constraint->cut() ? FinishReason::kLength : FinishReason::kStop);
    out.text += last.text;
    out.finish = last.finish;
    out.stop_reason = last.stop_reason;
    return out;
  }
  if (sampler->generated() >= p.max_tokens || std::ssize(seq.tokens) >= max_model_len_) {
    Output last = end(FinishReason::kLength);
    out.text += last.text;
    out.finish = last.finish;
    out.stop_reason = last.stop_reason;
  }
  return out;
}

Output LiveRequest::end(FinishReason why, std::string error) {
  Output out;
  out.finish = why;
  out.error = std::move(error);
  finished_ = true;
  if (!decoder_) return out;
  // What the decoder still holds is half a character: it becomes U+FFFD, which might end a stop string.
  const auto shown = stop_.push(decoder_->flush());
  out.text = shown.text;
  if (!shown.stop) {
    out.text += stop_.flush();
  } else if (why == FinishReason::kLength) {
    out.finish = FinishReason::kStop;
    out.stop_reason = *shown.stop;
  }
  return out;
}

void LiveRequest::emit(Output&& out) {
  if (first_) {
    first_ = false;
    out.queue_s = std::max(0.0, queue_s_);
    out.cached_tokens = static_cast<std::int32_t>(seq.cached_tokens);
    if (out.finish != FinishReason::kAborted && out.finish != FinishReason::kError) out.prompt_logprobs = std::move(prompt_logprobs_);
    prompt_logprobs_.clear();
  }
  if (request.on_output) request.on_output(out);
}

}  // namespace qengine
