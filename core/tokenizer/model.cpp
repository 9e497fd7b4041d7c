#include "core/tokenizer/model.hpp"

#include <algorithm>
#include <bit>

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
  const std::size_t want = std::bit_ceil(merges * 3 / 2 + 16);
  if (want <= slots_.size()) return;
  std::vector<Slot> old(want);
  old.swap(slots_);
  for (const Slot& s : old) {
    if (s.merge.id < 0) continue;
    std::size_t i = place(s.key);
    while (slots_[i].merge.id >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = s;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if ((count_ + 1) * 3 / 2 >= slots_.size()) reserve(count_ * 2 + 16);
  const std::uint64_t k = key(left, right);
  std::size_t i = place(k);
  while (slots_[i].merge.id >= 0 && slots_[i].key != k) i = (i + 1) & (slots_.size() - 1);
  count_ += slots_[i].merge.id < 0;
  slots_[i] = {k, merge};
}

// Symbols of a piece as a doubly linked list in arrays, and the merges that are possible now.
struct BpeModel::Scratch {
  struct Symbol {
    std::int32_t id;  // -1: swallowed by its left neighbour
    std::int32_t previous, next;
  };
  struct Candidate {
    std::int32_t rank, position, left, right, id;
    bool operator<(const Candidate& o) const {  // of a max-heap: lowest rank first, then leftmost
      return rank != o.rank ? rank > o.rank : position > o.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;

  void push(std::int32_t id) {
    const auto n = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, n - 1, n + 1});
  }
  void reset() {
    if (symbols.capacity() > kKeepSymbols) std::vector<Symbol>().swap(symbols);
    if (heap.capacity() > kKeepSymbols) std::vector<Candidate>().swap(heap);
    symbols.clear(), heap.clear();
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
    if (unknown) s.push(*options_.unk);
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
      s.push(id);
    } else if (options_.byte_fallback && std::all_of(own.begin(), own.end(), [&](char b) { return bytes_[static_cast<unsigned char>(b)] >= 0; })) {
      flush();
      for (const char b : own) s.push(bytes_[static_cast<unsigned char>(b)]);
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
  if (s.symbols.empty()) return;
  s.symbols.back().next = -1;

  const auto consider = [&](std::int32_t left, std::int32_t right) {
    const auto l = s.symbols[static_cast<std::size_t>(left)].id, r = s.symbols[static_cast<std::size_t>(right)].id;
    if (const auto* m = merges_.find(l, r)) {
      s.heap.push_back({m->rank, left, l, r, m->id});
      return true;
    }
    return false;
  };
  for (std::size_t i = 0; i + 1 < s.symbols.size(); ++i) consider(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1));
  std::make_heap(s.heap.begin(), s.heap.end());
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end());
    const Scratch::Candidate c = s.heap.back();
    s.heap.pop_back();
    auto& left = s.symbols[static_cast<std::size_t>(c.position)];
    if (left.id != c.left || left.next < 0) continue;  // stale: one of the two was merged away
    auto& right = s.symbols[static_cast<std::size_t>(left.next)];
    if (right.id != c.right) continue;
    left.id = c.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      s.symbols[static_cast<std::size_t>(left.next)].previous = c.position;
      if (consider(c.position, left.next)) std::push_heap(s.heap.begin(), s.heap.end());
    }
    if (left.previous >= 0 && consider(left.previous, c.position)) std::push_heap(s.heap.begin(), s.heap.end());
  }
  for (std::int32_t i = 0; i >= 0; i = s.symbols[static_cast<std::size_t>(i)].next) out.push_back(s.symbols[static_cast<std::size_t>(i)].id);
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
