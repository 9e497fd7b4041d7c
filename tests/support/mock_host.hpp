// A plugin host in a page: tensors and configuration from memory, allocations counted, so that a
// format can be planned, loaded and run without core's plugin host.
//
//   MockHost host;
//   host.add("p.weight", QE_BF16, {n, k}, bytes);
//   host.config = R"({"quant_method": "x"})"_json;
//   qe_model m = host.model();
#pragma once

#include <fnmatch.h>
#include <qe/plugin.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace qengine::test {

class MockHost {
 public:
  struct Stored {
    std::int32_t dtype = 0;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
    std::span<const std::byte> borrowed;  // instead of data: somebody else's, who keeps it
  };
  std::map<std::string, Stored, std::less<>> tensors;
  nlohmann::ordered_json config;              // quantization config
  nlohmann::ordered_json options, model_config, gguf;
  bool loading = true;                        // false: tensors above 1 MiB have no data
  int threads = 2;
  int head_dim = 0;
  std::atomic<bool> cancel{false};
  int fail_alloc = -1;                        // this many allocations succeed, then one fails; -1: none fails
  std::vector<std::string> logged;
  std::map<int, std::uint64_t> allocated;     // by QE_MEM_*
  std::int64_t live = 0;                      // allocations not yet freed
  qe_host table{};
  qe_device device{};

  MockHost() {
    table.struct_size = sizeof table;
    table.abi_major = QE_ABI_MAJOR;
    table.abi_minor = QE_ABI_MINOR;
    table.self = this;
    table.log = [](void* s, std::int32_t, qe_str t) noexcept { me(s).logged.emplace_back(t.p, t.n); };
    table.alloc = [](void* s, const qe_device*, std::uint64_t bytes, std::uint64_t align, std::int32_t mem, void** out) noexcept -> qe_status {
      *out = nullptr;
      if (me(s).fail_alloc >= 0 && me(s).fail_alloc-- == 0) return QE_E_OOM;
      *out = std::aligned_alloc(align, (bytes + align - 1) / align * align);
      if (!*out) return QE_E_OOM;
      std::memset(*out, 0xa5, bytes);  // nobody may count on zeros
      me(s).allocated[mem] += bytes;
      ++me(s).live;
      return QE_OK;
    };
    table.free = [](void* s, const qe_device*, void* p) noexcept { std::free(p), --me(s).live; };
    table.upload = [](void*, void* to, const void* from, std::uint64_t bytes, qe_stream) noexcept -> qe_status { return std::memcpy(to, from, bytes), QE_OK; };
    table.parallel_for = [](void* s, std::int64_t n, void (*body)(void*, std::int64_t), void* arg) noexcept {
      std::atomic<std::int64_t> next{0};
      const auto work = [&] { for (std::int64_t i; (i = next++) < n;) body(arg, i); };
      std::vector<std::thread> extra;
      for (int t = 1; t < me(s).threads && t < n; ++t) extra.emplace_back(work);
      work();
      for (auto& t : extra) t.join();
    };
    table.threads = [](void* s) noexcept -> std::int32_t { return me(s).threads; };
    table.cfg_size = [](void* s, qe_cfg, const char* path) noexcept -> std::int64_t {
      const auto* v = me(s).at(path);
      return !v || v->is_null() ? -1 : v->is_structured() ? std::int64_t(v->size()) : 0;
    };
    table.cfg_key = [](void* s, qe_cfg, const char* path, std::int64_t i, qe_str* out) noexcept {
      const auto* v = me(s).at(path);
      if (!v || !v->is_object() || i < 0 || i >= std::int64_t(v->size())) return false;
      auto it = v->begin();
      std::advance(it, i);
      *out = {it.key().data(), it.key().size()};
      return true;
    };
    table.cfg_str = [](void* s, qe_cfg, const char* path, qe_str* out) noexcept {
      const auto* v = me(s).at(path);
      if (!v || !v->is_string()) return false;
      const auto& text = v->get_ref<const std::string&>();
      *out = {text.data(), text.size()};
      return true;
    };
    table.cfg_f64 = [](void* s, qe_cfg, const char* path, double* out) noexcept {
      const auto* v = me(s).at(path);
      if (!v || !v->is_number()) return false;
      return *out = v->get<double>(), true;
    };
    table.cfg_i64 = [](void* s, qe_cfg, const char* path, std::int64_t* out) noexcept {
      const auto* v = me(s).at(path);
      if (!v || !(v->is_number_integer() || v->is_boolean())) return false;
      return *out = v->is_boolean() ? v->get<bool>() : v->get<std::int64_t>(), true;
    };
    table.match = [](void*, qe_str pattern, qe_str name) noexcept { return matches(std::string(pattern.p, pattern.n), std::string(name.p, name.n)); };
    table.tensor = [](void* s, qe_ckpt, qe_str name, qe_tensor* out) noexcept -> qe_status {
      const auto it = me(s).tensors.find(std::string_view(name.p, name.n));
      if (it == me(s).tensors.end()) return QE_E_CHECKPOINT;
      Stored& t = it->second;
      *out = {};
      out->dtype = t.dtype;
      out->rank = std::int32_t(t.shape.size());
      std::int64_t stride = 1;
      for (int i = out->rank - 1; i >= 0; --i) out->dim[i] = t.shape[std::size_t(i)], out->stride[i] = stride, stride *= out->dim[i];
      const std::span<const std::byte> bytes = t.borrowed.data() ? t.borrowed : std::span<const std::byte>(t.data);
      out->data = me(s).loading || bytes.size() <= (1u << 20) ? const_cast<std::byte*>(bytes.data()) : nullptr;
      return QE_OK;
    };
    table.cancelled = [](void* s) noexcept { return me(s).cancel.load(); };
    table.extension = [](void*, const char*) noexcept -> const void* { return nullptr; };
    device.struct_size = sizeof device;
    device.kind = QE_CPU;
  }
  MockHost(const MockHost&) = delete;

  void add(std::string name, std::int32_t dtype, std::vector<std::int64_t> shape, const void* data, std::size_t bytes) {
    Stored& t = tensors[std::move(name)];
    t.dtype = dtype;
    t.shape = std::move(shape);
    t.data.assign(static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
  }
  template <class T>
  void add(std::string name, std::int32_t dtype, std::vector<std::int64_t> shape, const std::vector<T>& data) {
    add(std::move(name), dtype, std::move(shape), data.data(), data.size() * sizeof(T));
  }

  qe_model model(bool with_checkpoint = true) {
    qe_model m{};
    m.struct_size = sizeof m;
    m.cfg = reinterpret_cast<qe_cfg>(this);
    m.ckpt = with_checkpoint ? reinterpret_cast<qe_ckpt>(this) : nullptr;
    m.model_type = {"llama", 5};
    m.head_dim = head_dim;
    return m;
  }

 private:
  // Exact, glob, or "re:" anchored at the start; a leading "model." may be left out. Core's matcher does more.
  static bool matches(const std::string& pattern, const std::string& name) noexcept {
    try {
      if (pattern.starts_with("re:")) return std::regex_search(name, std::regex(pattern.substr(3)), std::regex_constants::match_continuous);
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || "model." + pattern == name;
    } catch (const std::regex_error&) {
      return false;
    }
  }
  static MockHost& me(void* s) { return *static_cast<MockHost*>(s); }
  const nlohmann::ordered_json* at(std::string_view path) {
    const nlohmann::ordered_json* v = &config;
    if (path.starts_with("options.")) v = &options, path.remove_prefix(8);
    else if (path.starts_with("model.")) v = &model_config, path.remove_prefix(6);
    else if (path.starts_with("gguf.")) v = &gguf, path.remove_prefix(5);
    while (!path.empty()) {
      if (v->is_object() && v->contains(std::string(path))) return &(*v)[std::string(path)];  // keys may hold dots
      const std::size_t dot = path.find('.');
      const std::string key(path.substr(0, dot));
      if (key.starts_with("#")) {
        const auto i = std::size_t(std::atoi(key.c_str() + 1));
        if (!v->is_structured() || i >= v->size()) return nullptr;
        auto it = v->begin();
        std::advance(it, long(i));
        v = &*it;
      } else if (v->is_object() && v->contains(key)) {
        v = &(*v)[key];
      } else {
        return nullptr;
      }
      path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
    }
    return v;
  }
};

}  // namespace qengine::test
