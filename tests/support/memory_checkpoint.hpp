// MemoryCheckpoint: a checkpoint made in a test, tensor by tensor.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"

namespace qengine::test {

class MemoryCheckpoint : public Checkpoint {
 public:
  Json config_json = Json::object(), quant_json, gguf_json, generation_json;
  std::string source = "config.json quantization_config";
  bool interleaved = false;
  Kind kind_value = Kind::kSafetensors;
  mutable std::vector<std::string> released;

  // `odd` puts the data at an odd address.
  template <class T>
  void add(const std::string& name, std::int32_t dtype, std::vector<std::int64_t> shape, const std::vector<T>& values, bool odd = false) {
    std::vector<std::byte>& store = stores_.emplace_back(values.size() * sizeof(T) + 1);
    std::memcpy(store.data() + odd, values.data(), values.size() * sizeof(T));
    Tensor t{name, name, dtype, std::move(shape), 0, odd ? 1u : 0u, values.size() * sizeof(T)};
    where_[name] = store.data() + odd;
    tensors_.push_back(std::move(t));
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
  }
  Tensor& at(const std::string& name) {
    for (Tensor& t : tensors_)
      if (t.name == name) return t;
    throw std::out_of_range(name);
  }

  Kind kind() const override { return kind_value; }
  const std::filesystem::path& path() const override { return path_; }
  const std::filesystem::path& folder() const override { return path_; }
  std::span<const Tensor> tensors() const override { return tensors_; }
  const Tensor* find(std::string_view name) const override {
    for (const Tensor& t : tensors_)
      if (t.name == name) return &t;
    return nullptr;
  }
  bool rotary_rows_interleaved() const override { return interleaved; }
  std::span<const std::byte> data(const Tensor& t) const override { return {where_.at(t.name), t.bytes}; }
  void release(const Tensor& t) const override { released.push_back(t.name); }
  const Json& config() const override { return config_json; }
  const Json& quant_config() const override { return quant_json; }
  const std::string& quant_config_source() const override { return source; }
  const Json& gguf_metadata() const override { return gguf_json; }
  std::vector<std::string_view> gguf_strings(std::string_view) const override { return {}; }
  std::vector<float> gguf_floats(std::string_view) const override { return {}; }
  std::vector<std::int64_t> gguf_ints(std::string_view) const override { return {}; }
  const Json& generation_config() const override { return generation_json; }
  std::span<const File> files() const override { return files_; }
  std::span<const std::string> warnings() const override { return {}; }

 private:
  std::filesystem::path path_ = "memory";
  std::vector<File> files_{{"memory/model.safetensors", 0}};
  std::vector<Tensor> tensors_;
  std::deque<std::vector<std::byte>> stores_;
  std::map<std::string, const std::byte*> where_;
};

}  // namespace qengine::test
