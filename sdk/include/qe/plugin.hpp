// qe/plugin.hpp: a thin C++ veneer over qe/plugin.h, for plugins.
//
//   Error    what went wrong, thrown inside a plugin; becomes the caller's qe_error at the boundary
//   Reason   printf into the caller's qe_reason
//   Config   the quantization config, options, config.json and GGUF metadata by path
//   Part     one module of a layer: its name, role and whole shape
//   Io       tensors of the checkpoint: the same `bind` plans, lists and loads
//   guard    runs a body; no exception gets past it
//
// Nothing here has state but the host table, which `init` hands over.
#pragma once

#include <qe/numbers.hpp>
#include <qe/plugin.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qe {

inline constexpr const char* kSdkVersion = "0.1.0";

inline std::string_view view(qe_str s) { return s.p ? std::string_view{s.p, s.n} : std::string_view{}; }
inline qe_str str(std::string_view s) { return {s.data(), s.size()}; }

// ---- host ------------------------------------------------------------------------------------------
namespace detail {
inline const qe_host* host_table = nullptr;

inline void copy_text(char* to, std::size_t size, std::string_view text) {
  const std::size_t n = std::min(size - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}
inline std::string vformat(const char* fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, fmt, again);
  va_end(again);
  std::string out(n > 0 ? std::size_t(n) : 0, '\0');
  if (n > 0) std::vsnprintf(out.data(), out.size() + 1, fmt, args);
  return out;
}
}  // namespace detail

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string out = detail::vformat(fmt, args);
  va_end(args);
  return out;
}

inline const qe_host& host() { return *detail::host_table; }

enum class Log { trace, debug, info, warn, error };
inline void log(Log level, std::string_view text) { host().log(host().self, int(level), str(text)); }

// Threads that parallel_for spreads over; 0 when the host does not say.
inline int host_threads() {
  const qe_host& h = host();
  return QE_HAS(&h, threads) && h.threads ? h.threads(h.self) : 0;
}

// body(i) for i in [0, n), spread over the host's threads. A body that throws is remembered and the
// first exception is thrown again here, so that none crosses the host.
template <class F>
void parallel_for(std::int64_t n, F&& body) {
  struct Call {
    std::remove_reference_t<F>* body;
    std::exception_ptr error;
    int failed = 0;
  } call{&body, nullptr};
  host().parallel_for(
      host().self, n,
      [](void* arg, std::int64_t i) {
        auto& c = *static_cast<Call*>(arg);
        try {
          (*c.body)(i);
        } catch (...) {
          if (__atomic_exchange_n(&c.failed, 1, __ATOMIC_ACQ_REL) == 0) c.error = std::current_exception();
        }
      },
      &call);
  if (call.failed && call.error) std::rethrow_exception(call.error);
}

// ---- errors ----------------------------------------------------------------------------------------
// `message` is one line without a full stop; the host puts `subject` (a tensor, an option) before it.
class Error : public std::exception {
 public:
  Error(qe_status status, std::string subject, std::string message, std::string hint = {})
      : status(status), subject(std::move(subject)), message(std::move(message)), hint(std::move(hint)) {}
  const char* what() const noexcept override { return message.c_str(); }
  qe_status status;
  std::string subject, message, hint;
};

// Runs `body` (returning nothing or a qe_status); whatever it throws ends in `error`.
template <class F>
qe_status guard(qe_error* error, F&& body) noexcept {
  const auto fill = [&](qe_status status, std::string_view subject, std::string_view message, std::string_view hint) {
    if (error) {
      error->device_code = 0;
      detail::copy_text(error->subject, sizeof error->subject, subject);
      detail::copy_text(error->message, sizeof error->message, message);
      detail::copy_text(error->hint, sizeof error->hint, hint);
    }
    return status;
  };
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return QE_OK;
    } else {
      return body();
    }
  } catch (const Error& e) {
    return fill(e.status, e.subject, e.message, e.hint);
  } catch (const std::bad_alloc&) {
    return fill(QE_E_OOM, {}, "out of memory", {});
  } catch (const std::exception& e) {
    return fill(QE_E_INTERNAL, {}, e.what(), {});
  } catch (...) {
    return fill(QE_E_INTERNAL, {}, "unknown exception", {});
  }
}

// why("group_size %ld; supported: 32", group)
class Reason {
 public:
  explicit Reason(char* text) : text_(text) {}
  [[gnu::format(printf, 2, 3)]] void operator()(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::vsnprintf(text_, sizeof(qe_reason), fmt, args);
    va_end(args);
  }
  const char* text() const { return text_; }

 private:
  char* text_;
};

enum class Claim { no = 0, fallback = 1, native = 2 };

// ---- configuration ---------------------------------------------------------------------------------
// Paths: the quantization config's own, or "options.", "model.", "gguf." (qe/plugin.h).
class Config {
 public:
  Config(qe_cfg cfg) : cfg_(cfg) {}

  bool has(const char* path) const { return host().cfg_size(host().self, cfg_, path) >= 0; }
  std::int64_t size(const char* path) const { return host().cfg_size(host().self, cfg_, path); }
  std::string str(const char* path, std::string_view otherwise = {}) const {
    qe_str s{};
    return std::string(host().cfg_str(host().self, cfg_, path, &s) ? view(s) : otherwise);
  }
  std::int64_t i64(const char* path, std::int64_t otherwise) const {
    std::int64_t v = 0;
    return host().cfg_i64(host().self, cfg_, path, &v) ? v : otherwise;
  }
  double f64(const char* path, double otherwise) const {
    double v = 0;
    return host().cfg_f64(host().self, cfg_, path, &v) ? v : otherwise;
  }
  bool flag(const char* path, bool otherwise) const { return i64(path, otherwise) != 0; }
  // The key of the i-th value of an object.
  std::string key(const char* path, std::int64_t i) const {
    qe_str s{};
    return std::string(host().cfg_key(host().self, cfg_, path, i, &s) ? view(s) : std::string_view{});
  }
  // The strings of an array (a single string counts as one); others are skipped.
  std::vector<std::string> strings(const char* path) const {
    std::vector<std::string> out;
    const std::int64_t n = size(path);
    if (n == 0) {
      if (std::string s = str(path); !s.empty()) out.push_back(std::move(s));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::string item = std::string(path) + (*path ? "." : "") + "#" + std::to_string(i);
      if (std::string s = str(item.c_str()); !s.empty()) out.push_back(std::move(s));
    }
    return out;
  }
  // Whether a pattern of the list at `path` matches the module name (exact, glob or re:).
  bool lists(const char* path, std::string_view name) const {
    for (const std::string& pattern : strings(path))
      if (host().match(host().self, qe::str(pattern), qe::str(name))) return true;
    return false;
  }
  bool lists(const char* path, qe_str name) const { return lists(path, view(name)); }
  qe_cfg raw() const { return cfg_; }

 private:
  qe_cfg cfg_;
};

inline bool match(std::string_view pattern, std::string_view name) {
  return host().match(host().self, str(pattern), str(name));
}

// ---- tensors ---------------------------------------------------------------------------------------
inline const char* dtype_name(std::int32_t dtype) {
  static constexpr const char* kNames[] = {"?",  "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                           "I8", "U8",  "I16", "I32",  "I64",     "F4_E2M1"};
  if (dtype >= 0 && dtype < int(std::size(kNames))) return kNames[dtype];
  return dtype >= QE_GGML ? "GGUF block" : "?";
}

inline constexpr std::uint64_t dtype_bit(std::int32_t dtype) { return std::uint64_t{1} << dtype; }

// One module of a layer. Shapes are the whole module's, whatever rank we are.
class Part {
 public:
  Part(const qe_model& model, const qe_layer& layer, const qe_part& part) : model_(&model), layer_(&layer), part_(&part) {}
  std::int64_t n() const { return part_->n; }
  std::int64_t k() const { return layer_->k; }
  std::int32_t role() const { return part_->role; }
  std::string_view name() const { return view(part_->name); }
  Config config() const { return model_->cfg; }
  const qe_model& model() const { return *model_; }
  const qe_layer& layer() const { return *layer_; }
  const qe_part& raw() const { return *part_; }

 private:
  const qe_model* model_;
  const qe_layer* layer_;
  const qe_part* part_;
};

enum class Need { required, optional };

// A format's `bind` asks Io for its tensors. It runs in three situations and must ask the same each
// time: to plan (data of tensors up to 1 MiB, when there is a checkpoint), to list them for the
// host's accounting, and to load (all data; what is missing or misshapen throws, naming the tensor).
class Io {
 public:
  enum class Mode { plan, list, load };
  using Want = std::function<void(const qe_want&)>;

  Io(const qe_model& model, Mode mode, Want want = {}) : model_(&model), mode_(mode), want_(std::move(want)) {}

  Mode mode() const { return mode_; }
  bool loading() const { return mode_ == Mode::load; }
  bool planned_without_files() const { return model_->ckpt == nullptr; }

  // The tensor as the checkpoint holds it, without asking for it; empty when absent or without files.
  std::optional<qe_tensor> look(const std::string& name) const {
    qe_tensor t{};
    if (!model_->ckpt || host().tensor(host().self, model_->ckpt, str(name), &t) != QE_OK) return {};
    return t;
  }
  bool has(const Part& p, const char* suffix) const { return look(join(p, suffix)).has_value(); }

  // Asks for a tensor by its whole name. dtypes: OR of dtype_bit, 0 = any. A dimension of -1 is any;
  // `rank` -1 leaves the shape open. The result's data may be NULL while not loading.
  qe_tensor tensor(const std::string& name, std::uint64_t dtypes, std::initializer_list<std::int64_t> dims,
                   Need need = Need::required, int rank = 0) {
    if (rank == 0) rank = int(dims.size());
    if (mode_ == Mode::list && want_) {
      qe_want w{};
      w.struct_size = sizeof w;
      w.required = need == Need::required;
      w.rank = rank;
      w.name = str(name);
      w.dtypes = dtypes;
      int i = 0;
      for (const std::int64_t d : dims)
        if (i < 4) w.dim[i++] = d;
      want_(w);
    }
    const auto found = look(name);
    if (!found) {
      if (loading() && need == Need::required)
        throw Error(QE_E_CHECKPOINT, name, "is missing, expected " + expected(dtypes, dims));
      return {};
    }
    const bool type_ok = dtypes == 0 || (found->dtype >= 0 && found->dtype < 64 && (dtypes & dtype_bit(found->dtype)));
    bool shape_ok = rank < 0 || found->rank == int(dims.size());
    if (shape_ok && rank >= 0) {
      int i = 0;
      for (const std::int64_t d : dims) shape_ok &= d < 0 || found->dim[i] == d, ++i;
    }
    if (type_ok && shape_ok) return *found;
    if (!loading()) return {};  // the host compares with what we asked for and has the better message
    std::string shape = "[";
    for (int i = 0; i < found->rank && i < 4; ++i) shape += (i ? ", " : "") + std::to_string(found->dim[i]);
    throw Error(QE_E_CHECKPOINT, name,
                std::string("has ") + (type_ok ? "shape " : std::string("dtype ") + dtype_name(found->dtype) + " and shape ") +
                    shape + "], expected " + expected(dtypes, dims));
  }
  qe_tensor tensor(const Part& p, const char* suffix, std::uint64_t dtypes, std::initializer_list<std::int64_t> dims,
                   Need need = Need::required, int rank = 0) {
    return tensor(join(p, suffix), dtypes, dims, need, rank);
  }

  // Typed forms of the same, by suffix: PART.suffix. nullptr while not loading (small ones excepted).
  using Dims = std::initializer_list<std::int64_t>;
  const std::uint8_t* u8(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<std::uint8_t>(p, s, dtype_bit(QE_U8), d, n); }
  const std::int8_t* i8(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<std::int8_t>(p, s, dtype_bit(QE_I8), d, n); }
  const std::int16_t* i16(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<std::int16_t>(p, s, dtype_bit(QE_I16), d, n); }
  const std::int32_t* i32(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<std::int32_t>(p, s, dtype_bit(QE_I32), d, n); }
  const std::int64_t* i64(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<std::int64_t>(p, s, dtype_bit(QE_I64), d, n); }
  const f16* half(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<f16>(p, s, dtype_bit(QE_F16), d, n); }
  const qe::bf16* bf16(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<qe::bf16>(p, s, dtype_bit(QE_BF16), d, n); }
  const float* f32(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<float>(p, s, dtype_bit(QE_F32), d, n); }
  const qe::e4m3* e4m3(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<qe::e4m3>(p, s, dtype_bit(QE_E4M3), d, n); }
  const qe::e5m2* e5m2(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<qe::e5m2>(p, s, dtype_bit(QE_E5M2), d, n); }
  // E8M0 scales are stored as F8_E8M0 or as U8.
  const qe::e8m0* e8m0(const Part& p, const char* s, Dims d, Need n = Need::required) { return get<qe::e8m0>(p, s, dtype_bit(QE_E8M0) | dtype_bit(QE_U8), d, n); }
  // Raw GGUF blocks of a type id; the shape is in elements.
  const std::uint8_t* blocks(const Part& p, const char* s, int ggml_type, Dims d, Need n = Need::required) { return get<std::uint8_t>(p, s, dtype_bit(QE_GGML + ggml_type), d, n); }
  // F32, F16 or BF16, whichever it is.
  Floats floats(const Part& p, const char* s, Dims d, Need n = Need::required, int rank = 0) {
    const qe_tensor t = tensor(p, s, dtype_bit(QE_F32) | dtype_bit(QE_F16) | dtype_bit(QE_BF16), d, n, rank);
    return {t.data, t.dtype};
  }

  static std::string join(const Part& p, const char* suffix) { return std::string(p.name()) + "." + suffix; }

 private:
  template <class T>
  const T* get(const Part& p, const char* suffix, std::uint64_t dtypes, Dims dims, Need need) {
    return static_cast<const T*>(tensor(p, suffix, dtypes, dims, need).data);
  }
  static std::string expected(std::uint64_t dtypes, Dims dims) {
    std::string out;
    for (int i = 0; i < 64; ++i)
      if (dtypes & dtype_bit(i)) out += (out.empty() ? "" : " or ") + std::string(dtype_name(i));
    out += out.empty() ? "[" : " [";
    bool first = true;
    for (const std::int64_t d : dims) out += (first ? "" : ", ") + (d < 0 ? std::string("any") : std::to_string(d)), first = false;
    return out + "]";
  }

  const qe_model* model_;
  Mode mode_;
  Want want_;
};

}  // namespace qe
