// FileBytes: the bytes of one file, mapped read-only, or borrowed from memory.
//
// Mapping never reads: pages come in when somebody touches them, and release() lets them go again.
// Thread-safe (all const). Move-only.
//
// A file that somebody cuts while it is mapped makes the next read of what is gone a SIGBUS. Every mapping
// is on a list that a signal handler may read, so that the program can end with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace qengine {

class FileBytes {
 public:
  // Follows links; takes regular files only. Throws Error E201 when it cannot be opened.
  static FileBytes map(const std::filesystem::path& path);
  // `bytes` must outlive the object; `path` is for error texts.
  static FileBytes borrow(std::filesystem::path path, std::span<const std::byte> bytes);

  FileBytes(FileBytes&& other) noexcept { *this = std::move(other); }
  FileBytes& operator=(FileBytes&& other) noexcept;
  ~FileBytes();

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.filename().string(); }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Gives the pages of [offset, offset + n) back to the system; a later read brings them in again.
  void release(std::uint64_t offset, std::uint64_t n) const;

 private:
  FileBytes() = default;
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  bool mapped_ = false;
};

// The path of the mapped file in which `address` lies; null when there is none. Async-signal-safe.
const char* mapped_file_at(const void* address) noexcept;

}  // namespace qengine
