// 3xx: detect, plan and tensors: pure answers, before any weight is read.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "core/plugin_host/elf_file.hpp"
#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

using ull = unsigned long long;

void detect(const Subject& s, Notes& notes) {
  Session session(s);
  const auto ask = [&](qe_model& m, std::string* why) {
    qe_reason text;
    std::memset(text, 0x7e, sizeof text);
    text[0] = 0;
    const int score = session.call("detect", "", [&] { return session.plugin->detect(&m, text); });
    if (!std::memchr(text, 0, sizeof text)) fail("detect left a reason without an end");
    *why = reason_of(text);
    return score;
  };
  const auto judge = [&](qe_model m, const std::string& what) {
    std::string a, b;
    const int x = ask(m, &a), y = ask(m, &b);
    if (x < 0 || x > 1000) fail("%s: detect answers %d, expected 0 to 1000", what.c_str(), x);
    if (x != y || a != b) fail("%s: detect answers %d, then %d", what.c_str(), x, y);
    if (a.empty()) fail("%s: detect answers %d without a sentence", what.c_str(), x);
    return x;
  };
  for (const auto& c : session.cases()) notes.push_back(text("%s: %d", c->name.c_str(), judge(c->model(!c->made_up()), c->name)));
  Case alien;
  alien.config = session.cases().front()->config;
  alien.model_json = Json{{"model_type", "llama"}};
  alien.quant = Json{{"quant_method", "qe_nobody_has_this"}, {"bits", 4}};
  if (const int x = judge(alien.model(), "a checkpoint of quant_method qe_nobody_has_this"); x >= 600) fail("detect answers %d to a checkpoint of quant_method qe_nobody_has_this", x);
  alien.quant = Json{};
  judge(alien.model(false), "an unquantized config without files");
}

// Everything that the library may write to.
std::vector<std::pair<std::byte*, std::size_t>> writable_memory(void* handle) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return {};
  struct Find {
    const link_map* map;
    std::vector<std::pair<std::byte*, std::size_t>> out;
  } find{map, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* arg) {
        auto& f = *static_cast<Find*>(arg);
        if (info->dlpi_addr != f.map->l_addr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_W)
            f.out.emplace_back(reinterpret_cast<std::byte*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      &find);
  return find.out;
}

std::string image(const std::vector<std::pair<std::byte*, std::size_t>>& memory) {
  std::string out;
  for (const auto& [p, n] : memory) out.append(reinterpret_cast<const char*>(p), n);
  return out;
}

void plan_is_pure(const Subject& s, Notes&) {
  auto session = weight_session(s);
  const auto& units = session->units();
  std::vector<std::unique_ptr<LayerArgs>> layers;
  std::vector<qe_plan> first;
  for (const Unit& u : units) {
    layers.push_back(std::make_unique<LayerArgs>(*u.of, u.parts, u.k));
    session->plan(*layers.back());  // what is set up once, at the first call
    first.push_back(session->plan(*layers.back()));
  }
  const auto memory = writable_memory(session->handle);
  const std::string before = image(memory);
  const std::size_t blocks = session->host.blocks();
  std::atomic<int> wrong{-1};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 125; ++i) {
        const std::size_t u = static_cast<std::size_t>(t + i) % layers.size();
        qe_plan again{};
        again.struct_size = sizeof again;
        qe_error e{};
        LayerArgs& l = *layers[u];
        const qe_status status = session->weight->plan(&session->device, &l.model, &l.layer, &again, &e);
        if (status != QE_OK || std::memcmp(&again, &first[u], sizeof again) != 0) wrong = static_cast<int>(u);
      }
    });
  for (std::thread& t : threads) t.join();
  if (wrong >= 0) fail("%s: of 1,000 calls of plan on 8 threads one gave another answer", units[static_cast<std::size_t>(wrong.load())].name().c_str());
  if (session->host.blocks() != blocks) fail("plan took memory from the host");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (image(memory) != before) fail("1,000 calls of plan changed the library's global data: plan keeps something between calls");
#endif
}

// A copy of `config` with one value replaced, at each place in turn.
void mutate(const Json& config, const std::function<void(const Json&, const std::string&)>& f) {
  const Json flat = config.flatten();
  for (const auto& [path, value] : flat.items())
    for (const Json& strange : {Json(12345), Json(-7), Json("qe-unknown"), Json(nullptr), Json(Json::array())}) {
      if (value == strange) continue;
      Json copy = config;
      copy[Json::json_pointer(path)] = strange;
      f(copy, path + " = " + strange.dump());
    }
}

void refusals_have_reasons(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int asked = 0, refused = 0;
  const auto judge = [&](LayerArgs& l, const std::string& what, const qe_device* device = nullptr) {
    ++asked;
    qe_plan p{};
    p.struct_size = sizeof p;
    std::memset(p.reason, 0x7e, sizeof p.reason);
    p.reason[0] = 0;
    qe_error e{};
    const qe_status status = session->call("plan", l.name(), [&] { return session->weight->plan(device ? device : &session->device, &l.model, &l.layer, &p, &e); });
    if (!std::memchr(p.reason, 0, sizeof p.reason)) fail("%s: the reason has no end", what.c_str());
    if (status != QE_OK) {
      if (e.message[0] == 0) fail("%s: plan answers %d without a message", what.c_str(), status);
      return;
    }
    if (p.claim < 0 || p.claim > 2) fail("%s: plan claims %d", what.c_str(), p.claim);
    if (p.claim == 2) return;
    ++refused;
    if (reason_of(p.reason).empty()) fail("%s: plan says %s without a reason", what.c_str(), p.claim ? "fallback" : "no");
  };
  for (const auto& c : session->cases()) {
    const LayerSpec& spec = c->layers.front();
    const auto parts = [&] {
      std::vector<LayerArgs::Part> out;
      for (const PartSpec& p : spec.parts) out.push_back({p.name, p.role, p.n});
      return out;
    };
    for (const std::int64_t k : {1, 3, 31, 100, 256, 1000, 4096})
      for (const std::int64_t n : {1, 7, 64, 1000}) {
        LayerArgs l(*c, {{"model.layers.0.mlp.down_proj", QE_ROLE_DOWN, n}}, k, 0, false);
        judge(l, text("%s: %lld x %lld", c->name.c_str(), static_cast<long long>(n), static_cast<long long>(k)));
      }
    for (const int kind : {int(QE_CUDA), 99}) {
      LayerArgs l(*c, parts(), spec.k, 0, !c->made_up());
      qe_device d = session->device;
      d.kind = kind, d.sm = 52, d.sm_count = 20;
      judge(l, text("%s: a device of kind %d, sm 52", c->name.c_str(), kind), &d);
    }
    {
      const std::string method = std::exchange(c->method, "qe_unknown_scheme");
      LayerArgs l(*c, parts(), spec.k, 0, !c->made_up());
      judge(l, c->name + ": scheme qe_unknown_scheme");
      c->method = method;
    }
    const Json quant = c->quant;
    if (quant.is_object())
      mutate(quant, [&](const Json& changed, const std::string& what) {
        c->quant = changed;
        LayerArgs l(*c, parts(), spec.k, 0, false);
        judge(l, c->name + ": " + what);
      });
    c->quant = quant;
  }
  notes.push_back(text("%d questions, %d refusals", asked, refused));
}

bool row_covers(const qe_plugin& p, const qe_device& d) {
  for (std::uint32_t i = 0; i < p.n_methods; ++i)
    for (std::uint32_t r = 0; r < p.methods[i]->n_rows; ++r) {
      const qe_capability& c = *p.methods[i]->rows[r];
      if (c.kind == d.kind && (d.kind != QE_CUDA || (d.sm >= c.sm_min && (c.sm_max == 0 || d.sm <= c.sm_max)))) return true;
    }
  return false;
}

void devices(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  std::vector<qe_device> all{session->device};
  for (const int sm : {70, 75, 80, 86, 89, 90, 100, 120}) {
    qe_device d{};
    d.struct_size = sizeof d;
    d.kind = QE_CUDA, d.sm = sm, d.sm_count = 100, d.driver = 13000;
    d.smem_optin = 100 << 10, d.l2_bytes = 40 << 20, d.mem_bytes = std::uint64_t{80} << 30;
    all.push_back(d);
  }
  const bool has_code = !ElfFile::read(s.library).device_code.empty();
  std::string taken;
  for (const qe_device& d : all) {
    const std::string where = d.kind == QE_CPU ? "the CPU" : "sm " + std::to_string(d.sm);
    bool any = false;
    for (const Unit& u : session->units()) {
      LayerArgs l(*u.of, u.parts, u.k);
      const qe_plan p = session->plan(l, &d);
      any |= p.claim != 0;
      if (p.claim && !row_covers(*session->plugin, d)) fail("%s: plan claims %s, and no row of a method covers it", u.name().c_str(), where.c_str());
    }
    const bool built_for = d.kind != QE_CUDA || has_code;  // without nvcc the rows are those of another build
    if (!any && built_for && row_covers(*session->plugin, d)) fail("a row of a method covers %s, and plan refuses every layer there", where.c_str());
    if (any) taken += (taken.empty() ? "" : ", ") + where;
  }
  notes.push_back("takes layers on " + taken);
}

void regimes(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    const qe_plan p = session->plan(l);
    const std::string at = u.name();
    if (p.n_regimes < 1 || p.n_regimes > 4) fail("%s: %d regimes, expected 1 to 4", at.c_str(), p.n_regimes);
    if (p.n_multiple < 1 || p.k_multiple < 1) fail("%s: n_multiple %lld, k_multiple %lld; expected 1 or more", at.c_str(), static_cast<long long>(p.n_multiple), static_cast<long long>(p.k_multiple));
    std::int64_t before = 0;
    for (int i = 0; i < p.n_regimes; ++i) {
      const qe_regime& r = p.regime[i];
      if (r.m_hi <= before) fail("%s: regime %d ends at %lld tokens, the one before at %lld", at.c_str(), i, static_cast<long long>(r.m_hi), static_cast<long long>(before));
      before = r.m_hi;
      if (!std::memchr(r.kernel, 0, sizeof r.kernel) || r.kernel[0] == 0) fail("%s: regime %d names no kernel", at.c_str(), i);
      if (r.n_before > l.layer.n_before || r.n_after > l.layer.n_after) fail("%s: regime %d takes %u steps before and %u after; %u and %u were offered", at.c_str(), i, r.n_before, r.n_after, l.layer.n_before, l.layer.n_after);
      if (!(r.in_encodings & QE_ACT_COMPUTE)) fail("%s: regime %d does not read the compute dtype", at.c_str(), i);
      if (r.reserved || std::any_of(std::begin(r.zero), std::end(r.zero), [](std::uint64_t z) { return z != 0; })) fail("%s: reserved fields of regime %d are not zero", at.c_str(), i);
    }
    if (before < l.layer.m_max) fail("%s: the last regime ends at %lld tokens, m_max is %lld", at.c_str(), static_cast<long long>(before), static_cast<long long>(l.layer.m_max));
  }
}

void bytes_grow(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const auto& c : session->cases()) {
    const auto bytes = [&](std::int64_t n, std::int64_t k, std::int64_t m, ull* workspace = nullptr) -> long long {
      LayerArgs l(*c, {{"model.layers.0.mlp.down_proj", QE_ROLE_DOWN, n}}, k, 0, false);
      l.layer.m_max = m;
      const qe_plan p = session->plan(l);
      if (p.claim == 0) return -1;
      if (workspace && p.n_regimes > 0 && p.n_regimes <= 4) *workspace = p.regime[p.n_regimes - 1].workspace_bytes;
      return static_cast<long long>(p.weight_bytes + p.persist_bytes);
    };
    long long before = 0;
    for (std::int64_t n = 64; n <= (1 << 20); n *= 4)
      if (const long long b = bytes(n, 4096, 64); b >= 0) {
        if (b < before) fail("%s: %lld rows of 4096 take %lld bytes, a quarter of the rows %lld", c->name.c_str(), static_cast<long long>(n), b, before);
        if (b == 0) fail("%s: %lld rows of 4096 take no bytes", c->name.c_str(), static_cast<long long>(n));
        before = b;
      }
    before = 0;
    for (std::int64_t k = 256; k <= (1 << 20); k *= 4)
      if (const long long b = bytes(4096, k, 64); b >= 0) {
        if (b < before) fail("%s: 4096 rows of %lld take %lld bytes, a quarter of the inputs %lld", c->name.c_str(), static_cast<long long>(k), b, before);
        before = b;
      }
    ull most = 0;
    for (std::int64_t m = 1; m <= 65536; m *= 4) {
      ull w = 0;
      if (bytes(4096, 4096, m, &w) < 0) continue;
      if (w < most) fail("%s: the workspace of %lld tokens is %llu bytes, that of a quarter of them %llu", c->name.c_str(), static_cast<long long>(m), w, most);
      most = w;
    }
  }
}

void without_checkpoint(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs with(*u.of, u.parts, u.k), without(*u.of, u.parts, u.k, 0, false);
    const qe_plan a = session->plan(with), b = session->plan(without);
    const std::string why = reason_of(b.reason);
    if (b.claim == 0) {  // what only tensors tell cannot be planned from a config; the reason says so (QEP-303)
      notes.push_back(u.name() + ": not planned without files: " + why);
      continue;
    }
    if ((a.weight_bytes != b.weight_bytes || a.persist_bytes != b.persist_bytes) && why.find("assum") == std::string::npos && u.of->made_up())
      fail("%s: %llu bytes with the checkpoint, %llu without it, and the reason does not say \"assumed\" (%s)", u.name().c_str(), ull(a.weight_bytes + a.persist_bytes), ull(b.weight_bytes + b.persist_bytes),
           why.empty() ? "it is empty" : why.c_str());
  }
}

// A host of another minor: longer structs with rubbish behind what we know, or a host table that ends earlier.
void other_minors(const Subject& s, Notes&) {
  auto session = weight_session(s);
  const Unit& u = session->units().front();
  LayerArgs l(*u.of, u.parts, u.k);
  const qe_plan usual = session->plan(l);

  struct LongModel {
    qe_model m;
    unsigned char more[64];
  } model;
  struct LongLayer {
    qe_layer l;
    unsigned char more[64];
  } layer;
  struct LongDevice {
    qe_device d;
    unsigned char more[64];
  } device;
  struct LongPlan {
    qe_plan p;
    unsigned char more[64];
  } plan;
  std::memset(&model, 0xff, sizeof model), std::memset(&layer, 0xff, sizeof layer), std::memset(&device, 0xff, sizeof device), std::memset(&plan, 0, sizeof plan);
  std::memset(plan.more, 0xee, sizeof plan.more);
  model.m = l.model, model.m.struct_size = sizeof model;
  layer.l = l.layer, layer.l.struct_size = sizeof layer;
  device.d = session->device, device.d.struct_size = sizeof device;
  plan.p.struct_size = sizeof plan;
  try {
    session->checked("plan", u.parts[0].name, [&](qe_error* e) { return session->weight->plan(&device.d, &model.m, &layer.l, &plan.p, e); });
  } catch (const PluginFailure& e) {
    fail("with longer structs, as a newer host has them, %s", e.what());
  }
  if (plan.p.claim != usual.claim || plan.p.weight_bytes != usual.weight_bytes || plan.p.n_regimes != usual.n_regimes)
    fail("with longer structs, as a newer host has them, the plan is another: claim %d, %llu bytes; before %d, %llu", plan.p.claim,
         static_cast<unsigned long long>(plan.p.weight_bytes), usual.claim, static_cast<unsigned long long>(usual.weight_bytes));
  if (plan.p.struct_size != sizeof plan) fail("plan changed struct_size, which is the host's");
  for (const unsigned char c : plan.more)
    if (c != 0xee) fail("plan wrote behind the fields that it knows");

  // A host of this minor's first day: its table ends before `threads`, its qe_plan before `scheme`.
  qe_plan shorter{};
  shorter.struct_size = offsetof(qe_plan, scheme);
  std::memset(shorter.scheme, 0xee, sizeof shorter.scheme);
  try {
    session->checked("plan", u.parts[0].name, [&](qe_error* e) { return session->weight->plan(&session->device, &l.model, &l.layer, &shorter, e); });
  } catch (const PluginFailure& e) {
    fail("with a shorter qe_plan, as an older host has it, %s", e.what());
  }
  for (const char c : shorter.scheme)
    if (c != static_cast<char>(0xee)) fail("plan wrote `scheme` behind the end of an older host's qe_plan");
}

void older_host(const Subject& s, Notes&) {
  Session session(s, {}, /*older_host=*/true);
  if (!session.weight) not_applicable("the plugin has no qe.weight/1");
  try {
    const Unit& u = session.units().front();
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session.load(l);
    h.run(activations(3, h.k, 1), 3);
  } catch (const PluginFailure& e) {
    fail("in a host whose table ends before its newest field, %s", e.what());
  }
}


}  // namespace

const std::vector<Check> planning_checks{
    {"QEP-300", "planning", "each case has a layer that the plugin takes", [](const Subject& s, Notes& notes) {
       auto session = weight_session(s);
       notes.push_back(text("%zu layers in %zu cases", session->units().size(), session->cases().size()));
     }, true},
    {"QEP-301", "planning", "detect answers 0 to 1000, always the same, with a sentence", detect},
    {"QEP-302", "planning", "1,000 calls of plan on 8 threads change nothing", plan_is_pure},
    {"QEP-303", "planning", "every no and every fallback has a reason", refusals_have_reasons},
    {"QEP-304", "planning", "plan agrees with the capability rows on every device", devices},
    {"QEP-305", "planning", "regimes are complete, rising and name their kernels", regimes},
    {"QEP-306", "planning", "bytes grow with N, K and M", bytes_grow},
    {"QEP-307", "planning", "a plan without files is the plan, or says what it assumed", without_checkpoint},
    {"QEP-308", "planning", "longer and shorter structs of other minors change nothing", other_minors},
    {"QEP-309", "planning", "a host whose table ends earlier is enough", older_host},
};

}  // namespace qengine::conformance
