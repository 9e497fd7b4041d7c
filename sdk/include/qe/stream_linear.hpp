// qe/stream_linear.hpp: from formats to a whole plugin.
//
//   struct Int5Demo : qe::Linear<Int5Demo, Int5> { ... };            one format, in this file
//   struct Gguf : qe::Linears<Gguf, Q4_0, Q4_1, Q8_0> { ... };       many; each QE_FORMAT(X) in its own file
//   QE_LINEAR_PLUGIN(Gguf, .id = "qengine.gguf", .name = "gguf", .version = "0.1.0", .summary = "...")
//
// What the derived struct says:
//   static int detect(const qe_model&, qe::Reason&)                       0 .. 1000
//   static constexpr qe::Row kRows[]                                      devices: {QE_CPU, 0, 0, 1}
//   static constexpr qe::Method kMethods[] = {{"q4_0", "gguf", "..."}}    or, for one: kScheme, kQuantMethod
//   static int pick(const qe_model&, const qe_layer&, const qe_part&, qe::Reason&)   index of the part's
//                                                    format, -1 = not mine; needed when there are several
// and may say:
//   static qe::Claim check(const qe_model&, const qe_layer&, qe::Reason&) before pick
//   static std::string scheme(const qe_model&, const qe_layer&)           for the start-up table: "w4g128"
//   static constexpr const char* kOptions[];  static constexpr qe_alias kAliases[]
//
// With CUDA sources (qe_add_plugin's CUDA_SOURCES, one QE_FORMAT_CUDA(X) for each format: qe/format_cuda.cuh) the
// same formats run on GPUs: QE_PLUGIN_CUDA is then 1. A row {QE_CUDA, 80, 0, 2} says so to the host.
//
// Parts of different formats, groups or input orders are never fused: the plan says fuse_parts = 0
// and core offers them one by one.
#pragma once

#include <qe/cuda/linear.hpp>
#include <qe/linear.hpp>

#include <array>
#include <concepts>

#ifndef QE_PLUGIN_CUDA
#define QE_PLUGIN_CUDA 0
#endif

namespace qe {

struct Row {
  std::int32_t kind, sm_min, sm_max, tier;
};
struct Method {
  const char *name, *quant_method, *summary;
};
struct About {
  const char *id, *name, *version;
  const char* vendor = "";
  const char* license = "Apache-2.0";
  const char* url = "";
  const char* summary = "";
};

template <class Derived, class... Formats>
class Linears {
 public:
  static const std::array<const FormatOps*, sizeof...(Formats)>& formats() {
    static const std::array<const FormatOps*, sizeof...(Formats)> all{&format_ops<Formats>()...};
    return all;
  }

  // The CUDA kernels of formats, in the same order.
  static std::vector<const cuda::Kernels*> kernels([[maybe_unused]] const std::vector<const FormatOps*>& ops) {
    std::vector<const cuda::Kernels*> out;
#if QE_PLUGIN_CUDA
    static const std::array<const cuda::Kernels*, sizeof...(Formats)> all{&cuda::kernels<Formats>()...};
    for (const FormatOps* o : ops) out.push_back(all[std::size_t(std::find(formats().begin(), formats().end(), o) - formats().begin())]);
#endif
    return out;
  }

  // ---- qe_weight_v1 --------------------------------------------------------------------------------
  static qe_status plan(const qe_device* device, const qe_model* m, const qe_layer* l, qe_plan* out, qe_error* error) noexcept {
    return guard(error, [&] {
      out->claim = 0;
      out->fuse_parts = 1;
      out->n_regimes = 0;
      out->reason[0] = 0;
      Reason why(out->reason);
      if (!runs_on(*device)) {
        if (device->kind == QE_CUDA && QE_PLUGIN_CUDA) why("compute capability %d.%d; this plugin has kernels from 8.0", device->sm / 10, device->sm % 10);
        else why("%s; this plugin has no kernels for it", device->kind == QE_CUDA ? "a CUDA device" : "an unknown device");
        return;
      }
      std::vector<const FormatOps*> ops;
      const Claim claim = choose(*m, *l, ops, why);
      if (claim == Claim::no) return;
      Io io(*m, Io::Mode::plan);
      if (QE_HAS(out, scheme)) {
        std::string scheme;
        if constexpr (requires { Derived::scheme(*m, *l); }) scheme = Derived::scheme(*m, *l);
        detail::copy_text(out->scheme, sizeof out->scheme, scheme);
      }
      if (device->kind == QE_CUDA) {
        const cuda::LayerPlan p = cuda::plan_layer(*device, *m, *l, kernels(ops), io);
        out->claim = int(claim);
        if (!p.fuse && !out->reason[0]) why("%s", p.apart.c_str());
        if ((l->flags & QE_LAYER_ACT_QUANT) && !out->reason[0])
          why(cuda::quantizes_activations(p, *l) ? "activations in FP8 above 64 tokens, in 16 bits below" : "activations stay in 16 bits on a GPU: weights only");
        cuda::describe_plan(p, *l, *out);
        return;
      }
      const detail::LayerPlan p = detail::plan_layer(*m, *l, ops, io);
      out->claim = int(claim);
      out->fuse_parts = p.fuse;
      if (!p.fuse && !out->reason[0]) why("%s", p.apart.c_str());
      out->n_multiple = 8;
      out->k_multiple = p.parts.empty() ? 1 : std::max<std::int64_t>(p.parts[0].layout.span, 1);
      out->weight_bytes = p.weight_bytes;
      out->persist_bytes = p.persist_bytes;
      out->load_temp_bytes = 0;
      out->n_regimes = 1;
      qe_regime& r = out->regime[0];
      std::memset(&r, 0, sizeof r);
      const std::int64_t m_max = std::max<std::int64_t>(1, l->m_max);
      r.m_hi = m_max;
      r.in_encodings = QE_ACT_COMPUTE;
      r.flags = QE_DETERMINISTIC | QE_BATCH_INVARIANT;
      r.launches = 1;
      // Long prompts go through in slices: what is prepared of them stays below 16 MiB.
      const std::uint64_t one = cpu::workspace_bytes(p.need, 1);
      const std::int64_t tokens = one ? std::clamp<std::int64_t>((std::int64_t{16} << 20) / std::int64_t(one), 1, m_max) : m_max;
      r.workspace_bytes = one ? 64 + std::uint64_t(tokens) * one : 0;
      const bool exact = l->flags & QE_LAYER_EXACT;
      const cpu::Path path = exact || ops.empty() ? cpu::Path::exact : ops[0]->fast_path;
      std::snprintf(r.kernel, sizeof r.kernel, "r8_%s_%s", path == cpu::Path::integer ? "int16" : path == cpu::Path::floating ? "f32" : "exact",
                    cpu::isa_name(cpu::isa()));
    });
  }

  static qe_status tensors(const qe_model* m, const qe_layer* l, void (*want)(void*, const qe_want*), void* arg, qe_error* error) noexcept {
    return guard(error, [&] {
      qe_reason text{};
      Reason why(text);
      std::vector<const FormatOps*> ops;
      if (choose(*m, *l, ops, why) == Claim::no) throw Error(QE_E_UNSUPPORTED, subject(*l), text);
      Io io(*m, Io::Mode::list, [&](const qe_want& w) { want(arg, &w); });
      for (std::uint32_t i = 0; i < l->n_parts; ++i) ops[i]->plan(io, Part(*m, *l, *l->parts[i]), detail::range_of(*l, *l->parts[i]));
    });
  }

  static qe_status load(qe_dev dev, const qe_model* m, const qe_layer* l, qe_stream stream, qe_linear* out, qe_error* error) noexcept {
    return guard(error, [&] {
      qe_reason text{};
      Reason why(text);
      std::vector<const FormatOps*> ops;
      if (choose(*m, *l, ops, why) == Claim::no) throw Error(QE_E_UNSUPPORTED, subject(*l), text);
      const qe_device& device = *reinterpret_cast<const qe_device*>(dev);
      auto loaded = std::make_unique<Loaded>();
      if (device.kind == QE_CUDA) loaded->gpu = std::make_unique<cuda::Layer>(device, *m, *l, kernels(ops), stream);
      else loaded->cpu = detail::load_layer(device, *m, *l, ops);
      *out = reinterpret_cast<qe_linear>(loaded.release());
    });
  }

  static qe_status warmup(qe_linear h, const std::int64_t* m, std::uint32_t n_m, const qe_run* scratch, qe_error* error) noexcept {
    return guard(error, [&] { if (of(h).gpu && scratch) of(h).gpu->warmup(m, n_m, *scratch); });
  }
  static qe_status run(qe_linear h, const qe_run* r, qe_error* error) noexcept {
    return guard(error, [&] { of(h).gpu ? of(h).gpu->run(*r) : detail::run_layer(*of(h).cpu, *r); });
  }
  static qe_status dequant(qe_linear h, std::int64_t begin, std::int64_t end, qe_tensor* out, qe_stream stream, qe_error* error) noexcept {
    return guard(error, [&] { of(h).gpu ? of(h).gpu->dequant(begin, end, *out, stream) : detail::dequant_rows(*of(h).cpu, begin, end, *out); });
  }
  static qe_status rows(qe_linear h, const std::int32_t* ids, std::int64_t n, qe_tensor* out, qe_stream stream, qe_error* error) noexcept {
    return guard(error, [&] { of(h).gpu ? of(h).gpu->rows(ids, n, *out, stream) : detail::gather_rows(*of(h).cpu, ids, n, *out); });
  }
  static std::uint64_t bytes(qe_linear h, std::int32_t mem) noexcept {
    if (of(h).gpu) return of(h).gpu->bytes(mem);
    const detail::Handle& d = *of(h).cpu;
    return mem == QE_MEM_WEIGHT ? d.weight_bytes : mem == QE_MEM_PERSIST ? d.persist_bytes : 0;
  }
  static void destroy(qe_linear h) noexcept { delete &of(h); }

  static const qe_weight_v1* weight_table() {
    static const qe_weight_v1 table{sizeof(qe_weight_v1), 0, plan, tensors, load, warmup, run, dequant, rows, bytes, destroy};
    return &table;
  }

 protected:
  // Behind qe_linear: one of the two.
  struct Loaded {
    std::unique_ptr<detail::Handle> cpu;
    std::unique_ptr<cuda::Layer> gpu;
  };
  static Loaded& of(qe_linear h) { return *reinterpret_cast<Loaded*>(h); }

 private:
  static bool runs_on(const qe_device& d) {
    if (d.kind == QE_CUDA && !QE_PLUGIN_CUDA) return false;
    for (const Row& r : Derived::kRows)
      if (r.kind == d.kind && (d.kind == QE_CPU || (d.sm >= r.sm_min && (r.sm_max == 0 || d.sm <= r.sm_max)))) return true;
    return false;
  }
  static std::string subject(const qe_layer& l) { return l.n_parts ? std::string(view(l.parts[0]->name)) : std::string(); }

  // The format of each part. A "no" has filled `why`.
  static Claim choose(const qe_model& m, const qe_layer& l, std::vector<const FormatOps*>& ops, Reason& why) {
    Claim claim = Claim::native;
    if constexpr (requires { Derived::check(m, l, why); }) claim = Derived::check(m, l, why);
    if (claim == Claim::no) return claim;
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      int which = 0;
      if constexpr (requires { Derived::pick(m, l, *l.parts[i], why); }) which = Derived::pick(m, l, *l.parts[i], why);
      else static_assert(sizeof...(Formats) == 1, "several formats: say which with pick()");
      if (which < 0 || which >= int(sizeof...(Formats))) return Claim::no;
      ops.push_back(formats()[std::size_t(which)]);
    }
    return claim;
  }
};

template <class Derived, class F>
using Linear = Linears<Derived, F>;

// ---- the descriptor --------------------------------------------------------------------------------
template <class D>
struct Descriptor {
  static const qe_plugin* get(const About& about) {
    static const Descriptor d(about);
    return &d.plugin;
  }

 private:
  explicit Descriptor(const About& about) {
    for (const Row& r : D::kRows) rows.push_back({sizeof(qe_capability), r.kind, r.sm_min, r.sm_max, r.tier});
    for (const qe_capability& r : rows) row_pointers.push_back(&r);
    const auto add = [&](const char* name, const char* quant_method, const char* summary) {
      methods.push_back({sizeof(qe_method), std::uint32_t(rows.size()), name, quant_method, summary, row_pointers.data()});
    };
    if constexpr (requires { D::kMethods; }) {
      for (const Method& m : D::kMethods) add(m.name, m.quant_method, m.summary);
    } else {
      add(D::kScheme, D::kQuantMethod, about.summary);
    }
    for (const qe_method& m : methods) method_pointers.push_back(&m);
    if constexpr (requires { D::kAliases; })
      for (const qe_alias& a : D::kAliases) alias_pointers.push_back(&a);
    if constexpr (requires { D::kOptions; })
      for (const char* o : D::kOptions) options.push_back(o);
    plugin.struct_size = sizeof plugin;
    plugin.magic = QE_MAGIC;
    plugin.abi_major = QE_ABI_MAJOR;
    plugin.abi_built_minor = QE_ABI_MINOR;
    plugin.abi_needs_minor = QE_ABI_MINOR;
    plugin.n_methods = std::uint32_t(methods.size());
    plugin.n_aliases = std::uint32_t(alias_pointers.size());
    plugin.n_options = std::uint32_t(options.size());
    plugin.id = about.id;
    plugin.name = about.name;
    plugin.version = about.version;
    plugin.vendor = about.vendor;
    plugin.license = about.license;
    plugin.url = about.url;
#ifdef __VERSION__
    plugin.build = __VERSION__;
#else
    plugin.build = "";
#endif
    plugin.sdk = kSdkVersion;
    plugin.methods = method_pointers.data();
    plugin.aliases = alias_pointers.data();
    plugin.options = options.data();
    plugin.init = [](const qe_host* host, qe_error*) noexcept -> qe_status {
      detail::host_table = host;
      return QE_OK;
    };
    plugin.shutdown = []() noexcept {};
    plugin.detect = [](const qe_model* m, qe_reason why) noexcept -> std::int32_t {
      std::int32_t score = 0;
      Reason reason(why);
      qe_error error{};
      if (guard(&error, [&] { score = D::detect(*m, reason); }) != QE_OK) reason("%s", error.message), score = 0;
      return score;
    };
    plugin.dev_open = [](const qe_device* device, qe_dev* out, qe_error* error) noexcept -> qe_status {
      return guard(error, [&] { *out = reinterpret_cast<qe_dev>(new qe_device(*device)); });
    };
    plugin.dev_close = [](qe_dev dev) noexcept { delete reinterpret_cast<qe_device*>(dev); };
    plugin.extension = [](const char* id) noexcept -> const void* {
      return std::string_view(id) == "qe.weight/1" ? D::weight_table() : nullptr;
    };
  }
  std::vector<qe_capability> rows;
  std::vector<const qe_capability*> row_pointers;
  std::vector<qe_method> methods;
  std::vector<const qe_method*> method_pointers;
  std::vector<const qe_alias*> alias_pointers;
  std::vector<const char*> options;
  qe_plugin plugin{};
};

}  // namespace qe

// Defines the one exported symbol. The fields are those of qe::About.
#define QE_LINEAR_PLUGIN(TYPE, ...)                                                                                     \
  extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(uint32_t host_major, uint32_t) { \
    if (host_major != QE_ABI_MAJOR) return nullptr;                                                                     \
    static constexpr qe::About about{__VA_ARGS__};                                                                      \
    return qe::Descriptor<TYPE>::get(about);                                                                            \
  }
