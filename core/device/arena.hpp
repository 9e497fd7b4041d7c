// Arena cuts small pieces from few large slabs, because a driver hands out memory in pages of 2 MiB.
//
// A slab is as large as what is still expected (expect()), else kSlab, else the piece. Freed pieces are
// joined with their neighbours and used again; a slab goes back to the driver when it is empty.
// Pieces begin on 256 bytes. The arena never touches the memory itself.
//
// Not thread-safe: its owner holds a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace qengine {

class Arena {
 public:
  static constexpr std::uint64_t kSlab = 32ull << 20, kPage = 2ull << 20, kAlign = 256;

  struct Backing {
    std::function<void*(std::uint64_t bytes)> take;  // null when there is no more
    std::function<void(void* p, std::uint64_t bytes)> give;
  };
  explicit Arena(Backing backing) : backing_(std::move(backing)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // So many bytes will be asked for: the next slab holds them all. Counts down as pieces are taken.
  void expect(std::uint64_t bytes) { expected_ = bytes; }

  void* allocate(std::uint64_t bytes);  // null: the backing has no more
  void free(void* p);                   // REQUIRES: from allocate(), once
  bool owns(const void* p) const { return pieces_.contains(const_cast<void*>(p)); }

  std::uint64_t reserved() const { return reserved_; }  // in slabs
  std::uint64_t used() const { return used_; }          // in pieces, rounded up to 256

  // What a piece of so many bytes takes.
  static std::uint64_t rounded(std::uint64_t bytes) { return (bytes + (bytes == 0) + kAlign - 1) / kAlign * kAlign; }

 private:
  struct Slab {
    std::uint64_t bytes = 0;
    std::map<std::uint64_t, std::uint64_t> holes;  // offset -> bytes
  };
  struct Piece {
    std::map<char*, Slab>::iterator slab;
    std::uint64_t bytes;
  };

  Backing backing_;
  std::map<char*, Slab> slabs_;
  std::map<void*, Piece> pieces_;
  std::uint64_t expected_ = 0, reserved_ = 0, used_ = 0;
};

}  // namespace qengine
