#include "core/structured/matcher.hpp"

#include <limits>
#include <utility>

namespace qengine::structured {

Matcher::Matcher(std::shared_ptr<const Automaton> automaton, std::int64_t max_tokens)
    : automaton_(std::move(automaton)), place_(automaton_->start()), left_(max_tokens > 0 ? max_tokens : -1) {
  if (automaton_->cost(place_) > left_) left_ = -1;
}

std::span<const std::uint32_t> Matcher::allowed() {
  if (mask_) return mask_->bits;
  try {
    mask_ = automaton_->mask(place_);
    if (left_ > 0 && mask_->worst > left_ - 1) {
      auto within = automaton_->mask_within(place_, static_cast<std::int32_t>(std::min<std::int64_t>(left_ - 1, std::numeric_limits<std::int32_t>::max())));
      cut_ |= within.bits != mask_->bits;
      mask_ = std::make_shared<Mask>(std::move(within));
    }
  } catch (const GrammarError&) {  // more readings than are followed: nothing is allowed, and the request ends
    mask_ = std::make_shared<Mask>(Mask{std::vector<std::uint32_t>((static_cast<std::size_t>(automaton_->grammar().trie().vocab_size()) + 31) / 32), 0});
  }
  return mask_->bits;
}

bool Matcher::accept(std::int32_t token) {
  mask_.reset();
  if (left_ > 0) --left_;
  if (automaton_->is_end(token) && automaton_->may_end(place_)) {
    complete_ = true;
    return true;
  }
  const TokenTrie& trie = automaton_->grammar().trie();
  if (token < 0 || token >= trie.vocab_size() || trie.bytes(token).empty()) return false;
  try {
    if (!automaton_->advance(place_, trie.bytes(token))) return false;
  } catch (const GrammarError&) {
    return false;
  }
  complete_ = automaton_->must_end(place_);
  return true;
}

}  // namespace qengine::structured
