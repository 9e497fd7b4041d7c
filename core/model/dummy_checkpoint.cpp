#include "core/model/dummy_checkpoint.hpp"

#include <qe/plugin.h>

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/base/error.hpp"

namespace qengine {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 1469598103934665603u;  // FNV-1a: the same on every machine
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return h;
}

std::uint64_t element_bits(std::int32_t dtype) {
  switch (dtype) {
    case QE_F32: case QE_I32: return 32;
    case QE_F16: case QE_BF16: case QE_I16: return 16;
    case QE_I64: return 64;
    case QE_E2M1X2: case QE_E4M3: case QE_E5M2: case QE_E8M0: case QE_I8: case QE_U8: return 8;
    default: return 0;
  }
}

bool any_of(std::string_view name, std::initializer_list<const char*> words) {
  for (const char* w : words)
    if (name.find(w) != name.npos) return true;
  return false;
}

// Floats of what `name` is likely to be.
struct Range {
  float low, high;
};
Range range_of(const std::string& name) {
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  if (name.ends_with("norm.weight")) return {0.9f, 1.1f};
  if (any_of(last, {"scale", "absmax", "SCB"})) return {0.003f, 0.005f};
  if (last == "bias") return {-0.01f, 0.01f};
  return {-0.035f, 0.035f};  // standard deviation 0.02
}

std::uint16_t half_bits(float x) {  // of a normal number
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::int32_t e = static_cast<std::int32_t>(b >> 23 & 255) - 127 + 15;
  if (e <= 0) return static_cast<std::uint16_t>(b >> 16 & 0x8000);
  return static_cast<std::uint16_t>((b >> 16 & 0x8000) | static_cast<std::uint32_t>(e) << 10 | (b >> 13 & 1023));
}

class Dummy final : public Checkpoint {
 public:
  Dummy(Json config, Json quant, std::vector<Tensor> tensors, std::filesystem::path folder, std::vector<Fill> fills)
      : inner_(from_config(std::move(config), std::move(quant))), tensors_(std::move(tensors)), folder_(std::move(folder)), fills_(std::move(fills)) {
    for (Tensor& t : tensors_) {
      const std::uint64_t bits = element_bits(t.dtype);
      if (bits == 0) throw Error("E101", "dummy weights cannot be made for " + t.name + ", whose type is " + dtype_name(t.dtype)).hint("choose another --format; qengine plan --compare lists those that there are");
      std::uint64_t n = 1;
      for (const std::int64_t d : t.shape) n *= static_cast<std::uint64_t>(d);
      t.bytes = n * bits / 8;
      t.file_name = t.name;
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
  }

  Kind kind() const override { return Kind::kSafetensors; }
  const std::filesystem::path& path() const override { return folder_; }
  const std::filesystem::path& folder() const override { return folder_; }
  std::span<const Tensor> tensors() const override { return tensors_; }
  const Tensor* find(std::string_view name) const override {
    const auto it = by_name_.find(std::string(name));
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
  }
  std::span<const std::byte> data(const Tensor& t) const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte>& made = made_[t.name];
    if (!made.empty()) return made;
    const Fill* fill = nullptr;
    for (const Fill& f : fills_)
      if (t.name.ends_with("." + f.name)) fill = &f;
    made = fill ? filled(t, *fill) : make(t);
    return made;
  }
  void release(const Tensor& t) const override {
    const std::lock_guard lock(mutex_);
    made_.erase(t.name);
  }
  void release_all() const override {
    const std::lock_guard lock(mutex_);
    made_.clear();
  }
  const Json& config() const override { return inner_->config(); }
  const Json& quant_config() const override { return inner_->quant_config(); }
  const std::string& quant_config_source() const override { return inner_->quant_config_source(); }
  const Json& gguf_metadata() const override { return inner_->gguf_metadata(); }
  std::vector<std::string_view> gguf_strings(std::string_view key) const override { return inner_->gguf_strings(key); }
  std::vector<float> gguf_floats(std::string_view key) const override { return inner_->gguf_floats(key); }
  std::vector<std::int64_t> gguf_ints(std::string_view key) const override { return inner_->gguf_ints(key); }
  const Json& generation_config() const override { return inner_->generation_config(); }
  std::span<const File> files() const override { return {}; }
  std::span<const std::string> warnings() const override { return {}; }

 private:
  // A stretch of random bytes, begun again where it ends: generating is to be no slower than reading.
  static constexpr std::size_t kStretch = 1 << 20;

  static std::vector<std::byte> filled(const Tensor& t, const Fill& fill) {
    std::vector<std::byte> out(t.bytes);
    for (std::size_t i = 0; i < out.size() * 8; ++i)
      if (fill.code >> i % static_cast<std::size_t>(fill.bits) & 1) out[i / 8] |= std::byte{1} << i % 8;
    return out;
  }

  static std::vector<std::byte> make(const Tensor& t) {
    std::vector<std::byte> out(t.bytes);
    const std::size_t n = std::min<std::size_t>(kStretch, out.size());
    const std::uint64_t seed = hash(t.name);
    const Range range = range_of(t.name);
    const auto random = [&](std::size_t i) { return mix(seed + i); };
    const auto number = [&](std::size_t i) { return range.low + (range.high - range.low) * static_cast<float>(random(i) >> 40) * 0x1p-24f; };
    const auto put = [&](std::size_t i, auto v) { std::memcpy(out.data() + i * sizeof v, &v, sizeof v); };
    switch (t.dtype) {
      case QE_F32:
        for (std::size_t i = 0; i < n / 4; ++i) put(i, number(i));
        break;
      case QE_BF16:
        for (std::size_t i = 0; i < n / 2; ++i) put(i, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number(i)) >> 16));
        break;
      case QE_F16:
        for (std::size_t i = 0; i < n / 2; ++i) put(i, half_bits(number(i)));
        break;
      case QE_E4M3:  // magnitudes up to 16: no NaN
        for (std::size_t i = 0; i < n; ++i) put(i, static_cast<std::uint8_t>((random(i) & 0x80) | (random(i) >> 8 & 0x7f) % 0x58));
        break;
      case QE_E5M2:
        for (std::size_t i = 0; i < n; ++i) put(i, static_cast<std::uint8_t>((random(i) & 0x80) | (random(i) >> 8 & 0x7f) % 0x4c));
        break;
      case QE_E8M0:  // 2^-8 and near
        for (std::size_t i = 0; i < n; ++i) put(i, static_cast<std::uint8_t>(118 + random(i) % 3));
        break;
      default:
        for (std::size_t i = 0; i * 8 < n; ++i) {
          const std::uint64_t r = random(i);
          std::memcpy(out.data() + i * 8, &r, std::min<std::size_t>(8, n - i * 8));
        }
    }
    for (std::size_t at = n; at < out.size(); at += n) std::memcpy(out.data() + at, out.data(), std::min(n, out.size() - at));
    return out;
  }

  std::shared_ptr<const Checkpoint> inner_;
  std::vector<Tensor> tensors_;
  std::filesystem::path folder_;
  std::vector<Fill> fills_;
  std::unordered_map<std::string, std::size_t> by_name_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<std::byte>> made_;
};

}  // namespace

std::shared_ptr<const Checkpoint> dummy_checkpoint(Json config, Json quant_config, std::vector<Tensor> tensors, std::filesystem::path folder, std::vector<Fill> fills) {
  return std::make_shared<Dummy>(std::move(config), std::move(quant_config), std::move(tensors), std::move(folder), std::move(fills));
}

}  // namespace qengine
