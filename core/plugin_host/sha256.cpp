#include "core/plugin_host/sha256.hpp"

#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/error.hpp"

namespace qengine {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(const void* data, std::size_t n) { EVP_DigestUpdate(context_.get(), data, n); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &n);
    std::string out;
    for (unsigned i = 0; i < n; ++i) {
      out += "0123456789abcdef"[digest[i] >> 4];
      out += "0123456789abcdef"[digest[i] & 15];
    }
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
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
