// Subject: the plugin under test and the checkpoints it is tried on. Session: the plugin loaded into this process.
//
// A case is either a checkpoint of the author's (`model`), or made up: the kit asks tensors() what a layer
// of a small made-up model needs and fills it with numbers. check.json beside a plugin lists them:
//
//   {"cases": [{"name": "g32", "quant_config": {"quant_method": "mine", "group_size": 32}},
//              {"name": "written by the quantizer", "model": "tests/tiny"},
//              {"name": "online", "method": "mine_online"}]}
#pragma once

#include <qe/plugin.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/conformance/check.hpp"
#include "core/conformance/kit_host.hpp"
#include "core/model/checkpoint.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "core/plugin_host/manifest.hpp"

namespace qengine::conformance {

struct CaseSpec {
  std::string name, method;
  std::filesystem::path model;
  Json quant_config, options;
};

struct Subject {
  std::filesystem::path library;
  std::vector<CaseSpec> cases;           // empty: one made-up case a method
  std::filesystem::path builtin_plugins; // the program's own, for comparisons; may be empty
  bool quick = false;                    // speed is looked at, not measured
  // Throws Error E102 naming the field when `check_json` cannot be used.
  static std::vector<CaseSpec> read_cases(const std::filesystem::path& check_json);
  Manifest manifest() const;             // beside the library; throws Error E306
};

// A model to ask about. Stays where it is: qe_model points into it.
struct Case {
  Case() = default;
  Case(const Case&) = delete;
  std::string name, method;
  Json quant, options, model_json, gguf;
  qe_cfg_s cfg;
  ModelConfig config;
  std::shared_ptr<const Checkpoint> checkpoint;  // null: made up
  KitTensors tensors;
  std::vector<LayerSpec> layers;

  qe_model model(bool with_tensors = true);
  bool made_up() const { return !checkpoint; }
};

// The arguments of one question about one layer; owns what qe_layer points to.
struct LayerArgs {
  struct Part {
    std::string name;
    int role = QE_ROLE_OTHER;
    std::int64_t n = 0, n_begin = 0, n_end = 0;
  };
  LayerArgs(Case& c, std::vector<Part> parts, std::int64_t k, int flags = 0, bool with_tensors = true);
  LayerArgs(const LayerArgs&) = delete;
  void cut_rows(int rank, int size, std::int64_t multiple);
  void cut_inputs(int rank, int size, std::int64_t multiple);
  std::int64_t n() const;  // rows of this rank over all parts
  std::int64_t k() const { return layer.k_end - layer.k_begin; }
  std::string name() const { return parts[0].name; }

  Case& of;
  std::vector<Part> parts;
  qe_model model;
  qe_layer layer{};

 private:
  void point();
  std::vector<qe_part> raw_;
  std::vector<const qe_part*> pointers_;
};

struct PluginFailure : std::runtime_error {
  PluginFailure(qe_status s, const qe_error& e, const char* call);
  qe_status status;
  std::string call, subject, message;
  bool names(const std::string& tensor) const { return subject.find(tensor) != std::string::npos || message.find(tensor) != std::string::npos; }
};

class Session;

// One packed layer; destroyed with it.
class Packed {
 public:
  Packed(Session& s, qe_linear h, std::int64_t n, std::int64_t k, const qe_plan& plan) : n(n), k(k), plan(plan), s_(&s), h_(h) {}
  Packed(Packed&& o) noexcept : n(o.n), k(o.k), plan(o.plan), poison(o.poison), s_(o.s_), h_(std::exchange(o.h_, nullptr)) {}
  ~Packed();
  // x [m, k] -> [m, n]; workspace of exactly the planned size, filled with `poison`, outputs poisoned with NaN.
  std::vector<float> run(const std::vector<float>& x, std::int64_t m);
  std::vector<float> dequant(std::int64_t begin, std::int64_t end);
  std::vector<float> dequant() { return dequant(0, n); }
  std::vector<float> rows(const std::vector<std::int32_t>& ids);
  std::uint64_t workspace_bytes(std::int64_t m) const;
  qe_linear raw() const { return h_; }

  std::int64_t n, k;
  qe_plan plan;
  std::byte poison{0xcd};

 private:
  Session* s_;
  qe_linear h_;
};

// A layer that the plugin takes, as it takes it: whole or by its parts.
struct Unit {
  Case* of;
  std::vector<LayerArgs::Part> parts;
  std::int64_t k;
  std::string name() const { return of->name + ": " + parts[0].name + (parts.size() > 1 ? " (fused)" : ""); }
};

class Session {
 public:
  // Loads the library, asks for the descriptor, calls init. Throws Failed when one of these is not possible.
  // `older_host`: its table ends before the newest field, as that of a host of an earlier day.
  explicit Session(const Subject& subject, const std::filesystem::path& library = {}, bool older_host = false);
  ~Session();

  // Cases that can be loaded; made-up tensors are filled in. Throws Failed when a case cannot be used.
  std::vector<std::unique_ptr<Case>>& cases();
  // At most a few layers of each case.
  const std::vector<Unit>& units();

  qe_plan plan(LayerArgs& l, const qe_device* device = nullptr);
  Packed load(LayerArgs& l);
  std::vector<std::pair<std::string, qe_want>> wants(LayerArgs& l);  // qe_want.name points into the string
  // Adds made-up tensors for what tensors() wants of this layer. Throws Failed when that is not possible.
  void make_up(LayerArgs& l);
  qe_dev device_state();

  // Around every call into the plugin, so that a crash is named.
  template <class F>
  auto call(const char* what, const std::string& layer, F&& f) {
    Call note{name_.c_str(), what, layer.c_str()};
    const CallScope scope(note);
    return f();
  }
  // The same for calls with a status; throws PluginFailure.
  template <class F>
  void checked(const char* what, const std::string& layer, F&& f) {
    qe_error e{};
    if (const qe_status s = call(what, layer, [&] { return f(&e); })) throw PluginFailure(s, e, what);
  }

  const Subject& subject;
  KitHost host;
  const qe_plugin* plugin = nullptr;
  const qe_weight_v1* weight = nullptr;
  const qe_kv_v1* kv = nullptr;
  qe_device device = cpu_device();
  void* handle = nullptr;  // of dlopen

 private:
  std::unique_ptr<Case> open_case(const CaseSpec& spec);
  void find_units();
  std::string name_;
  qe_dev dev_ = nullptr;
  bool opened_ = false, found_ = false;
  std::vector<std::unique_ptr<Case>> cases_;
  std::vector<Unit> units_;
};

// A Session for checks about weights; not applicable to a plugin without them.
std::unique_ptr<Session> weight_session(const Subject& subject);

// Loads the library and nothing else; throws Failed with the loader's text.
void* open_library(const std::filesystem::path& file);
const qe_plugin* query_descriptor(void* handle, std::uint32_t major = QE_ABI_MAJOR);

// Activations as layers see them: channels of unequal size.
std::vector<float> activations(std::int64_t m, std::int64_t k, std::uint32_t seed);
// sum (y - r)^2 / sum r^2 against float64 sums; weights [n, k], x [m, k], y [m, n]. The power below is at least that of terms
// of random sign: a few sums that happen to cancel say nothing about the arithmetic.
double nmse(const std::vector<float>& weights, const std::vector<float>& x, const std::vector<float>& y, std::int64_t m, std::int64_t n, std::int64_t k);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
std::string reason_of(const qe_reason& r);

}  // namespace qengine::conformance
