#include "core/plugin_host/kv_format.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "core/plugin_host/host_table.hpp"
#include "core/plugin_host/model_view.hpp"
#include "core/plugin_host/plugin_error.hpp"

namespace qengine {
namespace {

constexpr std::array<std::string_view, 8> kOwn = {"auto", "bfloat16", "bf16", "float16", "half", "float32", "float", "f32"};

std::string text(const qe_reason& reason) { return plugin_text(std::string_view(reason, strnlen(reason, sizeof reason)), sizeof reason); }

}  // namespace

struct KvFormat::Impl {
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelConfig config;
  std::int32_t block_tokens = 16;
  ThreadPool* pool = nullptr;
  PluginModel model;
  Json options;  // the plugin's, with the scheme
  PluginChoice choice;
  qe_device device{};
  qe_kv_plan plan{};
  std::string scheme, why;
  qe_dev dev = nullptr;
  bool dev_opened = false;
  qe_kv kv = nullptr;

  ~Impl() {
    Call call{choice.plugin ? choice.plugin->name.c_str() : "", "close"};
    const CallScope scope(call);
    if (kv) choice.plugin->kv->close(kv);
    if (dev_opened && choice.plugin->descriptor->dev_close) choice.plugin->descriptor->dev_close(dev);
  }

  template <class F>
  void into(const char* what, const char* layer, F&& f) const {
    qe_error error;  // filled when the call fails
    error.device_code = 0;
    error.subject[0] = error.message[0] = error.hint[0] = 0;
    Call call{choice.plugin->name.c_str(), what, layer, pool, nullptr, nullptr};
    const CallScope scope(call);
    if (const qe_status s = f(*choice.plugin->kv, &error)) throw plugin_error(s, error, {choice.plugin, what, layer, checkpoint.get()});
  }
};

KvFormat::KvFormat(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvFormat::~KvFormat() = default;

std::unique_ptr<KvFormat> KvFormat::make(const PluginHost& host, std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config,
                                         const KvFormatOptions& o, ThreadPool& pool) {
  auto impl = std::make_unique<Impl>();
  Impl& s = *impl;
  s.checkpoint = std::move(checkpoint);
  s.config = config;
  s.pool = &pool;
  s.block_tokens = o.block_tokens;
  s.device = o.device.struct_size ? o.device : cpu_device();

  const bool own = std::find(kOwn.begin(), kOwn.end(), o.dtype) != kOwn.end();
  if (!own) {
    s.choice = host.choose_value("kv-cache-dtype", o.dtype);
    if (!o.plugin.empty()) {
      const PluginChoice named = host.choose(o.plugin, "--kv-plugin");
      if (named.plugin != s.choice.plugin && !named.scheme.empty())
        throw Error("E104", "--kv-plugin " + o.plugin + " and --kv-cache-dtype " + o.dtype + " disagree").from(s.choice.how).hint("leave one of them out");
      if (named.plugin != s.choice.plugin || !named.scheme.empty()) s.choice = named;
    }
  } else if (!o.plugin.empty()) {
    if (o.dtype != "auto") throw Error("E104", "--kv-plugin " + o.plugin + " and --kv-cache-dtype " + o.dtype + " disagree").hint("leave one of them out");
    s.choice = host.choose(o.plugin, "--kv-plugin");
  } else if (o.dtype == "auto") {
    // What the checkpoint asks for. Ties go by id: every one of them reads the same scheme.
    int best = 599;
    for (const auto& p : host.plugins()) {
      if (!p->kv || p->weight) continue;
      PluginModel view;
      view_model(view, *s.checkpoint, config, host.options(), *p);
      qe_reason reason{};
      Call call{p->name.c_str(), "detect"};
      const CallScope scope(call);
      if (const int score = p->descriptor->detect(&view.model, reason); score > best) {
        best = score;
        s.choice = {p.get(), "", "--kv-cache-dtype auto -> " + p->name + " (" + text(reason) + ")"};
      }
    }
  }
  if (!s.choice.plugin) return nullptr;
  const Plugin& p = *s.choice.plugin;
  if (!p.kv) throw Error("E104", p.name + " is not for the KV cache").from(s.choice.how).hint("qengine plugin info " + p.name + " says what it does");

  view_model(s.model, *s.checkpoint, config, host.options(), p);
  s.options = s.model.cfg.options ? *s.model.cfg.options : Json::object();
  if (!s.choice.scheme.empty()) s.options["method"] = s.choice.scheme;
  s.model.cfg.options = &s.options;

  s.plan.struct_size = sizeof s.plan;
  s.into("plan", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.plan(&s.device, &s.model.model, o.block_tokens, &s.plan, e); });
  s.why = text(s.plan.reason);
  if (s.plan.claim == 0) {
    throw Error("E304", p.name + " cannot store the cache of this model: " + (s.why.empty() ? "it gave no reason" : s.why))
        .from(s.choice.how)
        .hint("--kv-cache-dtype bfloat16 needs no plugin");
  }
  if (s.plan.block_bytes_k == 0 || s.plan.block_bytes_v == 0)
    throw Error("E309", p.name + " " + p.version + " broke its contract: a KV block of 0 bytes").in("plan");
  s.scheme = s.choice.scheme;
  if (s.scheme.empty() && p.methods.size() == 1) s.scheme = p.methods[0].name;

  if (p.descriptor->dev_open) {
    s.into("dev_open", "kv cache", [&](const qe_kv_v1&, qe_error* e) { return p.descriptor->dev_open(&s.device, &s.dev, e); });
    s.dev_opened = true;
  }
  s.model.ckpt.loading = true;
  s.into("open", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.open(s.dev, &s.model.model, o.block_tokens, &s.kv, e); });
  s.model.ckpt.loading = false;
  s.model.ckpt.aligned.clear();
  log("plugins").info("{}", s.choice.how);
  if (s.plan.scale_kind == QE_KV_SCALE_ONE)
    log("plugins").warn("{}", Error("W401", "KV cache of " + p.name + ": no k_scale/v_scale in the checkpoint, scale 1.0 is used for " + std::to_string(config.num_layers) + " layers")
                                  .hint("check the loss with qengine eval kl")
                                  .what());
  return std::unique_ptr<KvFormat>(new KvFormat(std::move(impl)));
}

const Plugin& KvFormat::plugin() const { return *impl_->choice.plugin; }
const std::string& KvFormat::scheme() const { return impl_->scheme; }
const std::string& KvFormat::why() const { return impl_->why.empty() ? impl_->choice.how : impl_->why; }
const qe_kv_plan& KvFormat::plan() const { return impl_->plan; }

const char* KvFormat::scale_source() const {
  switch (impl_->plan.scale_kind) {
    case QE_KV_SCALE_ONE: return "default_one";
    case QE_KV_SCALE_CHECKPOINT: return "checkpoint";
    default: return "none";
  }
}

std::uint64_t KvFormat::bytes_per_token() const {
  const qe_kv_plan& p = impl_->plan;
  return (p.block_bytes_k + p.block_bytes_v + p.block_bytes_scale) * static_cast<std::uint64_t>(impl_->config.num_layers) / static_cast<std::uint64_t>(impl_->block_tokens);
}

void KvFormat::scales(int layer, std::vector<float>& k, std::vector<float>& v) const {
  k.assign(static_cast<std::size_t>(impl_->config.num_kv_heads), 1.0f);
  v = k;
  const qe_kv_v1& table = *impl_->choice.plugin->kv;
  if (!QE_HAS(&table, scales) || !table.scales) return;
  impl_->into("scales", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.scales(impl_->kv, layer, k.data(), v.data(), e); });
}

void KvFormat::store(qe_kv_args& args) const {
  args.struct_size = sizeof args;
  impl_->into("store", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.store(impl_->kv, &args, e); });
}

void KvFormat::gather(qe_kv_args& args) const {
  args.struct_size = sizeof args;
  impl_->into("gather", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.gather(impl_->kv, &args, e); });
}

bool KvFormat::has_decode() const { return impl_->choice.plugin->kv->decode; }
void KvFormat::decode(qe_kv_args& args) const {
  args.struct_size = sizeof args;
  impl_->into("decode", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.decode(impl_->kv, &args, e); });
}

bool KvFormat::has_prefill() const { return impl_->choice.plugin->kv->prefill; }
void KvFormat::prefill(qe_kv_args& args) const {
  args.struct_size = sizeof args;
  impl_->into("prefill", "kv cache", [&](const qe_kv_v1& kv, qe_error* e) { return kv.prefill(impl_->kv, &args, e); });
}

}  // namespace qengine
