// Matcher: the TokenConstraint of one request over a shared Automaton.
//
// When tokens run short it leads the text to its end: with `max_tokens` known, only tokens are
// allowed after which what is left is enough to finish. So the text is whole also when it was cut,
// unless max_tokens is below what the shortest text needs.
#pragma once

#include <cstdint>
#include <memory>

#include "core/sampling/constraint.hpp"
#include "core/structured/automaton.hpp"

namespace qengine::structured {

class Matcher final : public TokenConstraint {
 public:
  // max_tokens <= 0: not known, no leading to an end; nor when even the shortest text needs more.
  Matcher(std::shared_ptr<const Automaton> automaton, std::int64_t max_tokens);

  std::span<const std::uint32_t> allowed() override;
  bool accept(std::int32_t token) override;
  bool complete() const override { return complete_; }
  bool cut() const override { return cut_; }

 private:
  std::shared_ptr<const Automaton> automaton_;
  Automaton::Place place_;
  std::int64_t left_;  // tokens; -1: unknown
  std::shared_ptr<const Mask> mask_;
  bool complete_ = false, cut_ = false;
};

}  // namespace qengine::structured
