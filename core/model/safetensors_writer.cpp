#include "core/model/safetensors_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"
#include "core/model/dtype.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

Error cannot_write(const fs::path& file, int error) {
  Error e("E108", "cannot write " + file.string() + ": " + std::strerror(error));
  if (error == ENOSPC) e.hint("free some space, or name another --output");
  return e;
}

// A file that takes its name only when it is whole.
class SafeFile {
 public:
  explicit SafeFile(fs::path file) : file_(std::move(file)), temporary_(file_.string() + ".part-" + std::to_string(getpid())) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) throw cannot_write(file_, errno);
  }
  ~SafeFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
  SafeFile(const SafeFile&) = delete;
  SafeFile& operator=(const SafeFile&) = delete;

  void write(const void* data, std::size_t size) {
    const char* p = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n = ::write(fd_, p, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw cannot_write(file_, errno);
      p += n;
      size -= static_cast<std::size_t>(n);
      since_flush_ += static_cast<std::uint64_t>(n);
    }
    // Long files go to the disk as they are written: the page cache stays free for the model being read.
    if (since_flush_ >= kFlushEvery) {
      ::fdatasync(fd_);
      since_flush_ = 0;
    }
  }

  void finish() {
    if (::fsync(fd_) != 0) throw cannot_write(file_, errno);
    ::close(std::exchange(fd_, -1));
    if (::rename(temporary_.c_str(), file_.c_str()) != 0) {
      const int error = errno;
      ::unlink(temporary_.c_str());
      throw cannot_write(file_, error);
    }
    const fs::path folder = file_.has_parent_path() ? file_.parent_path() : ".";
    if (const int d = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); d >= 0) {
      ::fsync(d);  // the new name itself
      ::close(d);
    }
  }

 private:
  static constexpr std::uint64_t kFlushEvery = 256ull << 20;
  fs::path file_, temporary_;
  int fd_ = -1;
  std::uint64_t since_flush_ = 0;
};

}  // namespace

struct SafetensorsWriter::State {
  SafeFile file;
  std::uint64_t left = 0;
};

SafetensorsWriter::SafetensorsWriter(fs::path file, std::vector<SafetensorsEntry> entries,
                                     const std::vector<std::pair<std::string, std::string>>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    auto& m = header["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [k, v] : metadata) m[k] = v;
  }
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& e : entries) {
    const SafetensorsType* type = safetensors_type(e.dtype);
    std::uint64_t bytes = type ? static_cast<std::uint64_t>(type->bits) / 8 : 0;
    if (bytes == 0) throw Error("E000", "cannot write dtype " + e.dtype + " of " + e.name);
    if (header.contains(e.name)) throw Error("E000", "tensor " + e.name + " would be written twice");
    for (const std::int64_t d : e.shape) {
      const auto next = d < 0 ? std::nullopt : checked_mul(bytes, static_cast<std::uint64_t>(d));
      if (!next) throw Error("E000", "tensor " + e.name + " has an impossible shape");
      bytes = *next;
    }
    header[e.name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');  // data begins at a multiple of 64
  state_.reset(new State{SafeFile(std::move(file)), offset});
  const std::uint64_t size = text.size();
  state_->file.write(&size, sizeof size);
  state_->file.write(text.data(), text.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > state_->left) throw Error("E000", "more bytes than the header of a safetensors file announced");
  state_->file.write(bytes.data(), bytes.size());
  state_->left -= bytes.size();
}

void SafetensorsWriter::finish() {
  if (state_->left != 0) throw Error("E000", std::to_string(state_->left) + " bytes missing at the end of a safetensors file");
  state_->file.finish();
}

std::uint64_t SafetensorsWriter::bytes_left() const { return state_->left; }

void write_file_safely(const fs::path& file, std::string_view content) {
  SafeFile out(file);
  out.write(content.data(), content.size());
  out.finish();
}

std::uint16_t bf16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace qengine
