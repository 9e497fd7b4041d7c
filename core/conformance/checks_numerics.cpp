// 5xx: what comes out: dequant, run, rows, cuts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "core/conformance/made_up.hpp"
#include "core/conformance/step_watch.hpp"
#include "core/conformance/subject.hpp"
#include "core/model/file_bytes.hpp"
#include "core/model/safetensors.hpp"

namespace qengine::conformance {
namespace {

using ll = long long;

// The bounds of NMSE: float32 sums in another order; int8 activations per 32 inputs (5e-5 expected).
double bound_of(int flags) { return flags & QE_LAYER_EXACT ? 1e-10 : 1e-4; }

// Over 64 tokens, m at a time: the error of a single one is a matter of luck.
void must_agree(const Unit& u, Packed& h, const std::vector<float>& weights, std::int64_t m, double bound) {
  std::vector<float> xs, ys;
  for (std::int64_t done = 0; done < 64; done += m) {
    const auto x = activations(m, h.k, static_cast<std::uint32_t>(m + 1000 * done));
    const auto y = h.run(x, m);
    for (std::size_t i = 0; i < y.size(); ++i)
      if (!std::isfinite(y[i])) fail("%s: M = %lld: output %zu is not a finite number (or was never written)", u.name().c_str(), static_cast<ll>(m), i);
    const std::int64_t few = std::min<std::int64_t>(m, 64);  // of a long batch the last ones
    xs.insert(xs.end(), x.end() - few * h.k, x.end());
    ys.insert(ys.end(), y.end() - few * h.n, y.end());
  }
  const auto tokens = static_cast<std::int64_t>(ys.size()) / h.n;
  if (const double e = nmse(weights, xs, ys, tokens, h.n, h.k); e > bound) fail("%s: M = %lld: run differs from dequant: NMSE %.2e, at most %.0e", u.name().c_str(), static_cast<ll>(m), e, bound);
}

// A record governs a whole, aligned run of inputs of one row: changing it changes no weight elsewhere.
void groups_are_aligned(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int tried = 0;
  for (const Unit& u : session->units()) {
    if (u.parts.size() > 1) continue;
    LayerArgs l(*u.of, u.parts, u.k, QE_LAYER_EXACT);
    const std::int64_t n = u.parts[0].n, k = u.k;
    bool permuted = false;
    for (const auto& [name, want] : session->wants(l))
      if (const auto it = u.of->tensors.entries.find(name); it != u.of->tensors.entries.end())
        permuted |= it->second.shape == std::vector<std::int64_t>{k};  // an order of the inputs
    if (permuted) continue;
    const std::vector<float> before = session->load(l).dequant();
    for (const auto& [name, want] : session->wants(l)) {
      const auto it = u.of->tensors.entries.find(name);
      if (it == u.of->tensors.entries.end() || it->second.shape.size() != 2) continue;
      const KitTensors::Entry whole = it->second;
      const std::size_t size = whole.dtype == QE_F32 ? 4 : whole.dtype == QE_F16 || whole.dtype == QE_BF16 ? 2 : 0;
      const bool by_row = whole.shape[0] == n;  // [N, groups], else [groups, N]
      const std::int64_t groups = by_row ? whole.shape[1] : whole.shape[0];
      if (!size || (!by_row && whole.shape[1] != n) || groups < 2 || groups >= k || k % groups) continue;
      const std::int64_t span = k / groups;
      for (const std::int64_t g : {std::int64_t{0}, groups / 2, groups - 1}) {
        const std::int64_t row = n / 2;
        std::byte* at = u.of->tensors.writable(name).data() + static_cast<std::size_t>(by_row ? row * groups + g : g * n + row) * size;
        // twice as large: one more in the exponent
        if (size == 4) {
          float v;
          std::memcpy(&v, at, 4);
          v = v * 2 + 1;
          std::memcpy(at, &v, 4);
        } else {
          std::uint16_t v;
          std::memcpy(&v, at, 2);
          v = static_cast<std::uint16_t>(v + (whole.dtype == QE_F16 ? 1 << 10 : 1 << 7));
          std::memcpy(at, &v, 2);
        }
        const std::vector<float> after = session->load(l).dequant();
        u.of->tensors.entries.at(name) = whole;
        ++tried;
        for (std::int64_t r = 0; r < n; ++r)
          for (std::int64_t c = 0; c < k; ++c) {
            const auto i = static_cast<std::size_t>(r * k + c);
            const bool inside = r == row && c >= g * span && c < (g + 1) * span;
            if (before[i] != after[i] && !inside)
              fail("%s: record %lld of row %lld in %s governs inputs %lld to %lld, and changing it changes W[%lld, %lld]", u.name().c_str(), static_cast<ll>(g), static_cast<ll>(row), name.c_str(), static_cast<ll>(g * span),
                   static_cast<ll>((g + 1) * span - 1), static_cast<ll>(r), static_cast<ll>(c));
          }
        bool any = false;
        for (std::int64_t c = g * span; c < (g + 1) * span; ++c) any |= before[static_cast<std::size_t>(row * k + c)] != after[static_cast<std::size_t>(row * k + c)];
        if (!any) fail("%s: changing record %lld of row %lld in %s changes no weight", u.name().c_str(), static_cast<ll>(g), static_cast<ll>(row), name.c_str());
      }
    }
  }
  if (!tried) not_applicable("no layer has records of a group in F32, F16 or BF16, in the order of the inputs");
  notes.push_back(text("%d records changed", tried));
}

// golden.safetensors with a checkpoint: "rows.MODULE", the rows that golden.json numbers, bit for bit.
void golden_rows(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int rows = 0;
  for (const Unit& u : session->units()) {
    if (u.of->made_up()) continue;
    // golden.json in the folder, NAME.golden.json beside NAME.gguf
    const std::filesystem::path& at = u.of->checkpoint->path();
    const std::string stem = at.extension() == ".gguf" ? (at.parent_path() / at.stem()).string() + ".golden" : (at / "golden").string();
    if (!std::filesystem::exists(stem + ".json") || !std::filesystem::exists(stem + ".safetensors")) continue;
    std::ifstream in(stem + ".json");
    const Json golden = Json::parse(in, nullptr, false);
    if (!golden.is_object() || !golden.contains("dequant_rows")) continue;
    const FileBytes file = FileBytes::map(stem + ".safetensors");
    LayerArgs l(*u.of, u.parts, u.k);
    const std::vector<float> weights = session->load(l).dequant();
    std::int64_t first = 0;
    for (const LayerArgs::Part& p : u.parts) {
      if (golden["dequant_rows"].contains(p.name))
        for (const Tensor& t : parse_safetensors(file).tensors) {
          if (t.name != "rows." + p.name) continue;
          std::size_t i = 0;
          for (const auto& r : golden["dequant_rows"][p.name]) {
            const std::byte* theirs = file.bytes().data() + t.offset + i++ * static_cast<std::size_t>(u.k) * 4;
            const auto* ours = reinterpret_cast<const std::byte*>(weights.data() + (first + r.get<std::int64_t>()) * u.k);
            if (std::memcmp(ours, theirs, static_cast<std::size_t>(u.k) * 4) != 0) fail("%s: row %lld of %s is not what the golden file says", u.of->name.c_str(), static_cast<ll>(r.get<std::int64_t>()), p.name.c_str());
            ++rows;
          }
        }
      first += p.n;
    }
  }
  if (!rows) not_applicable("no case has golden rows beside it");
  notes.push_back(text("%d rows equal bit for bit", rows));
}

void run_is_dequant(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  double most = 0;
  for (const Unit& u : session->units())
    for (const int flags : {0, int(QE_LAYER_EXACT)}) {
      LayerArgs l(*u.of, u.parts, u.k, flags);
      Packed h = session->load(l);
      const auto weights = h.dequant();
      for (const float w : weights)
        if (!std::isfinite(w)) fail("%s: dequant gives a value that is not finite", u.name().c_str());
      for (const std::int64_t m : {1, 2, 7, 8, 16, 17, 64, 511}) must_agree(u, h, weights, m, bound_of(flags));
      const auto x = activations(16, h.k, 77);
      if (!flags) most = std::max(most, nmse(weights, x, h.run(x, 16), 16, h.n, h.k));
    }
  {  // a whole chunk of a long prompt, once
    const Unit& u = session->units().front();
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    must_agree(u, h, h.dequant(), 4096, bound_of(0));
  }
  notes.push_back(text("largest NMSE %.1e", most));
}

void odd_sizes(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int tried = 0;
  for (const auto& c : session->cases()) {
    if (!c->made_up()) continue;
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{37, 128}, {1, 256}, {40, 160}, {65, 384}, {37, 100}, {24, 33}, {129, 96}}) {
      const std::string name = text("odd.%lldx%lld", static_cast<ll>(n), static_cast<ll>(k));
      LayerArgs asked(*c, {{name, QE_ROLE_OTHER, n}}, k, 0, false);
      if (session->plan(asked).claim == 0) continue;
      LayerArgs l(*c, {{name, QE_ROLE_OTHER, n}}, k);
      session->make_up(l);
      if (session->plan(l).claim == 0) continue;
      const Unit u{c.get(), l.parts, k};
      Packed h = session->load(l);
      const auto weights = h.dequant();
      for (const std::int64_t m : {1, 3, 18}) must_agree(u, h, weights, m, bound_of(0));
      ++tried;
    }
  }
  if (!tried) not_applicable("plan takes no odd size of a made-up layer");
  notes.push_back(text("%d odd sizes", tried));
}

void cuts(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  int tried = 0, declined = 0;
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed whole = session->load(l);
    const auto weights = whole.dequant();
    for (const int size : {2, 4}) {
      for (const bool rows : {true, false}) {
        std::vector<float> sum(weights.size(), 0.0f);
        bool taken = true;
        std::vector<std::int64_t> part_begin;
        for (int rank = 0; rank < size && taken; ++rank) {
          LayerArgs cut(*u.of, u.parts, u.k);
          if (rows) cut.cut_rows(rank, size, whole.plan.n_multiple);
          else cut.cut_inputs(rank, size, whole.plan.k_multiple);
          if (cut.n() == 0 || cut.k() == 0) {
            taken = false;
            break;
          }
          try {
            taken = session->plan(cut).claim != 0;
          } catch (const PluginFailure& e) {  // a reason, in another form
            if (e.message.empty()) throw;
            taken = false;
          }
          if (!taken) {
            ++declined;
            break;
          }
          Packed h = session->load(cut);
          const auto mine = h.dequant();
          // where this rank's rows lie in the whole
          std::int64_t from = 0, base = 0;
          for (const LayerArgs::Part& p : cut.parts) {
            for (std::int64_t r = p.n_begin; r < p.n_end; ++r, ++from)
              for (std::int64_t c = 0; c < h.k; ++c) sum[static_cast<std::size_t>((base + r) * u.k + cut.layer.k_begin + c)] += mine[static_cast<std::size_t>(from * h.k + c)];
            base += p.n;
          }
          const auto x = activations(64, h.k, 3);
          if (const double e = nmse(mine, x, h.run(x, 64), 64, h.n, h.k); e > bound_of(0)) fail("%s: rank %d of %d cut by %s: NMSE %.2e against its own weights", u.name().c_str(), rank, size, rows ? "rows" : "inputs", e);
        }
        if (!taken) continue;
        ++tried;
        for (std::size_t i = 0; i < sum.size(); ++i)
          if (sum[i] != weights[i]) fail("%s: %d ranks cut by %s do not sum to one: W[%zu, %zu]", u.name().c_str(), size, rows ? "rows" : "inputs", i / static_cast<std::size_t>(u.k), i % static_cast<std::size_t>(u.k));
      }
    }
  }
  if (!tried) not_applicable("plan takes no cut of these layers");
  notes.push_back(text("%d cuts, %d declined", tried, declined));
}

void fused_is_separate(const Subject& s, Notes&) {
  auto session = weight_session(s);
  int tried = 0;
  for (const Unit& u : session->units()) {
    if (u.parts.size() < 2) continue;
    ++tried;
    LayerArgs l(*u.of, u.parts, u.k);
    Packed whole = session->load(l);
    const auto x = activations(9, u.k, 5);
    const auto weights = whole.dequant(), y = whole.run(x, 9);
    std::int64_t row = 0;
    for (const LayerArgs::Part& p : u.parts) {
      LayerArgs one(*u.of, {p}, u.k);
      Packed h = session->load(one);
      const auto w = h.dequant(), alone = h.run(x, 9);
      if (std::memcmp(w.data(), weights.data() + row * u.k, w.size() * 4) != 0) fail("%s: %s has other weights inside the fused layer than alone", u.of->name.c_str(), p.name.c_str());
      for (std::int64_t t = 0; t < 9; ++t)
        if (std::memcmp(alone.data() + t * h.n, y.data() + t * whole.n + row, static_cast<std::size_t>(h.n) * 4) != 0) fail("%s: %s gives other numbers inside the fused layer than alone", u.of->name.c_str(), p.name.c_str());
      row += p.n;
    }
  }
  if (!tried) not_applicable("the plugin fuses no parts of these cases");
}

void declared_bits(const Subject& s, Notes&) {
  auto session = weight_session(s);
  int tried = 0;
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    const std::int64_t m = 33;
    const auto x = activations(m, h.k, 8);
    const int flags = static_cast<int>(h.plan.regime[0].flags);
    const auto y = h.run(x, m);
    if (flags & QE_DETERMINISTIC) {
      ++tried;
      for (int i = 0; i < 5; ++i)
        if (!same_bits(y, h.run(x, m))) fail("%s: declared deterministic, and the same input gives other bits", u.name().c_str());
    }
    if (flags & QE_BATCH_INVARIANT)
      for (const std::int64_t size : {1, 2, 8, 16, 31}) {
        ++tried;
        const auto part = h.run({x.begin(), x.begin() + size * h.k}, size);
        if (std::memcmp(part.data(), y.data(), part.size() * 4) != 0) fail("%s: declared batch-invariant, and %lld tokens give other bits than the same among %lld", u.name().c_str(), static_cast<ll>(size), static_cast<ll>(m));
      }
  }
  if (!tried) not_applicable("nothing is declared deterministic or batch-invariant");
}

void touches_only_its_rows(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    const auto with = [&](std::int64_t m, std::int64_t in_pad, std::int64_t out_pad) {
      const std::int64_t rows = m + 2, is = h.k + in_pad, os = h.n + out_pad;
      std::vector<float> in(static_cast<std::size_t>(rows * is), 3.0f), out(static_cast<std::size_t>(rows * os), -77.25f);
      const auto x = activations(std::max<std::int64_t>(m, 1), h.k, 2);
      for (std::int64_t t = 0; t < m; ++t) std::copy_n(x.data() + t * h.k, h.k, in.data() + t * is);
      const auto in_before = in;
      std::vector<std::byte> workspace(h.workspace_bytes(m) + 64);
      qe_run r{};
      r.struct_size = sizeof r;
      r.m = m;
      r.in = {QE_F32, 2, {m, h.k, 0, 0}, {is, 1, 0, 0}, in.data()};
      r.out = {QE_F32, 2, {m, h.n, 0, 0}, {os, 1, 0, 0}, out.data()};
      r.workspace_bytes = h.workspace_bytes(m);
      r.workspace = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64);
      if (r.workspace_bytes == 0) r.workspace = nullptr;
      session->checked("run", l.name(), [&](qe_error* e) { return session->weight->run(h.raw(), &r, e); });
      if (in != in_before) fail("%s: run changes its input", u.name().c_str());
      for (std::int64_t t = 0; t < rows; ++t)
        for (std::int64_t c = 0; c < os; ++c) {
          const bool mine = t < m && c < h.n;
          if (!mine && out[static_cast<std::size_t>(t * os + c)] != -77.25f) fail("%s: run of %lld tokens writes row %lld, column %lld of an output of %lld x %lld", u.name().c_str(), static_cast<ll>(m), static_cast<ll>(t), static_cast<ll>(c), static_cast<ll>(m), static_cast<ll>(h.n));
        }
    };
    with(0, 0, 0);
    with(1, 0, 0);
    with(5, 16, 24);
    with(17, 3, 5);
  }
}

void rows_are_dequant(const Subject& s, Notes&) {
  auto session = weight_session(s);
  if (!session->weight->rows) not_applicable("the plugin offers no rows");
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    const auto weights = h.dequant();
    std::vector<std::int32_t> ids{0, static_cast<std::int32_t>(h.n - 1), static_cast<std::int32_t>(h.n / 2), 0};
    for (int i = 0; i < 20; ++i) ids.push_back(static_cast<std::int32_t>((i * 37) % h.n));
    for (const std::size_t count : {std::size_t{1}, ids.size()}) {
      const auto got = h.rows({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)});
      for (std::size_t i = 0; i < count; ++i)
        if (std::memcmp(got.data() + i * static_cast<std::size_t>(h.k), weights.data() + ids[i] * h.k, static_cast<std::size_t>(h.k) * 4) != 0) fail("%s: rows gives another row %d than dequant", u.name().c_str(), ids[i]);
    }
  }
}

void dequant_in_pieces(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k), again(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    const auto whole = h.dequant();
    for (const auto& [a, b] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, h.n}, {h.n / 2, h.n / 2}, {h.n / 3, h.n - 1}, {std::max<std::int64_t>(0, h.n - 3), h.n}}) {
      if (a > b) continue;
      const auto part = h.dequant(a, b);
      if (!part.empty() && std::memcmp(part.data(), whole.data() + a * h.k, part.size() * 4) != 0) fail("%s: rows %lld to %lld of dequant differ from the same of the whole", u.name().c_str(), static_cast<ll>(a), static_cast<ll>(b));
    }
    Packed second = session->load(again);
    if (!same_bits(whole, second.dequant())) fail("%s: loaded twice, the weights differ", u.name().c_str());
  }
}

void workspace_is_rubbish(const Subject& s, Notes&) {
  auto session = weight_session(s);
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    Packed h = session->load(l);
    for (const std::int64_t m : {1, 9, 40}) {
      const auto x = activations(m, h.k, 6);
      h.poison = std::byte{0xff};  // NaN as a float
      const auto a = h.run(x, m);
      h.poison = std::byte{0x00};
      if (!same_bits(a, h.run(x, m))) fail("%s: M = %lld: the result depends on what lies in the workspace", u.name().c_str(), static_cast<ll>(m));
    }
  }
}

// Calls that the host would never make. A status and a message is right; a crash or an exception is not.
void bad_arguments(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  const Unit& u = session->units().front();
  LayerArgs l(*u.of, u.parts, u.k);
  Packed h = session->load(l);
  int refused = 0;
  const auto judge = [&](const char* what, qe_status status, const qe_error& e) {
    if (status == QE_OK) fail("%s is accepted", what);
    if (e.message[0] == 0) fail("%s is refused without a message", what);
    ++refused;
  };
  std::vector<float> out(static_cast<std::size_t>(64 * std::max(h.n, h.k)));
  const auto x = activations(4, h.k, 1);
  {
    qe_error e{};
    qe_tensor t{QE_F32, 2, {h.n + 9, h.k, 0, 0}, {h.k, 1, 0, 0}, out.data()};
    judge("dequant of rows beyond the last", session->call("dequant", "", [&] { return session->weight->dequant(h.raw(), h.n, h.n + 9, &t, nullptr, &e); }), e);
  }
  if (session->weight->rows) {
    qe_error e{};
    const std::int32_t id = static_cast<std::int32_t>(h.n + 5);
    qe_tensor t{QE_F32, 2, {1, h.k, 0, 0}, {h.k, 1, 0, 0}, out.data()};
    judge("rows beyond the last", session->call("rows", "", [&] { return session->weight->rows(h.raw(), &id, 1, &t, nullptr, &e); }), e);
  }
  if (const std::uint64_t bytes = h.workspace_bytes(4)) {
    qe_error e{};
    qe_run r{};
    r.struct_size = sizeof r;
    r.m = 4;
    r.in = {QE_F32, 2, {4, h.k, 0, 0}, {h.k, 1, 0, 0}, const_cast<float*>(x.data())};
    r.out = {QE_F32, 2, {4, h.n, 0, 0}, {h.n, 1, 0, 0}, out.data()};
    r.workspace = nullptr, r.workspace_bytes = 0;
    judge(text("run without its workspace of %llu bytes", static_cast<unsigned long long>(bytes)).c_str(), session->call("run", "", [&] { return session->weight->run(h.raw(), &r, &e); }), e);
  }
  notes.push_back(text("%d calls refused", refused));
}

void quiet_steps(const Subject& s, Notes&) {
  auto session = weight_session(s);
  session->host.serial = true;
  std::vector<std::pair<const Unit*, std::unique_ptr<Packed>>> all;
  std::vector<std::unique_ptr<LayerArgs>> args;
  for (const Unit& u : session->units()) {
    args.push_back(std::make_unique<LayerArgs>(*u.of, u.parts, u.k));
    all.emplace_back(&u, std::make_unique<Packed>(session->load(*args.back())));
  }
  std::vector<std::int64_t> sizes{1, 8, 17, 64};
  for (auto& [u, h] : all)
    if (session->weight->warmup) {
      qe_run scratch{};
      scratch.struct_size = sizeof scratch;
      session->checked("warmup", u->parts[0].name, [&](qe_error* e) { return session->weight->warmup(h->raw(), sizes.data(), static_cast<std::uint32_t>(sizes.size()), &scratch, e); });
    }
  const auto all_sizes = [&](bool judge) {
    for (auto& [u, h] : all)
      for (const std::int64_t m : sizes) {
        const auto x = activations(m, h->k, 1);
        h->run(x, m);
        if (session->weight->rows && m == 1) h->rows({0, 1, static_cast<std::int32_t>(h->n - 1)});
        const auto calls = take_step_calls();
        if (judge && !calls.empty()) fail("%s: a step of %lld tokens calls %s", u->name().c_str(), static_cast<ll>(m), calls[0].c_str());
        if (judge && !session->host.step_violations.empty()) fail("%s: a step of %lld tokens asks for %s, which is for loading", u->name().c_str(), static_cast<ll>(m), session->host.step_violations[0].c_str());
      }
  };
  all_sizes(false);  // what a thread sets up once
  watch_steps();
  session->host.logged.clear();
  take_step_calls();
  all_sizes(true);
  for (const std::string& line : session->host.logged)
    if (line[0] > '1') fail("a step logs \"%s\"; debug and trace only", line.substr(2).c_str());
}

}  // namespace

const std::vector<Check> numerics_checks{
    {"QEP-501", "numerics", "a record governs its own group of inputs and no other", groups_are_aligned},
    {"QEP-502", "numerics", "dequant gives the golden rows bit for bit", golden_rows},
    {"QEP-503", "numerics", "run is the product of dequant, from 1 to 4096 tokens", run_is_dequant},
    {"QEP-504", "numerics", "odd sizes are right, or declined", odd_sizes},
    {"QEP-505", "numerics", "1, 2 and 4 ranks sum to one", cuts},
    {"QEP-506", "numerics", "fused parts are what they are alone", fused_is_separate},
    {"QEP-507", "numerics", "equal bits where they are declared", declared_bits},
    {"QEP-508", "numerics", "run writes its rows and columns only; no tokens, nothing", touches_only_its_rows},
    {"QEP-509", "numerics", "rows gives rows of dequant", rows_are_dequant},
    {"QEP-510", "numerics", "dequant in pieces is dequant; loaded twice is the same", dequant_in_pieces},
    {"QEP-511", "numerics", "what lies in the workspace does not matter", workspace_is_rubbish},
    {"QEP-512", "numerics", "bad arguments are refused with a message; no exception crosses", bad_arguments},
    {"QEP-513", "numerics", "a step takes no memory, lock or file, and does not log", quiet_steps},
};

}  // namespace qengine::conformance
