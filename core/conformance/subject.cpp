#include "core/conformance/subject.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "core/base/error.hpp"
#include "core/conformance/made_up.hpp"
#include "core/conformance/step_watch.hpp"
#include "core/plugin_host/model_view.hpp"

namespace qengine::conformance {

namespace fs = std::filesystem;

// ---- what is asked for -----------------------------------------------------------------------------

std::vector<CaseSpec> Subject::read_cases(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw Error("E102", "cannot read " + file.string());
  const Json doc = Json::parse(in, nullptr, false);
  const auto bad = [&](const std::string& what) -> Error { return Error("E102", file.string() + ": " + what).hint("{\"cases\": [{\"name\": ..., \"model\" or \"quant_config\" or \"method\": ...}]}"); };
  if (!doc.is_object() || !doc.contains("cases") || !doc["cases"].is_array()) throw bad("is no JSON object with a list \"cases\"");
  std::vector<CaseSpec> out;
  for (const Json& c : doc["cases"]) {
    if (!c.is_object()) throw bad("cases[" + std::to_string(out.size()) + "] is no object");
    CaseSpec spec;
    for (const auto& [key, value] : c.items()) {
      const std::string where = "cases[" + std::to_string(out.size()) + "]." + key;
      if (key == "name" || key == "method" || key == "model") {
        if (!value.is_string()) throw bad(where + " is no text");
        (key == "name" ? spec.name : spec.method) = key == "model" ? spec.method : value.get<std::string>();
        if (key == "model") spec.model = file.parent_path() / value.get<std::string>();
      } else if (key == "quant_config") {
        if (!value.is_object()) throw bad(where + " is no object");
        spec.quant_config = value;
      } else if (key == "options") {
        spec.options = value;
      } else {
        throw bad(where + " is no known key");
      }
    }
    if (spec.name.empty()) spec.name = "case " + std::to_string(out.size() + 1);
    out.push_back(std::move(spec));
  }
  return out;
}

Manifest Subject::manifest() const { return read_manifest_file(library.parent_path() / (library.stem().string() + std::string(kManifestSuffix))); }

qe_model Case::model(bool with_tensors) {
  qe_model m = shape_of_model(config);
  cfg.quant = quant.is_null() ? nullptr : &quant;
  cfg.options = options.is_null() ? nullptr : &options;
  cfg.model = &model_json;
  cfg.gguf = gguf.is_null() ? nullptr : &gguf;
  m.cfg = &cfg;
  m.ckpt = with_tensors ? tensors.handle() : nullptr;
  return m;
}

LayerArgs::LayerArgs(Case& c, std::vector<Part> p, std::int64_t k, int flags, bool with_tensors) : of(c), parts(std::move(p)), model(c.model(with_tensors)) {
  layer.struct_size = sizeof layer;
  layer.method = c.method.empty() ? nullptr : c.method.c_str();
  layer.tp_size = 1;
  layer.act = QE_ACT_COMPUTE;
  layer.flags = flags;
  layer.k = layer.k_end = k;
  layer.m_max = 4096;
  for (Part& part : parts)
    if (part.n_end == 0) part.n_end = part.n;
  point();
}

void LayerArgs::point() {
  raw_.clear();
  pointers_.clear();
  for (const Part& p : parts) raw_.push_back({sizeof(qe_part), p.role, {p.name.data(), p.name.size()}, p.n, p.n_begin, p.n_end});
  for (const qe_part& p : raw_) pointers_.push_back(&p);
  layer.n_parts = static_cast<std::uint32_t>(raw_.size());
  layer.parts = pointers_.data();
}

void LayerArgs::cut_rows(int rank, int size, std::int64_t multiple) {
  layer.tp_rank = rank, layer.tp_size = size;
  for (Part& p : parts) {
    const std::int64_t units = p.n / multiple;
    p.n_begin = units * rank / size * multiple;
    p.n_end = rank + 1 == size ? p.n : units * (rank + 1) / size * multiple;
  }
  point();
}

void LayerArgs::cut_inputs(int rank, int size, std::int64_t multiple) {
  layer.tp_rank = rank, layer.tp_size = size;
  const std::int64_t units = layer.k / multiple;
  layer.k_begin = units * rank / size * multiple;
  layer.k_end = rank + 1 == size ? layer.k : units * (rank + 1) / size * multiple;
}

std::int64_t LayerArgs::n() const {
  std::int64_t sum = 0;
  for (const Part& p : parts) sum += p.n_end - p.n_begin;
  return sum;
}

PluginFailure::PluginFailure(qe_status s, const qe_error& e, const char* call)
    : std::runtime_error(text("%s answered %d: %s %s", call, s, plugin_text(std::string_view(e.subject, strnlen(e.subject, sizeof e.subject))).c_str(),
                              plugin_text(std::string_view(e.message, strnlen(e.message, sizeof e.message))).c_str())),
      status(s), call(call), subject(e.subject, strnlen(e.subject, sizeof e.subject)), message(e.message, strnlen(e.message, sizeof e.message)) {}

// ---- the plugin ------------------------------------------------------------------------------------

void* open_library(const fs::path& file) {
  void* handle = dlopen(fs::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: the contract
  if (!handle) fail("the library does not load: %s", dlerror());
  return handle;
}

const qe_plugin* query_descriptor(void* handle, std::uint32_t major) {
  const auto query = reinterpret_cast<qe_plugin_query_fn>(dlsym(handle, "qe_plugin_query"));
  if (!query) fail("the library exports no qe_plugin_query");
  return query(major, QE_ABI_MINOR);
}

Session::Session(const Subject& s, const fs::path& library, bool older_host) : subject(s), name_(s.library.stem().string()) {
  if (older_host) host.shorten();
  handle = open_library(library.empty() ? s.library : library);
  plugin = call("qe_plugin_query", "", [&] { return query_descriptor(handle); });
  if (!plugin) fail("qe_plugin_query(%d, %d) returns NULL", QE_ABI_MAJOR, QE_ABI_MINOR);
  try {
    if (plugin->init) checked("init", "", [&](qe_error* e) { return plugin->init(host.table(), e); });
  } catch (const PluginFailure& e) {
    fail("%s", e.what());
  }
  weight = static_cast<const qe_weight_v1*>(plugin->extension("qe.weight/1"));
  kv = static_cast<const qe_kv_v1*>(plugin->extension("qe.kv/1"));
}

Session::~Session() {
  if (opened_ && plugin->dev_close) call("dev_close", "", [&] { plugin->dev_close(dev_); });
}

qe_dev Session::device_state() {
  if (!opened_ && plugin->dev_open) {
    checked("dev_open", "", [&](qe_error* e) { return plugin->dev_open(&device, &dev_, e); });
    opened_ = true;
  }
  return dev_;
}

std::unique_ptr<Session> weight_session(const Subject& subject) {
  auto s = std::make_unique<Session>(subject);
  if (!s->weight) not_applicable("the plugin has no qe.weight/1");
  return s;
}

qe_plan Session::plan(LayerArgs& l, const qe_device* on) {
  qe_plan out{};
  out.struct_size = sizeof out;
  checked("plan", l.name(), [&](qe_error* e) { return weight->plan(on ? on : &device, &l.model, &l.layer, &out, e); });
  return out;
}

std::vector<std::pair<std::string, qe_want>> Session::wants(LayerArgs& l) {
  std::vector<std::pair<std::string, qe_want>> out;
  checked("tensors", l.name(), [&](qe_error* e) {
    return weight->tensors(&l.model, &l.layer,
                           [](void* arg, const qe_want* w) {
                             auto& list = *static_cast<std::vector<std::pair<std::string, qe_want>>*>(arg);
                             list.emplace_back(std::string(w->name.p, w->name.n), *w);
                           },
                           &out, e);
  });
  for (auto& [name, want] : out) want.name = {name.data(), name.size()};
  return out;
}

Packed Session::load(LayerArgs& l) {
  l.of.tensors.loading = false;
  const qe_plan planned = plan(l);
  if (planned.claim == 0) fail("%s: planned before, and now: %s", l.name().c_str(), reason_of(planned.reason).c_str());
  if (l.parts.size() > 1 && !planned.fuse_parts) fail("%s: planned to be fused before, and now not: %s", l.name().c_str(), reason_of(planned.reason).c_str());
  const qe_dev state = device_state();
  qe_linear h = nullptr;
  l.of.tensors.loading = true;
  struct Done {
    KitTensors& t;
    ~Done() { t.loading = false, t.aligned.clear(); }
  } done{l.of.tensors};
  checked("load", l.name(), [&](qe_error* e) { return weight->load(state, &l.model, &l.layer, nullptr, &h, e); });
  if (!h) fail("%s: load succeeded without a result", l.name().c_str());
  return {*this, h, l.n(), l.k(), planned};
}

void Session::make_up(LayerArgs& l) {
  LayerArgs asked(l.of, l.parts, l.layer.k, l.layer.flags, /*with_tensors=*/false);
  try {
    for (const auto& [name, want] : wants(asked)) {
      if (!want.required || l.of.tensors.entries.contains(name)) continue;
      l.of.tensors.entries[name] = made_up_tensor(name, want, l.layer.k);
    }
  } catch (const PluginFailure& e) {
    fail("%s: %s: %s", l.of.name.c_str(), l.name().c_str(), e.what());
  }
}

std::unique_ptr<Case> Session::open_case(const CaseSpec& spec) {
  auto c = std::make_unique<Case>();
  c->name = spec.name;
  c->method = spec.method;
  c->options = spec.options;
  if (!spec.model.empty()) {
    c->checkpoint = Checkpoint::open(spec.model);
    c->config = read_model_config(*c->checkpoint);
    c->model_json = c->checkpoint->config();
    c->quant = spec.quant_config.is_null() ? c->checkpoint->quant_config() : spec.quant_config;
    c->gguf = c->checkpoint->gguf_metadata();
    for (const Tensor& t : c->checkpoint->tensors()) c->tensors.entries[t.name] = {t.dtype, t.shape, c->checkpoint->data(t), nullptr};
  } else {
    c->config = made_up_config();
    c->model_json = made_up_config_json();
    c->quant = spec.quant_config;
  }
  c->layers = layer_specs(c->config);
  return c;
}

std::vector<std::unique_ptr<Case>>& Session::cases() {
  if (!cases_.empty()) return cases_;
  std::vector<CaseSpec> specs = subject.cases;
  if (specs.empty())
    for (std::uint32_t i = 0; i < plugin->n_methods; ++i) {
      const qe_method& m = *plugin->methods[i];
      CaseSpec spec;
      spec.name = m.name;
      const std::string methods = m.quant_method ? m.quant_method : "", first = methods.substr(0, methods.find(','));
      if (first != "none" && !first.empty()) spec.quant_config = Json{{"quant_method", first}};
      if (first == "none") spec.method = m.name;
      specs.push_back(std::move(spec));
    }
  for (const CaseSpec& spec : specs) {
    try {
      cases_.push_back(open_case(spec));
    } catch (const Error& e) {
      fail("case %s: %s", spec.name.c_str(), e.what());
    }
  }
  if (cases_.empty()) fail("there is no case to try: the descriptor has no methods, and check.json names none");
  return cases_;
}

const std::vector<Unit>& Session::units() {
  if (!found_) find_units();
  found_ = true;
  return units_;
}

// The first decoder layer and the head; parts one by one where the plugin does not take them together.
void Session::find_units() {
  for (const auto& c : cases()) {
    std::size_t before = units_.size();
    std::string why;
    for (const LayerSpec& spec : c->layers) {
      if (spec.index > 0 || (spec.index < 0 && c->made_up())) continue;
      std::vector<LayerArgs::Part> parts;
      for (const PartSpec& p : spec.parts) parts.push_back({p.name, p.role, p.n});
      const auto offer = [&](std::vector<LayerArgs::Part> some) {
        LayerArgs l(*c, some, spec.k);
        if (c->made_up()) {
          LayerArgs asked(*c, some, spec.k, 0, false);
          const qe_plan first = plan(asked);
          if (first.claim == 0) return why = reason_of(first.reason), false;
          make_up(l);
        }
        const qe_plan p = plan(l);
        if (p.claim == 0 || (some.size() > 1 && !p.fuse_parts)) return why = reason_of(p.reason), false;
        units_.push_back({c.get(), std::move(some), spec.k});
        return true;
      };
      try {
        if (offer(parts) || parts.size() == 1) continue;
        for (const LayerArgs::Part& p : parts) offer({p});
      } catch (const PluginFailure& e) {
        fail("case %s: %s", c->name.c_str(), e.what());
      }
    }
    if (units_.size() == before) fail("case %s: the plugin takes no layer: %s", c->name.c_str(), why.empty() ? "no reason given" : why.c_str());
  }
}

// ---- one packed layer ------------------------------------------------------------------------------

namespace {

qe_tensor matrix(float* data, std::int64_t rows, std::int64_t cols) { return {QE_F32, 2, {rows, cols, 0, 0}, {cols, 1, 0, 0}, data}; }
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

}  // namespace

Packed::~Packed() {
  if (h_) s_->call("destroy", "", [&] { s_->weight->destroy(h_); });
}

std::uint64_t Packed::workspace_bytes(std::int64_t m) const {
  for (int i = 0; i < plan.n_regimes && i < 4; ++i)
    if (m <= plan.regime[i].m_hi || i + 1 == plan.n_regimes) return plan.regime[i].workspace_bytes;
  return 0;
}

std::vector<float> Packed::run(const std::vector<float>& x, std::int64_t m) {
  std::vector<float> out(static_cast<std::size_t>(m * n), kPoison);
  const std::uint64_t bytes = workspace_bytes(m);
  const std::unique_ptr<std::byte, void (*)(void*)> workspace(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)), std::free);
  std::memset(workspace.get(), static_cast<int>(poison), bytes);
  qe_run r{};
  r.struct_size = sizeof r;
  r.m = m;
  r.in = matrix(const_cast<float*>(x.data()), m, k);
  r.out = matrix(out.data(), m, n);
  r.workspace = bytes ? workspace.get() : nullptr;
  r.workspace_bytes = bytes;
  s_->checked("run", "", [&](qe_error* e) {
    const StepScope step;
    return s_->weight->run(h_, &r, e);
  });
  return out;
}

std::vector<float> Packed::dequant(std::int64_t begin, std::int64_t end) {
  std::vector<float> out(static_cast<std::size_t>((end - begin) * k), kPoison);
  qe_tensor t = matrix(out.data(), end - begin, k);
  s_->checked("dequant", "", [&](qe_error* e) { return s_->weight->dequant(h_, begin, end, &t, nullptr, e); });
  return out;
}

std::vector<float> Packed::rows(const std::vector<std::int32_t>& ids) {
  std::vector<float> out(ids.size() * static_cast<std::size_t>(k), kPoison);
  qe_tensor t = matrix(out.data(), static_cast<std::int64_t>(ids.size()), k);
  s_->checked("rows", "", [&](qe_error* e) {
    const StepScope step;
    return s_->weight->rows(h_, ids.data(), static_cast<std::int64_t>(ids.size()), &t, nullptr, e);
  });
  return out;
}

// ---- numbers ---------------------------------------------------------------------------------------

std::vector<float> activations(std::int64_t m, std::int64_t k, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> channel(static_cast<std::size_t>(k)), x(static_cast<std::size_t>(m * k));
  for (float& c : channel) c = std::exp(0.5f * normal(rng));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = channel[i % static_cast<std::size_t>(k)] * normal(rng);
  return x;
}

double nmse(const std::vector<float>& w, const std::vector<float>& x, const std::vector<float>& y, std::int64_t m, std::int64_t n, std::int64_t k) {
  double error = 0, power = 0, squares = 0;
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      const float *a = w.data() + i * k, *b = x.data() + t * k;
      double sum = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const double term = double(a[j]) * double(b[j]);
        sum += term;
        squares += term * term;
      }
      const double d = double(y[static_cast<std::size_t>(t * n + i)]) - sum;
      error += d * d;
      power += sum * sum;
    }
  power = std::max(power, squares);
  return power > 0 ? error / power : error;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

std::string reason_of(const qe_reason& r) { return plugin_text(std::string_view(r, strnlen(r, sizeof r)), sizeof r); }

}  // namespace qengine::conformance
