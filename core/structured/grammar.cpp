#include "core/structured/grammar.hpp"

#include <algorithm>
#include <bitset>
#include <cstdio>
#include <limits>
#include <map>
#include <queue>
#include <string>
#include <utility>

namespace qengine::structured {

std::size_t Grammar::bytes() const {
  return edges_.size() * sizeof(Edge) + calls_.size() * sizeof(Call) + free_.size() * sizeof(StateId) + accept_.size() * 32;
}

RuleId GrammarBuilder::rule() {
  rules_.push_back(state());
  return static_cast<RuleId>(rules_.size()) - 1;
}

StateId GrammarBuilder::state() {
  budget_.charge(sizeof(State) + 32);
  states_.emplace_back();
  return static_cast<StateId>(states_.size()) - 1;
}

void GrammarBuilder::edge(StateId from, std::uint8_t lo, std::uint8_t hi, StateId to) {
  budget_.charge(sizeof(Grammar::Edge) * 2);
  states_[at(from)].edges.push_back({lo, hi, to});
}

void GrammarBuilder::jump(StateId from, StateId to) {
  budget_.charge(sizeof(StateId) * 2);
  states_[at(from)].free.push_back(to);
}

StateId GrammarBuilder::text(StateId from, std::string_view s) {
  for (const char c : s) {
    const StateId next = state();
    edge(from, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
    from = next;
  }
  return from;
}

void GrammarBuilder::text(StateId from, std::string_view s, StateId to) {
  if (s.empty()) return jump(from, to);
  from = text(from, s.substr(0, s.size() - 1));
  edge(from, static_cast<std::uint8_t>(s.back()), static_cast<std::uint8_t>(s.back()), to);
}

void GrammarBuilder::call(StateId from, RuleId r, StateId to) {
  budget_.charge(sizeof(Grammar::Call) * 2);
  states_[at(from)].calls.emplace_back(r, to);
}

void GrammarBuilder::dfa(StateId from, const Dfa& d, StateId to, bool as_json_string) {
  if (d.states.empty()) return;
  std::vector<StateId> name;
  for (std::size_t i = 0; i < d.states.size(); ++i) name.push_back(state());
  jump(from, name[0]);
  const auto target = [&](std::int32_t t) { return name[static_cast<std::size_t>(t)]; };
  for (std::size_t i = 0; i < d.states.size(); ++i) {
    const Dfa::State& s = d.states[i];
    if (s.accept) jump(name[i], to);
    const auto special = [&](int b) { return as_json_string && (b < 0x20 || b == '"' || b == '\\'); };
    for (int lo = 0; lo < 256;) {
      const std::int32_t t = s.next[static_cast<std::size_t>(lo)];
      int hi = lo + 1;
      while (hi < 256 && s.next[static_cast<std::size_t>(hi)] == t && special(hi) == special(lo)) ++hi;
      if (t != Dfa::kDead && !special(lo)) edge(name[i], static_cast<std::uint8_t>(lo), static_cast<std::uint8_t>(hi - 1), target(t));
      lo = hi;
    }
    if (!as_json_string) continue;
    StateId escape = -1;
    for (int b = 0; b < 0x80; ++b) {
      const std::int32_t t = s.next[static_cast<std::size_t>(b)];
      if (!special(b) || t == Dfa::kDead) continue;
      if (escape < 0) edge(name[i], '\\', '\\', escape = state());
      const char* known = b == '"' ? "\"" : b == '\\' ? "\\" : b == '\n' ? "n" : b == '\r' ? "r" : b == '\t' ? "t" : b == '\b' ? "b" : b == '\f' ? "f" : nullptr;
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "u%04x", b);
      text(escape, known ? known : buffer, target(t));
    }
  }
}

// ---- finish --------------------------------------------------------------------------------------

namespace {

// Knuth's generalization of Dijkstra's algorithm: the least value of every state to the end of its
// rule, where a step to `to` costs step(w, value[to]) and a call combine(value[start], value[to]).
template <class S, class Step, class Combine>
std::vector<std::int32_t> least_values(const std::vector<S>& states, const std::vector<StateId>& rules, const std::vector<std::vector<std::pair<StateId, std::int32_t>>>& shortcuts, Step&& step,
                                       Combine&& combine) {
  struct Back {
    StateId from;
    std::int32_t weight;  // of a step; -1: a call that returns here
    StateId other;        // of a call: the other of (start, to)
  };
  const auto at = [](StateId s) { return static_cast<std::size_t>(s); };
  std::vector<std::vector<Back>> back(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto s = static_cast<StateId>(i);
    StateId last = -1;
    for (const Grammar::Edge& e : states[i].edges)
      if (e.to != last) back[at(last = e.to)].push_back({s, 1, -1});
    for (const StateId t : states[i].free) back[at(t)].push_back({s, 0, -1});
    for (const auto& [r, to] : states[i].calls) {
      back[at(to)].push_back({s, -1, rules[at(r)]});
      back[at(rules[at(r)])].push_back({s, -1, to});
    }
    if (!shortcuts.empty())
      for (const auto& [t, w] : shortcuts[i]) back[at(t)].push_back({s, w, -1});
  }
  std::vector<std::int32_t> value(states.size(), Grammar::kNever);
  std::vector<char> done(states.size());
  using Item = std::pair<std::int32_t, StateId>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  const auto offer = [&](StateId s, std::int32_t v) {
    if (v < value[at(s)]) queue.emplace(value[at(s)] = v, s);
  };
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i].accept) offer(static_cast<StateId>(i), 0);
  while (!queue.empty()) {
    const StateId s = queue.top().second;
    queue.pop();
    if (std::exchange(done[at(s)], 1)) continue;
    for (const Back& b : back[at(s)]) {
      if (b.weight >= 0) offer(b.from, step(b.weight, value[at(s)]));
      else if (done[at(b.other)]) {
        // combine() is not symmetric: find which of the two is the called rule.
        for (const auto& [r, to] : states[at(b.from)].calls)
          if ((to == s && rules[at(r)] == b.other) || (to == b.other && rules[at(r)] == s)) offer(b.from, combine(value[at(rules[at(r)])], value[at(to)]));
      }
    }
  }
  return value;
}

constexpr std::int32_t kMost = Grammar::kNever - 1;

}  // namespace

std::vector<std::int32_t> GrammarBuilder::token_costs(const TokenTrie& trie) const {
  // Where the next bytes are forced, whole tokens of them are single steps.
  std::vector<std::vector<std::pair<StateId, std::int32_t>>> shortcuts(states_.size());
  const auto forced = [&](StateId s) -> const Grammar::Edge* {
    const State& x = states_[at(s)];
    return x.edges.size() == 1 && x.edges[0].lo == x.edges[0].hi && x.calls.empty() && x.free.empty() && !x.accept ? &x.edges[0] : nullptr;
  };
  for (std::size_t i = 0; i < states_.size(); ++i) {
    StateId s = static_cast<StateId>(i);
    std::int32_t node = 0;
    for (int n = 1;; ++n) {
      const Grammar::Edge* e = forced(s);
      if (!e || (node = trie.child(node, e->lo)) < 0) break;
      s = e->to;
      if (n > 1 && !trie.tokens(node).empty()) shortcuts[i].emplace_back(s, 1);
    }
  }
  return least_values(
      states_, rules_, shortcuts, [](std::int32_t w, std::int32_t v) { return std::min(kMost, w + v); }, [](std::int32_t called, std::int32_t rest) { return std::min(kMost, called + rest); });
}

std::vector<std::int32_t> GrammarBuilder::depths() const {
  return least_values(
      states_, rules_, {}, [](std::int32_t, std::int32_t v) { return v; }, [](std::int32_t called, std::int32_t rest) { return std::max(std::min(kMost, called + 1), rest); });
}

// A cycle of steps without a byte that goes through a call would push for ever.
void GrammarBuilder::refuse_left_recursion(const std::vector<std::int32_t>& cost) const {
  const std::size_t n = states_.size();
  std::vector<std::int32_t> index(n, -1), low(n), component(n, -1);
  std::vector<StateId> stack;
  struct Frame {
    StateId s;
    std::size_t next = 0;
  };
  // Targets without a byte: jumps, starts of called rules, and returns of rules that may be empty.
  const auto targets = [&](StateId s) {
    std::vector<StateId> out = states_[at(s)].free;
    for (const auto& [r, to] : states_[at(s)].calls) {
      if (cost[at(start(r))] >= Grammar::kNever || cost[at(to)] >= Grammar::kNever) continue;
      out.push_back(start(r));
      if (cost[at(start(r))] == 0) out.push_back(to);
    }
    return out;
  };
  std::int32_t counter = 0, components = 0;
  for (std::size_t root = 0; root < n; ++root) {
    if (index[root] >= 0) continue;
    std::vector<std::pair<Frame, std::vector<StateId>>> path;
    const auto enter = [&](StateId s) {
      index[at(s)] = low[at(s)] = counter++;
      stack.push_back(s);
      path.emplace_back(Frame{s}, targets(s));
    };
    enter(static_cast<StateId>(root));
    while (!path.empty()) {
      auto& [frame, to] = path.back();
      if (frame.next < to.size()) {
        const StateId t = to[frame.next++];
        if (index[at(t)] < 0) enter(t);
        else if (component[at(t)] < 0) low[at(frame.s)] = std::min(low[at(frame.s)], index[at(t)]);
        continue;
      }
      const StateId s = frame.s;
      if (low[at(s)] == index[at(s)]) {
        for (StateId t = -1; t != s;) {
          t = stack.back();
          stack.pop_back();
          component[at(t)] = components;
        }
        ++components;
      }
      path.pop_back();
      if (!path.empty()) low[at(path.back().first.s)] = std::min(low[at(path.back().first.s)], low[at(s)]);
    }
  }
  for (std::size_t i = 0; i < n; ++i)
    for (const auto& [r, to] : states_[i].calls)
      if (cost[at(start(r))] < Grammar::kNever && cost[at(to)] < Grammar::kNever && component[i] == component[at(start(r))])
        throw GrammarError(place_of(r), "refers to itself without anything in between");
}

std::shared_ptr<const Grammar> GrammarBuilder::finish(RuleId root, std::shared_ptr<const TokenTrie> trie) {
  budget_.place.clear();
  budget_.charge(states_.size() * 64);
  const std::vector<std::int32_t> cost = token_costs(*trie), depth = depths();
  if (cost[at(start(root))] >= Grammar::kNever) throw GrammarError(place_of(root), "allows no value at all");
  refuse_left_recursion(cost);

  // Where a state leads that does nothing but jump: calls that go on at the same place then have the
  // same stack, and are one reading.
  const auto onward = [&](StateId s) {
    for (int i = 0; i < 64; ++i) {  // jumps may go round
      const State& x = states_[at(s)];
      if (x.accept || !x.edges.empty() || !x.calls.empty() || x.free.size() != 1) break;
      s = x.free[0];
    }
    return s;
  };
  for (State& s : states_) {
    for (Grammar::Edge& e : s.edges) e.to = onward(e.to);
    for (auto& [r, to] : s.calls) to = onward(to);
  }

  // Keep what the start reaches and what can end.
  std::vector<StateId> name(states_.size(), -1), order;
  const auto visit = [&](StateId s) {
    if (name[at(s)] >= 0 || cost[at(s)] >= Grammar::kNever) return;
    name[at(s)] = static_cast<StateId>(order.size());
    order.push_back(s);
  };
  const auto alive = [&](RuleId r, StateId to) { return cost[at(start(r))] < Grammar::kNever && cost[at(to)] < Grammar::kNever; };
  visit(start(root));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const State& s = states_[at(order[i])];
    for (const Grammar::Edge& e : s.edges) visit(e.to);
    for (const StateId t : s.free) visit(t);
    for (const auto& [r, to] : s.calls)
      if (alive(r, to)) visit(start(r)), visit(to);
  }

  auto g = std::make_shared<Grammar>();
  g->trie_ = std::move(trie);
  g->start_ = name[at(start(root))];
  std::bitset<257> cuts;
  for (const StateId old : order) {
    const State& s = states_[at(old)];
    g->edge_begin_.push_back(static_cast<std::uint32_t>(g->edges_.size()));
    g->call_begin_.push_back(static_cast<std::uint32_t>(g->calls_.size()));
    g->free_begin_.push_back(static_cast<std::uint32_t>(g->free_.size()));
    for (const Grammar::Edge& e : s.edges)
      if (name[at(e.to)] >= 0) {
        g->edges_.push_back({e.lo, e.hi, name[at(e.to)]});
        cuts.set(e.lo);
        cuts.set(e.hi + 1u);
      }
    for (const StateId t : s.free)
      if (name[at(t)] >= 0) g->free_.push_back(name[at(t)]);
    for (const auto& [r, to] : s.calls)
      if (alive(r, to)) g->calls_.push_back({name[at(start(r))], name[at(to)]});
    g->accept_.push_back(s.accept);
    g->cost_.push_back(cost[at(old)]);
    g->depth_.push_back(depth[at(old)]);
  }
  g->edge_begin_.push_back(static_cast<std::uint32_t>(g->edges_.size()));
  g->call_begin_.push_back(static_cast<std::uint32_t>(g->calls_.size()));
  g->free_begin_.push_back(static_cast<std::uint32_t>(g->free_.size()));

  // Classes are runs of bytes between two cuts; runs that every state treats alike could share one,
  // but there are few enough.
  for (int b = 0, c = -1; b < 256; ++b) {
    if (b == 0 || cuts[static_cast<std::size_t>(b)]) g->some_byte_[static_cast<std::size_t>(++c)] = static_cast<std::uint8_t>(b);
    g->class_of_[static_cast<std::size_t>(b)] = static_cast<std::uint8_t>(c);
    g->num_classes_ = c + 1;
  }

  // Tail states: only jumps, and all of them end.
  g->tail_.assign(order.size(), 0);
  for (StateId s = 0; s < g->size(); ++s) {
    std::vector<StateId> todo = {s};
    std::vector<StateId> seen;
    bool ends = false, only = true;
    while (!todo.empty() && only && seen.size() < 16) {
      const StateId t = todo.back();
      todo.pop_back();
      if (std::ranges::find(seen, t) != seen.end()) continue;
      seen.push_back(t);
      only = g->edges(t).empty() && g->calls(t).empty();
      ends |= g->accept(t);
      todo.insert(todo.end(), g->free(t).begin(), g->free(t).end());
    }
    g->tail_[at(s)] = ends && only && todo.empty();
  }
  return g;
}

}  // namespace qengine::structured
