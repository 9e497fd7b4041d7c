// Vocab: token strings <-> ids. Strings lie in one block of memory behind a flat hash table, so that
// 150,000 of them load in milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qengine {

class Vocab {
 public:
  static constexpr std::int32_t kNone = -1;
  // Ids above this are refused when files are read: the tables here are dense.
  static constexpr std::int64_t kMaxId = (1 << 22) - 1;

  void reserve(std::size_t tokens, std::size_t bytes);
  // A later token takes over an id or a string that is already there. REQUIRES: 0 <= id <= kMaxId.
  void add(std::string_view token, std::int32_t id);

  std::int32_t find(std::string_view token) const;  // kNone when absent
  // The same, looking at `guess` first: tokens of merges mostly come in the order of the merges.
  std::int32_t find(std::string_view token, std::int32_t guess) const { return !token.empty() && this->token(guess) == token ? guess : find(token); }
  bool has(std::int32_t id) const { return id >= 0 && id < size() && spans_[static_cast<std::size_t>(id)].length != kHole; }
  std::string_view token(std::int32_t id) const {  // "" when absent
    if (!has(id)) return {};
    const Span s = spans_[static_cast<std::size_t>(id)];
    return {text_.data() + s.begin, s.length};
  }
  std::int32_t size() const { return static_cast<std::int32_t>(spans_.size()); }  // largest id + 1
  std::size_t count() const { return count_; }

 private:
  static constexpr std::uint32_t kHole = 0xFFFFFFFF;
  struct Span {
    std::uint32_t begin = 0, length = kHole;
  };
  std::size_t slot_of(std::string_view token) const;  // where it is, or belongs
  void grow(std::size_t slots);

  std::string text_;
  std::vector<Span> spans_;   // by id
  std::vector<std::int32_t> slots_;  // ids; a power of two of them, at most 2/3 full
  std::size_t count_ = 0;
};

}  // namespace qengine
