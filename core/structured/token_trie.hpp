// TokenTrie: the bytes of every token of a vocabulary as one tree, in the order of a walk.
//
// A mask is one walk: where the automaton dies, `skip` leaves the whole subtree out. Special tokens
// and tokens without bytes are not in it: a grammar speaks about text.
//
// Immutable after construction, so thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qengine::structured {

class TokenTrie {
 public:
  struct Node {
    std::int32_t skip;         // the first node after this one's subtree
    std::int32_t first_token;  // of tokens(); those of node i end where those of i + 1 begin
    std::uint16_t depth;       // bytes from the root
    std::uint8_t byte;         // the last of them
  };

  // `bytes[id]`: what token id adds to the text; "": not in the tree.
  explicit TokenTrie(const std::vector<std::string>& bytes);

  std::int32_t vocab_size() const { return vocab_size_; }
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()) - 1; }
  const Node& operator[](std::int32_t i) const { return nodes_[static_cast<std::size_t>(i)]; }  // 0: the root, no byte
  // Ids whose bytes end at node i.
  std::span<const std::int32_t> tokens(std::int32_t i) const {
    const auto begin = static_cast<std::size_t>((*this)[i].first_token), end = static_cast<std::size_t>((*this)[i + 1].first_token);
    return {tokens_.data() + begin, end - begin};
  }
  // The child of node i by `byte`; -1: none.
  std::int32_t child(std::int32_t i, std::uint8_t byte) const;
  std::string_view bytes(std::int32_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  int longest() const { return longest_; }  // bytes
  // Every byte is a token by itself: then any text can be written, one token a byte at worst.
  bool all_bytes() const { return all_bytes_; }

 private:
  std::int32_t vocab_size_;
  std::vector<std::string> bytes_;
  std::vector<Node> nodes_;  // and one behind the last, for tokens()
  std::vector<std::int32_t> tokens_;
  int longest_ = 0;
  bool all_bytes_ = true;
};

}  // namespace qengine::structured
