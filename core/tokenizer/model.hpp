// The part of a tokenizer that turns one pre-token into ids.
//
// BpeModel merges by rank (tokenizer.json, GGUF "gpt2"), ScoreModel by score (GGUF "llama"). Both run
// in O(n log n) on a piece of n characters: a prompt without a pre-tokenizer is one piece.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/vocab.hpp"

namespace qengine {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `piece`, well-formed UTF-8. Thread-safe.
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& out) const = 0;
};

// (left id, right id) -> rank and the id of the joined token; a flat hash table of indices, as most of it is empty.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank, id;
  };
  void reserve(std::size_t merges);
  void add(std::int32_t left, std::int32_t right, Merge merge);  // a later entry replaces an earlier one
  const Merge* find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty()) return nullptr;
    const std::uint64_t k = key(left, right);
    for (std::size_t i = place(k); slots_[i] != kEmpty; i = (i + 1) & (slots_.size() - 1))
      if (entries_[slots_[i]].key == k) return &entries_[slots_[i]].merge;
    return nullptr;
  }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;
  struct Entry {
    std::uint64_t key;
    Merge merge;
  };
  static std::uint64_t key(std::int32_t l, std::int32_t r) {
    return std::uint64_t{static_cast<std::uint32_t>(l)} << 32 | static_cast<std::uint32_t>(r);
  }
  std::size_t place(std::uint64_t k) const { return ((k ^ k >> 29) * 0x9E3779B97F4A7C15ull >> 32) & (slots_.size() - 1); }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // into entries_; a power of two of them, at most 2/3 full
};

struct BpeOptions {
  bool byte_fallback = false, fuse_unk = false, ignore_merges = false;
  std::optional<std::int32_t> unk;
  std::string prefix, suffix;  // continuing_subword_prefix, end_of_word_suffix
};

class BpeModel : public TokenModel {
 public:
  // `vocab` outlives the model.
  BpeModel(const Vocab& vocab, MergeTable merges, BpeOptions options);
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const override;

 private:
  struct Scratch;
  void split(std::string_view piece, Scratch& s) const;
  void merge_short(Scratch& s) const;
  void merge_long(Scratch& s) const;

  const Vocab& vocab_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<std::int32_t, 0x180> chars_;   // ids of the first code points: all of a byte-level alphabet
  std::array<std::int32_t, 256> bytes_;     // <0x00> ... <0xFF>
};

class ScoreModel : public TokenModel {
 public:
  ScoreModel(const Vocab& vocab, std::vector<float> scores, std::optional<std::int32_t> unk);
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const override;

 private:
  const Vocab& vocab_;
  std::vector<float> scores_;
  std::optional<std::int32_t> unk_;
  std::array<std::int32_t, 256> bytes_;
};

}  // namespace qengine
