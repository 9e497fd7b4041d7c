// 4xx: loading: bytes, faults in the input, faults of the machine, nothing kept.
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/conformance/made_up.hpp"
#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

using ull = unsigned long long;

void loads(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units())
    for (const int flags : {0, int(QE_LAYER_EXACT)}) {
      LayerArgs l(*u.of, u.parts, u.k, flags);
      try {
        const Packed h = session->load(l);
      } catch (const PluginFailure& e) {
        fail("%s: %s%s", u.name().c_str(), e.what(), u.of->made_up() ? " (made-up tensors; name a checkpoint in check.json if no made-up one can be read)" : "");
      }
    }
}

void planned_is_taken(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  ull sum = 0;
  for (const Unit& u : session->units())
    for (const int flags : {0, int(QE_LAYER_EXACT)}) {
      LayerArgs l(*u.of, u.parts, u.k, flags);
      const ull before[] = {0, session->host.held(QE_MEM_WEIGHT), session->host.held(QE_MEM_PERSIST)};
      const Packed h = session->load(l);
      for (const int mem : {QE_MEM_WEIGHT, QE_MEM_PERSIST}) {
        const char* kind = mem == QE_MEM_WEIGHT ? "weights" : "state";
        const ull planned = mem == QE_MEM_WEIGHT ? h.plan.weight_bytes : h.plan.persist_bytes, took = session->host.held(mem) - before[mem];
        const ull says = session->call("bytes", l.name(), [&] { return session->weight->bytes(h.raw(), mem); });
        if (took != planned || says != planned) fail("%s: %llu bytes of %s planned, %llu taken, %llu according to bytes()", u.name().c_str(), planned, kind, took, says);
        sum += took;
      }
    }
  notes.push_back(text("%llu bytes in %zu layers", sum, 2 * session->units().size()));
}

void peak_is_planned(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  ull most = 0;
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    session->host.reset_peak();
    const Packed h = session->load(l);
    const ull peak = session->host.peak(QE_MEM_LOAD_TEMP);
    most = std::max(most, peak);
    if (peak > h.plan.load_temp_bytes) fail("%s: load takes %llu bytes for a while, planned %llu", u.name().c_str(), peak, ull(h.plan.load_temp_bytes));
    if (session->host.held(QE_MEM_LOAD_TEMP)) fail("%s: load keeps %llu bytes that it took only for loading", u.name().c_str(), ull(session->host.held(QE_MEM_LOAD_TEMP)));
  }
  notes.push_back(text("peak of loading %llu bytes", most));
}

void stays_inside(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    for (const std::int64_t m : {1, 17}) h.run(activations(m, h.k, 1), m);
    if (const std::string d = session->host.damage(); !d.empty()) fail("%s: load or run wrote %s", u.name().c_str(), d.c_str());
  }
  if (!session->host.bad_frees.empty()) fail("it gave back %s", session->host.bad_frees[0].c_str());
}

void wants_are_fetched(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    std::set<std::string> listed;
    for (const auto& [name, want] : session->wants(l)) {
      listed.insert(name);
      if (want.required && !u.of->tensors.entries.contains(name)) fail("%s: tensors() requires %s, and load works without it", u.name().c_str(), name.c_str());
    }
    u.of->tensors.read.clear();
    const Packed h = session->load(l);
    for (const std::string& name : u.of->tensors.read)
      if (!listed.contains(name)) fail("%s: load reads %s, which tensors() did not name: the host would call it left over", u.name().c_str(), name.c_str());
    for (const auto& [name, want] : session->wants(l))
      if (want.required && !u.of->tensors.read.contains(name)) fail("%s: tensors() requires %s, and load never reads it", u.name().c_str(), name.c_str());
  }
}

// Loads `l`, which must fail with a message that names `tensor`, and give everything back.
void must_name(Session& session, LayerArgs& l, const std::string& tensor, const std::string& what) {
  const std::size_t blocks = session.host.blocks();
  try {
    const Packed h = session.load(l);
  } catch (const PluginFailure& e) {
    if (!e.names(tensor)) fail("%s: %s; the message must name the tensor", what.c_str(), e.what());
    if (session.host.blocks() != blocks) fail("%s: the failed load kept %zu blocks of memory", what.c_str(), session.host.blocks() - blocks);
    return;
  } catch (const Failed&) {
    return;  // plan already says no, with a reason
  }
  fail("%s: load succeeds", what.c_str());
}

// The required tensors of a unit that are there.
std::vector<std::pair<std::string, qe_want>> required(Session& session, const Unit& u) {
  LayerArgs l(*u.of, u.parts, u.k);
  std::vector<std::pair<std::string, qe_want>> out;
  for (auto& [name, want] : session.wants(l))
    if (want.required && u.of->tensors.entries.contains(name)) out.emplace_back(std::move(name), want);
  return out;
}

void missing(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units())
    for (const auto& [name, want] : required(*session, u)) {
      auto node = u.of->tensors.entries.extract(name);
      LayerArgs l(*u.of, u.parts, u.k);
      must_name(*session, l, name, u.name() + " without " + name);
      u.of->tensors.entries.insert(std::move(node));
    }
}

void misshapen(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units())
    for (const auto& [name, want] : required(*session, u)) {
      KitTensors::Entry& e = u.of->tensors.entries.at(name);
      const KitTensors::Entry whole = e;
      LayerArgs l(*u.of, u.parts, u.k);
      if (!e.shape.empty() && e.shape[0] > 1 && want.rank > 0 && want.dim[0] >= 0) {
        e.shape[0] -= 1;
        e.data = e.data.first(e.data.size() / static_cast<std::size_t>(whole.shape[0]) * static_cast<std::size_t>(e.shape[0]));
        must_name(*session, l, name, u.name() + " with one row less in " + name);
        e = whole;
      }
      if (want.dtypes && whole.dtype < QE_GGML && !(want.dtypes >> QE_I64 & 1)) {
        e.dtype = QE_I64;
        const auto wide = std::make_shared<std::vector<std::byte>>(e.data.size() / element_bytes(whole.dtype) * 8);
        e.own = wide, e.data = *wide;
        must_name(*session, l, name, u.name() + " with I64 in " + name);
        e = whole;
      }
    }
}

void not_finite(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int tried = 0;
  for (const Unit& u : session->units())
    for (const auto& [name, want] : required(*session, u)) {
      const KitTensors::Entry whole = u.of->tensors.entries.at(name);
      const std::size_t size = whole.dtype == QE_F32 ? 4 : whole.dtype == QE_F16 || whole.dtype == QE_BF16 ? 2 : 0;
      const std::size_t count = size ? whole.data.size() / size : 0;
      // a matrix of one number a weight is content, not a scale
      if (!count || count >= static_cast<std::size_t>(u.k) * static_cast<std::size_t>(u.parts[0].n) / 2) continue;
      const std::uint32_t nan = whole.dtype == QE_F32 ? 0x7fc00000u : whole.dtype == QE_F16 ? 0x7e00u : 0x7fc0u;
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        std::memcpy(u.of->tensors.writable(name).data() + at * size, &nan, size);
        LayerArgs l(*u.of, u.parts, u.k);
        must_name(*session, l, name, text("%s with a NaN at %zu of %zu in %s", u.name().c_str(), at, count, name.c_str()));
        u.of->tensors.entries.at(name) = whole;
        ++tried;
      }
    }
  if (!tried) not_applicable("no layer has a tensor of scales in F32, F16 or BF16");
  notes.push_back(text("%d poisoned scales", tried));
}

void cancel(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    session->host.cancel_at = -1, session->host.cancel_asked = 0;
    { const Packed h = session->load(l); }
    const std::int64_t asked = session->host.cancel_asked;
    if (asked == 0) fail("%s: load never asks whether it is cancelled", u.name().c_str());
    notes.push_back(text("%s asks %lld times", u.name().c_str(), static_cast<long long>(asked)));
    const std::size_t blocks = session->host.blocks();
    for (const std::int64_t at : {std::int64_t{0}, asked / 2}) {
      session->host.cancel_at = at, session->host.cancel_asked = 0;
      try {
        const Packed h = session->load(l);
        fail("%s: load succeeds though it was told to stop at question %lld", u.name().c_str(), static_cast<long long>(at));
      } catch (const PluginFailure& e) {
        if (e.status != QE_E_CANCELLED) fail("%s: cancelled, %s; expected status %d", u.name().c_str(), e.what(), QE_E_CANCELLED);
      }
      if (session->host.blocks() != blocks) fail("%s: the cancelled load kept memory", u.name().c_str());
    }
    session->host.cancel_at = -1;
  }
}

void out_of_memory(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int tried = 0;
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    session->host.allocations = 0;
    { const Packed h = session->load(l); }
    const int all = session->host.allocations;
    const std::size_t blocks = session->host.blocks();
    for (int at = 0; at < all; ++at, ++tried) {
      session->host.fail_alloc_at = at;
      try {
        const Packed h = session->load(l);
        fail("%s: load succeeds though allocation %d of %d failed", u.name().c_str(), at + 1, all);
      } catch (const PluginFailure& e) {
        if (e.status != QE_E_OOM) fail("%s: allocation %d of %d failed, %s; expected status %d", u.name().c_str(), at + 1, all, e.what(), QE_E_OOM);
      }
      session->host.fail_alloc_at = -1;
      if (session->host.blocks() != blocks) fail("%s: allocation %d of %d failed, and the load kept %zu blocks", u.name().c_str(), at + 1, all, session->host.blocks() - blocks);
    }
  }
  notes.push_back(text("%d failed allocations", tried));
}

void nothing_leaks(const Subject& s, Notes&) {
  auto session = weight_session(s);
  session->host.serial = true;  // one heap
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    const auto x = activations(3, u.k, 4);
    const auto once = [&] {
      Packed h = session->load(l);
      h.run(x, 3);
    };
    for (int i = 0; i < 3; ++i) once();
    if (session->host.blocks()) fail("%s: after destroy %zu blocks of the host's memory are still held", u.name().c_str(), session->host.blocks());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    // What is lost in every round grows in every batch; caches fill once. 64 bytes a round are an object.
    constexpr int kRounds = 40;
    double least = 1e18;
    for (int batch = 0; batch < 3; ++batch) {
      malloc_trim(0);
      const auto before = mallinfo2();
      for (int i = 0; i < kRounds; ++i) once();
      malloc_trim(0);
      const auto after = mallinfo2();
      least = std::min(least, double(after.uordblks + after.hblkhd) - double(before.uordblks + before.hblkhd));
    }
    if (least >= 64.0 * kRounds) fail("%s: %d times load, run and destroy leave %.0f bytes more on the heap, each time", u.name().c_str(), kRounds, least);
#endif
  }
}

void order_of_calls(const Subject& s, Notes&) {
  auto session = weight_session(s);
  const auto& units = session->units();
  const auto answers = [&](const std::vector<std::size_t>& load_order, bool plan_all_first) {
    std::vector<std::unique_ptr<LayerArgs>> layers;
    for (const Unit& u : units) layers.push_back(std::make_unique<LayerArgs>(*u.of, u.parts, u.k));
    if (plan_all_first)
      for (auto& l : layers) session->plan(*l);
    std::vector<std::unique_ptr<Packed>> packed(units.size());
    std::vector<std::vector<float>> out(units.size());
    const qe_dev state = session->device_state();
    for (const std::size_t i : load_order) {
      LayerArgs& l = *layers[i];
      // load alone: the plan may have been made in another process
      qe_plan p = session->plan(l);
      for (auto& other : layers) session->plan(*other);
      qe_linear h = nullptr;
      l.of.tensors.loading = true;
      session->checked("load", l.name(), [&](qe_error* e) { return session->weight->load(state, &l.model, &l.layer, nullptr, &h, e); });
      l.of.tensors.loading = false;
      packed[i] = std::make_unique<Packed>(*session, h, l.n(), l.k(), p);
    }
    for (std::size_t i = 0; i < units.size(); ++i) out[i] = packed[i]->run(activations(2, packed[i]->k, 9), 2);
    for (const std::size_t i : load_order) packed[i].reset();  // oldest first: as good an order as any
    return out;
  };
  const std::size_t n = units.size();
  std::vector<std::size_t> forward(n);
  for (std::size_t i = 0; i < n; ++i) forward[i] = i;
  std::vector<std::size_t> backward(forward.rbegin(), forward.rend());
  try {
    const auto a = answers(forward, false), b = answers(backward, true);
    for (std::size_t i = 0; i < n; ++i)
      if (!same_bits(a[i], b[i])) fail("layer %zu gives other numbers when the layers are planned and loaded in another order", i);
  } catch (const PluginFailure& e) {
    fail("layers planned and loaded in another order: %s", e.what());
  }
}

}  // namespace

const std::vector<Check> loading_checks{
    {"QEP-400", "loading", "every layer that plan takes can be loaded", loads, true},
    {"QEP-401", "loading", "bytes planned, taken and reported are equal", planned_is_taken},
    {"QEP-402", "loading", "the peak of loading is within the plan, and given back", peak_is_planned},
    {"QEP-403", "loading", "nothing is written outside of the memory that was asked for", stays_inside},
    {"QEP-404", "loading", "load reads what tensors() names, and nothing else", wants_are_fetched},
    {"QEP-405", "loading", "a missing tensor is named", missing},
    {"QEP-406", "loading", "a tensor of wrong shape or type is named", misshapen},
    {"QEP-407", "loading", "scales that are not finite are named", not_finite},
    {"QEP-408", "loading", "loading stops when it is cancelled, and gives everything back", cancel},
    {"QEP-409", "loading", "a failed allocation is reported, and nothing is kept", out_of_memory},
    {"QEP-410", "loading", "load, run and destroy leave nothing behind", nothing_leaks},
    {"QEP-411", "loading", "the order in which layers are planned, loaded and destroyed does not matter", order_of_calls},
};

}  // namespace qengine::conformance
