// Loading a planned layer, and running what was loaded.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/thread_pool.hpp"
#include "core/device/gpu.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/plan_state.hpp"
#include "core/plugin_host/plugin_error.hpp"

namespace qengine {
namespace {

qe_str str(const std::string& s) { return {s.data(), s.size()}; }

std::string megabytes(std::uint64_t bytes) {
  if (bytes < 100000) return std::to_string(bytes) + " bytes";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

Error broke_contract(const Plugin& p, const std::string& what, const char* call) {
  return Error("E309", p.name + " " + p.version + " broke its contract: " + what)
      .in(call)
      .hint("report it to " + (p.vendor.empty() ? "its author" : p.vendor) + "; --plugin chooses another");
}

qe_tensor f32_matrix(const float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return {QE_F32, 2, {rows, columns, 0, 0}, {stride, 1, 0, 0}, const_cast<float*>(data)};
}

}  // namespace

// ---- what is shared --------------------------------------------------------------------------------

PlanState::~PlanState() {
  for (const auto& [plugin, device] : devices)
    if (plugin->descriptor->dev_close) plugin->descriptor->dev_close(device);
}

qe_dev PlanState::device_of(const Plugin& plugin) {
  const std::lock_guard lock(mutex);
  const auto it = devices.find(&plugin);
  if (it != devices.end()) return it->second;
  qe_dev device = nullptr;
  if (plugin.descriptor->dev_open) {
    qe_error error{};
    Call call{plugin.name.c_str(), "dev_open"};
    const CallScope scope(call);
    if (const qe_status s = plugin.descriptor->dev_open(&options.device, &device, &error)) throw plugin_error(s, error, {&plugin, "dev_open", "", nullptr});
  }
  devices.emplace(&plugin, device);
  return device;
}

std::string PlanState::spelled(const std::string& name) const {
  const std::string file = checkpoint->name_in_file(name);
  return file == name ? name : file + " (" + name + ")";
}

std::string PlanState::file_of(const Tensor& t) const {
  const auto files = checkpoint->files();
  return static_cast<std::size_t>(t.file) < files.size() ? files[t.file].path.filename().string() : checkpoint->path().string();
}

LayerView::LayerView(const PlanState& state, const Unit& unit, int tp_rank, int tp_size) {
  const LayerSpec& spec = state.layers[unit.layer];
  name_ = unit.n_parts == spec.parts.size() ? spec.name : spec.parts[unit.part].name;
  parts_.resize(unit.n_parts);
  for (std::size_t i = 0; i < unit.n_parts; ++i) {
    const PartSpec& p = spec.parts[unit.part + i];
    qe_part& out = parts_[i];
    out = {};
    out.struct_size = sizeof out;
    out.role = p.role;
    out.name = str(p.module());
    out.n = p.stored.empty() ? p.n : p.stored_n;
    out.n_begin = p.first;
    out.n_end = p.first + p.n;
    n_ += p.n;
    pointers_.push_back(&out);
  }
  layer_.struct_size = sizeof layer_;
  layer_.n_parts = static_cast<std::uint32_t>(unit.n_parts);
  layer_.parts = pointers_.data();
  layer_.method = unit.method.empty() ? nullptr : unit.method.c_str();
  layer_.index = spec.index;
  layer_.tp_rank = tp_rank;
  layer_.tp_size = tp_size;
  layer_.act = QE_ACT_COMPUTE;
  layer_.flags = unit.flags;
  layer_.k = layer_.k_end = spec.k;
  if (tp_size > 1) {
    const int role = spec.parts[unit.part].role;
    if (role == QE_ROLE_O || role == QE_ROLE_DOWN) {
      layer_.k_begin = spec.k * tp_rank / tp_size;
      layer_.k_end = spec.k * (tp_rank + 1) / tp_size;
    } else if (role == QE_ROLE_Q || role == QE_ROLE_K || role == QE_ROLE_V || role == QE_ROLE_GATE || role == QE_ROLE_UP) {
      for (qe_part& p : parts_) {
        // With more ranks than kv heads, ranks share them.
        const bool shared = (p.role == QE_ROLE_K || p.role == QE_ROLE_V) && tp_size > state.config.num_kv_heads;
        const int ranks = shared ? state.config.num_kv_heads : tp_size, rank = shared ? tp_rank * ranks / tp_size : tp_rank;
        const std::int64_t begin = p.n_begin, n = p.n_end - begin;
        p.n_begin = begin + n * rank / ranks;
        p.n_end = begin + n * (rank + 1) / ranks;
      }
    }
  }
  layer_.m_max = state.options.m_max;
  if (state.options.device.kind != QE_CUDA || tp_size > 1 || unit.n_parts != spec.parts.size()) return;
  chain_ = std::make_unique<StepChain>(spec, state.config);
  layer_.n_before = static_cast<std::uint32_t>(chain_->before.size());
  layer_.n_after = static_cast<std::uint32_t>(chain_->after.size());
  layer_.before = chain_->before.data();
  layer_.after = chain_->after.data();
}

// ---- Linear -----------------------------------------------------------------------------------------

struct Linear::Impl {
  struct Piece {
    const Plugin* plugin;
    qe_linear handle;
    std::int64_t begin, n;  // its rows of the whole
    std::string name;
    std::vector<qe_regime> regimes;  // rising m_hi

    const qe_regime& regime(std::int64_t m) const {
      for (const qe_regime& r : regimes)
        if (m <= r.m_hi) return r;
      return regimes.back();
    }
  };
  std::shared_ptr<PlanState> state;
  ThreadPool* pool = nullptr;
  std::int64_t k = 0, n = 0;
  std::vector<Piece> pieces;

  ~Impl() {
    for (auto p = pieces.rbegin(); p != pieces.rend(); ++p) {
      Call call{p->plugin->name.c_str(), "destroy", p->name.c_str()};
      const CallScope scope(call);
      p->plugin->weight->destroy(p->handle);
    }
  }

  template <class F>
  void into(const Piece& p, const char* what, F&& f) const {
    qe_error error;  // the plugin fills it when it fails
    error.device_code = 0;
    error.subject[0] = error.message[0] = error.hint[0] = 0;
    Call call{p.plugin->name.c_str(), what, p.name.c_str(), pool, nullptr};
    const CallScope scope(call);
    if (const qe_status s = f(*p.plugin->weight, p.handle, &error)) throw plugin_error(s, error, {p.plugin, what, p.name, state->checkpoint.get()});
  }
};

Linear::Linear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Linear::~Linear() = default;

std::int64_t Linear::k() const { return impl_->k; }
std::int64_t Linear::n() const { return impl_->n; }

void Linear::run(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride, std::int64_t m) const {
  const Impl& s = *impl_;
  const std::int64_t step = std::max<std::int64_t>(1, s.state->options.m_max);
  for (std::int64_t begin = 0; begin < m; begin += step) {
    const std::int64_t rows = std::min(step, m - begin);
    for (const Impl::Piece& p : s.pieces) {
      qe_run run{};
      run.struct_size = sizeof run;
      run.m = rows;
      run.in = f32_matrix(in + begin * in_stride, rows, s.k, in_stride);
      run.out = f32_matrix(out + begin * out_stride + p.begin, rows, p.n, out_stride);
      run.workspace_bytes = p.regime(rows).workspace_bytes;
      if (run.workspace_bytes) run.workspace = s.state->workspace.get();
      s.into(p, "run", [&](const qe_weight_v1& w, qe_linear h, qe_error* e) { return w.run(h, &run, e); });
    }
  }
}

void Linear::dequant(std::int64_t n_begin, std::int64_t n_end, float* out) const {
  const Impl& s = *impl_;
  for (const Impl::Piece& p : s.pieces) {
    const std::int64_t a = std::max(n_begin, p.begin), b = std::min(n_end, p.begin + p.n);
    if (a >= b) continue;
    qe_tensor to = f32_matrix(out + (a - n_begin) * s.k, b - a, s.k, s.k);
    s.into(p, "dequant", [&](const qe_weight_v1& w, qe_linear h, qe_error* e) { return w.dequant(h, a - p.begin, b - p.begin, &to, nullptr, e); });
  }
}

bool Linear::has_rows() const { return impl_->pieces.size() == 1 && impl_->pieces[0].plugin->weight->rows; }

void Linear::rows(const std::int32_t* ids, std::int64_t n, float* out) const {
  const Impl& s = *impl_;
  if (!has_rows()) throw broke_contract(*s.pieces[0].plugin, s.pieces[0].name + " is an embedding, and it offers no rows", "rows");
  qe_tensor to = f32_matrix(out, n, s.k, s.k);
  s.into(s.pieces[0], "rows", [&](const qe_weight_v1& w, qe_linear h, qe_error* e) { return w.rows(h, ids, n, &to, nullptr, e); });
}

qe_regime Linear::regime(std::int64_t m) const {
  qe_regime r = impl_->pieces.front().regime(m);
  if (impl_->pieces.size() == 1) return r;
  r.n_before = r.n_after = 0;
  for (const Impl::Piece& p : impl_->pieces) r.flags &= p.regime(m).flags;
  return r;
}

std::uint64_t Linear::workspace_bytes() const {
  std::uint64_t most = 0;
  for (const Impl::Piece& p : impl_->pieces)
    for (const qe_regime& r : p.regimes) most = std::max(most, r.workspace_bytes);
  return most;
}

void Linear::enqueue(const qe_run& whole) const {
  for (const Impl::Piece& p : impl_->pieces) {
    qe_run run = whole;
    run.struct_size = sizeof run;
    const std::int64_t size = run.out.dtype == QE_F32 ? 4 : 2;
    run.out.data = static_cast<char*>(run.out.data) + p.begin * size;
    run.out.dim[1] = p.n;
    impl_->into(p, "run", [&](const qe_weight_v1& w, qe_linear h, qe_error* e) { return w.run(h, &run, e); });
  }
}

void Linear::enqueue_rows(const std::int32_t* ids, std::int64_t n, qe_tensor out, qe_stream stream) const {
  if (!has_rows()) throw broke_contract(*impl_->pieces[0].plugin, impl_->pieces[0].name + " is an embedding, and it offers no rows", "rows");
  impl_->into(impl_->pieces[0], "rows", [&](const qe_weight_v1& w, qe_linear h, qe_error* e) { return w.rows(h, ids, n, &out, stream, e); });
}

std::uint64_t Linear::bytes(int mem) const {
  std::uint64_t sum = 0;
  for (const Impl::Piece& p : impl_->pieces) sum += p.plugin->weight->bytes(p.handle, mem);
  return sum;
}

// ---- loading ----------------------------------------------------------------------------------------

namespace {

// Loads one unit and holds it against its plan.
qe_linear load_unit(PlanState& s, const Unit& unit, const LayerView& view, ThreadPool& pool) {
  const Plugin& p = *unit.plugin;
  const qe_dev device = s.device_of(p);
  PluginModel& model = *s.models.at(unit.plugin);
  PluginServices& services = *p.services;
  const std::lock_guard lock(services.load_mutex());

  std::uint64_t before[4];
  for (int mem = QE_MEM_WEIGHT; mem <= QE_MEM_LOAD_TEMP; ++mem) before[mem] = services.held(mem);
  services.reset_peak();
  qe_linear handle = nullptr;
  qe_error error{};
  qe_status status;
  CallFindings findings;
  {
    Call call{p.name.c_str(), "load", view.name().c_str(), &pool, s.options.cancel, &findings};
    const CallScope scope(call);
    model.ckpt.loading = true;
    const qe_stream stream = s.options.device.kind == QE_CUDA ? Gpu::open(s.options.device.ordinal).stream() : nullptr;
    status = p.weight->load(device, &model.model, view.get(), stream, &handle, &error);
    model.ckpt.loading = false;
    model.ckpt.aligned.clear();
  }
  for (const Want& w : unit.wants)
    if (const Tensor* t = s.checkpoint->find(w.name)) s.checkpoint->release(*t);
  if (status) throw plugin_error(status, error, {&p, "load", view.name(), s.checkpoint.get()});
  if (!handle) throw broke_contract(p, "load of " + view.name() + " succeeded without a result", "load");

  try {
    const std::pair<int, std::uint64_t> kept[] = {{QE_MEM_WEIGHT, unit.plan.weight_bytes}, {QE_MEM_PERSIST, unit.plan.persist_bytes}};
    for (const auto& [mem, planned] : kept) {
      const char* kind = mem == QE_MEM_WEIGHT ? "" : " of state";
      const std::uint64_t says = p.weight->bytes(handle, mem), took = services.held(mem) - before[mem];
      if (says != planned) throw broke_contract(p, view.name() + " has " + megabytes(says) + kind + ", planned " + megabytes(planned), "load");
      if (took != planned) throw broke_contract(p, view.name() + " took " + megabytes(took) + kind + ", planned " + megabytes(planned), "load");
    }
    if (services.held(QE_MEM_LOAD_TEMP) != before[QE_MEM_LOAD_TEMP]) throw broke_contract(p, view.name() + " kept memory that it took only for loading", "load");
    if (const std::uint64_t peak = services.peak(QE_MEM_LOAD_TEMP) - before[QE_MEM_LOAD_TEMP]; peak > unit.plan.load_temp_bytes)
      throw broke_contract(p, view.name() + " took " + megabytes(peak) + " while loading, planned " + megabytes(unit.plan.load_temp_bytes), "load");
  } catch (...) {
    p.weight->destroy(handle);
    throw;
  }
  return handle;
}

}  // namespace

std::unique_ptr<Linear> load_layer(const std::shared_ptr<PlanState>& state, std::size_t i, ThreadPool& pool) {
  PlanState& s = *state;
  auto impl = std::make_unique<Linear::Impl>();
  impl->state = state;
  impl->pool = &pool;
  impl->k = s.layers.at(i).k;
  for (const Unit& unit : s.units[i]) {
    if (s.options.cancel && s.options.cancel->load()) throw Error("E000", "loading was cancelled");
    const LayerView view(s, unit);
    const qe_linear handle = load_unit(s, unit, view, pool);
    Linear::Impl::Piece piece{unit.plugin, handle, impl->n, view.n(), view.name(), {}};
    std::uint64_t most = 0;
    for (int r = 0; r < std::clamp(unit.plan.n_regimes, 1, 4); ++r) {
      piece.regimes.push_back(unit.plan.regime[r]);
      most = std::max(most, unit.plan.regime[r].workspace_bytes);
    }
    impl->n += view.n();
    impl->pieces.push_back(std::move(piece));
    if (s.options.device.kind == QE_CPU && most > s.workspace_bytes) {
      s.workspace.reset(static_cast<std::byte*>(::operator new[](most, std::align_val_t(64))), [](std::byte* b) { ::operator delete[](b, std::align_val_t(64)); });
      s.workspace_bytes = most;
    }
  }
  return std::unique_ptr<Linear>(new Linear(std::move(impl)));
}

// ---- dense tensors ------------------------------------------------------------------------------------

std::vector<float> load_dense(const PlanState& s, const std::string& name, std::span<const std::int64_t> shape) {
  if (const auto inside = s.biases_inside.find(name); inside != s.biases_inside.end()) {
    const auto& [whole, n, first] = inside->second;
    const std::vector<float> all = load_dense(s, whole, std::array{n});
    return {all.begin() + first, all.begin() + first + shape[0]};
  }
  const Tensor* t = s.checkpoint->find(name);
  if (!t) throw Error("E202", "missing tensor " + s.spelled(name)).from("the model needs it for every token").hint("the download may be incomplete");
  Want want{name, true, static_cast<int>(shape.size()), 1u << QE_F32 | 1u << QE_F16 | 1u << QE_BF16, {-1, -1, -1, -1}};
  std::copy_n(shape.begin(), std::min<std::size_t>(shape.size(), 4), want.dim);
  Tensor plain = *t;  // GGUF spells the same three types in its own numbers
  if (plain.dtype == QE_GGML + 0) plain.dtype = QE_F32;
  if (plain.dtype == QE_GGML + 1) plain.dtype = QE_F16;
  if (plain.dtype == QE_GGML + 30) plain.dtype = QE_BF16;
  if (const std::string what = mismatch(plain, want); !what.empty()) throw Error("E204", s.spelled(name) + " " + what).in(s.file_of(*t));

  const std::span<const std::byte> data = s.checkpoint->data(*t);
  const std::size_t size = plain.dtype == QE_F32 ? 4 : 2, n = data.size() / size;
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, data.data() + i * size, size);
    if (plain.dtype == QE_F32) {
      std::memcpy(&out[i], &bits, 4);
    } else if (plain.dtype == QE_BF16) {
      bits <<= 16;
      std::memcpy(&out[i], &bits, 4);
    } else {
      const std::uint32_t sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
      const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                              : exponent == 31 ? (fraction ? NAN : INFINITY)
                                               : std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25);
      out[i] = sign ? -magnitude : magnitude;
    }
    if (!std::isfinite(out[i])) throw Error("E206", s.spelled(name) + " has a value that is not finite (at " + std::to_string(i) + ")").in(s.file_of(*t)).hint("the file is damaged");
  }
  s.checkpoint->release(*t);

  // Biases of attn_q and attn_k lie in the same rotary order as the rows of their matrices.
  if (const auto role = s.bias_roles.find(name); role != s.bias_roles.end() && (role->second == QE_ROLE_Q || role->second == QE_ROLE_K) && s.checkpoint->rotary_rows_interleaved()) {
    const std::size_t hd = static_cast<std::size_t>(s.config.head_dim), half = hd / 2;
    std::vector<float> ordered(n);
    for (std::size_t h = 0; h + hd <= n; h += hd)
      for (std::size_t side = 0; side < 2; ++side)
        for (std::size_t i = 0; i < half; ++i) ordered[h + side * half + i] = out[h + 2 * i + side];
    out = std::move(ordered);
  }
  return out;
}

}  // namespace qengine
