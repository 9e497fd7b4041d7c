#include "core/model/file_bytes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/base/error.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// What is mapped, for a signal handler: fixed memory, and `begin` is written last and cleared first.
struct Listed {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> size{0};
  char path[256] = {};  // cut if it is longer
};
constexpr std::size_t kListed = 1024;  // files beyond these are not listed: a SIGBUS in them names no file
constinit Listed listed[kListed];

void list(const void* at, std::size_t size, const std::string& path) {
  for (Listed& l : listed) {
    if (l.taken.exchange(true)) continue;
    std::snprintf(l.path, sizeof l.path, "%s", path.c_str());
    l.size.store(size);
    l.begin.store(reinterpret_cast<std::uintptr_t>(at));
    return;
  }
}

void unlist(const void* at) {
  for (Listed& l : listed) {
    std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(at);
    if (!l.begin.compare_exchange_strong(begin, 0)) continue;
    l.taken.store(false);
    return;
  }
}

}  // namespace

const char* mapped_file_at(const void* address) noexcept {
  const auto a = reinterpret_cast<std::uintptr_t>(address);
  for (const Listed& l : listed)
    if (const std::uintptr_t begin = l.begin.load(); begin != 0 && a >= begin && a - begin < l.size.load()) return l.path;
  return nullptr;
}

FileBytes FileBytes::map(const std::filesystem::path& path) {
  const std::string shown = printable(path.string(), 400);
  // O_NONBLOCK: a pipe under that name must not hang us; it is refused below.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0)
    throw Error("E201", "cannot open " + shown + ": " + std::strerror(errno))
        .hint("check the path and the permissions; a download may be incomplete");
  struct stat info;
  if (::fstat(file.fd, &info) != 0) throw Error("E201", "cannot examine " + shown + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw Error("E201", shown + " is not a regular file").hint("give the path of a model");

  FileBytes out;
  out.path_ = path;
  if (info.st_size == 0) return out;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (at == MAP_FAILED) throw Error("E201", "cannot map " + shown + ": " + std::strerror(errno));
  out.bytes_ = {static_cast<const std::byte*>(at), size};
  out.mapped_ = true;
  list(at, size, shown);
  return out;
}

FileBytes FileBytes::borrow(std::filesystem::path path, std::span<const std::byte> bytes) {
  FileBytes out;
  out.path_ = std::move(path);
  out.bytes_ = bytes;
  return out;
}

FileBytes& FileBytes::operator=(FileBytes&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

FileBytes::~FileBytes() {
  if (!mapped_) return;
  unlist(bytes_.data());
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void FileBytes::release(std::uint64_t offset, std::uint64_t n) const {
  if (!mapped_ || n == 0 || offset >= bytes_.size()) return;
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Outwards: a page shared with a neighbour comes back at its next read, and none is forgotten.
  const std::uint64_t begin = offset / page * page;
  const std::uint64_t end = offset + std::min<std::uint64_t>(n, bytes_.size() - offset);
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace qengine
