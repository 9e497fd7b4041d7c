// qe/cuda/linear.hpp: a layer on a GPU, from formats and kernels to the calls of qe_weight_v1. Host code without
// templates and without the CUDA headers: kernels are reached through cuda/kernels.hpp, memory through the host.
//
//   m <= 8, 16     the stream kernel, one launch
//   m <= 64        one launch of the wide kernel; before sm_90, or where it does not fit, 16 tokens a launch
//   above          panels of weights in workspace, then the host's dense product (qe/gemm.h): in FP8 where activations
//                  are quantized and codes.hpp knows how, else in bf16; without one, or without the workspace for
//                  it, as before
//
// Up to 64 tokens a launch also takes what stands next to the product: RMS_NORM before (m <= 8: each block does it
// again), BIAS, RESIDUAL and, for gate and up, ACT_MUL after. Counts are those of the plan; run may be given fewer.
//
// Up to 64 tokens activations stay in bf16, also of a layer planned with QE_LAYER_ACT_QUANT.
#pragma once

#include <qe/cuda/kernels.hpp>
#include <qe/gemm.h>
#include <qe/linear.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace qe::cuda {

inline constexpr std::int64_t kStreamMost = 64;              // tokens; above, panels
inline constexpr std::int64_t kPanelBytes = std::int64_t{32} << 20;  // stays in L2
inline constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;  // packed on the host at a time

inline Gpu gpu_of(const qe_device& d) {
  Gpu g;
  if (d.sm) g.sm = d.sm;
  if (d.sm_count) g.sms = d.sm_count;
  const std::int64_t optin = d.smem_optin ? std::int64_t(d.smem_optin) : g.sm == 80 ? 166912 : g.sm == 86 || g.sm == 89 || g.sm >= 120 ? 101376 : 232448;
  g.shared = optin - 1024;
  return g;
}

// What of a layer is decided before its data is there.
struct LayerPlan {
  const Kernels* kernels = nullptr;
  std::vector<Layout> parts;
  bool fuse = true;
  std::string apart;  // why not
  Gpu gpu;
  std::int64_t n = 0, k = 0, strips = 0, width = 0;
  std::uint64_t unit_bytes = 0, weight_bytes = 0, persist_bytes = 0;
  CodesPlan codes;

  std::int64_t units_bytes() const { return strips * width * std::int64_t(unit_bytes); }
  std::int64_t panel_stride() const { return (k + 7) / 8 * 8; }
  std::int64_t panel_rows() const { return std::max<std::int64_t>(16, std::min((n + 15) / 16 * 16, kPanelBytes / (2 * panel_stride()) / 16 * 16)); }
  std::uint64_t panel_bytes() const { return std::uint64_t(panel_rows() * panel_stride()) * 2; }
  bool row() const { return !parts.empty() && parts[0].row; }
};

inline LayerPlan plan_layer(const qe_device& device, const qe_model& m, const qe_layer& l, const std::vector<const Kernels*>& kernels, Io& io) {
  LayerPlan p;
  p.gpu = gpu_of(device);
  ColumnMap first;
  std::vector<CodesPart> scales;
  for (std::uint32_t i = 0; i < l.n_parts; ++i) {
    const Part part(m, l, *l.parts[i]);
    PartPlan d = kernels[i]->plan(io, part, qe::detail::range_of(l, *l.parts[i]));
    if (i == 0) first = std::move(d.map), p.kernels = kernels[0];
    else if (kernels[i] != kernels[0]) p.apart = "the parts have different formats";
    else if (!d.layout.same_columns(p.parts[0])) p.apart = "the parts have different groups";
    else if (d.map != first) p.apart = "the parts read their inputs in different orders";
    p.parts.push_back(d.layout);
    scales.push_back(d.codes);
    p.n += d.layout.n;
    p.strips += d.layout.strips;
    p.weight_bytes += std::uint64_t(d.layout.strips * d.layout.strip_bytes() + (d.layout.row ? d.layout.strips * kStrip * 4 : 0));
  }
  if (l.n_parts > std::uint32_t(kMaxParts)) p.apart = "more than four parts";
  p.fuse = p.apart.empty();
  if (!p.parts.empty()) {
    p.k = p.parts[0].k;
    p.width = p.parts[0].units;
    p.unit_bytes = std::uint64_t(p.parts[0].unit_bytes);
    p.persist_bytes = p.parts[0].mapped ? std::uint64_t(p.width * kUnit) * sizeof(std::int32_t) : 0;
    if (p.fuse && p.kernels->codes) p.codes = plan_codes(p.gpu.sm, l, p.parts, scales);
  }
  return p;
}

inline const qe_gemm_v1* host_gemm() {
  const auto* g = static_cast<const qe_gemm_v1*>(host().extension(host().self, QE_GEMM_ID));
  return g && g->gemm ? g : nullptr;
}

// The steps of one call, as the kernel takes them.
struct Steps {
  const qe_step_norm* norm = nullptr;
  const qe_step_simple *bias = nullptr, *residual = nullptr, *act = nullptr;
};

// How many steps of a chain the kernel takes, and which. `n`: outputs of the product.
struct Taken {
  std::uint32_t before = 0, after = 0;
  Steps steps;
};
inline Taken take_steps(const LayerPlan& p, const qe_step* const* before, std::uint32_t n_before, const qe_step* const* after, std::uint32_t n_after) {
  Taken t;
  if (n_before && before[n_before - 1]->kind == QE_STEP_RMS_NORM) {
    t.steps.norm = reinterpret_cast<const qe_step_norm*>(before[n_before - 1]);
    t.before = 1;
  }
  for (std::uint32_t i = 0; i < n_after; ++i) {
    const auto* step = reinterpret_cast<const qe_step_simple*>(after[i]);
    if (after[i]->kind == QE_STEP_BIAS && i == 0) {
      t.steps.bias = step;
    } else if (after[i]->kind == QE_STEP_RESIDUAL) {
      t.steps.residual = step, t.after = i + 1;
      break;
    } else if (after[i]->kind == QE_STEP_ACT_MUL && p.parts.size() == 2 && p.parts[0].n == p.parts[1].n) {
      t.steps.act = step, t.after = i + 1;
      break;
    } else {
      break;
    }
    t.after = i + 1;
  }
  return t;
}

inline Extras extras_of(const LayerPlan& p, const Steps& s) { return {p.row(), s.norm != nullptr, s.act != nullptr}; }

// How a launch of at most 8 * tiles tokens is spread.
inline Work work_of(const LayerPlan& p, int tiles, int m, const Steps& steps, Kernel& kernel) {
  if (!p.kernels->describe(tiles, p.parts[0].run, &kernel)) throw Error(QE_E_INTERNAL, {}, "the format has no kernel for its records");
  kernel.bulk = kernel.bulk && p.gpu.clusters();
  return plan_work(kernel, p.gpu, p.strips, p.width, m, extras_of(p, steps));
}

// Fills the plan of a layer that is ours.
inline void describe_plan(const LayerPlan& p, const qe_layer& l, qe_plan& out) {
  out.fuse_parts = p.fuse;
  out.n_multiple = 8;
  out.k_multiple = p.parts.empty() ? 1 : std::max<std::int64_t>(p.parts[0].group, 1);
  out.weight_bytes = p.weight_bytes;
  out.persist_bytes = p.persist_bytes;
  out.load_temp_bytes = 0;  // packed in slices of host memory
  out.n_regimes = 0;
  const std::int64_t m_max = std::max<std::int64_t>(1, l.m_max);
  const bool dense = host_gemm() != nullptr;
  const auto add = [&](std::int64_t m_hi, std::int64_t launches, const char* name, std::uint64_t workspace, bool pdl) {
    qe_regime& r = out.regime[out.n_regimes++];
    std::memset(&r, 0, sizeof r);
    r.m_hi = std::min(m_hi, m_max);
    r.in_encodings = QE_ACT_COMPUTE;
    r.flags = QE_GRAPH_SAFE | QE_DETERMINISTIC | (pdl ? QE_PDL_SAFE : 0);
    r.launches = std::uint32_t(launches);
    r.workspace_bytes = workspace;
    std::snprintf(r.kernel, sizeof r.kernel, "%s", name);
  };
  const bool edges = p.gpu.sm >= 90;
  const Taken all = p.fuse ? take_steps(p, l.before, l.n_before, l.after, l.n_after) : Taken{};
  // Whether `tokens` of them fit a launch that does these steps.
  const auto fits = [&](int tiles, int tokens, const Steps& steps) {
    Kernel kernel;
    if (p.parts.empty() || !work_of(p, tiles, tokens, steps, kernel).fits) return false;
    return !steps.norm || ceil_div(p.k, 8) <= std::int64_t(kNormChunks) * kernel.warps * 32;
  };
  const auto fuse = [&](int tiles, bool norm) {  // of the regime just added
    Steps steps = all.steps;
    std::uint32_t before = norm ? all.before : 0, after = all.after;
    if (!norm) steps.norm = nullptr;
    if (steps.norm && !fits(tiles, 8 * tiles, steps)) steps.norm = nullptr, before = 0;
    if (steps.act && !fits(tiles, 8 * tiles, steps)) steps.act = nullptr, --after;
    out.regime[out.n_regimes - 1].n_before = before;
    out.regime[out.n_regimes - 1].n_after = after;
  };
  add(8, 1, "stream_m8", 0, edges), fuse(1, true);
  if (m_max > 8) add(16, 1, "stream_m16", 0, edges), fuse(2, false);
  if (m_max > 16) {
    const std::int64_t most = dense ? kStreamMost : m_max, some = std::min(m_max, most);
    Steps wide = all.steps;
    wide.norm = nullptr;
    if (fits(kWideTokens / 8, kWideTokens, wide)) add(most, ceil_div(some, kWideTokens), "stream_m64", 0, edges), fuse(kWideTokens / 8, false);
    else add(most, ceil_div(some, 16), "stream_m16", 0, edges), fuse(2, false);
  }
  if (dense && m_max > kStreamMost) {
    if (const CodesPlan& c = p.codes; c.on) {
      const std::int64_t products = ceil_div(p.n, c.panel_rows()) * (c.blocks ? 2 : 1);
      add(m_max, c.slices(m_max) * (1 + ceil_div(p.n, c.panel_rows()) + products), "panel+gemm_fp8", std::max(c.bytes(), p.panel_bytes()) + QE_GEMM_WORKSPACE, false);
    } else {
      add(m_max, 2 * ceil_div(p.n, p.panel_rows()), "panel+gemm", p.panel_bytes() + QE_GEMM_WORKSPACE, false);
    }
  }
}

// Whether describe_plan has a regime in which activations are quantized.
inline bool quantizes_activations(const LayerPlan& p, const qe_layer& l) { return p.codes.on && l.m_max > kStreamMost && host_gemm(); }

class Layer {
 public:
  Layer(const qe_device& device, const qe_model& m, const qe_layer& l, const std::vector<const Kernels*>& kernels, qe_stream stream)
      : device_(device) {
    Io plan_io(m, Io::Mode::plan), io(m, Io::Mode::load);
    plan_ = plan_layer(device, m, l, kernels, plan_io);
    if (!plan_.fuse && l.n_parts > 1) throw Error(QE_E_ARGUMENT, std::string(view(l.parts[0]->name)), "is fused with others, but " + plan_.apart);
    prepare_once();
    weights_ = static_cast<std::uint8_t*>(alloc(std::max<std::uint64_t>(1, plan_.weight_bytes), QE_MEM_WEIGHT));
    if (plan_.persist_bytes) map_ = static_cast<std::int32_t*>(alloc(plan_.persist_bytes, QE_MEM_PERSIST));
    try {
      std::int64_t strip = 0;
      std::vector<Activation> activation;
      std::vector<float> factor;  // of all rows of a part, NaN when they differ
      for (std::uint32_t i = 0; i < l.n_parts; ++i) {
        const Part part(m, l, *l.parts[i]);
        const Layout& layout = plan_.parts[i];
        factor.push_back(0.0f);
        const PartPlan loaded = kernels[i]->load(io, part, qe::detail::range_of(l, *l.parts[i]), layout, kSliceBytes,
                                                 [&](std::int64_t first, std::int64_t strips, const std::byte* units, const float* factors) {
          upload(weights_ + (strip + first) * layout.strip_bytes(), units, std::uint64_t(strips * layout.strip_bytes()), stream);
          if (!layout.row) return;
          upload(weights_ + plan_.units_bytes() + (strip + first) * kStrip * 4, factors, std::uint64_t(strips * kStrip * 4), stream);
          if (first == 0) factor[i] = factors[0];
          for (std::int64_t r = 0; r < std::min(strips * kStrip, layout.n - first * kStrip); ++r)
            if (factors[r] != factor[i]) factor[i] = std::numeric_limits<float>::quiet_NaN();
        });
        activation.push_back(loaded.codes.activation);
        if (i == 0 && map_) upload(map_, loaded.map.data(), plan_.persist_bytes, stream);
        strip += layout.strips;
      }
      if (plan_.codes.on) segments_ = segments_of(plan_.codes, plan_.parts, activation, factor);
    } catch (...) {
      release();
      throw;
    }
  }
  Layer(const Layer&) = delete;
  ~Layer() { release(); }

  std::uint64_t bytes(int mem) const { return mem == QE_MEM_WEIGHT ? plan_.weight_bytes : mem == QE_MEM_PERSIST ? plan_.persist_bytes : 0; }

  void run(const qe_run& r) const {
    if (r.m == 0) return;
    if (r.m < 0) throw Error(QE_E_ARGUMENT, "m", "is negative");
    const Taken taken = take_steps(plan_, r.before, r.n_before, r.after, r.n_after);
    if (taken.before != r.n_before || taken.after != r.n_after) throw Error(QE_E_UNSUPPORTED, "steps", "are not those that were planned");
    const Steps& steps = taken.steps;
    check(r.in, "in", r.m, plan_.k, false);
    check(r.out, "out", r.m, steps.act ? plan_.parts[0].n : plan_.n, true);
    if (steps.norm) check_vector(steps.norm->weight, "norm weight", plan_.k);
    if (steps.bias) check_vector(steps.bias->value, "bias", plan_.n);
    if (steps.residual) check(steps.residual->value, "residual", r.m, plan_.n, true);
    if (r.m > kStreamMost && !taken.before && !taken.after && (codes(r, true) || dense(r))) return;
    for (std::int64_t t = 0; t < r.m;) t += launch(r, t, steps);
  }

  void warmup(const std::int64_t* m, std::uint32_t n_m, const qe_run& scratch) const {
    const qe_gemm_v1* g = host_gemm();
    if (!g || !g->warmup || scratch.workspace_bytes < plan_.panel_bytes()) return;
    for (std::uint32_t i = 0; i < n_m; ++i) {
      if (m[i] <= kStreamMost || m[i] > scratch.m) continue;
      qe_run r = scratch;
      r.m = m[i];
      if (codes(r, false)) continue;
      for (std::int64_t first = 0; first < plan_.n; first += plan_.panel_rows()) {
        if (first && plan_.n - first >= plan_.panel_rows()) continue;  // as the one before
        const qe_gemm_args a = gemm_args(r, first);
        qe_error e{};
        if (const qe_status s = g->warmup(g->self, &a, &e); s != QE_OK && s != QE_E_UNSUPPORTED) throw Error(s, e.subject, e.message, e.hint);
      }
    }
  }

  // Exact float32 rows [begin, end).
  void dequant(std::int64_t begin, std::int64_t end, const qe_tensor& out, qe_stream stream) const {
    if (begin < 0 || end > plan_.n || begin > end) throw Error(QE_E_ARGUMENT, "rows", "are outside of the layer");
    if (begin == end) return;
    check(out, "out", end - begin, plan_.k, true);
    unpack(out, begin, nullptr, end - begin, stream, false);
  }
  // Rows ids[0..n) (device memory), zeros for an id that is none.
  void rows(const std::int32_t* ids, std::int64_t n, const qe_tensor& out, qe_stream stream) const {
    if (n == 0) return;
    check(out, "out", n, plan_.k, true);
    unpack(out, 0, ids, n, stream, false);
  }

 private:
  void* alloc(std::uint64_t bytes, int mem) {
    void* p = nullptr;
    if (const qe_status s = host().alloc(host().self, &device_, bytes, 256, mem, &p); s != QE_OK) {
      release();
      throw Error(s, {}, format("no memory for %llu bytes of weights", static_cast<unsigned long long>(bytes)));
    }
    return p;
  }
  void release() {
    const qe_host& h = host();
    if (weights_) h.free(h.self, &device_, weights_), weights_ = nullptr;
    if (map_) h.free(h.self, &device_, map_), map_ = nullptr;
  }
  static void upload(void* to, const void* from, std::uint64_t bytes, qe_stream stream) {
    if (const qe_status s = host().upload(host().self, to, from, bytes, stream); s != QE_OK) throw Error(s, {}, "weights could not be copied to the device");
  }
  static void require(const char* problem) {
    if (problem) throw Error(QE_E_DEVICE, {}, problem);
  }
  // Attributes of kernels are those of a device: set once for each.
  void prepare_once() const {
    static std::mutex mutex;
    static std::set<std::pair<const Kernels*, int>> done;
    std::lock_guard lock(mutex);
    if (!plan_.kernels || done.contains({plan_.kernels, device_.ordinal})) return;
    require(plan_.kernels->prepare(device_.ordinal));
    done.insert({plan_.kernels, device_.ordinal});
  }
  static void check(const qe_tensor& t, const char* what, std::int64_t rows, std::int64_t cols, bool f32) {
    if ((t.dtype != QE_BF16 && !(f32 && t.dtype == QE_F32)) || !t.data || t.rank != 2 || t.dim[0] < rows || t.dim[1] < cols)
      throw Error(QE_E_ARGUMENT, what,
                  format("is %s of rank %d, must be %s of [%lld, %lld]", dtype_name(t.dtype), t.rank, f32 ? "BF16 or F32" : "BF16", static_cast<long long>(rows),
                         static_cast<long long>(cols)));
  }
  static void check_vector(const qe_tensor& t, const char* what, std::int64_t n) {
    if ((t.dtype != QE_BF16 && t.dtype != QE_F32) || !t.data || t.rank < 1 || t.dim[t.rank - 1] < n)
      throw Error(QE_E_ARGUMENT, what, format("is %s, must be BF16 or F32 of [%lld]", dtype_name(t.dtype), static_cast<long long>(n)));
  }
  static std::int64_t stride_of(const qe_tensor& t) { return t.stride[0] ? t.stride[0] : t.dim[1]; }
  const float* factors() const { return plan_.row() ? reinterpret_cast<const float*>(weights_ + plan_.units_bytes()) : nullptr; }
  template <class Args>
  void parts_to(Args& a) const {
    a.parts = std::int32_t(plan_.parts.size());
    std::int64_t strip = 0, column = 0;
    for (std::size_t i = 0; i < plan_.parts.size(); ++i) {
      a.part[i] = {std::int32_t(strip), std::int32_t(column), std::int32_t(plan_.parts[i].n)};
      strip += plan_.parts[i].strips;
      column += plan_.parts[i].n;
    }
  }

  // Tokens from t on; how many it took.
  std::int64_t launch(const qe_run& r, std::int64_t t, const Steps& steps) const {
    const std::int64_t left = r.m - t;
    int m = int(std::min<std::int64_t>(kWideTokens, left));
    Kernel kernel;
    Work work;
    if (m > 16 && !steps.norm) work = work_of(plan_, kWideTokens / 8, m, steps, kernel);
    if (!work.fits) m = std::min(m, steps.norm ? 8 : 16);
    for (; !work.fits; m = (m + 1) / 2) {
      work = work_of(plan_, m > 8 ? 2 : 1, m, steps, kernel);
      if (work.fits) break;
      if (m == 1) throw Error(QE_E_UNSUPPORTED, "k", format("%lld inputs of one token do not fit the shared memory of this device", static_cast<long long>(plan_.k)));
    }
    StreamArgs a{};
    a.units = weights_;
    a.row = factors();
    a.map = map_;
    const std::int64_t in_stride = stride_of(r.in), out_stride = stride_of(r.out);
    a.in = static_cast<const std::uint16_t*>(r.in.data) + t * in_stride;
    a.out_f32 = r.out.dtype == QE_F32;
    a.out = static_cast<std::byte*>(r.out.data) + t * out_stride * (a.out_f32 ? 4 : 2);
    a.in_stride = in_stride;
    a.out_stride = out_stride;
    a.m = m;
    a.by_m = 65536u / unsigned(m) + 1;
    a.k = std::int32_t(plan_.k);
    a.strips = std::int32_t(plan_.strips);
    a.width = std::int32_t(plan_.width);
    a.slices = work.slices;
    a.depth = work.depth;
    a.batch = work.batch;
    a.token_bytes = work.token_bytes;
    a.aligned = in_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(r.in.data) % 16 == 0;
    if ((r.flags & QE_RUN_PDL) && plan_.gpu.sm >= 90) {
      // Calls come in the order of the chain; where one goes to another plugin, only speed suffers.
      static thread_local bool few_before = false;
      join_chain(work, a, plan_.gpu, few_before || t > 0 || (r.flags & QE_RUN_OTHER_BEFORE), r.flags & QE_RUN_OTHER_BEHIND);
      few_before = work.blocks != plan_.gpu.sms;
    }
    parts_to(a);
    if (steps.norm) {
      a.norm = steps.norm->weight.data;
      a.norm_f32 = steps.norm->weight.dtype == QE_F32;
      a.eps = steps.norm->eps;
      a.gemma = steps.norm->gemma;
    }
    if (steps.bias) a.bias = steps.bias->value.data, a.bias_f32 = steps.bias->value.dtype == QE_F32;
    if (steps.residual) {
      a.residual_f32 = steps.residual->value.dtype == QE_F32;
      a.residual_stride = stride_of(steps.residual->value);
      a.residual = static_cast<const std::byte*>(steps.residual->value.data) + t * a.residual_stride * (a.residual_f32 ? 4 : 2);
    }
    if (steps.act) a.pairs = steps.act->variant == 1 ? 2 : 1;
    require(plan_.kernels->stream(kernel, work, a, r.stream));
    return m;
  }

  void unpack(const qe_tensor& out, std::int64_t first, const std::int32_t* ids, std::int64_t rows, qe_stream stream, bool pdl) const {
    UnpackArgs a{};
    a.units = weights_;
    a.row = factors();
    a.map = map_;
    a.ids = ids;
    a.out = out.data;
    a.first = first;
    a.rows = rows;
    a.out_stride = stride_of(out);
    a.k = std::int32_t(plan_.k);
    a.strips = std::int32_t(plan_.strips);
    a.width = std::int32_t(plan_.width);
    a.unit_bytes = std::int32_t(plan_.unit_bytes);
    a.run = plan_.parts[0].run;
    a.out_f32 = out.dtype == QE_F32;
    a.pdl = pdl;
    a.vectors = !map_ && a.out_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(out.data) % 16 == 0;
    parts_to(a);
    require(plan_.kernels->unpack(a, stream));
  }

  // The product in FP8 of tokens [t, t + m) of a slice with rows [first, first + rows) of a segment; `tail`: of the last ones,
  // which have scales of their own.
  qe_gemm_args codes_args(const qe_run& r, const Segment& s, std::int64_t slice, std::int64_t t, std::int64_t m, std::int64_t first, std::int64_t rows, bool tail) const {
    const CodesPlan& c = plan_.codes;
    auto* base = static_cast<std::byte*>(r.workspace);
    const auto matrix = [](int dtype, void* data, std::int64_t n, std::int64_t k, std::int64_t row, std::int64_t column) {
      qe_tensor x{};
      x.dtype = dtype, x.rank = 2, x.dim[0] = n, x.dim[1] = k, x.stride[0] = row, x.stride[1] = column, x.data = data;
      return x;
    };
    const auto vector = [](const void* data, std::int64_t n) {
      qe_tensor x{};
      x.dtype = QE_F32, x.rank = 1, x.dim[0] = n, x.stride[0] = 1, x.data = const_cast<void*>(data);
      return x;
    };
    qe_gemm_args a{};
    a.struct_size = sizeof a;
    a.m = m, a.n = rows, a.k = c.k;
    a.in = matrix(QE_E4M3, base + c.tokens_at() + t * c.k, m, c.k, c.k, 1);
    a.weight = matrix(QE_E4M3, base, rows, c.k, c.k, 1);
    a.out = r.out;
    a.out.stride[0] = stride_of(r.out), a.out.stride[1] = 1, a.out.dim[0] = m, a.out.dim[1] = rows;
    a.out.data = static_cast<std::byte*>(r.out.data) + ((slice + t) * a.out.stride[0] + first) * (r.out.dtype == QE_F32 ? 4 : 2);
    if (c.blocks) {
      a.in_scale = matrix(QE_F32, base + (tail ? c.tail_scales_at() : c.token_scales_at()), m, c.groups(), 1, m);
      a.weight_scale = matrix(QE_F32, base + c.panel_scales_at(), ceil_div(rows, kScaleBlock), c.groups(), c.scale_stride(), 1);
    } else {
      a.in_scale = vector(base + c.token_scales_at(), s.one ? 1 : m);
      a.weight_scale = vector(factors() + first, s.one ? 1 : rows);
    }
    a.workspace = base + c.bytes();
    a.workspace_bytes = r.workspace_bytes - c.bytes();
    a.stream = r.stream;
    return a;
  }
  // False when the host has no such product, from then on; what was enqueued until then is done again. Not `enqueue`: only
  // has the host choose its algorithms.
  bool codes(const qe_run& r, bool enqueue) const {
    const CodesPlan& c = plan_.codes;
    const qe_gemm_v1* g = host_gemm();
    if (!c.on || !g || refused_ || !r.workspace || r.workspace_bytes < c.bytes()) return false;
    auto* base = static_cast<std::uint8_t*>(r.workspace);
    const auto multiply = [&](const qe_gemm_args& a) {
      qe_error e{};
      const qe_status s = (enqueue ? g->gemm : g->warmup)(g->self, &a, &e);
      if (s == QE_E_UNSUPPORTED) return refused_ = true, false;
      if (s != QE_OK) throw Error(s, e.subject, e.message, e.hint);
      return true;
    };
    for (std::int64_t i = 0; i < c.slices(r.m); ++i) {
      const std::int64_t slice = c.cut(r.m, i), m = c.cut(r.m, i + 1) - slice, most = c.blocks ? m / 4 * 4 : m;
      for (const Segment& s : segments_) {
        QuantizeArgs q{};
        q.in_stride = stride_of(r.in);
        q.in = static_cast<const std::uint16_t*>(r.in.data) + slice * q.in_stride;
        q.codes = base + c.tokens_at();
        q.scales = reinterpret_cast<float*>(base + c.token_scales_at());
        q.tail = most < m ? reinterpret_cast<float*>(base + c.tail_scales_at()) : nullptr;
        q.m = std::int32_t(m), q.k = std::int32_t(c.k), q.first = std::int32_t(most);
        q.aligned = q.in_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(r.in.data) % 16 == 0;
        q.kind = s.activation.kind, q.scale = s.activation.scale, q.bound = s.activation.bound;
        if (enqueue) require(plan_.kernels->quantize(q, r.stream));
        for (std::int64_t first = s.first; first < s.first + s.n; first += c.panel_rows()) {
          CodesArgs u{};
          u.units = weights_;
          u.out = base;
          u.scales = c.blocks ? reinterpret_cast<float*>(base + c.panel_scales_at()) : nullptr;
          u.first = first, u.rows = std::min(c.panel_rows(), s.first + s.n - first);
          u.k = std::int32_t(c.k), u.width = std::int32_t(plan_.width), u.unit_bytes = std::int32_t(plan_.unit_bytes), u.scale_stride = std::int32_t(c.scale_stride());
          if (enqueue) require(plan_.kernels->codes(u, r.stream));
          if (!multiply(codes_args(r, s, slice, 0, most, first, u.rows, false))) return false;
          if (most < m && !multiply(codes_args(r, s, slice, m - kTailTokens, kTailTokens, first, u.rows, true))) return false;
        }
      }
    }
    return true;
  }

  qe_tensor panel(const qe_run& r, std::int64_t rows) const {
    qe_tensor t{};
    t.dtype = QE_BF16, t.rank = 2;
    t.dim[0] = rows, t.dim[1] = plan_.k, t.stride[0] = plan_.panel_stride(), t.stride[1] = 1;
    t.data = r.workspace;
    return t;
  }
  qe_gemm_args gemm_args(const qe_run& r, std::int64_t first) const {
    const std::int64_t rows = std::min(plan_.panel_rows(), plan_.n - first);
    qe_gemm_args a{};
    a.struct_size = sizeof a;
    a.m = r.m, a.n = rows, a.k = plan_.k;
    a.in = r.in;
    a.in.stride[0] = stride_of(r.in), a.in.stride[1] = 1, a.in.dim[0] = r.m, a.in.dim[1] = plan_.k;
    a.weight = panel(r, rows);
    a.out = r.out;
    a.out.stride[0] = stride_of(r.out), a.out.stride[1] = 1, a.out.dim[0] = r.m, a.out.dim[1] = rows;
    a.out.data = static_cast<std::byte*>(r.out.data) + first * (r.out.dtype == QE_F32 ? 4 : 2);
    a.workspace = static_cast<std::byte*>(r.workspace) + plan_.panel_bytes();
    a.workspace_bytes = r.workspace_bytes - plan_.panel_bytes();
    a.stream = r.stream;
    return a;
  }
  // False when the host has no product for these, and nothing was enqueued but panels.
  bool dense(const qe_run& r) const {
    const qe_gemm_v1* g = host_gemm();
    if (!g || !r.workspace || r.workspace_bytes < plan_.panel_bytes()) return false;
    for (std::int64_t first = 0; first < plan_.n; first += plan_.panel_rows()) {
      const qe_gemm_args a = gemm_args(r, first);
      unpack(a.weight, first, nullptr, a.n, r.stream, false);
      qe_error e{};
      const qe_status s = g->gemm(g->self, &a, &e);
      if (s == QE_E_UNSUPPORTED) return false;
      if (s != QE_OK) throw Error(s, e.subject, e.message, e.hint);
    }
    return true;
  }

  qe_device device_;
  LayerPlan plan_;
  std::uint8_t* weights_ = nullptr;
  std::int32_t* map_ = nullptr;
  std::vector<Segment> segments_;
  mutable std::atomic<bool> refused_{false};  // the host's product in FP8
};

}  // namespace qe::cuda
