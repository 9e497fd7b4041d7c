#include "core/structured/dfa.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace qengine::structured {
namespace {

constexpr std::size_t kMergeUpTo = 256;  // states; merging costs up to this squared

bool lead(int byte) { return (byte & 0xC0) != 0x80; }

// Moore's partition refinement.
void merge_equal(Dfa& d) {
  std::vector<std::int32_t> group(d.states.size());
  for (std::size_t i = 0; i < group.size(); ++i) group[i] = d.states[i].accept;
  for (std::size_t n = 0;;) {
    std::map<std::pair<std::int32_t, std::array<std::int32_t, 256>>, std::int32_t> seen;
    std::vector<std::int32_t> next(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) {
      std::pair<std::int32_t, std::array<std::int32_t, 256>> key{group[i], {}};
      for (int b = 0; b < 256; ++b) {
        const std::int32_t t = d.states[i].next[static_cast<std::size_t>(b)];
        key.second[static_cast<std::size_t>(b)] = t == Dfa::kDead ? -1 : group[static_cast<std::size_t>(t)];
      }
      next[i] = seen.emplace(std::move(key), static_cast<std::int32_t>(seen.size())).first->second;
    }
    group = std::move(next);
    if (seen.size() == n) break;
    n = seen.size();
  }
  // State 0 was seen first, so its group is 0.
  Dfa out;
  out.states.resize(static_cast<std::size_t>(*std::ranges::max_element(group)) + 1);
  for (std::size_t i = 0; i < group.size(); ++i) {
    Dfa::State& s = out.states[static_cast<std::size_t>(group[i])];
    s.accept = d.states[i].accept;
    for (std::size_t b = 0; b < 256; ++b) s.next[b] = d.states[i].next[b] == Dfa::kDead ? Dfa::kDead : group[static_cast<std::size_t>(d.states[i].next[b])];
  }
  d = std::move(out);
}

// Pairs of states; dead counts as a state of b where `b_may_die`, of a where `a_may_die`.
template <class Accept>
Dfa product(const Dfa& a, const Dfa& b, bool a_may_die, bool b_may_die, Accept&& accept, Budget& budget) {
  Dfa d;
  std::unordered_map<std::uint64_t, std::int32_t> ids;
  std::vector<std::pair<std::int32_t, std::int32_t>> todo;
  const auto id = [&](std::int32_t p, std::int32_t q) {
    if ((p == Dfa::kDead && (!a_may_die || q == Dfa::kDead)) || (q == Dfa::kDead && !b_may_die)) return Dfa::kDead;
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(p)) << 32 | static_cast<std::uint32_t>(q);
    const auto [it, fresh] = ids.emplace(key, static_cast<std::int32_t>(ids.size()));
    if (fresh) {
      budget.charge(sizeof(Dfa::State) + 32);
      d.states.emplace_back();
      d.states.back().accept = accept(p != Dfa::kDead && a.states[static_cast<std::size_t>(p)].accept, q != Dfa::kDead && b.states[static_cast<std::size_t>(q)].accept);
      todo.emplace_back(p, q);
    }
    return it->second;
  };
  const auto start = [](const Dfa& x) { return x.empty() ? Dfa::kDead : 0; };
  if (id(start(a), start(b)) == Dfa::kDead) return {};
  for (std::size_t i = 0; i < todo.size(); ++i) {
    const auto [p, q] = todo[i];
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::int32_t to = id(p == Dfa::kDead ? Dfa::kDead : a.states[static_cast<std::size_t>(p)].next[byte], q == Dfa::kDead ? Dfa::kDead : b.states[static_cast<std::size_t>(q)].next[byte]);
      d.states[i].next[byte] = to;
    }
  }
  d.trim();
  return d;
}

}  // namespace

bool Dfa::matches(std::string_view text) const {
  std::int32_t s = states.empty() ? kDead : 0;
  for (const char c : text) {
    if (s == kDead) return false;
    s = states[static_cast<std::size_t>(s)].next[static_cast<unsigned char>(c)];
  }
  return s != kDead && states[static_cast<std::size_t>(s)].accept;
}

void Dfa::trim() {
  std::vector<std::vector<std::int32_t>> before(states.size());
  std::vector<char> useful(states.size());
  std::vector<std::int32_t> todo;
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::int32_t last = kDead;
    for (const std::int32_t t : states[i].next)
      if (t != kDead && t != last) before[static_cast<std::size_t>(last = t)].push_back(static_cast<std::int32_t>(i));
    if (states[i].accept) useful[i] = 1, todo.push_back(static_cast<std::int32_t>(i));
  }
  while (!todo.empty()) {
    const std::int32_t s = todo.back();
    todo.pop_back();
    for (const std::int32_t p : before[static_cast<std::size_t>(s)])
      if (!std::exchange(useful[static_cast<std::size_t>(p)], 1)) todo.push_back(p);
  }
  if (states.empty() || !useful[0]) {
    states.clear();
    return;
  }
  std::vector<std::int32_t> name(states.size(), kDead);
  std::int32_t n = 0;
  for (std::size_t i = 0; i < states.size(); ++i)
    if (useful[i]) name[i] = n++;
  std::vector<State> kept;
  kept.reserve(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!useful[i]) continue;
    for (std::int32_t& t : states[i].next) t = t == kDead ? kDead : name[static_cast<std::size_t>(t)];
    kept.push_back(states[i]);
  }
  states = std::move(kept);
  if (states.size() <= kMergeUpTo) merge_equal(*this);
}

Dfa both(const Dfa& a, const Dfa& b, Budget& budget) {
  return product(a, b, false, false, [](bool x, bool y) { return x && y; }, budget);
}
Dfa without(const Dfa& a, const Dfa& b, Budget& budget) {
  return product(a, b, false, true, [](bool x, bool y) { return x && !y; }, budget);
}
Dfa either(const Dfa& a, const Dfa& b, Budget& budget) {
  return product(a, b, true, true, [](bool x, bool y) { return x || y; }, budget);
}

Dfa with_length(const Dfa& a, std::int64_t least, std::int64_t most, Budget& budget) {
  if (a.empty() || (least <= 0 && most < 0)) return a;
  using S = std::pair<std::int32_t, std::int64_t>;  // state, code points begun
  std::string bytes(256, '\0');
  for (int b = 0; b < 256; ++b) bytes[static_cast<std::size_t>(b)] = static_cast<char>(b);
  return enumerate(
      S{0, 0}, bytes,
      [&](const S& s, char b) -> std::optional<S> {
        const std::int32_t t = a.states[static_cast<std::size_t>(s.first)].next[static_cast<unsigned char>(b)];
        if (t == Dfa::kDead) return std::nullopt;
        std::int64_t n = s.second + lead(static_cast<unsigned char>(b));
        if (most >= 0 && n > most) return std::nullopt;
        if (most < 0) n = std::min(n, least);
        return S{t, n};
      },
      [&](const S& s) { return a.states[static_cast<std::size_t>(s.first)].accept && s.second >= least; }, budget);
}

namespace {

// How much of `text` the end of what was read begins (Knuth, Morris, Pratt).
Dfa watch(std::string_view text, bool wanted, Budget& budget) {
  std::string bytes(256, '\0');
  for (int b = 0; b < 256; ++b) bytes[static_cast<std::size_t>(b)] = static_cast<char>(b);
  return enumerate(
      std::size_t{0}, bytes,
      [&](std::size_t n, char b) -> std::optional<std::size_t> {
        if (n == text.size()) return std::nullopt;
        std::string read = std::string(text.substr(0, n)) + b;
        while (!text.starts_with(read)) read.erase(0, 1);
        if (!wanted && read.size() == text.size()) return std::nullopt;
        return read.size();
      },
      [&](std::size_t n) { return wanted ? n == text.size() : true; }, budget);
}

}  // namespace

Dfa up_to(std::string_view end, Budget& budget) { return watch(end, true, budget); }
Dfa never(std::string_view text, Budget& budget) { return watch(text, false, budget); }

Dfa one_of(const std::vector<std::string_view>& texts, Budget& budget) {
  Dfa d;
  if (texts.empty()) return d;
  d.states.emplace_back();
  for (const std::string_view text : texts) {
    std::size_t s = 0;
    for (const char c : text) {
      std::int32_t to = d.states[s].next[static_cast<unsigned char>(c)];
      if (to == Dfa::kDead) {
        budget.charge(sizeof(Dfa::State));
        to = static_cast<std::int32_t>(d.states.size());
        d.states[s].next[static_cast<unsigned char>(c)] = to;
        d.states.emplace_back();
      }
      s = static_cast<std::size_t>(to);
    }
    d.states[s].accept = true;
  }
  return d;
}

}  // namespace qengine::structured
