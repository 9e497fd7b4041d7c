// qe/linear.hpp: a product of one layer, from FormatOps to qe_weight_v1. No templates here.
//
// LayerPlan is the one place where bytes, fusion and workspace are decided; plan() reports it, load()
// allocates by it.
#pragma once

#include <qe/cpu/input.hpp>
#include <qe/format_ops.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace qe::detail {

inline Range range_of(const qe_layer& l, const qe_part& p) {
  const bool cut_n = p.n_end > p.n_begin, cut_k = l.k_end > l.k_begin;
  return {cut_n ? p.n_begin : 0, cut_n ? p.n_end - p.n_begin : p.n, cut_k ? l.k_begin : 0, cut_k ? l.k_end - l.k_begin : l.k};
}

struct LayerPlan {
  std::vector<PartPlan> parts;
  bool fuse = true;            // all parts may read the same prepared input
  std::string apart;           // why not
  std::uint64_t weight_bytes = 0, persist_bytes = 0;
  cpu::Need need;              // what of an input the parts want
};

// ops[i] serves part i.
inline LayerPlan plan_layer(const qe_model& m, const qe_layer& l, const std::vector<const FormatOps*>& ops, Io& io) {
  LayerPlan plan;
  for (std::uint32_t i = 0; i < l.n_parts; ++i) {
    const Part part(m, l, *l.parts[i]);
    plan.parts.push_back(ops[i]->plan(io, part, range_of(l, *l.parts[i])));
    const cpu::Layout &a = plan.parts[0].layout, &b = plan.parts[i].layout;
    if (ops[i] != ops[0]) plan.apart = "the parts have different formats";
    else if (a.group != b.group || a.columns != b.columns || a.span != b.span) plan.apart = "the parts have different groups";
    else if (plan.parts[0].map != plan.parts[i].map) plan.apart = "the parts read their inputs in different orders";
    plan.weight_bytes += std::uint64_t(b.bytes());
  }
  plan.fuse = plan.apart.empty();
  if (!plan.parts.empty()) {
    const PartPlan& p = plan.parts[0];
    plan.persist_bytes = p.map.size() * sizeof(std::int32_t);
    const bool exact = l.flags & QE_LAYER_EXACT;
    plan.need = {p.layout.k, p.layout.columns, p.layout.spans, p.layout.span,
                 (exact ? cpu::Path::exact : ops[0]->fast_path) == cpu::Path::integer, p.layout.mapped,
                 (l.flags & QE_LAYER_ACT_QUANT) != 0};
  }
  return plan;
}

// One packed layer. Behind qe_linear.
struct Handle {
  struct Packed {
    const FormatOps* ops = nullptr;
    cpu::Layout layout;
    Activation activation;
    std::byte* base = nullptr;
    std::int64_t row = 0;  // first output row within the layer
  };
  qe_device device{};
  std::vector<Packed> parts;
  std::int64_t n = 0, k = 0;
  std::int32_t flags = 0;
  cpu::Need need;
  std::byte* weights = nullptr;
  std::int32_t* map = nullptr;
  std::uint64_t weight_bytes = 0, persist_bytes = 0;
  int threads = 1;

  ~Handle() {
    const qe_host& h = host();
    if (weights) h.free(h.self, &device, weights);
    if (map) h.free(h.self, &device, map);
  }
};

inline void* host_alloc(const qe_device& d, std::uint64_t bytes, int mem) {
  void* p = nullptr;
  if (const qe_status s = host().alloc(host().self, &d, bytes, 64, mem, &p); s != QE_OK)
    throw Error(s, {}, format("no memory for %llu bytes of weights", static_cast<unsigned long long>(bytes)));
  return p;
}

inline std::unique_ptr<Handle> load_layer(const qe_device& device, const qe_model& m, const qe_layer& l,
                                          const std::vector<const FormatOps*>& ops) {
  Io plan_io(m, Io::Mode::plan), io(m, Io::Mode::load);
  LayerPlan plan = plan_layer(m, l, ops, plan_io);
  if (!plan.fuse && l.n_parts > 1) throw Error(QE_E_ARGUMENT, std::string(view(l.parts[0]->name)), "is fused with others, but " + plan.apart);
  auto h = std::make_unique<Handle>();
  h->device = device;
  h->k = plan.parts.empty() ? 0 : plan.parts[0].layout.k;
  h->flags = l.flags;
  h->need = plan.need;
  h->weight_bytes = plan.weight_bytes;
  h->persist_bytes = plan.persist_bytes;
  const int said = host_threads();
  h->threads = said > 0 ? said : std::max(1, std::min(64, int(std::thread::hardware_concurrency())));
  h->weights = static_cast<std::byte*>(host_alloc(device, std::max<std::uint64_t>(1, plan.weight_bytes), QE_MEM_WEIGHT));
  if (plan.persist_bytes) {
    h->map = static_cast<std::int32_t*>(host_alloc(device, plan.persist_bytes, QE_MEM_PERSIST));
  }
  std::byte* at = h->weights;
  for (std::uint32_t i = 0; i < l.n_parts; ++i) {
    const Part part(m, l, *l.parts[i]);
    const PartPlan loaded = ops[i]->load(io, part, range_of(l, *l.parts[i]), plan.parts[i].layout, at);
    if (i == 0 && h->map) std::copy(loaded.map.begin(), loaded.map.end(), h->map);
    h->parts.push_back({ops[i], loaded.layout, loaded.activation, at, h->n});
    at += loaded.layout.bytes();
    h->n += loaded.layout.n;
  }
  return h;
}

inline void check_tensor(const qe_tensor& t, const char* what, std::int64_t rows, std::int64_t cols) {
  if (t.dtype != QE_F32 || !t.data || t.rank != 2 || t.dim[0] < rows || t.dim[1] < cols)
    throw Error(QE_E_ARGUMENT, what, format("must be an F32 tensor of [%lld, %lld]", static_cast<long long>(rows), static_cast<long long>(cols)));
}
inline std::int64_t row_stride(const qe_tensor& t) { return t.stride[0] ? t.stride[0] : t.dim[1]; }

inline void run_layer(const Handle& h, const qe_run& r) {
  if (r.m == 0) return;
  if (r.m < 0) throw Error(QE_E_ARGUMENT, "m", "is negative");
  if (r.n_before || r.n_after) throw Error(QE_E_UNSUPPORTED, "steps", "were planned as none");
  check_tensor(r.in, "in", r.m, h.k);
  check_tensor(r.out, "out", r.m, h.n);
  const auto* in = static_cast<const float*>(r.in.data);
  auto* out = static_cast<float*>(r.out.data);
  const std::int64_t in_stride = row_stride(r.in), out_stride = row_stride(r.out);
  const bool act = (h.flags & QE_LAYER_ACT_QUANT) && (!(h.flags & QE_LAYER_ACT_AUTO) || r.m > 32);
  const cpu::Isa isa = cpu::isa();

  // Tokens in slices that the workspace can hold.
  const std::int64_t per_token = std::int64_t(cpu::workspace_bytes(h.need, 1));
  const std::int64_t room = std::int64_t(r.workspace ? r.workspace_bytes : 0);
  const std::int64_t slice = per_token ? std::min<std::int64_t>(r.m, (room - 64) / per_token) : r.m;
  if (slice < 1) throw Error(QE_E_ARGUMENT, "workspace", format("has %lld bytes, one token takes %lld", static_cast<long long>(room), static_cast<long long>(per_token + 64)));

  for (std::int64_t t0 = 0; t0 < r.m; t0 += slice) {
    const std::int64_t m = std::min(slice, r.m - t0);
    // Parts side by side that see the same activations run as one region.
    for (std::size_t first = 0; first < h.parts.size();) {
      std::size_t last = first + 1;
      while (last < h.parts.size() && (!act || h.parts[last].activation == h.parts[first].activation)) ++last;
      Activation activation;
      if (act) {
        activation = h.parts[first].activation;
        if (activation.kind == Activation::none && (h.flags & QE_LAYER_ACT_TOKEN)) activation.kind = Activation::i8_token;
      }
      const auto each = [&](auto&& body) {  // one thread is quicker up to some 16,000 numbers
        const std::int64_t slices = std::clamp<std::int64_t>(m * h.k / 16384, 1, std::min<std::int64_t>(m, 4 * h.threads));
        if (slices == 1) return body(0, m);
        parallel_for(slices, [&](std::int64_t i) { body(m * i / slices, m * (i + 1) / slices); });
      };
      const cpu::Input input = cpu::prepare(h.need, activation, h.map, in + t0 * in_stride, in_stride, m, r.workspace, isa, each);
      // Panels are dealt by fours, which are whole strips of every format.
      std::int64_t fours = 0, bytes = 0;
      const auto fours_of = [](const Handle::Packed& p) { return (p.layout.panels + 3) / 4; };
      for (std::size_t i = first; i < last; ++i) fours += fours_of(h.parts[i]), bytes += h.parts[i].layout.bytes();
      // Contiguous ranges, one a thread; more where the work is large enough to even out.
      std::int64_t chunks = h.threads;
      if (bytes * m > (std::int64_t{4} << 20)) chunks *= 4;
      chunks = std::max<std::int64_t>(1, std::min({chunks, fours, bytes * m / 8192 + 1}));
      const auto body = [&](std::int64_t c) {
        std::int64_t begin = fours * c / chunks, end = fours * (c + 1) / chunks;
        for (std::size_t i = first; i < last; ++i) {
          const Handle::Packed& p = h.parts[i];
          const std::int64_t from = std::max<std::int64_t>(begin, 0) * 4, to = std::min(end * 4, p.layout.panels);
          if (from < to) {
            cpu::Job job{p.base, &p.layout, &input, out + t0 * out_stride + p.row, out_stride, from, to};
            p.ops->run(job, (h.flags & QE_LAYER_EXACT) ? cpu::Path::exact : p.ops->fast_path, isa);
          }
          begin -= fours_of(p);
          end -= fours_of(p);
        }
      };
      if (chunks == 1) body(0);
      else parallel_for(chunks, body);
      first = last;
    }
  }
}

// One row of the exact matrix, inputs in their own order. `block` is scratch of 8 * columns floats.
inline void dequant_panel(const Handle& h, const Handle::Packed& p, std::int64_t panel, std::int64_t first, std::int64_t count,
                          float* out, std::int64_t stride, std::vector<float>& block) {
  const cpu::Layout& l = p.layout;
  block.resize(std::size_t(l.columns * cpu::kRows));
  p.ops->dequant(p.base, panel, l, 0, l.columns / cpu::kBlock, block.data());
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = out + i * stride;
    const float* from = block.data() + first + i;
    if (h.map) {
      for (std::int64_t c = 0; c < l.columns; ++c)
        if (h.map[c] >= 0) row[h.map[c]] = from[c * cpu::kRows];
    } else {
      for (std::int64_t c = 0; c < l.k; ++c) row[c] = from[c * cpu::kRows];
    }
  }
}

inline void dequant_rows(const Handle& h, std::int64_t begin, std::int64_t end, const qe_tensor& out) {
  if (begin < 0 || end > h.n || begin > end) throw Error(QE_E_ARGUMENT, "rows", "are outside of the layer");
  if (begin == end) return;
  check_tensor(out, "out", end - begin, h.k);
  const std::int64_t stride = row_stride(out);
  for (const Handle::Packed& p : h.parts) {
    const std::int64_t from = std::max(begin, p.row) - p.row, to = std::min(end, p.row + p.layout.n) - p.row;
    if (from >= to) continue;
    const std::int64_t p0 = from / cpu::kRows, p1 = (to + cpu::kRows - 1) / cpu::kRows;
    parallel_for(p1 - p0, [&](std::int64_t i) {
      thread_local std::vector<float> block;
      const std::int64_t panel = p0 + i, r0 = std::max(from, panel * cpu::kRows), r1 = std::min(to, (panel + 1) * cpu::kRows);
      dequant_panel(h, p, panel, r0 % cpu::kRows, r1 - r0, static_cast<float*>(out.data) + (p.row + r0 - begin) * stride, stride, block);
    });
  }
}

inline void gather_rows(const Handle& h, const std::int32_t* ids, std::int64_t n, const qe_tensor& out) {
  if (n == 0) return;
  check_tensor(out, "out", n, h.k);
  const std::int64_t stride = row_stride(out);
  const auto one = [&](std::int64_t i) {
    thread_local std::vector<float> block;
    const std::int64_t id = ids[i];
    if (id < 0 || id >= h.n) throw Error(QE_E_ARGUMENT, "ids", format("row %lld of %lld", static_cast<long long>(id), static_cast<long long>(h.n)));
    for (const Handle::Packed& p : h.parts)
      if (id >= p.row && id < p.row + p.layout.n) {
        const std::int64_t r = id - p.row;
        dequant_panel(h, p, r / cpu::kRows, r % cpu::kRows, 1, static_cast<float*>(out.data) + i * stride, stride, block);
      }
  };
  if (n < 8) for (std::int64_t i = 0; i < n; ++i) one(i);
  else parallel_for(n, one);
}

}  // namespace qe::detail
