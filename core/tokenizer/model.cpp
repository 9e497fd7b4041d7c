#include "core/tokenizer/model.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <unordered_map>

#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

std::array<std::int32_t, 256> byte_tokens(const Vocab& vocab) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::array<std::int32_t, 256> ids;
  for (unsigned b = 0; b < 256; ++b) {
    const char name[] = {'<', '0', 'x', kHex[b >> 4], kHex[b & 15], '>'};
    ids[b] = vocab.find({name, 6});
  }
  return ids;
}

// Ids are given back by emptying the vectors; a piece of a million symbols leaves nothing behind.
constexpr std::size_t kKeepSymbols = 1 << 14;

}  // namespace

void MergeTable::reserve(std::size_t merges) {
  entries_.reserve(merges);
  const std::size_t want = std::bit_ceil(merges * 3 / 2 + 16);
  if (want <= slots_.size()) return;
  slots_.assign(want, kEmpty);
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    std::size_t i = place(entries_[e].key);
    while (slots_[i] != kEmpty) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = static_cast<std::uint32_t>(e);
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if ((entries_.size() + 1) * 3 / 2 >= slots_.size()) reserve(entries_.size() * 2 + 16);
  const std::uint64_t k = key(left, right);
  std::size_t i = place(k);
  while (slots_[i] != kEmpty && entries_[slots_[i]].key != k) i = (i + 1) & (slots_.size() - 1);
  if (slots_[i] != kEmpty) {
    entries_[slots_[i]].merge = merge;
    return;
  }
  slots_[i] = static_cast<std::uint32_t>(entries_.size());
  entries_.push_back({k, merge});
}

// What one thread needs to merge a piece.
//
// A short piece is an array of symbols that is searched for its best pair again and again. A long one
// is a linked list; its pairs wait in a queue for each merge, and the merges in a heap by rank, so that
// a megabyte of one letter costs little more than looking at it a few times.
struct BpeModel::Scratch {
  static constexpr std::size_t kShort = 48;
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

  std::vector<std::int32_t> ids;
  MergeTable::Merge pairs[kShort];  // pairs[i] joins ids[i] and ids[i + 1]; rank kNever: it does not

  struct Link {
    std::int32_t previous, next;
  };
  struct Queue {
    std::int32_t left, right, id;
    std::vector<std::int32_t> positions;  // of the left symbol; done ones stay until the queue is empty
    std::size_t done = 0;
    bool sorted = true, waiting = false;  // waiting: its rank is in the heap
  };
  std::vector<Link> links;
  std::unordered_map<std::int32_t, Queue> queues;  // by rank
  std::vector<std::int32_t> ranks;                 // heap, lowest on top

  void reset() {
    if (ids.capacity() > kKeepSymbols) std::vector<std::int32_t>().swap(ids);
    if (links.capacity() > kKeepSymbols) std::vector<Link>().swap(links);
    ids.clear(), links.clear(), queues.clear(), ranks.clear();
  }
};

BpeModel::BpeModel(const Vocab& vocab, MergeTable merges, BpeOptions options)
    : vocab_(vocab), merges_(std::move(merges)), options_(std::move(options)), bytes_(byte_tokens(vocab)) {
  for (std::size_t c = 0; c < chars_.size(); ++c) {
    std::string s;
    unicode::append(s, static_cast<char32_t>(c));
    chars_[c] = vocab_.find(s);
  }
}

void BpeModel::split(std::string_view piece, Scratch& s) const {
  bool unknown = false;  // an unknown character waits; with fuse_unk its neighbours join it
  const auto flush = [&] {
    if (unknown) s.ids.push_back(*options_.unk);
    unknown = false;
  };
  const bool affixes = !options_.prefix.empty() || !options_.suffix.empty();
  std::string spelled;
  for (std::size_t pos = 0; pos < piece.size();) {
    const std::size_t start = pos;
    const char32_t c = unicode::next(piece, pos);
    const std::string_view own = piece.substr(start, pos - start);
    std::int32_t id;
    if (affixes) {
      spelled.assign(start > 0 ? options_.prefix : "").append(own).append(pos == piece.size() ? options_.suffix : "");
      id = vocab_.find(spelled);
    } else {
      id = c < chars_.size() ? chars_[c] : vocab_.find(own);
    }
    if (id != Vocab::kNone) {
      flush();
      s.ids.push_back(id);
    } else if (options_.byte_fallback && std::all_of(own.begin(), own.end(), [&](char b) { return bytes_[static_cast<unsigned char>(b)] >= 0; })) {
      flush();
      for (const char b : own) s.ids.push_back(bytes_[static_cast<unsigned char>(b)]);
    } else if (options_.unk) {
      if (!options_.fuse_unk) flush();
      unknown = true;
    }
  }
  flush();
}

void BpeModel::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.empty()) return;
  if (options_.ignore_merges)
    if (const std::int32_t id = vocab_.find(piece); id != Vocab::kNone) return out.push_back(id);
  thread_local Scratch scratch;
  Scratch& s = scratch;
  s.reset();
  split(piece, s);
  if (s.ids.size() <= Scratch::kShort) merge_short(s);
  else merge_long(s);
  for (const std::int32_t id : s.ids)
    if (id >= 0) out.push_back(id);
}

void BpeModel::merge_short(Scratch& s) const {
  std::size_t n = s.ids.size();
  const auto look = [&](std::size_t i) {
    const MergeTable::Merge* m = merges_.find(s.ids[i], s.ids[i + 1]);
    s.pairs[i] = m ? *m : MergeTable::Merge{Scratch::kNever, 0};
  };
  for (std::size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (s.pairs[i].rank < s.pairs[best].rank) best = i;
    if (s.pairs[best].rank == Scratch::kNever) break;
    s.ids[best] = s.pairs[best].id;
    s.ids.erase(s.ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --n;
    for (std::size_t i = best + 1; i + 1 < n; ++i) s.pairs[i] = s.pairs[i + 1];
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
}

void BpeModel::merge_long(Scratch& s) const {
  const auto n = static_cast<std::int32_t>(s.ids.size());
  const auto id = [&](std::int32_t i) -> std::int32_t& { return s.ids[static_cast<std::size_t>(i)]; };
  const auto link = [&](std::int32_t i) -> Scratch::Link& { return s.links[static_cast<std::size_t>(i)]; };
  s.links.resize(s.ids.size());
  for (std::int32_t i = 0; i < n; ++i) link(i) = {i - 1, i + 1 < n ? i + 1 : -1};

  std::int32_t last_rank = -1;  // pairs of one kind come in a row
  Scratch::Queue* last = nullptr;
  const auto consider = [&](std::int32_t left, std::int32_t right) {
    const MergeTable::Merge* m = merges_.find(id(left), id(right));
    if (!m) return;
    if (m->rank != last_rank) {
      last = &s.queues.try_emplace(m->rank, Scratch::Queue{id(left), id(right), m->id, {}}).first->second;
      last_rank = m->rank;
    }
    Scratch::Queue& q = *last;
    if (q.positions.size() > q.done && q.positions.back() > left) q.sorted = false;
    q.positions.push_back(left);
    if (!q.waiting) {
      q.waiting = true;
      s.ranks.push_back(m->rank);
      std::push_heap(s.ranks.begin(), s.ranks.end(), std::greater<>());
    }
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) consider(i, i + 1);

  while (!s.ranks.empty()) {
    const std::int32_t rank = s.ranks.front();
    Scratch::Queue& q = s.queues.find(rank)->second;
    if (q.done == q.positions.size()) {
      std::pop_heap(s.ranks.begin(), s.ranks.end(), std::greater<>());
      s.ranks.pop_back();
      q.positions.clear(), q.done = 0, q.sorted = true, q.waiting = false;
      continue;
    }
    if (!q.sorted) std::sort(q.positions.begin() + static_cast<std::ptrdiff_t>(q.done), q.positions.end()), q.sorted = true;
    const std::int32_t at = q.positions[q.done++], next = link(at).next;
    if (id(at) != q.left || next < 0 || id(next) != q.right) continue;  // one of the two was merged away
    id(at) = q.id;
    id(next) = -1;
    const std::int32_t after = link(at).next = link(next).next;
    if (after >= 0) link(after).previous = at;
    // A new pair may rank lower than what waits here; then it is on top of the heap next.
    if (link(at).previous >= 0) consider(link(at).previous, at);
    if (after >= 0) consider(at, after);
  }
}

ScoreModel::ScoreModel(const Vocab& vocab, std::vector<float> scores, std::optional<std::int32_t> unk)
    : vocab_(vocab), scores_(std::move(scores)), unk_(unk), bytes_(byte_tokens(vocab)) {}

void ScoreModel::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  struct Symbol {
    std::uint32_t begin, size;  // size 0: swallowed by its left neighbour
    std::int32_t previous, next;
  };
  struct Candidate {
    float score;
    std::int32_t position;
    std::uint32_t size;  // of the two together; tells whether the candidate is stale
    bool operator<(const Candidate& o) const {  // of a max-heap: highest score first, then leftmost
      return score != o.score ? score < o.score : position > o.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  for (std::size_t pos = 0; pos < piece.size();) {
    const std::size_t n = std::min(unicode::length(static_cast<unsigned char>(piece[pos])), piece.size() - pos);
    const auto i = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(pos), static_cast<std::uint32_t>(n), i - 1, i + 1});
    pos += n;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto consider = [&](std::int32_t l, std::int32_t r) {
    if (l < 0 || r < 0) return false;
    const std::uint32_t size = symbols[static_cast<std::size_t>(l)].size + symbols[static_cast<std::size_t>(r)].size;
    const std::int32_t id = vocab_.find(piece.substr(symbols[static_cast<std::size_t>(l)].begin, size));
    if (id == Vocab::kNone || static_cast<std::size_t>(id) >= scores_.size()) return false;
    heap.push_back({scores_[static_cast<std::size_t>(id)], l, size});
    return true;
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) consider(i, i + 1);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate c = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(c.position)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (left.size + right.size != c.size) continue;
    left.size = c.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = c.position;
    if (consider(left.previous, c.position)) std::push_heap(heap.begin(), heap.end());
    if (consider(c.position, left.next)) std::push_heap(heap.begin(), heap.end());
  }
  bool unknown_before = false;
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    const std::string_view text = piece.substr(symbols[static_cast<std::size_t>(i)].begin, symbols[static_cast<std::size_t>(i)].size);
    const std::int32_t id = vocab_.find(text);
    bool unknown = false;
    if (id != Vocab::kNone) {
      out.push_back(id);
    } else if (std::all_of(text.begin(), text.end(), [&](char b) { return bytes_[static_cast<unsigned char>(b)] >= 0; })) {
      for (const char b : text) out.push_back(bytes_[static_cast<unsigned char>(b)]);
    } else if (unk_) {
      unknown = true;
      if (!unknown_before) out.push_back(*unk_);
    }
    unknown_before = unknown;
  }
}

}  // namespace qengine
