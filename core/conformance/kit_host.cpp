#include "core/conformance/kit_host.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/conformance/step_watch.hpp"

namespace qengine::conformance {
namespace {

constexpr std::uint64_t kFence = 256, kSmall = 1 << 20;
constexpr std::byte kFenceByte{0xc3}, kFresh{0xa5};

std::uint64_t element_alignment(std::int32_t dtype) { return dtype == QE_I64 ? 8 : dtype == QE_F32 || dtype == QE_I32 || dtype >= QE_GGML ? 4 : dtype == QE_F16 || dtype == QE_BF16 || dtype == QE_I16 ? 2 : 1; }

}  // namespace

std::vector<std::byte>& KitTensors::writable(const std::string& name) {
  Entry& e = entries.at(name);
  auto copy = std::make_shared<std::vector<std::byte>>(e.data.begin(), e.data.end());
  e.own = copy;
  e.data = *copy;
  return *copy;
}

KitHost::KitHost(int threads) : pool_(threads) {
  table_ = *services_.table();  // configuration and patterns: core's own answers
  table_.self = this;
  table_.log = [](void* s, std::int32_t level, qe_str t) noexcept {
    const HostScope host;
    KitHost& h = me(s);
    const std::lock_guard lock(h.mutex_);
    if (h.logged.size() < 10000) h.logged.push_back(std::to_string(level) + " " + std::string(t.p ? t.p : "", t.p ? t.n : 0));
  };
  table_.alloc = [](void* s, const qe_device*, std::uint64_t bytes, std::uint64_t align, std::int32_t mem, void** out) noexcept -> qe_status {
    me(s).only_outside_steps("alloc");
    const HostScope host;
    return me(s).alloc(bytes, align, mem, out);
  };
  table_.free = [](void* s, const qe_device*, void* p) noexcept {
    me(s).only_outside_steps("free");
    const HostScope host;
    me(s).free(p);
  };
  table_.upload = [](void* s, void* to, const void* from, std::uint64_t bytes, qe_stream stream) noexcept -> qe_status {
    me(s).only_outside_steps("upload");
    if (Gpu* gpu = me(s).gpu_) return gpu->upload(to, from, bytes, stream);
    if (bytes) std::memcpy(to, from, bytes);
    return QE_OK;
  };
  table_.parallel_for = [](void* s, std::int64_t n, void (*body)(void*, std::int64_t), void* arg) noexcept {
    KitHost& h = me(s);
    const bool step = in_step();
    const HostScope host;
    const auto each = [&](std::int64_t i) {
      if (step) {
        const StepScope scope;
        body(arg, i);
      } else {
        body(arg, i);
      }
    };
    if (h.serial) {
      for (std::int64_t i = 0; i < n; ++i) each(i);
    } else {
      static thread_local bool inside = false;
      static std::mutex one;  // a pool serves one region at a time; two handles may run at once
      if (inside || !one.try_lock()) {
        for (std::int64_t i = 0; i < n; ++i) each(i);
        return;
      }
      h.pool_.parallel_for(n, [&](std::int64_t i) {
        inside = true;
        each(i);
        inside = false;
      });
      one.unlock();
    }
  };
  table_.tensor = [](void*, qe_ckpt ckpt, qe_str name, qe_tensor* out) noexcept -> qe_status {
    const HostScope host;
    if (!ckpt || !out) return QE_E_ARGUMENT;
    const auto& t = *reinterpret_cast<const KitTensors*>(ckpt);
    const auto it = t.entries.find(std::string_view(name.p, name.n));
    if (it == t.entries.end()) return QE_E_CHECKPOINT;
    const KitTensors::Entry& e = it->second;
    if (e.shape.size() > 4) return QE_E_UNSUPPORTED;
    *out = {};
    out->dtype = e.dtype;
    out->rank = static_cast<std::int32_t>(e.shape.size());
    std::int64_t stride = 1;
    for (int i = out->rank - 1; i >= 0; --i) {
      out->dim[i] = e.shape[static_cast<std::size_t>(i)];
      out->stride[i] = stride;
      stride *= out->dim[i];
    }
    if (!t.loading && e.data.size() > kSmall) return QE_OK;
    const std::byte* p = e.data.data();
    const std::lock_guard lock(t.mutex);
    if (t.loading) t.read.insert(it->first);
    if (reinterpret_cast<std::uintptr_t>(p) % element_alignment(e.dtype)) {
      std::shared_ptr<std::byte[]> copy(new std::byte[e.data.size()]);
      std::memcpy(copy.get(), p, e.data.size());
      t.aligned.push_back(copy);
      p = copy.get();
    }
    out->data = const_cast<std::byte*>(p);
    return QE_OK;
  };
  table_.cancelled = [](void* s) noexcept {
    const std::int64_t n = me(s).cancel_asked.fetch_add(1);
    return me(s).cancel_at >= 0 && n >= me(s).cancel_at;
  };
  table_.extension = [](void*, const char*) noexcept -> const void* { return nullptr; };
  table_.threads = [](void* s) noexcept -> std::int32_t { return me(s).serial ? 1 : me(s).pool_.threads(); };
  // core's answers find their services behind `self`
  table_.match = [](void* s, qe_str pattern, qe_str name) noexcept {
    const HostScope host;
    const qe_host& core = *me(s).services_.table();
    return core.match(core.self, pattern, name);
  };
}

KitHost::~KitHost() {
  for (auto& [p, b] : blocks_) b.base ? std::free(b.base) : gpu_->free(p);
}

void KitHost::shorten() {
  table_.struct_size = offsetof(qe_host, threads);
  std::memset(&table_.threads, 0xff, sizeof table_.threads);
}

void KitHost::only_outside_steps(const char* what) {
  if (!in_step()) return;
  const HostScope host;
  const std::lock_guard lock(mutex_);
  if (step_violations.size() < 20) step_violations.push_back(std::string("host.") + what);
}

qe_status KitHost::alloc(std::uint64_t bytes, std::uint64_t align, int mem, void** out) {
  if (!out || mem < QE_MEM_WEIGHT || mem > QE_MEM_LOAD_TEMP || (align & (align - 1)) != 0 || align > 4096) return QE_E_ARGUMENT;
  *out = nullptr;
  const std::lock_guard lock(mutex_);
  ++allocations;
  if (fail_alloc_at >= 0 && fail_alloc_at-- == 0) return QE_E_OOM;
  if (gpu_) {
    *out = gpu_->try_alloc(bytes, mem == QE_MEM_WEIGHT ? MemoryOwner::kWeights : MemoryOwner::kState);
    if (!*out) return QE_E_OOM;
    blocks_[*out] = {nullptr, static_cast<std::byte*>(*out), bytes, bytes, mem};
    count(mem, bytes);
    return QE_OK;
  }
  const std::uint64_t unit = std::max<std::uint64_t>({align, 64, kFence}), whole = (bytes + unit - 1) / unit * unit + 2 * unit;
  auto* base = static_cast<std::byte*>(std::aligned_alloc(unit, whole));
  if (!base) return QE_E_OOM;
  std::memset(base, static_cast<int>(kFenceByte), whole);
  std::byte* p = base + unit;
  std::memset(p, static_cast<int>(kFresh), bytes);  // nobody may count on zeros
  blocks_[p] = {base, p, bytes, whole, mem};
  count(mem, bytes);
  *out = p;
  return QE_OK;
}

void KitHost::count(int mem, std::uint64_t bytes) {
  auto& held = held_[static_cast<std::size_t>(mem)];
  held += bytes;
  auto& peak = peak_[static_cast<std::size_t>(mem)];
  peak = std::max(peak, held);
}

// The fence before the block, and everything between its last byte and the end.
bool KitHost::fences_hold(const Block& b) {
  if (!b.base) return true;
  const auto holds = [](const std::byte* from, const std::byte* to) { return std::all_of(from, to, [](std::byte x) { return x == kFenceByte; }); };
  return holds(b.base, b.at) && holds(b.at + b.bytes, b.base + b.whole);
}

void KitHost::free(void* p) {
  if (!p) return;
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(p);
  if (it == blocks_.end()) {
    bad_frees.push_back("a block that it never got, or gave back before");
    return;
  }
  if (damage_.empty() && !fences_hold(it->second)) damage_ = "around a block of " + std::to_string(it->second.bytes) + " bytes";
  held_[static_cast<std::size_t>(it->second.mem)] -= it->second.bytes;
  it->second.base ? std::free(it->second.base) : gpu_->free(p);
  blocks_.erase(it);
}

std::string KitHost::damage() {
  const std::lock_guard lock(mutex_);
  for (const auto& [p, b] : blocks_)
    if (damage_.empty() && !fences_hold(b)) damage_ = "around a block of " + std::to_string(b.bytes) + " bytes";
  return damage_;
}

}  // namespace qengine::conformance
