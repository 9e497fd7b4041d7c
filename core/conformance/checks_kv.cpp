// 8xx: qe.kv/1: what is stored comes back, wherever its block lies and whatever lay there before.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/conformance/made_up.hpp"
#include "core/conformance/step_watch.hpp"
#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

constexpr std::int32_t kBlockTokens = 16;

// One opened KV format over a pool of blocks.
class Cache {
 public:
  Cache(Session& s, Case& c, int blocks) : s_(s), model_(c.model(!c.made_up())), width(std::int64_t{model_.kv_heads} * model_.head_dim) {
    plan.struct_size = sizeof plan;
    s.checked("plan", "kv cache", [&](qe_error* e) { return s.kv->plan(&s.device, &model_, kBlockTokens, &plan, e); });
    if (plan.claim == 0) return;
    const qe_dev dev = s.device_state();
    c.tensors.loading = true;
    s.checked("open", "kv cache", [&](qe_error* e) { return s.kv->open(dev, &model_, kBlockTokens, &kv_, e); });
    c.tensors.loading = false;
    const auto size = [&](std::uint64_t b) { return std::vector<std::byte>(b * static_cast<std::uint64_t>(blocks) + 64, std::byte{0x5e}); };
    k = size(plan.block_bytes_k), v = size(plan.block_bytes_v), scale = size(plan.block_bytes_scale);
  }
  ~Cache() {
    if (kv_) s_.call("close", "kv cache", [&] { s_.kv->close(kv_); });
  }
  Cache(const Cache&) = delete;

  static std::byte* pool(std::vector<std::byte>& p) { return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(p.data()) + 63) / 64 * 64); }
  qe_kv_args args() {
    qe_kv_args a{};
    a.struct_size = sizeof a;
    a.pool_k = pool(k), a.pool_v = pool(v), a.pool_scale = plan.block_bytes_scale ? pool(scale) : nullptr;
    a.sm_scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
    return a;
  }
  qe_tensor rows(const std::vector<float>& x) const { return {QE_F32, 2, {static_cast<std::int64_t>(x.size()) / width, width, 0, 0}, {width, 1, 0, 0}, const_cast<float*>(x.data())}; }

  void store(const std::vector<float>& keys, const std::vector<float>& values, const std::vector<std::int64_t>& slots) {
    qe_kv_args a = args();
    a.n_tokens = static_cast<std::int32_t>(slots.size());
    a.k = rows(keys), a.v = rows(values);
    a.slot = slots.data();
    s_.checked("store", "kv cache", [&](qe_error* e) {
      const StepScope step;
      return s_.kv->store(kv_, &a, e);
    });
  }
  std::pair<std::vector<float>, std::vector<float>> gather(const std::vector<std::int32_t>& blocks, std::int32_t len) {
    std::vector<float> keys(static_cast<std::size_t>(len * width), NAN), values = keys;
    qe_kv_args a = args();
    a.n_seqs = 1, a.max_blocks = static_cast<std::int32_t>(blocks.size());
    a.block_table = blocks.data(), a.seq_len = &len;
    a.k = rows(keys), a.v = rows(values);
    s_.checked("gather", "kv cache", [&](qe_error* e) {
      const StepScope step;
      return s_.kv->gather(kv_, &a, e);
    });
    return {std::move(keys), std::move(values)};
  }
  // What an ordinary value costs in bits.
  double bits() const { return 8.0 * double(plan.block_bytes_k + plan.block_bytes_scale / 2) / double(kBlockTokens * width); }

  Session& s_;
  qe_model model_;
  qe_kv kv_ = nullptr;
  qe_kv_plan plan{};
  std::int64_t width;
  std::vector<std::byte> k, v, scale;
};

std::unique_ptr<Session> kv_session(const Subject& s) {
  auto session = std::make_unique<Session>(s);
  if (!session->kv) not_applicable("the plugin has no qe.kv/1");
  return session;
}

std::vector<float> numbers(std::size_t n, std::uint32_t seed, float size = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<std::int64_t> slots_of(const std::vector<std::int32_t>& blocks, std::int32_t len) {
  std::vector<std::int64_t> out;
  for (std::int32_t t = 0; t < len; ++t) out.push_back(std::int64_t{blocks[static_cast<std::size_t>(t / kBlockTokens)]} * kBlockTokens + t % kBlockTokens);
  return out;
}

double error(const std::vector<float>& a, const std::vector<float>& b) {
  double e = 0, p = 0;
  for (std::size_t i = 0; i < a.size(); ++i) e += double(a[i] - b[i]) * double(a[i] - b[i]), p += double(a[i]) * double(a[i]);
  return p > 0 ? e / p : e;
}

// Uniform steps of b bits over 4 standard deviations, doubled: 8 bits of E5M2 (2 mantissa bits) set the line for 8.
double bound(double bits) { return bits >= 15 ? 1e-4 : bits >= 7 ? 5e-3 : bits >= 3.5 ? 5e-2 : 0.2; }

// The methods as cases: options.method names the scheme.
std::vector<std::unique_ptr<Case>> kv_cases(Session& session) {
  std::vector<std::unique_ptr<Case>> out;
  for (std::uint32_t i = 0; i < session.plugin->n_methods; ++i) {
    auto c = std::make_unique<Case>();
    c->name = session.plugin->methods[i]->name;
    c->config = made_up_config();
    c->model_json = made_up_config_json();
    c->options = Json{{"method", c->name}};
    out.push_back(std::move(c));
  }
  if (out.empty()) fail("the descriptor names no method");
  return out;
}

void kv_plan(const Subject& s, Notes& notes) {
  auto session = kv_session(s);
  for (const auto& c : kv_cases(*session)) {
    Cache a(*session, *c, 2), b(*session, *c, 2);
    if (a.plan.claim == 0) fail("%s: plan refuses a model of 2 heads of 32: %s", c->name.c_str(), reason_of(a.plan.reason).c_str());
    if (std::memcmp(&a.plan, &b.plan, sizeof a.plan) != 0) fail("%s: plan gives another answer the second time", c->name.c_str());
    if (reason_of(a.plan.reason).empty()) fail("%s: plan gives no reason", c->name.c_str());
    if (a.plan.block_bytes_k == 0 || a.plan.block_bytes_v == 0) fail("%s: a block of 0 bytes", c->name.c_str());
    if (a.plan.align == 0 || (a.plan.align & (a.plan.align - 1)) || a.plan.block_bytes_k % a.plan.align || a.plan.block_bytes_v % a.plan.align)
      fail("%s: block bytes %llu and %llu are no multiples of the alignment %llu", c->name.c_str(), static_cast<unsigned long long>(a.plan.block_bytes_k), static_cast<unsigned long long>(a.plan.block_bytes_v), static_cast<unsigned long long>(a.plan.align));
    notes.push_back(text("%s: %.2f bits a value", c->name.c_str(), a.bits()));
  }
}

void round_trip(const Subject& s, Notes& notes) {
  auto session = kv_session(s);
  int tried = 0;
  double most = 0;
  for (const auto& c : kv_cases(*session))
    for (const auto& [heads, dim] : {std::pair{1, 64}, {2, 64}, {2, 128}, {8, 128}, {1, 256}, {4, 80}, {2, 96}}) {
      c->config.num_kv_heads = heads, c->config.num_heads = heads * 2, c->config.head_dim = dim;
      Cache cache(*session, *c, 12);
      if (cache.plan.claim == 0) {
        if (reason_of(cache.plan.reason).empty()) fail("%s: %d heads of %d refused without a reason", c->name.c_str(), heads, dim);
        continue;
      }
      for (const std::int32_t len : {1, 15, 16, 17, 100}) {
        const std::vector<std::int32_t> blocks{7, 2, 9, 0, 4, 11, 3};
        const auto keys = numbers(static_cast<std::size_t>(len * cache.width), 1), values = numbers(static_cast<std::size_t>(len * cache.width), 2);
        cache.store(keys, values, slots_of(blocks, len));
        const auto [k, v] = cache.gather(blocks, len);
        const double e = std::max(error(keys, k), error(values, v));
        if (!(e <= bound(cache.bits()))) fail("%s: %d heads of %d, %d tokens: stored and gathered differ by NMSE %.1e, at most %.0e for %.1f bits", c->name.c_str(), heads, dim, len, e, bound(cache.bits()), cache.bits());
        most = std::max(most, e);
        ++tried;
      }
    }
  if (!tried) fail("no size of heads is taken");
  notes.push_back(text("%d sizes, largest NMSE %.1e", tried, most));
}

void skipped_slots(const Subject& s, Notes&) {
  auto session = kv_session(s);
  for (const auto& c : kv_cases(*session)) {
    Cache cache(*session, *c, 4);
    const auto size = static_cast<std::size_t>(4 * cache.width);
    const auto before_k = cache.k, before_v = cache.v, before_s = cache.scale;
    cache.store(numbers(size, 1), numbers(size, 2), {-1, -1, -1, -1});
    if (cache.k != before_k || cache.v != before_v || cache.scale != before_s) fail("%s: a token of slot -1 is stored", c->name.c_str());
    // one token: only its block may change
    cache.store(numbers(size, 1), numbers(size, 2), {-1, 2 * kBlockTokens + 3, -1, -1});
    const auto base = static_cast<std::size_t>(Cache::pool(cache.k) - cache.k.data());
    for (std::size_t i = 0; i < cache.k.size(); ++i)
      if (cache.k[i] != before_k[i] && (i < base + 2 * cache.plan.block_bytes_k || i >= base + 3 * cache.plan.block_bytes_k)) fail("%s: a token of block 2 changes byte %zu of the keys, outside of that block", c->name.c_str(), i - base);
  }
}

void no_old_scale(const Subject& s, Notes&) {
  auto session = kv_session(s);
  for (const auto& c : kv_cases(*session)) {
    Cache used(*session, *c, 3), fresh(*session, *c, 3);
    const std::vector<std::int32_t> blocks{1, 2};
    const std::int32_t len = 20;
    const auto size = static_cast<std::size_t>(len * used.width);
    const auto large = numbers(size, 5, 100.0f), small = numbers(size, 6, 0.5f);
    used.store(large, large, slots_of(blocks, len));
    used.store(small, small, slots_of(blocks, len));
    fresh.store(small, small, slots_of(blocks, len));
    const auto a = used.gather(blocks, len), b = fresh.gather(blocks, len);
    if (!same_bits(a.first, b.first) || !same_bits(a.second, b.second)) fail("%s: a block that held large numbers gives other values for small ones than a fresh block", c->name.c_str());
  }
}

void moved_blocks(const Subject& s, Notes&) {
  auto session = kv_session(s);
  for (const auto& c : kv_cases(*session)) {
    Cache cache(*session, *c, 8);
    const std::vector<std::int32_t> blocks{1, 2}, moved{6, 4};
    const std::int32_t len = 29;
    const auto size = static_cast<std::size_t>(len * cache.width);
    cache.store(numbers(size, 5), numbers(size, 6), slots_of(blocks, len));
    const auto before = cache.gather(blocks, len);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      for (const auto& [pool, bytes] : {std::pair{&cache.k, cache.plan.block_bytes_k}, {&cache.v, cache.plan.block_bytes_v}, {&cache.scale, cache.plan.block_bytes_scale}}) {
        std::byte *from = Cache::pool(*pool) + static_cast<std::uint64_t>(blocks[i]) * bytes, *to = Cache::pool(*pool) + static_cast<std::uint64_t>(moved[i]) * bytes;
        if (bytes) std::memcpy(to, from, bytes), std::memset(from, 0x11, bytes);
      }
    const auto after = cache.gather(moved, len);
    if (!same_bits(before.first, after.first) || !same_bits(before.second, after.second)) fail("%s: blocks that were copied elsewhere read differently there", c->name.c_str());
  }
}

void kv_quiet(const Subject& s, Notes&) {
  auto session = kv_session(s);
  session->host.serial = true;
  for (const auto& c : kv_cases(*session)) {
    Cache cache(*session, *c, 4);
    const auto size = static_cast<std::size_t>(20 * cache.width);
    const auto x = numbers(size, 1);
    const std::vector<std::int32_t> blocks{1, 2};
    cache.store(x, x, slots_of(blocks, 20));
    cache.gather(blocks, 20);
    watch_steps();
    take_step_calls();
    cache.store(x, x, slots_of(blocks, 20));
    if (const auto calls = take_step_calls(); !calls.empty()) fail("%s: store calls %s", c->name.c_str(), calls[0].c_str());
    cache.gather(blocks, 20);
    if (const auto calls = take_step_calls(); !calls.empty()) fail("%s: gather calls %s", c->name.c_str(), calls[0].c_str());
  }
}

// Attention of the plugin's own against attention over what gather gives.
void kv_attention(const Subject& s, Notes& notes) {
  auto session = kv_session(s);
  if (!session->kv->decode) not_applicable("the plugin has no attention of its own");
  double most = 0;
  for (const auto& c : kv_cases(*session)) {
    Cache cache(*session, *c, 8);
    const std::vector<std::int32_t> blocks{5, 1, 3};
    const std::int32_t len = 37, heads = c->config.num_heads, kv_heads = c->config.num_kv_heads, dim = c->config.head_dim;
    const auto size = static_cast<std::size_t>(len * cache.width);
    cache.store(numbers(size, 1), numbers(size, 2), slots_of(blocks, len));
    const auto [k, v] = cache.gather(blocks, len);
    const auto q = numbers(static_cast<std::size_t>(heads * dim), 3);
    std::vector<float> out(q.size(), NAN), want(q.size());
    qe_kv_args a = cache.args();
    const std::int32_t cu[] = {0, 1};
    a.n_seqs = 1, a.n_tokens = 1, a.max_blocks = 3;
    a.block_table = blocks.data(), a.seq_len = &len, a.cu_q = cu;
    const std::int64_t qw = std::int64_t{heads} * dim;
    a.q = {QE_F32, 2, {1, qw, 0, 0}, {qw, 1, 0, 0}, const_cast<float*>(q.data())};
    a.out = {QE_F32, 2, {1, qw, 0, 0}, {qw, 1, 0, 0}, out.data()};
    session->checked("decode", "kv cache", [&](qe_error* e) { return session->kv->decode(cache.kv_, &a, e); });
    for (int h = 0; h < heads; ++h) {
      const int g = h / (heads / kv_heads);
      std::vector<double> p(static_cast<std::size_t>(len));
      double top = -1e300, sum = 0;
      for (int t = 0; t < len; ++t) {
        double dot = 0;
        for (int i = 0; i < dim; ++i) dot += double(q[static_cast<std::size_t>(h * dim + i)]) * double(k[static_cast<std::size_t>(t * cache.width + g * dim + i)]);
        p[static_cast<std::size_t>(t)] = dot * double(a.sm_scale);
        top = std::max(top, p[static_cast<std::size_t>(t)]);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (int i = 0; i < dim; ++i) {
        double o = 0;
        for (int t = 0; t < len; ++t) o += p[static_cast<std::size_t>(t)] * double(v[static_cast<std::size_t>(t * cache.width + g * dim + i)]);
        want[static_cast<std::size_t>(h * dim + i)] = static_cast<float>(o / sum);
      }
    }
    const double e = error(want, out);
    if (!(e <= 1e-5)) fail("%s: decode differs from attention over what gather gives: NMSE %.1e, at most 1e-5", c->name.c_str(), e);
    most = std::max(most, e);
  }
  notes.push_back(text("largest NMSE %.1e", most));
}

}  // namespace

const std::vector<Check> kv_checks{
    {"QEP-801", "kv", "plan is pure, with a reason and whole, aligned blocks", kv_plan},
    {"QEP-802", "kv", "what is stored comes back within the error of its bits", round_trip},
    {"QEP-803", "kv", "slot -1 is skipped, and a token changes its own block only", skipped_slots},
    {"QEP-804", "kv", "a block that is used again keeps no old scale", no_old_scale},
    {"QEP-805", "kv", "a block that was moved reads the same", moved_blocks},
    {"QEP-806", "kv", "decode is attention over what gather gives", kv_attention},
    {"QEP-807", "kv", "store and gather take no memory, lock or file", kv_quiet},
};

}  // namespace qengine::conformance
