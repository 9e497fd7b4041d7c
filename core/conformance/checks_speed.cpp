// 9xx: speed, fit to publish, and not below a plain loop.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "core/base/read_bandwidth.hpp"
#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Median of one run of m tokens, over `span` seconds; copies are in rotation, so that weights come from memory.
double seconds(std::vector<Packed>& copies, std::int64_t m, double span) {
  const auto x = activations(m, copies[0].k, 1);
  std::vector<double> times;
  copies[0].run(x, m);
  for (const double stop = now() + span; now() < stop || times.size() < 5;) {
    const double t = now();
    copies[times.size() % copies.size()].run(x, m);
    times.push_back(now() - t);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Seconds of this thread alone: what others do on the machine does not count.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class F>
double least_of(int times, F&& f) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const double t = thread_seconds();
    f();
    best = std::min(best, thread_seconds() - t);
  }
  return best;
}

// What somebody would write first: float32 weights, a loop.
float product(const std::vector<float>& w, const std::vector<float>& x, std::int64_t n, std::int64_t k) {
  float last = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < k; ++j) sum += w[static_cast<std::size_t>(i * k + j)] * x[static_cast<std::size_t>(j)];
    last += sum;
  }
  return last;
}

// The largest layer that a case offers: a made-up one of 4096 x 4096, or the checkpoint's own.
Unit large_layer(Session& s, Case& c) {
  if (c.made_up()) {
    const Unit u{&c, {{"model.layers.0.self_attn.o_proj.large", QE_ROLE_O, 4096}}, 4096};
    LayerArgs asked(c, u.parts, u.k, 0, false);
    if (s.plan(asked).claim) {
      LayerArgs l(c, u.parts, u.k);
      s.make_up(l);
      if (s.plan(l).claim) return u;
    }
  }
  const Unit* best = nullptr;
  std::int64_t most = 0;
  for (const Unit& u : s.units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    if (u.of == &c && l.n() * u.k > most) best = &u, most = l.n() * u.k;
  }
  if (!best) fail("case %s has no layer", c.name.c_str());
  return *best;
}

void decode(const Subject& s, Notes& notes) {
  auto session = weight_session(s);
  session->units();
  const double bandwidth = s.quick ? 0 : read_bandwidth(2);
  if (!s.quick) notes.push_back(text("2 threads read %.1f GB/s", bandwidth / 1e9));
  for (const auto& c : session->cases()) {
    const Unit u = large_layer(*session, *c);
    LayerArgs l(*c, u.parts, u.k);
    std::vector<Packed> copies;
    copies.push_back(session->load(l));
    const std::uint64_t bytes = copies[0].plan.weight_bytes;
    for (std::uint64_t sum = bytes; sum < (std::uint64_t{64} << 20) && copies.size() < 8; sum += bytes) copies.push_back(session->load(l));
    std::string line = text("%s %lld x %lld, %.2f bits:", c->name.c_str(), static_cast<long long>(l.n()), static_cast<long long>(u.k), 8.0 * double(bytes) / double(l.n() * u.k));
    for (const std::int64_t m : {1, 4, 16}) {
      const double t = seconds(copies, m, s.quick ? 0.03 : 0.3);
      line += text("  M=%lld %.3f ms %.1f GB/s", static_cast<long long>(m), t * 1e3, double(bytes) / t / 1e9);
      if (bandwidth > 0) line += text(" (%.0f %%)", 100 * double(bytes) / t / bandwidth);
    }
    notes.push_back(line);
    // One thread for both, in time that it was running.
    const auto weights = copies[0].dequant();
    const auto x = activations(1, u.k, 1);
    volatile float keep = 0;
    const double loop = least_of(5, [&] { keep = product(weights, x, l.n(), u.k); });
    session->host.serial = true;
    const double mine = least_of(5, [&] { copies[0].run(x, 1); });
    session->host.serial = false;
    if (mine > 2 * loop && mine > 1e-3) fail("%s: one token takes %.2f ms of one thread, a plain float32 loop over the dequantized weights %.2f ms", u.name().c_str(), mine * 1e3, loop * 1e3);
  }
}

}  // namespace

const std::vector<Check> speed_checks{
    {"QEP-901", "speed", "a token takes at most twice the time of a plain float32 loop", decode},
};

}  // namespace qengine::conformance
