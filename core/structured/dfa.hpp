// Dfa: a deterministic automaton over bytes, for what needs intersection or complement: patterns,
// formats, number ranges, keys of additional properties.
//
// Languages are sets of UTF-8 texts: a byte that cannot be part of one leads nowhere.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "core/structured/budget.hpp"

namespace qengine::structured {

struct Dfa {
  static constexpr std::int32_t kDead = -1;
  struct State {
    std::array<std::int32_t, 256> next;
    bool accept = false;
    State() { next.fill(kDead); }
  };
  std::vector<State> states;  // 0 is the start; none: the empty language

  bool matches(std::string_view text) const;
  bool empty() const { return states.empty(); }  // after trim()

  // Drops states from which nothing can be accepted, then merges equal ones while that is cheap.
  void trim();
};

Dfa both(const Dfa& a, const Dfa& b, Budget& budget);      // in a and in b
Dfa without(const Dfa& a, const Dfa& b, Budget& budget);   // in a and not in b
Dfa either(const Dfa& a, const Dfa& b, Budget& budget);    // in a or in b
// Texts of a with least to most code points; most < 0: no bound.
Dfa with_length(const Dfa& a, std::int64_t least, std::int64_t most, Budget& budget);
// Any bytes up to and including the first `end`; and any bytes without it.
Dfa up_to(std::string_view end, Budget& budget);
Dfa never(std::string_view text, Budget& budget);
Dfa one_of(const std::vector<std::string_view>& texts, Budget& budget);

// Every state that `step` reaches from `first`: step(state, byte) is the next one or nullopt.
template <class S, class Step, class Accept>
Dfa enumerate(const S& first, std::string_view bytes, Step&& step, Accept&& accept, Budget& budget) {
  Dfa d;
  std::map<S, std::int32_t> ids;
  std::vector<S> todo;
  const auto id = [&](const S& s) {
    const auto [it, fresh] = ids.emplace(s, static_cast<std::int32_t>(ids.size()));
    if (fresh) {
      budget.charge(sizeof(Dfa::State) + sizeof(S));
      d.states.emplace_back();
      d.states.back().accept = accept(s);
      todo.push_back(s);
    }
    return it->second;
  };
  id(first);
  for (std::size_t i = 0; i < todo.size(); ++i) {
    const S s = todo[i];
    for (const char b : bytes)
      if (const std::optional<S> t = step(s, b)) {
        const std::int32_t to = id(*t);
        d.states[i].next[static_cast<unsigned char>(b)] = to;
      }
  }
  d.trim();
  return d;
}

}  // namespace qengine::structured
