// A plugin for tests of swaps and canaries: it loads, its numbers are off by as much as its options say, stop being numbers, or come late.
//
//   error      relative error of every weight
//   nan_after  from this call of run() on, counted over the process, the first output is NaN
//   slow_ms    what each step takes longer
//   favour     a token that wins wherever it is allowed
#include <qe/stream_linear.hpp>

#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "drifting.hpp"

namespace {

struct Plugin : qe::Linears<Plugin, drifting::Format> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}};
  static constexpr qe::Method kMethods[] = {{"drifting", "none", "bf16 weights with an error"}};
  static constexpr const char* kOptions[] = {"error", "nan_after", "slow_ms", "favour"};
  static int detect(const qe_model&, qe::Reason& why) { return why("only where it is named"), 1; }
  static std::string scheme(const qe_model&, const qe_layer&) { return "drifting"; }
};

// What the head of a model does besides. Two backends of one process may want different things.
struct Habits {
  std::int64_t slow_ms = 0, favour = -1;
};
std::mutex mutex;
std::map<qe_linear, Habits> heads;

std::atomic<std::int64_t> calls{0}, good_calls{std::numeric_limits<std::int64_t>::max()};

qe_status load(qe_dev dev, const qe_model* m, const qe_layer* l, qe_stream stream, qe_linear* out, qe_error* e) noexcept {
  if (const std::int64_t n = qe::Config(m->cfg).i64("options.nan_after", 0); n > 0) good_calls = n;
  const qe_status s = Plugin::load(dev, m, l, stream, out, e);
  if (s == QE_OK) {
    const bool head = l->parts[0]->role == QE_ROLE_LM_HEAD;
    const std::lock_guard lock(mutex);
    heads.erase(*out);  // somebody else's, destroyed since
    if (head) heads[*out] = {qe::Config(m->cfg).i64("options.slow_ms", 0), qe::Config(m->cfg).i64("options.favour", -1)};
  }
  return s;
}

qe_status run(qe_linear x, const qe_run* r, qe_error* e) noexcept {
  const qe_status s = Plugin::run(x, r, e);
  if (s == QE_OK && r->m > 0 && ++calls > good_calls) static_cast<float*>(r->out.data)[0] = std::numeric_limits<float>::quiet_NaN();
  Habits habits;
  {
    const std::lock_guard lock(mutex);
    if (const auto it = heads.find(x); it != heads.end()) habits = it->second;
  }
  if (s == QE_OK && r->m > 0 && habits.slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(habits.slow_ms));
  if (s == QE_OK && habits.favour >= 0 && habits.favour < r->out.dim[1])
    for (std::int64_t t = 0; t < r->m; ++t) static_cast<float*>(r->out.data)[t * r->out.stride[0] + habits.favour] += 100.0f;  // far above what it says itself
  return s;
}

const void* extension(const char* id) noexcept {
  if (std::string_view(id) != "qe.weight/1") return nullptr;
  static qe_weight_v1 own;
  own = *Plugin::weight_table();
  own.load = load;
  own.run = run;
  return &own;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(uint32_t host_major, uint32_t) {
  static constexpr qe::About about{.id = "test.drifting", .name = "drifting", .version = "0.1.0", .vendor = "Nobody", .summary = "wrong numbers"};
  if (host_major != QE_ABI_MAJOR) return nullptr;
  static qe_plugin p = *qe::Descriptor<Plugin>::get(about);
  p.extension = extension;
  return &p;
}
