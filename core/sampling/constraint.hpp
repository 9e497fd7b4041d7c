// TokenConstraint: what a grammar allows next. One per request; called by the engine thread (or its
// pool, one call at a time per constraint).
#pragma once

#include <cstdint>
#include <span>

namespace qengine {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A bit per token id (id % 32 of word id / 32); clear: may not come next. End tokens are ids like
  // others: set exactly when the text may end here. Empty: anything goes. Good until accept().
  virtual std::span<const std::uint32_t> allowed() = 0;

  // `token` was chosen. False: the automaton cannot go on (our own fault); the request fails.
  virtual bool accept(std::int32_t token) = 0;

  // The text is whole and nothing may follow: the request ends without waiting for an end token.
  virtual bool complete() const { return false; }
  // The text was led to its end because max_tokens was near.
  virtual bool cut() const { return false; }
};

}  // namespace qengine
