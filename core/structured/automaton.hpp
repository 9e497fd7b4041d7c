// Automaton: a Grammar made deterministic while it runs, with everything learned kept for later steps
// and for other requests under the same grammar.
//
//   stack    (state, stack below): where one reading of the text is, and where its calls return to
//   config   the set of all stacks that the text so far can be in; a state of the deterministic view
//   mask     which tokens may follow in a config: one walk over the token tree
//
// Most walks are spared: a state's walk within its own rule is kept for all stacks above which the
// rule may run (a string is a string wherever it stands), with the places in the tree where the rule
// may end; only from there on does the rest of the stack matter.
//
// When what is kept outgrows its bound, it is dropped as a whole and learned again; readers that hold
// the old tables take their stacks along.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/structured/grammar.hpp"

namespace qengine::structured {

struct Mask {
  std::vector<std::uint32_t> bits;  // [ceil(vocab / 32)]
  std::int32_t worst = 0;  // most tokens that may be needed after one of these to end the text
  // Tokens after which more than `near` are needed; kNever: they are not listed.
  std::int32_t near = Grammar::kNever;
  std::vector<std::pair<std::int32_t, std::int32_t>> dear;  // token, tokens needed after it
};

class Automaton {
 public:
  // `end_tokens` are allowed exactly where the text may end.
  Automaton(std::shared_ptr<const Grammar> grammar, std::vector<std::int32_t> end_tokens, std::size_t max_bytes = std::size_t{64} << 20);
  ~Automaton();

  class Tables;
  // One text's place. Cheap to copy; used by one thread at a time.
  struct Place {
    std::shared_ptr<Tables> tables;
    std::int32_t config = 0;
  };

  Place start() const;
  // False: `bytes` cannot follow; the place is then as before.
  bool advance(Place& place, std::string_view bytes) const;
  bool may_end(const Place& place) const;
  bool must_end(const Place& place) const;  // nothing can follow
  // Tokens that are enough to end the text from here.
  std::int32_t cost(const Place& place) const;
  std::shared_ptr<const Mask> mask(Place& place) const;
  // Only tokens after which `budget` further ones are enough to end the text; when there is none,
  // those that need the fewest.
  Mask mask_within(Place& place, std::int32_t budget) const;

  const Grammar& grammar() const { return *grammar_; }
  bool is_end(std::int32_t token) const;
  std::size_t bytes() const;  // of what is kept

 private:
  void renew(Place& place) const;  // mutex held

  std::shared_ptr<const Grammar> grammar_;
  std::vector<std::int32_t> end_tokens_;
  std::size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Tables> tables_;
};

}  // namespace qengine::structured
