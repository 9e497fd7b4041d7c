// Grammar: what an output must look like, as a pushdown automaton over bytes.
//
// A rule is a piece of automaton with one start state; a call runs another rule and then goes on at
// its return state, so recursion in a schema is recursion here. States of all rules share one array.
//
// Built in two steps: GrammarBuilder puts states together, finish() checks that some text can be
// accepted and that no rule calls itself without a byte in between, drops what can never end, and
// computes for every state how much is needed to the end of its rule.
//
// A Grammar is immutable: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/structured/budget.hpp"
#include "core/structured/dfa.hpp"
#include "core/structured/token_trie.hpp"

namespace qengine::structured {

using StateId = std::int32_t;
using RuleId = std::int32_t;

class Grammar {
 public:
  struct Edge {
    std::uint8_t lo, hi;
    StateId to;
  };
  struct Call {
    StateId start, to;  // the called rule's first state; where it goes on
  };
  static constexpr std::int32_t kNever = 1 << 28;

  std::span<const Edge> edges(StateId s) const { return {edges_.data() + edge_begin_[at(s)], edge_begin_[at(s) + 1] - edge_begin_[at(s)]}; }
  std::span<const Call> calls(StateId s) const { return {calls_.data() + call_begin_[at(s)], call_begin_[at(s) + 1] - call_begin_[at(s)]}; }
  std::span<const StateId> free(StateId s) const { return {free_.data() + free_begin_[at(s)], free_begin_[at(s) + 1] - free_begin_[at(s)]}; }
  bool accept(StateId s) const { return accept_[at(s)]; }
  // Nothing but the end of its rule: a call that returns here needs no return.
  bool tail(StateId s) const { return tail_[at(s)]; }
  // Tokens that are enough to reach the end of the rule. A bound from above: runs of forced bytes are
  // cut into tokens as well as can be, anything else counts a token a byte.
  std::int32_t cost(StateId s) const { return cost_[at(s)]; }
  // Calls within calls that cannot be avoided from here to the end of the rule.
  std::int32_t depth(StateId s) const { return depth_[at(s)]; }

  StateId start() const { return start_; }
  std::int32_t size() const { return static_cast<std::int32_t>(accept_.size()); }
  // Bytes of one class are equal to every state.
  std::uint8_t byte_class(std::uint8_t byte) const { return class_of_[byte]; }
  int num_classes() const { return num_classes_; }
  std::uint8_t some_byte(int byte_class) const { return some_byte_[static_cast<std::size_t>(byte_class)]; }
  const TokenTrie& trie() const { return *trie_; }
  std::size_t bytes() const;

 private:
  friend class GrammarBuilder;
  static std::size_t at(StateId s) { return static_cast<std::size_t>(s); }

  StateId start_ = 0;
  std::vector<std::uint32_t> edge_begin_, call_begin_, free_begin_;  // [size + 1]
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<StateId> free_;
  std::vector<char> accept_, tail_;
  std::vector<std::int32_t> cost_, depth_;
  std::array<std::uint8_t, 256> class_of_{}, some_byte_{};
  int num_classes_ = 0;
  std::shared_ptr<const TokenTrie> trie_;
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(Budget& budget) : budget_(budget) {}

  Budget& budget() { return budget_; }

  // A rule without content accepts nothing. start() is where its content begins; a state made by
  // state() belongs to the rule that reaches it; accept(s) ends the rule at s.
  RuleId rule();
  // Where `r` stands in its source, for refusals.
  void name(RuleId r, std::string place) { places_[r] = std::move(place); }
  StateId start(RuleId r) const { return rules_[static_cast<std::size_t>(r)]; }
  StateId state();
  void accept(StateId s) { states_[at(s)].accept = true; }

  void edge(StateId from, std::uint8_t lo, std::uint8_t hi, StateId to);
  void jump(StateId from, StateId to);             // without a byte
  StateId text(StateId from, std::string_view s);  // exactly these bytes; returns where they end
  void text(StateId from, std::string_view s, StateId to);
  void call(StateId from, RuleId r, StateId to);
  // The language of `d`; with `as_json_string` as the inside of a JSON string: quotes, backslashes and
  // control characters are escaped.
  void dfa(StateId from, const Dfa& d, StateId to, bool as_json_string = false);

  // Throws GrammarError: nothing can be accepted, or a rule calls itself before any byte.
  std::shared_ptr<const Grammar> finish(RuleId root, std::shared_ptr<const TokenTrie> trie);

 private:
  struct State {
    std::vector<Grammar::Edge> edges;
    std::vector<std::pair<RuleId, StateId>> calls;
    std::vector<StateId> free;
    bool accept = false;
  };
  static std::size_t at(StateId s) { return static_cast<std::size_t>(s); }

  std::vector<std::int32_t> token_costs(const TokenTrie& trie) const;
  std::vector<std::int32_t> depths() const;
  std::string place_of(RuleId r) const { return places_.contains(r) ? places_.at(r) : std::string(); }
  void refuse_left_recursion(const std::vector<std::int32_t>& cost) const;

  Budget& budget_;
  std::vector<State> states_;
  std::vector<StateId> rules_;
  std::map<RuleId, std::string> places_;
};

}  // namespace qengine::structured
