// LoadedPlugin: a plugin's library in a MockHost, and the calls of its C table as C++.
//
//   MockHost host;
//   host.config = {{"quant_method", "gguf"}};
//   host.add("model.x.weight", QE_F32, {2, 32}, values);
//   LoadedPlugin plugin(binary_dir() / "bin/plugins/gguf.so", host);     one host at a time: plugins keep the table
//   TestLayer layer(host, {{"model.x", QE_ROLE_O, 2}}, 32);
//   auto plan = plugin.plan(layer);  auto h = plugin.load(layer);  h.run(x, m);
//
// What must hold of every plugin is checked on the way: bytes taken = planned = reported, a failed load
// gives its memory back, run gets a workspace of exactly the planned size, filled with rubbish, and
// outputs that are poisoned.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tests/support/mock_host.hpp"

namespace qengine::test {

// A layer to ask for: parts that share an input of k.
struct TestLayer {
  struct PartSpec {
    std::string name;
    int role = QE_ROLE_OTHER;
    std::int64_t n = 0, n_begin = 0, n_end = 0;  // n_end 0: all rows
  };
  TestLayer(MockHost& host, std::vector<PartSpec> specs, std::int64_t k, int flags = 0, bool with_files = true)
      : specs_(std::move(specs)), model(host.model(with_files)) {
    for (const PartSpec& s : specs_)
      parts_.push_back({sizeof(qe_part), s.role, {s.name.data(), s.name.size()}, s.n, s.n_begin, s.n_end ? s.n_end : s.n});
    for (const qe_part& p : parts_) pointers_.push_back(&p);
    view.struct_size = sizeof view;
    view.n_parts = std::uint32_t(parts_.size());
    view.parts = pointers_.data();
    view.method = "";
    view.tp_size = 1;
    view.flags = flags;
    view.k = view.k_end = k;
    view.m_max = 64;
  }
  TestLayer(const TestLayer&) = delete;

  std::vector<PartSpec> specs_;
  qe_model model;
  qe_layer view{};

 private:
  std::vector<qe_part> parts_;
  std::vector<const qe_part*> pointers_;
};

// What a plugin answered other than OK.
struct PluginFailure : std::runtime_error {
  PluginFailure(qe_status s, const qe_error& e)
      : std::runtime_error(std::string(e.subject) + " " + e.message), status(s), subject(e.subject), message(e.message), hint(e.hint) {}
  qe_status status;
  std::string subject, message, hint;
};

class LoadedPlugin {
 public:
  LoadedPlugin(const std::filesystem::path& library, MockHost& host) : host_(host) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: the contract
    if (!handle) throw std::runtime_error(dlerror());
    const auto query = reinterpret_cast<qe_plugin_query_fn>(dlsym(handle, "qe_plugin_query"));
    if (!query) throw std::runtime_error("no qe_plugin_query in " + library.string());
    plugin = query(QE_ABI_MAJOR, QE_ABI_MINOR);
    if (!plugin) throw std::runtime_error("no common ABI major");
    check([&](qe_error* e) { return plugin->init(&host.table, e); });
    weight = static_cast<const qe_weight_v1*>(plugin->extension("qe.weight/1"));
    device = host.device;
    check([&](qe_error* e) { return plugin->dev_open(&device, &dev_, e); });
  }
  LoadedPlugin(const LoadedPlugin&) = delete;
  ~LoadedPlugin() {
    plugin->dev_close(dev_);
    EXPECT_EQ(host_.live, 0) << "blocks of memory that were not given back";
  }

  int detect(std::string* why = nullptr) {
    qe_model m = host_.model();
    qe_reason text{};
    const int score = plugin->detect(&m, text);
    if (why) *why = text;
    return score;
  }

  qe_plan plan(const TestLayer& l) {
    qe_plan out{};
    out.struct_size = sizeof out;
    check([&](qe_error* e) { return weight->plan(&device, &l.model, &l.view, &out, e); });
    return out;
  }

  struct Want {
    std::string name;
    std::uint64_t dtypes;
    std::vector<std::int64_t> dims;
    bool required;
  };
  std::vector<Want> tensors(const TestLayer& l) {
    std::vector<Want> out;
    check([&](qe_error* e) {
      return weight->tensors(&l.model, &l.view,
                             [](void* arg, const qe_want* w) {
                               static_cast<std::vector<Want>*>(arg)->push_back(
                                   {std::string(w->name.p, w->name.n), w->dtypes, {w->dim, w->dim + std::max(0, w->rank)}, w->required != 0});
                             },
                             &out, e);
    });
    return out;
  }

  // One packed layer.
  class Handle {
   public:
    Handle(LoadedPlugin& p, qe_linear h, std::int64_t n, std::int64_t k, const qe_plan& plan) : n(n), k(k), p_(&p), h_(h), plan_(plan) {}
    Handle(Handle&& o) noexcept : n(o.n), k(o.k), p_(o.p_), h_(std::exchange(o.h_, nullptr)), plan_(o.plan_) {}
    ~Handle() {
      if (h_) p_->weight->destroy(h_);
    }

    // x [m, k] -> [m, n]
    std::vector<float> run(const std::vector<float>& x, std::int64_t m) {
      std::vector<float> out(std::size_t(m * n), std::numeric_limits<float>::quiet_NaN());
      qe_run r{};
      r.struct_size = sizeof r;
      r.m = m;
      r.in = matrix(const_cast<float*>(x.data()), m, k);
      r.out = matrix(out.data(), m, n);
      std::uint64_t bytes = 0;
      for (int i = plan_.n_regimes - 1; i >= 0; --i)
        if (m <= plan_.regime[i].m_hi) bytes = plan_.regime[i].workspace_bytes;
      workspace_.assign(std::size_t(bytes), std::byte{0xcd});
      r.workspace = workspace_.data();
      r.workspace_bytes = bytes;
      p_->check([&](qe_error* e) { return p_->weight->run(h_, &r, e); });
      return out;
    }
    std::vector<float> dequant(std::int64_t begin, std::int64_t end) {
      std::vector<float> out(std::size_t((end - begin) * k), std::numeric_limits<float>::quiet_NaN());
      qe_tensor t = matrix(out.data(), end - begin, k);
      p_->check([&](qe_error* e) { return p_->weight->dequant(h_, begin, end, &t, nullptr, e); });
      return out;
    }
    std::vector<float> rows(const std::vector<std::int32_t>& ids) {
      std::vector<float> out(ids.size() * std::size_t(k), std::numeric_limits<float>::quiet_NaN());
      qe_tensor t = matrix(out.data(), std::int64_t(ids.size()), k);
      p_->check([&](qe_error* e) { return p_->weight->rows(h_, ids.data(), std::int64_t(ids.size()), &t, nullptr, e); });
      return out;
    }
    qe_linear raw() const { return h_; }
    std::uint64_t bytes(int mem) { return p_->weight->bytes(h_, mem); }

    std::int64_t n, k;

   private:
    static qe_tensor matrix(float* data, std::int64_t rows, std::int64_t cols) {
      qe_tensor t{};
      t.dtype = QE_F32;
      t.rank = 2;
      t.dim[0] = rows, t.dim[1] = cols;
      t.stride[0] = cols, t.stride[1] = 1;
      t.data = data;
      return t;
    }
    LoadedPlugin* p_;
    qe_linear h_;
    qe_plan plan_;
    std::vector<std::byte> workspace_;
  };

  Handle load(const TestLayer& l) {
    host_.loading = false;
    const qe_plan planned = plan(l);
    const std::int64_t live = host_.live;
    const std::uint64_t weights = host_.allocated[QE_MEM_WEIGHT], persist = host_.allocated[QE_MEM_PERSIST];
    qe_linear h = nullptr;
    host_.loading = true;
    try {
      check([&](qe_error* e) { return weight->load(dev_, &l.model, &l.view, nullptr, &h, e); });
    } catch (...) {
      EXPECT_EQ(host_.live, live) << "a failed load kept memory";
      throw;
    }
    EXPECT_EQ(host_.allocated[QE_MEM_WEIGHT] - weights, planned.weight_bytes) << "taken and planned differ";
    EXPECT_EQ(host_.allocated[QE_MEM_PERSIST] - persist, planned.persist_bytes) << "taken and planned differ";
    EXPECT_EQ(weight->bytes(h, QE_MEM_WEIGHT), planned.weight_bytes);
    EXPECT_EQ(weight->bytes(h, QE_MEM_PERSIST), planned.persist_bytes);
    std::int64_t n = 0;
    for (std::uint32_t i = 0; i < l.view.n_parts; ++i) n += l.view.parts[i]->n_end - l.view.parts[i]->n_begin;
    return {*this, h, n, l.view.k_end - l.view.k_begin, planned};
  }

  // Runs a call of the table; throws PluginFailure when it says no.
  template <class F>
  void check(F&& call) {
    qe_error e{};
    if (const qe_status s = call(&e); s != QE_OK) throw PluginFailure(s, e);
  }

  const qe_plugin* plugin = nullptr;
  const qe_weight_v1* weight = nullptr;
  qe_device device{};

 private:
  MockHost& host_;
  qe_dev dev_ = nullptr;
};

// Outputs against float64 sums of (weights x inputs): sum (y - r)^2 / sum r^2. weights [n,k], x [m,k], y [m,n].
inline double nmse(const std::vector<float>& weights, const std::vector<float>& x, const std::vector<float>& y, std::int64_t m,
                   std::int64_t n, std::int64_t k) {
  double error = 0, power = 0;
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < k; ++j) sum += double(weights[std::size_t(i * k + j)]) * double(x[std::size_t(t * k + j)]);
      const double d = double(y[std::size_t(t * n + i)]) - sum;
      error += d * d;
      power += sum * sum;
    }
  return power > 0 ? error / power : error;
}

}  // namespace qengine::test
