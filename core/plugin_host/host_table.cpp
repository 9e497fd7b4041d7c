#include "core/plugin_host/host_table.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/base/log.hpp"
#include "core/base/thread_pool.hpp"
#include "core/device/gemm.hpp"
#include "core/device/gpu.hpp"
#include "core/model/text.hpp"
#include "core/plugin_host/call.hpp"

namespace qengine {
namespace {

constexpr std::uint64_t kSmallTensor = 1 << 20;      // data that planning may read
constexpr std::uint64_t kMapFrom = 1 << 20;          // blocks from here on are mapped, with large pages if there are any
constexpr std::size_t kMaxPath = 1024, kMaxPatternsSeen = 100000, kMaxNamesSeen = 100000;

PluginServices& services(void* self) { return *static_cast<PluginServices*>(self); }
std::string_view view(qe_str s) { return s.p ? std::string_view(s.p, s.n) : std::string_view(); }
qe_str str(const std::string& s) { return {s.data(), s.size()}; }

// "#3": the fourth value. -1: not of that form.
std::int64_t ordinal(std::string_view key) {
  if (key.size() < 2 || key.size() > 9 || key[0] != '#') return -1;
  std::int64_t n = 0;
  for (const char c : key.substr(1)) {
    if (c < '0' || c > '9') return -1;
    n = n * 10 + (c - '0');
  }
  return n;
}

const Json* child(const Json& node, std::string_view key) {
  if (const std::int64_t i = ordinal(key); i >= 0) {
    if (!node.is_structured() || i >= static_cast<std::int64_t>(node.size())) return nullptr;
    return &*std::next(node.begin(), i);
  }
  if (!node.is_object()) return nullptr;
  const auto it = node.find(std::string(key));
  return it == node.end() ? nullptr : &*it;
}

// Keys may hold dots, so every dot is tried as the end of the first key. A path has few of them.
const Json* walk(const Json& node, std::string_view path) {
  if (!node.is_structured()) return nullptr;
  if (const Json* whole = child(node, path)) return whole;
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (const Json* next = child(node, path.substr(0, dot)))
      if (const Json* found = walk(*next, path.substr(dot + 1))) return found;
  return nullptr;
}

// ---- the table ----------------------------------------------------------------------------------

void host_log(void* self, std::int32_t level, qe_str text) noexcept {
  try {
    const int l = level < 0 ? 0 : level > 4 ? 4 : level;
    log("plugins").log(static_cast<spdlog::level::level_enum>(l), "{}: {}", services(self).plugin(), plugin_text(view(text), 2000));
  } catch (...) {
  }
}

qe_status host_alloc(void* self, const qe_device* device, std::uint64_t bytes, std::uint64_t align, std::int32_t mem, void** out) noexcept {
  return services(self).alloc(device, bytes, align, mem, out);
}

void host_free(void* self, const qe_device*, void* p) noexcept { services(self).free(p); }

qe_status host_upload(void* self, void* dst, const void* src, std::uint64_t bytes, qe_stream stream) noexcept {
  return services(self).upload(dst, src, bytes, stream);
}

void host_parallel_for(void*, std::int64_t n, void (*body)(void*, std::int64_t), void* arg) noexcept {
  const Call* call = current_call;
  ThreadPool* pool = call ? call->pool : nullptr;
  if (!pool || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) body(arg, i);
    return;
  }
  // Workers carry the note too: a crash there is the plugin's as well.
  pool->parallel_for(n, [=](std::int64_t i) {
    const Call* before = current_call;
    current_call = call;
    body(arg, i);
    current_call = before;
  });
}

std::int64_t host_cfg_size(void*, qe_cfg cfg, const char* path) noexcept {
  const Json* v = cfg && path ? find_path(*cfg, path) : nullptr;
  if (!v) return -1;
  return v->is_structured() ? static_cast<std::int64_t>(v->size()) : 0;
}

bool host_cfg_key(void*, qe_cfg cfg, const char* path, std::int64_t i, qe_str* out) noexcept {
  const Json* v = cfg && path && out ? find_path(*cfg, path) : nullptr;
  if (!v || !v->is_object() || i < 0 || i >= static_cast<std::int64_t>(v->size())) return false;
  *out = str(std::next(v->begin(), i).key());
  return true;
}

bool host_cfg_str(void*, qe_cfg cfg, const char* path, qe_str* out) noexcept {
  const Json* v = cfg && path && out ? find_path(*cfg, path) : nullptr;
  if (!v || !v->is_string()) return false;
  *out = str(v->get_ref<const std::string&>());
  return true;
}

bool host_cfg_f64(void*, qe_cfg cfg, const char* path, double* out) noexcept {
  const Json* v = cfg && path && out ? find_path(*cfg, path) : nullptr;
  if (!v || !v->is_number()) return false;
  *out = v->get<double>();
  return true;
}

bool host_cfg_i64(void*, qe_cfg cfg, const char* path, std::int64_t* out) noexcept {
  const Json* v = cfg && path && out ? find_path(*cfg, path) : nullptr;
  if (!v) return false;
  if (v->is_boolean()) {
    *out = v->get<bool>() ? 1 : 0;
  } else if (v->is_number_unsigned()) {
    if (v->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) return false;
    *out = v->get<std::int64_t>();
  } else if (v->is_number_integer()) {
    *out = v->get<std::int64_t>();
  } else if (v->is_number_float()) {  // 4.0 is meant as 4
    const double d = v->get<double>();
    if (!(d >= -9e15 && d <= 9e15) || d != static_cast<double>(static_cast<std::int64_t>(d))) return false;
    *out = static_cast<std::int64_t>(d);
  } else {
    return false;
  }
  return true;
}

bool host_match(void* self, qe_str pattern, qe_str name) noexcept {
  try {
    std::string problem;
    const bool hit = services(self).matcher().matches(view(pattern), view(name), &problem);
    if (CallFindings* f = current_call ? current_call->findings : nullptr) {
      if (!problem.empty() && f->bad_pattern.empty()) {
        f->bad_pattern = plugin_text(view(pattern));
        f->bad_pattern_why = problem;
      }
      if (const auto it = f->patterns.find(view(pattern)); it != f->patterns.end())
        it->second |= hit;
      else if (f->patterns.size() < kMaxPatternsSeen)
        f->patterns.emplace(std::string(view(pattern)), hit);
    }
    return hit;
  } catch (...) {
    return false;
  }
}

std::size_t element_alignment(std::int32_t dtype) {
  switch (dtype) {
    case QE_F32: case QE_I32: return 4;
    case QE_F16: case QE_BF16: case QE_I16: return 2;
    case QE_I64: return 8;
    default: return dtype >= QE_GGML ? 4 : 1;  // block formats hold half floats and words
  }
}

qe_status host_tensor(void*, qe_ckpt ckpt, qe_str name, qe_tensor* out) noexcept {
  if (!ckpt || !ckpt->checkpoint || !out) return QE_E_ARGUMENT;
  try {
    const Tensor* t = ckpt->checkpoint->find(view(name));
    if (ckpt->record) {
      const std::lock_guard lock(ckpt->mutex);
      auto& names = t ? ckpt->found : ckpt->missed;
      if (names.size() < kMaxNamesSeen) names.emplace(view(name));
    }
    if (!t) return QE_E_CHECKPOINT;
    if (t->shape.size() > 4) return QE_E_UNSUPPORTED;
    *out = {};
    out->dtype = t->dtype;
    out->rank = static_cast<std::int32_t>(t->shape.size());
    std::int64_t stride = 1;
    for (int i = out->rank - 1; i >= 0; --i) {
      out->dim[i] = t->shape[i];
      out->stride[i] = stride;
      stride *= t->shape[i];
    }
    if (!ckpt->loading && t->bytes > kSmallTensor) return QE_OK;
    const std::span<const std::byte> data = ckpt->checkpoint->data(*t);
    const void* p = data.data();
    if (reinterpret_cast<std::uintptr_t>(p) % element_alignment(t->dtype) != 0) {
      auto copy = std::make_unique<std::byte[]>(data.size());  // operator new aligns to 16
      std::memcpy(copy.get(), data.data(), data.size());
      p = copy.get();
      const std::lock_guard lock(ckpt->mutex);
      ckpt->aligned.push_back(std::move(copy));
    }
    out->data = const_cast<void*>(p);
    return QE_OK;
  } catch (const std::bad_alloc&) {
    return QE_E_OOM;
  } catch (...) {
    return QE_E_INTERNAL;
  }
}

std::int32_t host_threads(void*) noexcept {
  const Call* call = current_call;
  return call && call->pool ? call->pool->threads() : 1;
}

bool host_cancelled(void*) noexcept {
  const Call* call = current_call;
  return call && call->cancel && call->cancel->load(std::memory_order_relaxed);
}

const void* host_extension(void*, const char* id) noexcept {
  try {
    return id && std::string_view(id) == QE_GEMM_ID ? dense_gemm() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

const Json* find_path(const qe_cfg_s& cfg, std::string_view path) {
  if (path.size() > kMaxPath) return nullptr;
  const std::pair<std::string_view, const Json*> roots[] = {{"options", cfg.options}, {"model", cfg.model}, {"gguf", cfg.gguf}};
  const Json* root = cfg.quant;
  for (const auto& [word, json] : roots) {
    if (!path.starts_with(word)) continue;
    if (path.size() == word.size()) return json && !json->is_null() ? json : nullptr;
    if (path[word.size()] != '.') continue;
    root = json;
    path.remove_prefix(word.size() + 1);
    break;
  }
  if (!root || root->is_null()) return nullptr;
  const Json* found = path.empty() ? root : walk(*root, path);
  return found && !found->is_null() ? found : nullptr;
}

std::string plugin_text(std::string_view text, std::size_t max) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= max) {
      out += "...";
      break;
    }
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return as_utf8(out);
}

PluginServices::PluginServices(std::string plugin) : plugin_(std::move(plugin)), table_{} {
  table_.struct_size = sizeof table_;
  table_.abi_major = QE_ABI_MAJOR;
  table_.abi_minor = table_.abi_oldest_minor = QE_ABI_MINOR;
  table_.self = this;
  table_.log = host_log;
  table_.alloc = host_alloc;
  table_.free = host_free;
  table_.upload = host_upload;
  table_.parallel_for = host_parallel_for;
  table_.cfg_size = host_cfg_size;
  table_.cfg_key = host_cfg_key;
  table_.cfg_str = host_cfg_str;
  table_.cfg_f64 = host_cfg_f64;
  table_.cfg_i64 = host_cfg_i64;
  table_.match = host_match;
  table_.tensor = host_tensor;
  table_.cancelled = host_cancelled;
  table_.extension = host_extension;
  table_.threads = host_threads;
}

void PluginServices::reset_peak() {
  for (std::size_t i = 0; i < peak_.size(); ++i) peak_[i] = held_[i].load();
}

qe_status PluginServices::alloc(const qe_device* device, std::uint64_t bytes, std::uint64_t align, int mem, void** out) noexcept {
  if (!out || mem < QE_MEM_WEIGHT || mem > QE_MEM_LOAD_TEMP || (align & (align - 1)) != 0 || align > 4096) return QE_E_ARGUMENT;
  *out = nullptr;
  if (device && device->kind != QE_CPU && device->kind != QE_CUDA) return QE_E_DEVICE;
  if (bytes > (std::uint64_t{1} << 46)) return QE_E_OOM;
  if (device && device->kind == QE_CUDA) return alloc_on_gpu(*device, bytes, align, mem, out);
  if (align < 64) align = 64;
  const bool mapped = bytes >= kMapFrom;
  const std::uint64_t unit = mapped ? 4096 : align;
  const std::uint64_t size = (std::max<std::uint64_t>(bytes, 1) + unit - 1) / unit * unit;
  void* p = nullptr;
  if (mapped) {
    p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return QE_E_OOM;
    madvise(p, size, MADV_HUGEPAGE);  // fewer TLB misses while weights stream; no harm where it is refused
  } else if (p = std::aligned_alloc(align, size); !p) {
    return QE_E_OOM;
  }
  try {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(p, Block{bytes, mem, mapped, nullptr});
  } catch (...) {
    mapped ? void(munmap(p, size)) : std::free(p);
    return QE_E_OOM;
  }
  count(mem, bytes);
  *out = p;
  return QE_OK;
}

void PluginServices::count(int mem, std::uint64_t bytes) noexcept {
  const std::uint64_t held = held_[mem].fetch_add(bytes) + bytes;
  for (std::uint64_t peak = peak_[mem].load(); held > peak && !peak_[mem].compare_exchange_weak(peak, held);) {
  }
}

qe_status PluginServices::alloc_on_gpu(const qe_device& device, std::uint64_t bytes, std::uint64_t align, int mem, void** out) noexcept {
  if (align > 256) return QE_E_ARGUMENT;  // what every piece of device memory begins on
  try {
    Gpu& gpu = Gpu::open(device.ordinal);
    void* p = gpu.try_alloc(bytes, mem == QE_MEM_WEIGHT ? MemoryOwner::kWeights : mem == QE_MEM_PERSIST ? MemoryOwner::kState : MemoryOwner::kLoading);
    if (!p) return QE_E_OOM;
    const std::lock_guard lock(mutex_);
    blocks_.emplace(p, Block{bytes, mem, false, &gpu});
    count(mem, bytes);
    *out = p;
    return QE_OK;
  } catch (const std::bad_alloc&) {
    return QE_E_OOM;
  } catch (...) {
    return QE_E_DEVICE;
  }
}

qe_status PluginServices::upload(void* dst, const void* src, std::uint64_t bytes, qe_stream stream) noexcept {
  if (bytes == 0) return QE_OK;
  if (!dst || !src) return QE_E_ARGUMENT;
  Gpu* gpu = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto it = blocks_.upper_bound(dst);
    if (it != blocks_.begin()) {
      const auto& [base, block] = *--it;
      const std::uint64_t offset = static_cast<std::uint64_t>(static_cast<char*>(dst) - static_cast<char*>(base));
      if (offset < block.bytes) {
        if (bytes > block.bytes - offset) return QE_E_ARGUMENT;  // past the end of what it got
        gpu = block.gpu;
      } else if (stream) {
        return QE_E_ARGUMENT;  // device memory that is not this plugin's
      }
    } else if (stream) {
      return QE_E_ARGUMENT;
    }
  }
  if (gpu) return gpu->upload(dst, src, bytes, stream);
  std::memcpy(dst, src, bytes);
  return QE_OK;
}

void PluginServices::free(void* p) noexcept {
  if (!p) return;
  Block block{};
  {
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(p);
    if (it == blocks_.end()) {
      log("plugins").error("{} freed {}, which it never got from the host", plugin_, p);
      return;
    }
    block = it->second;
    blocks_.erase(it);
  }
  held_[block.mem].fetch_sub(block.bytes);
  if (block.gpu)
    block.gpu->free(p);
  else if (block.mapped)
    munmap(p, (block.bytes + 4095) / 4096 * 4096);
  else
    std::free(p);
}

}  // namespace qengine
