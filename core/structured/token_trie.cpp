#include "core/structured/token_trie.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace qengine::structured {

TokenTrie::TokenTrie(const std::vector<std::string>& bytes) : vocab_size_(static_cast<std::int32_t>(bytes.size())), bytes_(bytes) {
  for (std::string& b : bytes_)  // no vocabulary has them; the depth of a node has 16 bits
    if (b.size() > std::numeric_limits<std::uint16_t>::max()) b.clear();
  std::vector<std::int32_t> order;
  for (std::int32_t id = 0; id < vocab_size_; ++id)
    if (!this->bytes(id).empty()) order.push_back(id);
  std::ranges::stable_sort(order, {}, [&](std::int32_t id) { return this->bytes(id); });

  nodes_.push_back({0, 0, 0, 0});
  std::vector<std::int32_t> path = {0};  // nodes of the last token's bytes, the root first
  const auto close = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[static_cast<std::size_t>(path.back())].skip = static_cast<std::int32_t>(nodes_.size());
      path.pop_back();
    }
  };
  std::string_view last;
  for (const std::int32_t id : order) {
    const std::string_view text = this->bytes(id);
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
    close(same);
    for (std::size_t i = same; i < text.size(); ++i) {
      path.push_back(static_cast<std::int32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<std::int32_t>(tokens_.size()), static_cast<std::uint16_t>(i + 1), static_cast<std::uint8_t>(text[i])});
    }
    tokens_.push_back(id);  // sorted, so the tokens of a node follow each other
    longest_ = std::max(longest_, static_cast<int>(text.size()));
    last = text;
  }
  close(0);
  nodes_[0].skip = static_cast<std::int32_t>(nodes_.size());
  nodes_.push_back({0, static_cast<std::int32_t>(tokens_.size()), 0, 0});
  for (int b = 0; b < 256; ++b) {
    const std::int32_t n = child(0, static_cast<std::uint8_t>(b));
    // F5 to FF, C0 and C1 are in no UTF-8 text.
    if (b != 0xC0 && b != 0xC1 && b < 0xF5 && (n < 0 || tokens(n).empty())) all_bytes_ = false;
  }
}

std::int32_t TokenTrie::child(std::int32_t i, std::uint8_t byte) const {
  const Node& n = (*this)[i];
  for (std::int32_t c = i + 1; c < n.skip; c = (*this)[c].skip)
    if ((*this)[c].byte == byte) return c;
  return -1;
}

}  // namespace qengine::structured
