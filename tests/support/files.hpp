// Model files made inside a test: a folder that goes away, safetensors and GGUF bytes.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace qengine::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "qengine-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

template <class T>
std::string raw(T v) {
  std::string out(sizeof v, '\0');
  std::memcpy(out.data(), &v, sizeof v);
  return out;
}

// Header length, header, data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  return raw(std::uint64_t{header.size()}) + header + data;
}
// F32 tensors of one dimension, filled with their own number.
inline std::string safetensors_of(const std::vector<std::string>& names, std::size_t size = 2) {
  std::string header = "{", data;
  for (std::size_t i = 0; i < names.size(); ++i) {
    header += (i ? ",\"" : "\"") + names[i] + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(size) +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + 4 * size) + "]}";
    for (std::size_t k = 0; k < size; ++k) data += raw(static_cast<float>(i));
  }
  return safetensors(header + "}", data);
}

class GgufBuilder {
 public:
  std::uint32_t version = 3, alignment = 32;

  static std::string text(const std::string& s) { return raw(std::uint64_t{s.size()}) + s; }

  GgufBuilder& value(const std::string& key, std::int32_t type, const std::string& bytes) {
    pairs_ += text(key) + raw(type) + bytes;
    ++n_pairs_;
    return *this;
  }
  GgufBuilder& u32(const std::string& key, std::uint32_t v) { return value(key, 4, raw(v)); }
  GgufBuilder& f32(const std::string& key, float v) { return value(key, 6, raw(v)); }
  GgufBuilder& string(const std::string& key, const std::string& v) { return value(key, 8, text(v)); }
  template <class T>
  GgufBuilder& array(const std::string& key, std::int32_t type, const std::vector<T>& values) {
    std::string bytes = raw(type) + raw(std::uint64_t{values.size()});
    for (const T& v : values) {
      if constexpr (std::is_same_v<T, std::string>) bytes += text(v);
      else bytes += raw(v);
    }
    return value(key, 9, bytes);
  }
  // dims as in the file: the row length first.
  GgufBuilder& tensor(const std::string& name, const std::vector<std::int64_t>& dims, std::int32_t type, const std::string& bytes) {
    infos_ += text(name) + raw(static_cast<std::uint32_t>(dims.size()));
    for (const std::int64_t d : dims) infos_ += raw(d);
    infos_ += raw(type) + raw(std::uint64_t{data_.size()});
    data_ += bytes + std::string((alignment - bytes.size() % alignment) % alignment, '\0');
    ++n_tensors_;
    return *this;
  }
  // The keys without which no model config comes out.
  GgufBuilder& small_model(const std::string& arch) {
    return string("general.architecture", arch)
        .u32(arch + ".block_count", 1)
        .u32(arch + ".embedding_length", 32)
        .u32(arch + ".feed_forward_length", 64)
        .u32(arch + ".attention.head_count", 2)
        .u32(arch + ".context_length", 128)
        .u32(arch + ".vocab_size", 16)
        .f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  }
  std::string bytes() const {
    std::string out = "GGUF" + raw(version) + raw(n_tensors_) + raw(n_pairs_) + pairs_ + infos_;
    out += std::string((alignment - out.size() % alignment) % alignment, '\0');
    return out + data_;
  }

 private:
  std::int64_t n_pairs_ = 0, n_tensors_ = 0;
  std::string pairs_, infos_, data_;
};

}  // namespace qengine::test
