// A plugin that keeps the contract, and one way each of breaking it. tests/core/conformance/wrong_test.cpp names the check
// that must catch it; no other may.
#include <qe/stream_linear.hpp>

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <stdexcept>

#include "format.hpp"

namespace {

struct Right : qe::Linear<Right, Nibbles> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}};
  static constexpr const char *kScheme = "nibbles", *kQuantMethod = "wrong";
  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string method = qe::Config(m.cfg).str("quant_method", "absent");
    why("quant_method is %s; this plugin reads wrong", method.c_str());
    return method == "wrong" ? 1000 : 0;
  }
  static qe::Claim check(const qe_model& m, const qe_layer& l, qe::Reason& why) {
    if (const std::int64_t bits = qe::Config(m.cfg).i64("bits", 4); bits != 4) return why("%lld bits; supported: 4", static_cast<long long>(bits)), qe::Claim::no;
    if (l.method && *l.method && std::string_view(l.method) != kScheme) return why("scheme %s; supported: nibbles", l.method), qe::Claim::no;
    if (l.k % 32) return why("%lld inputs; must be a multiple of 32", static_cast<long long>(l.k)), qe::Claim::no;
    return qe::Claim::native;
  }
  static qe::detail::Handle& cpu(qe_linear x) { return *of(x).cpu; }
};

bool fault(const char* name) { return qe_fault_is(name) != 0; }

// ---- plan ------------------------------------------------------------------------------------------

std::atomic<std::uint64_t> plans{0};
thread_local std::int64_t planned_k = 0;

qe_status plan(const qe_device* d, const qe_model* m, const qe_layer* l, qe_plan* out, qe_error* e) noexcept {
  if (fault("insists on sizes") && (m->struct_size != sizeof *m || l->struct_size != sizeof *l)) return qe::guard(e, [] { throw qe::Error(QE_E_ARGUMENT, "struct_size", "is not mine"); });
  qe_device device = *d;
  if (fault("claims any GPU")) device.kind = QE_CPU;
  const qe_status s = Right::plan(&device, m, l, out, e);
  if (s != QE_OK) return s;
  if (fault("no reason") && out->claim == 0) out->reason[0] = 0;
  if (out->claim == 0) return s;
  planned_k = fault("remembers the last plan") ? l->k : 0;
  if (fault("impure plan")) out->weight_bytes += 64 * (plans++ / 500);
  if (fault("bytes wrap")) out->weight_bytes &= 0xffffff;
  if (fault("wrong bytes in plan")) out->weight_bytes -= 64;
  if (fault("guesses without files") && !m->ckpt) out->weight_bytes /= 2;
  if (fault("keeps what failed")) out->load_temp_bytes = 64;
  if (fault("regimes end early")) out->regime[0].m_hi = 64;
  return s;
}

// ---- tensors and load ------------------------------------------------------------------------------

qe_status tensors(const qe_model* m, const qe_layer* l, void (*want)(void*, const qe_want*), void* arg, qe_error* e) noexcept {
  return Right::tensors(m, l, want, arg, e);
}

qe_status load(qe_dev dev, const qe_model* m, const qe_layer* l, qe_stream stream, qe_linear* out, qe_error* e) noexcept {
  const qe_host& h = qe::host();
  const auto& device = *reinterpret_cast<const qe_device*>(dev);
  if (fault("remembers the last plan") && planned_k != l->k)
    return qe::guard(e, [] { throw qe::Error(QE_E_ARGUMENT, "k", "is not that of the last plan"); });
  if (fault("larger peak")) {
    void* temp = nullptr;
    if (h.alloc(h.self, &device, 4096, 64, QE_MEM_LOAD_TEMP, &temp) != QE_OK) return qe::guard(e, [] { throw qe::Error(QE_E_OOM, "", "out of memory"); });
    h.free(h.self, &device, temp);
  }
  if (fault("keeps what failed")) {
    void* block = nullptr;
    if (h.alloc(h.self, &device, 64, 64, QE_MEM_LOAD_TEMP, &block) != QE_OK) return qe::guard(e, [] { throw qe::Error(QE_E_OOM, "", "out of memory"); });
    // the next allocation fails: this one is forgotten
    const qe_status s = Right::load(dev, m, l, stream, out, e);
    if (s == QE_E_OOM) return s;
    h.free(h.self, &device, block);
    return s;
  }
  if (fault("never cancelled")) {
    static qe_host deaf = h;
    deaf = h;
    deaf.cancelled = nullptr;
    qe::detail::host_table = &deaf;
    const qe_status s = Right::load(dev, m, l, stream, out, e);
    qe::detail::host_table = &h;
    return s;
  }
  if (fault("reads what it did not ask for")) {
    qe_tensor t{};
    for (std::uint32_t i = 0; i < l->n_parts; ++i) {
      const std::string other = std::string(qe::view(l->parts[i]->name)).find("q_proj") != std::string::npos ? "model.layers.0.mlp.down_proj.scales" : "model.layers.0.self_attn.o_proj.scales";
      (void)h.tensor(h.self, m->ckpt, qe::str(other), &t);
    }
  }
  const qe_status s = Right::load(dev, m, l, stream, out, e);
  if (s != QE_OK) {
    if (fault("names no tensor") && s == QE_E_CHECKPOINT && std::string_view(e->message).find("missing") != std::string_view::npos) {
      qe::detail::copy_text(e->subject, sizeof e->subject, "");
      qe::detail::copy_text(e->message, sizeof e->message, "a tensor is missing");
    }
    return s;
  }
  qe::detail::Handle& made = Right::cpu(*out);
  if (fault("writes behind its memory")) made.weights[made.weight_bytes] = std::byte{1};
  return s;
}

char* volatile forgotten = nullptr;  // volatile: the compiler must not see through it

void destroy(qe_linear x) noexcept {
  if (fault("leak")) Right::cpu(x).weights = nullptr;  // the host's memory is never given back
  if (fault("heap leak")) forgotten = new char[4096];
  Right::destroy(x);
}

// ---- run -------------------------------------------------------------------------------------------

float shared_scratch[1 << 16];
std::mutex lock;

qe_status run(qe_linear x, const qe_run* r, qe_error* e) noexcept {
  const qe::detail::Handle& h = Right::cpu(x);
  if (fault("allocates in run")) {
    forgotten = static_cast<char*>(std::malloc(static_cast<std::size_t>(r->m) * 64));
    std::free(forgotten);
  }
  if (fault("asks the host for memory in run")) {
    void* p = nullptr;
    qe::host().alloc(qe::host().self, &h.device, 64, 64, QE_MEM_LOAD_TEMP, &p);
    qe::host().free(qe::host().self, &h.device, p);
  }
  if (fault("locks in run")) {
    const std::lock_guard held(lock);
  }
  if (fault("talks in run")) qe::log(qe::Log::info, "one more token");
  if (fault("writes without tokens") && r->m == 0) static_cast<float*>(r->out.data)[0] = 0;
  qe_run mine = *r;
  if (fault("crashes on long prompts") && r->m > 500) *static_cast<volatile int*>(nullptr) = 1;
  const qe_status s = Right::run(x, &mine, e);
  if (s != QE_OK || r->m == 0) return s;
  for (int i = 0; fault("slow") && h.n > 2000 && i < 60; ++i) Right::run(x, &mine, e);
  auto* out = static_cast<float*>(r->out.data);
  const std::int64_t stride = r->out.stride[0];
  if (fault("wrong for seven tokens") && r->m == 7)
    for (std::int64_t t = 0; t < r->m; ++t)
      for (std::int64_t n = 0; n < h.n; ++n) out[t * stride + n] *= 0.97f;
  if (fault("wrong for odd sizes") && h.n % 8 != 0) out[h.n - 1] += 1;
  if (fault("other bits each time") && r->m == 33) {
    static std::uint32_t seed = 1;
    for (std::int64_t n = 0; n < h.n; ++n) seed = seed * 1664525u + 1013904223u, out[n] *= 1.0f + float(seed >> 30) * 1e-7f;
  }
  if (fault("depends on its company") && r->m > 8)
    for (std::int64_t n = 0; n < h.n; ++n) out[n] *= 1.0000002f;
  if (fault("writes between rows"))
    for (std::int64_t t = 0; t < r->m; ++t)
      for (std::int64_t n = h.n; n < stride; ++n) out[t * stride + n] = 0;
  if (fault("one scratch for all")) {
    const std::int64_t count = std::min<std::int64_t>(h.n, std::int64_t(std::size(shared_scratch)));
    for (std::int64_t n = 0; n < count; ++n) shared_scratch[n] = out[n];
    sched_yield();
    for (std::int64_t n = 0; n < count; ++n) out[n] = shared_scratch[n];
  }
  return s;
}

qe_status run_reading_workspace(qe_linear x, const qe_run* r, qe_error* e) noexcept {
  float before = 0;
  if (r->workspace && r->workspace_bytes >= 64) std::memcpy(&before, static_cast<const std::byte*>(r->workspace) + r->workspace_bytes - 4, 4);
  const qe_status s = Right::run(x, r, e);
  if (s == QE_OK && r->m > 0 && !(before == 0)) {
    // what somebody else left there is taken for a sum that was begun
    static_cast<float*>(r->out.data)[0] += before == before && before < 1e6f && before > -1e6f ? before : 0.0f;
    if (before != before) static_cast<float*>(r->out.data)[0] *= 1.00001f;
  }
  return s;
}

qe_status dequant(qe_linear x, std::int64_t a, std::int64_t b, qe_tensor* out, qe_stream stream, qe_error* e) noexcept {
  const qe::detail::Handle& h = Right::cpu(x);
  if (fault("dequant from the first row") && a > 0 && b <= h.n) return Right::dequant(x, a - 1, b - 1, out, stream, e);
  return Right::dequant(x, a, b, out, stream, e);
}

qe_status rows(qe_linear x, const std::int32_t* ids, std::int64_t n, qe_tensor* out, qe_stream stream, qe_error* e) noexcept {
  if (fault("rows in order") && n > 1) {
    std::int32_t other[64];
    for (std::int64_t i = 0; i < n && i < 64; ++i) other[i] = ids[0] + std::int32_t(i) % 4;
    return Right::rows(x, other, n, out, stream, e);
  }
  return Right::rows(x, ids, n, out, stream, e);
}

// Not noexcept, and cast to it: what a plugin in plain C++ may do.
qe_status throwing_dequant(qe_linear x, std::int64_t a, std::int64_t b, qe_tensor* out, qe_stream stream, qe_error* e) {
  if (b > Right::cpu(x).n) throw std::out_of_range("rows");
  return Right::dequant(x, a, b, out, stream, e);
}

// ---- cuts and fusion: the layer is changed before the SDK sees it ------------------------------------

qe_status load_wrong_cut(qe_dev dev, const qe_model* m, const qe_layer* l, qe_stream stream, qe_linear* out, qe_error* e) noexcept {
  qe_layer layer = *l;
  qe_part parts[8];
  const qe_part* pointers[8];
  for (std::uint32_t i = 0; i < l->n_parts && i < 8; ++i) {
    parts[i] = *l->parts[i];
    if (fault("every rank loads the first rows") && l->tp_size > 1 && parts[i].n_begin > 0) {
      parts[i].n_end -= parts[i].n_begin;
      parts[i].n_begin = 0;
    }
    pointers[i] = &parts[i];
  }
  if (fault("fuses in another order") && l->n_parts == 2) std::swap(pointers[0], pointers[1]);
  layer.parts = pointers;
  return Right::load(dev, m, &layer, stream, out, e);
}

// ---- devices ---------------------------------------------------------------------------------------

int devices_open = 0;
bool closed_once = false;
qe_status dev_open(const qe_device* d, qe_dev* out, qe_error* e) noexcept {
  ++devices_open;
  return qe::guard(e, [&] { *out = reinterpret_cast<qe_dev>(new qe_device(*d)); });
}
void dev_close(qe_dev d) noexcept {
  --devices_open;
  if (devices_open > 0) closed_once = true;  // others are still open, and it tears everything down
  delete reinterpret_cast<qe_device*>(d);
}
qe_status run_after_close(qe_linear x, const qe_run* r, qe_error* e) noexcept {
  const qe_status s = Right::run(x, r, e);
  if (s == QE_OK && closed_once && r->m > 0) static_cast<float*>(r->out.data)[0] = 0;
  return s;
}

int inits = 0;
qe_status init_once(const qe_host* h, qe_error* e) noexcept {
  if (inits++) return qe::guard(e, [] { throw qe::Error(QE_E_INTERNAL, "", "was started already"); });
  qe::detail::host_table = h;
  return QE_OK;
}
// The host's table goes into the environment of the process, where every copy of the library finds it.
qe_status init_shared(const qe_host* h, qe_error*) noexcept {
  char text[32];
  std::snprintf(text, sizeof text, "%p", static_cast<const void*>(h));
  setenv("WRONG_PLUGIN_HOST", text, 1);
  qe::detail::host_table = h;
  return QE_OK;
}
qe_status load_shared(qe_dev dev, const qe_model* m, const qe_layer* l, qe_stream stream, qe_linear* out, qe_error* e) noexcept {
  void* h = nullptr;
  if (std::sscanf(std::getenv("WRONG_PLUGIN_HOST"), "%p", &h) == 1) qe::detail::host_table = static_cast<const qe_host*>(h);
  return Right::load(dev, m, l, stream, out, e);
}

std::int32_t detect(const qe_model* m, qe_reason why) noexcept {
  qe::Reason reason(why);
  std::int32_t score = Right::detect(*m, reason);
  if (fault("detect says nothing")) why[0] = 0;
  if (fault("never found")) score = 0;
  return score;
}

qe_alias alias{sizeof(qe_alias), 2, "wrong_old", "", "wrong", "", "", ""};
const qe_alias* const aliases[] = {&alias};

const void* extension(const char* id) noexcept {
  if (std::string_view(id) != "qe.weight/1") return nullptr;
  static qe_weight_v1 table{sizeof(qe_weight_v1), 0, plan, tensors, load, Right::warmup, run, dequant, rows, Right::bytes, destroy};
  if (fault("reads the workspace first")) table.run = run_reading_workspace;
  if (fault("exception crosses")) table.dequant = reinterpret_cast<decltype(table.dequant)>(&throwing_dequant);
  if (fault("every rank loads the first rows") || fault("fuses in another order")) table.load = load_wrong_cut;
  if (fault("closing one closes all")) table.run = run_after_close;
  if (fault("host shared between copies")) table.load = load_shared;
  return &table;
}

}  // namespace

#ifdef WRONG_EXTRA_EXPORT
extern "C" __attribute__((visibility("default"))) int wrong_helper() { return 1; }
#endif

extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(uint32_t host_major, uint32_t) {
  static qe_plugin copies[2];
  static constexpr qe::About about{.id = "test.wrong", .name = "wrong", .version = "0.1.0", .vendor = "Nobody", .summary = "breaks one rule"};
  static int calls = 0;
  qe_plugin& p = copies[fault("another descriptor each time") ? calls++ % 2 : 0];
  if (host_major != QE_ABI_MAJOR && !fault("answers to any major")) return nullptr;
  p = *qe::Descriptor<Right>::get(about);
  p.detect = detect;
  p.extension = extension;
  p.n_aliases = 1, p.aliases = aliases;
  if (fault("wrong struct size")) p.struct_size = 64;
  if (fault("no build")) p.build = "";
  if (fault("another version")) p.version = "0.2.0";
  if (fault("alias to nowhere")) alias.replacement = "somebody_else";
  if (fault("starts once")) p.init = init_once;
  if (fault("host shared between copies")) p.init = init_shared;
  if (fault("closing one closes all")) p.dev_open = dev_open, p.dev_close = dev_close;
  return &p;
}

namespace {
struct Greeting {
  Greeting() {
    if (fault("greets")) std::puts("wrong plugin 0.1.0"), std::fflush(stdout);
  }
} greeting;
}  // namespace
