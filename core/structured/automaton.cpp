#include "core/structured/automaton.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace qengine::structured {
namespace {

constexpr std::int32_t kUnknown = -1, kDead = -2;
constexpr std::int32_t kMaxDepth = 160;      // calls within calls: about two a level of JSON
constexpr std::size_t kMaxStacks = 8192;     // readings of one text at once
constexpr std::size_t kMaxWork = 10'000'000; // stacks looked at for one mask: about half a second
constexpr std::size_t kMaxGrowth = 32 << 20;  // bytes learned for one mask
constexpr std::size_t kFewStacks = 4;        // so few are walked rule by rule
constexpr std::int32_t kNear = 16;           // tokens from the end: from there on masks are made anew
constexpr std::size_t kMostDear = 4096;
constexpr std::size_t kSparse = 32;          // a list of ids beats bits below vocab / this

}  // namespace

class Automaton::Tables {
 public:
  Tables(const Grammar& g, const std::vector<std::int32_t>& ends, std::size_t max_bytes) : g_(g), trie_(g.trie()), ends_(ends), max_bytes_(max_bytes), classes_(static_cast<std::size_t>(g.num_classes())), path_(static_cast<std::size_t>(g.trie().longest()) + 1) {
    start_ = closed({stack(g.start(), -1)});
  }

  struct Stack {
    StateId state;
    std::int32_t below;  // -1: nothing
    std::int32_t total;  // tokens to the end of the text
    std::int32_t depth;
  };
  struct Config {
    std::vector<std::int32_t> stacks;  // sorted
    bool complete;
    std::int32_t cost;
    std::shared_ptr<const Mask> mask;
  };

  std::int32_t start() const { return start_; }
  const Config& operator[](std::int32_t c) const { return configs_[static_cast<std::size_t>(c)]; }
  std::size_t bytes() const { return bytes_; }
  // Of the next call. A grammar with very many readings of one text is given up, not followed at any price.
  void new_allowance() { work_ = 0; }

  std::int32_t step(std::int32_t config, std::uint8_t byte) {
    const std::size_t slot = static_cast<std::size_t>(config) * classes_ + g_.byte_class(byte);
    if (next_[slot] != kUnknown) return next_[slot];
    const std::uint8_t b = g_.some_byte(g_.byte_class(byte));
    std::vector<std::int32_t> seeds;
    work((*this)[config].stacks.size());
    for (const std::int32_t i : (*this)[config].stacks) {
      const Stack s = stacks_[static_cast<std::size_t>(i)];
      for (const Grammar::Edge& e : g_.edges(s.state))
        if (e.lo <= b && b <= e.hi)
          if (const std::int32_t t = stack(e.to, s.below); t >= 0) seeds.push_back(t);
    }
    const std::int32_t to = closed(std::move(seeds));
    return next_[slot] = to;
  }

  std::shared_ptr<const Mask> mask(std::int32_t config) {
    if (const auto& known = (*this)[config].mask) return known;
    auto m = std::make_shared<Mask>();
    m->bits.assign(words(), 0);
    const std::vector<std::int32_t> stacks = (*this)[config].stacks;
    if (stacks.size() <= kFewStacks) {
      for (const std::int32_t i : stacks) {
        const Stack s = stacks_[static_cast<std::size_t>(i)];
        const Local& l = local(s.state);
        const std::int32_t below = s.below < 0 ? 0 : stacks_[static_cast<std::size_t>(s.below)].total;
        if (!l.bits.empty())
          for (std::size_t w = 0; w < m->bits.size(); ++w) m->bits[w] |= l.bits[w];
        for (const std::int32_t t : l.few) set(*m, t);
        m->worst = std::max(m->worst, std::min(Grammar::kNever, l.worst + below));
        if (stacks.size() == 1 && l.dear.size() <= kMostDear) {
          m->near = s.total + kNear;
          for (const auto& [t, cost] : l.dear) m->dear.emplace_back(t, std::min(Grammar::kNever, cost + below));
        }
        if (s.below < 0 || l.exits.empty()) continue;
        const std::int32_t rest = closed({s.below});
        if (rest == kDead) continue;
        const std::size_t within = m->dear.size();
        for (const std::int32_t e : l.exits)
          walk(e, rest, [&](std::int32_t t, std::int32_t cost) {
            set(*m, t);
            m->worst = std::max(m->worst, cost);
            if (m->near == Grammar::kNever) return;
            if (cost > m->near) m->dear.emplace_back(t, cost);
            else if (within > 0) std::erase_if(m->dear, [t = t](const auto& d) { return d.first == t; });  // another reading is near
          });
        if (m->dear.size() > kMostDear) m->near = Grammar::kNever, m->dear.clear();
      }
    } else {
      walk(0, config, [&](std::int32_t t, std::int32_t cost) { set(*m, t), m->worst = std::max(m->worst, cost); });
    }
    if ((*this)[config].complete)
      for (const std::int32_t t : ends_) set(*m, t);
    bytes_ += m->bits.size() * 4 + m->dear.size() * 8 + 64;
    return configs_[static_cast<std::size_t>(config)].mask = std::move(m);
  }

  Mask mask_within(std::int32_t config, std::int32_t budget) {
    Mask m;
    if (const auto all = mask(config); budget >= all->near) {
      m.bits = all->bits;
      m.worst = budget;
      for (const auto& [t, cost] : all->dear)
        if (cost > budget) m.bits[static_cast<std::size_t>(t) / 32] &= ~(1u << (t % 32));
      return m;
    }
    m.bits.assign(words(), 0);
    std::int32_t least = (*this)[config].complete ? 0 : Grammar::kNever;  // ending here is a choice too
    walk(0, config, [&](std::int32_t t, std::int32_t cost) {
      least = std::min(least, cost);
      if (cost <= budget) set(m, t), m.worst = std::max(m.worst, cost);
    });
    if (least > budget) {
      m.worst = least;
      walk(0, config, [&](std::int32_t t, std::int32_t cost) {
        if (cost == least) set(m, t);
      });
    }
    if ((*this)[config].complete)
      for (const std::int32_t t : ends_) set(m, t);
    return m;
  }

  // The same stacks in these tables.
  std::int32_t adopt(const Tables& from, std::int32_t config) {
    std::vector<std::int32_t> mine;
    for (const std::int32_t i : from[config].stacks) {
      std::vector<StateId> path;  // top first
      for (std::int32_t j = i; j >= 0; j = from.stacks_[static_cast<std::size_t>(j)].below) path.push_back(from.stacks_[static_cast<std::size_t>(j)].state);
      std::int32_t at = -1;
      for (auto s = path.rbegin(); s != path.rend(); ++s) at = stack(*s, at);
      mine.push_back(at);
    }
    std::ranges::sort(mine);
    return intern(std::move(mine), from[config].complete);
  }

 private:
  // What a state allows within its own rule.
  struct Local {
    bool known = false;
    std::vector<std::uint32_t> bits;    // many tokens, or
    std::vector<std::int32_t> few;      // few
    std::vector<std::pair<std::int32_t, std::int32_t>> dear;  // token, cost: far above the state's own
    std::vector<std::int32_t> exits;    // nodes of the tree at which the rule may end, with children
    std::int32_t worst = 0;
  };

  void work(std::size_t n) {
    if ((work_ += n) > kMaxWork || bytes_ > max_bytes_ + kMaxGrowth) throw GrammarError("", "leaves too many readings of one text open");
  }
  std::size_t words() const { return (static_cast<std::size_t>(trie_.vocab_size()) + 31) / 32; }
  void set(Mask& m, std::int32_t t) const {
    if (t < trie_.vocab_size()) m.bits[static_cast<std::size_t>(t) / 32] |= 1u << (t % 32);
  }

  // -1: so deep a stack could not be brought to an end.
  std::int32_t stack(StateId s, std::int32_t below) {
    const std::int32_t depth = below < 0 ? 0 : stacks_[static_cast<std::size_t>(below)].depth + 1;
    if (below >= 0 && depth + g_.depth(s) > kMaxDepth) return -1;
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(s)) << 32 | static_cast<std::uint32_t>(below);
    const auto [it, fresh] = stack_ids_.emplace(key, static_cast<std::int32_t>(stacks_.size()));
    if (fresh) {
      const std::int32_t rest = below < 0 ? 0 : stacks_[static_cast<std::size_t>(below)].total;
      stacks_.push_back({s, below, std::min(Grammar::kNever, g_.cost(s) + rest), depth});
      bytes_ += sizeof(Stack) + 40;
    }
    return it->second;
  }

  // Everything that `seeds` reach without a byte, as far as it has bytes to read.
  std::int32_t closed(std::vector<std::int32_t> seeds) {
    std::vector<std::int32_t> out;
    bool complete = false;
    ++round_;
    while (!seeds.empty()) {
      const std::int32_t i = seeds.back();
      seeds.pop_back();
      work(1);
      if (static_cast<std::size_t>(i) >= mark_.size()) mark_.resize(stacks_.size() * 2 + 64);
      if (std::exchange(mark_[static_cast<std::size_t>(i)], round_) == round_) continue;
      const Stack s = stacks_[static_cast<std::size_t>(i)];
      if (!g_.edges(s.state).empty()) out.push_back(i);
      for (const StateId t : g_.free(s.state))
        if (const std::int32_t j = stack(t, s.below); j >= 0) seeds.push_back(j);
      for (const Grammar::Call& c : g_.calls(s.state)) {
        const std::int32_t below = g_.tail(c.to) ? s.below : stack(c.to, s.below);
        if (below < 0 && !g_.tail(c.to)) continue;
        if (const std::int32_t j = stack(c.start, below); j >= 0) seeds.push_back(j);
      }
      if (g_.accept(s.state)) {
        if (s.below < 0) complete = true;
        else seeds.push_back(s.below);
      }
      if (out.size() > kMaxStacks) throw GrammarError("", "leaves more than " + std::to_string(kMaxStacks) + " readings of one text open");
    }
    if (out.empty() && !complete) return kDead;
    std::ranges::sort(out);
    return intern(std::move(out), complete);
  }

  std::int32_t intern(std::vector<std::int32_t> stacks, bool complete) {
    std::uint64_t h = complete;
    for (const std::int32_t s : stacks) h = (h ^ static_cast<std::uint32_t>(s)) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    for (auto [it, end] = config_ids_.equal_range(h); it != end; ++it)
      if (const Config& c = (*this)[it->second]; c.complete == complete && c.stacks == stacks) return it->second;
    const auto id = static_cast<std::int32_t>(configs_.size());
    std::int32_t cost = complete ? 0 : Grammar::kNever;
    for (const std::int32_t s : stacks) cost = std::min(cost, stacks_[static_cast<std::size_t>(s)].total);
    bytes_ += sizeof(Config) + stacks.size() * 4 + classes_ * 4 + 64;
    configs_.push_back({std::move(stacks), complete, cost, nullptr});
    next_.resize(next_.size() + classes_, kUnknown);
    config_ids_.emplace(h, id);
    return id;
  }

  // Calls f(token, cost after it) for every token below node `top` that `config` can read from there.
  template <class F>
  void walk(std::int32_t top, std::int32_t config, F&& f) {
    const int base = trie_[top].depth;
    path_[0] = config;
    for (std::int32_t i = top + 1; i < trie_[top].skip;) {
      const TokenTrie::Node& n = trie_[i];
      const auto depth = static_cast<std::size_t>(n.depth - base);
      const std::int32_t at = step(path_[depth - 1], n.byte);
      if (at == kDead) {
        i = n.skip;
        continue;
      }
      path_[depth] = at;
      if (const auto tokens = trie_.tokens(i); !tokens.empty()) {
        const std::int32_t cost = (*this)[at].cost;
        for (const std::int32_t t : tokens) f(t, cost);
      }
      ++i;
    }
  }

  const Local& local(StateId s) {
    if (locals_.empty()) locals_.resize(static_cast<std::size_t>(g_.size()));
    if (locals_[static_cast<std::size_t>(s)].known) return locals_[static_cast<std::size_t>(s)];
    Local l;
    l.known = true;
    const std::int32_t alone = intern({stack(s, -1)}, false);
    path_[0] = alone;
    for (std::int32_t i = 1; i < trie_[0].skip;) {
      const TokenTrie::Node& n = trie_[i];
      const std::int32_t at = step(path_[n.depth - 1u], n.byte);
      if (at == kDead) {
        i = n.skip;
        continue;
      }
      path_[n.depth] = at;
      const Config& c = (*this)[at];
      for (const std::int32_t t : trie_.tokens(i)) {
        l.few.push_back(t);
        l.worst = std::max(l.worst, c.cost);
        if (c.cost > g_.cost(s) + kNear) l.dear.emplace_back(t, c.cost);
      }
      if (c.complete && n.skip > i + 1) l.exits.push_back(i);
      ++i;
    }
    if (l.few.size() * kSparse > static_cast<std::size_t>(trie_.vocab_size())) {
      l.bits.assign(words(), 0);
      for (const std::int32_t t : l.few) l.bits[static_cast<std::size_t>(t) / 32] |= 1u << (t % 32);
      l.few = {};
    }
    bytes_ += l.bits.size() * 4 + l.few.size() * 4 + l.dear.size() * 8 + l.exits.size() * 4;
    return locals_[static_cast<std::size_t>(s)] = std::move(l);
  }

  const Grammar& g_;
  const TokenTrie& trie_;
  const std::vector<std::int32_t>& ends_;
  std::size_t max_bytes_, classes_;
  std::size_t work_ = 0;
  std::int32_t start_ = 0;
  std::size_t bytes_ = 0;
  std::vector<Stack> stacks_;
  std::unordered_map<std::uint64_t, std::int32_t> stack_ids_;
  std::vector<Config> configs_;
  std::vector<std::int32_t> next_;  // [configs, classes]
  std::unordered_multimap<std::uint64_t, std::int32_t> config_ids_;
  std::vector<Local> locals_;
  std::vector<std::int32_t> path_;  // configs from the root of a walk
  std::vector<int> mark_;
  int round_ = 0;
};

Automaton::Automaton(std::shared_ptr<const Grammar> grammar, std::vector<std::int32_t> end_tokens, std::size_t max_bytes)
    : grammar_(std::move(grammar)), end_tokens_(std::move(end_tokens)), max_bytes_(max_bytes) {
  if (grammar_->depth(grammar_->start()) > kMaxDepth)
    throw GrammarError("", "needs values nested deeper than " + std::to_string(kMaxDepth) + " levels");
  tables_ = std::make_shared<Tables>(*grammar_, end_tokens_, max_bytes_);
  if (tables_->start() < 0) throw GrammarError("", "needs values nested too deeply");
}

Automaton::~Automaton() = default;

Automaton::Place Automaton::start() const {
  const std::lock_guard lock(mutex_);
  return {tables_, tables_->start()};
}

void Automaton::renew(Place& place) const {
  if (tables_->bytes() > max_bytes_) tables_ = std::make_shared<Tables>(*grammar_, end_tokens_, max_bytes_);
  tables_->new_allowance();
  if (place.tables == tables_) return;
  place.config = tables_->adopt(*place.tables, place.config);
  place.tables = tables_;
}

bool Automaton::advance(Place& place, std::string_view bytes) const {
  const std::lock_guard lock(mutex_);
  renew(place);
  std::int32_t at = place.config;
  for (const char b : bytes)
    if ((at = tables_->step(at, static_cast<std::uint8_t>(b))) == kDead) return false;
  place.config = at;
  return true;
}

bool Automaton::may_end(const Place& place) const {
  const std::lock_guard lock(mutex_);
  return (*place.tables)[place.config].complete;
}

bool Automaton::must_end(const Place& place) const {
  const std::lock_guard lock(mutex_);
  return (*place.tables)[place.config].stacks.empty();
}

std::int32_t Automaton::cost(const Place& place) const {
  const std::lock_guard lock(mutex_);
  return (*place.tables)[place.config].cost;
}

std::shared_ptr<const Mask> Automaton::mask(Place& place) const {
  const std::lock_guard lock(mutex_);
  renew(place);
  return tables_->mask(place.config);
}

Mask Automaton::mask_within(Place& place, std::int32_t budget) const {
  const std::lock_guard lock(mutex_);
  renew(place);
  return tables_->mask_within(place.config, budget);
}

bool Automaton::is_end(std::int32_t token) const { return std::ranges::find(end_tokens_, token) != end_tokens_.end(); }

std::size_t Automaton::bytes() const {
  const std::lock_guard lock(mutex_);
  return tables_->bytes() + grammar_->bytes();
}

}  // namespace qengine::structured
