#include "core/device/arena.hpp"

#include <algorithm>
#include <cassert>

namespace qengine {

Arena::~Arena() {
  for (auto& [base, slab] : slabs_) backing_.give(base, slab.bytes);
}

void* Arena::allocate(std::uint64_t bytes) {
  bytes = rounded(bytes);
  auto at = slabs_.end();
  std::map<std::uint64_t, std::uint64_t>::iterator hole;
  for (auto s = slabs_.begin(); s != slabs_.end() && at == slabs_.end(); ++s)
    for (auto h = s->second.holes.begin(); h != s->second.holes.end(); ++h)
      if (h->second >= bytes) {
        at = s;
        hole = h;
        break;
      }
  if (at == slabs_.end()) {
    std::uint64_t size = std::max(bytes, expected_ >= bytes ? expected_ : kSlab);
    size = (size + kPage - 1) / kPage * kPage;
    void* p = backing_.take(size);
    if (!p && size > bytes) p = backing_.take(size = (bytes + kPage - 1) / kPage * kPage);  // what fits is enough for now
    if (!p) return nullptr;
    reserved_ += size;
    at = slabs_.emplace(static_cast<char*>(p), Slab{size, {{0, size}}}).first;
    hole = at->second.holes.begin();
  }
  const std::uint64_t offset = hole->first, left = hole->second - bytes;
  at->second.holes.erase(hole);
  if (left) at->second.holes.emplace(offset + bytes, left);
  expected_ -= std::min(expected_, bytes);
  used_ += bytes;
  void* const p = at->first + offset;
  pieces_.emplace(p, Piece{at, bytes});
  return p;
}

void Arena::free(void* p) {
  const auto it = pieces_.find(p);
  assert(it != pieces_.end());
  if (it == pieces_.end()) return;
  const Piece piece = it->second;
  pieces_.erase(it);
  used_ -= piece.bytes;
  auto& [base, slab] = *piece.slab;
  auto hole = slab.holes.emplace(static_cast<char*>(p) - base, piece.bytes).first;
  if (const auto next = std::next(hole); next != slab.holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    slab.holes.erase(next);
  }
  if (hole != slab.holes.begin())
    if (const auto before = std::prev(hole); before->first + before->second == hole->first) {
      before->second += hole->second;
      slab.holes.erase(hole);
      hole = before;
    }
  if (hole->second != slab.bytes) return;
  reserved_ -= slab.bytes;
  backing_.give(base, slab.bytes);
  slabs_.erase(piece.slab);
}

}  // namespace qengine
