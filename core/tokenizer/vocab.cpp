#include "core/tokenizer/vocab.hpp"

#include <bit>
#include <cstring>

namespace qengine {
namespace {

// Multiply-and-fold over eight bytes at a time; the table is bounded by the file, so an adversary who
// makes it collide slows down only their own load.
std::uint32_t hash(std::string_view s) {
  std::uint64_t h = 0x9E3779B97F4A7C15ull ^ s.size();
  const auto mix = [&h](std::uint64_t v) {
    const auto m = static_cast<unsigned __int128>(h ^ v) * 0xD6E8FEB86659FD93ull;
    h = static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
  };
  std::size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    std::uint64_t v;
    std::memcpy(&v, s.data() + i, 8);
    mix(v);
  }
  std::uint64_t v = 0;
  if (i < s.size()) std::memcpy(&v, s.data() + i, s.size() - i);
  mix(v);
  return static_cast<std::uint32_t>(h ^ h >> 32);
}

}  // namespace

void Vocab::reserve(std::size_t tokens, std::size_t bytes) {
  text_.reserve(bytes);
  spans_.reserve(tokens);
  if (tokens * 3 / 2 > slots_.size()) grow(std::bit_ceil(tokens * 3 / 2 + 16));
}

void Vocab::grow(std::size_t slots) {
  std::vector<std::int32_t> old(slots, kNone);
  old.swap(slots_);
  for (const std::int32_t id : old)
    if (id != kNone) slots_[slot_of(token(id))] = id;
}

std::size_t Vocab::slot_of(std::string_view token) const {
  std::size_t i = hash(token) & (slots_.size() - 1);
  while (slots_[i] != kNone && this->token(slots_[i]) != token) i = (i + 1) & (slots_.size() - 1);
  return i;
}

void Vocab::add(std::string_view token, std::int32_t id) {
  if ((count_ + 1) * 3 / 2 >= slots_.size()) grow(slots_.empty() ? 64 : slots_.size() * 2);
  if (id >= size()) spans_.resize(static_cast<std::size_t>(id) + 1);
  const std::size_t i = slot_of(token);
  if (slots_[i] == kNone) ++count_;
  slots_[i] = id;
  spans_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(token.size())};
  text_ += token;
}

std::int32_t Vocab::find(std::string_view token) const { return slots_.empty() ? kNone : slots_[slot_of(token)]; }

}  // namespace qengine
