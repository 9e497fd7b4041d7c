#include "core/plugin_host/sha256.hpp"

#include <nettle/sha2.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/error.hpp"

namespace qengine {
namespace {

class Sha256 {
 public:
  Sha256() { sha256_init(&context_); }
  void add(const void* data, std::size_t n) { sha256_update(&context_, n, static_cast<const std::uint8_t*>(data)); }
  std::string hex() {
    std::uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&context_, sizeof digest, digest);
    std::string out;
    for (const std::uint8_t b : digest) {
      out += "0123456789abcdef"[b >> 4];
      out += "0123456789abcdef"[b & 15];
    }
    return out;
  }

 private:
  sha256_ctx context_;
};

}  // namespace

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

std::string sha256_of_fd(int fd, const std::filesystem::path& name) {
  Sha256 hash;
  std::vector<char> buffer(1 << 18);
  for (off_t at = 0;;) {
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error("E307", "cannot read " + name.string() + ": " + std::strerror(errno));
    if (n == 0) return hash.hex();
    hash.add(buffer.data(), static_cast<std::size_t>(n));
    at += n;
  }
}

}  // namespace qengine
