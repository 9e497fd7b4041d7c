#include "core/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/layers/kernels.hpp"
#include "core/sampling/constraint.hpp"

namespace qengine {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Candidate {
  float p;
  std::int32_t id;
};
// Better first; equal ones by id.
bool better(const Candidate& a, const Candidate& b) { return a.p > b.p || (a.p == b.p && a.id < b.id); }

// The k best of n values, best first: a heap whose worst is on top, which a look at the value spares
// nearly every element.
template <class F>
std::vector<Candidate> best_of(std::span<const float> values, std::int64_t k, F&& wanted) {
  std::vector<Candidate> heap;
  heap.reserve(static_cast<std::size_t>(std::min<std::int64_t>(k, std::ssize(values))));
  for (std::int32_t i = 0; i < std::ssize(values); ++i) {
    const Candidate c{values[static_cast<std::size_t>(i)], i};
    if (std::ssize(heap) < k) {
      if (!wanted(c.p)) continue;
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (c.p > heap.front().p) {
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = c;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

thread_local std::vector<float> changed, probs;

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<double>(mix(mix(seed) + counter * 0xd1342543de82ef95u) >> 11) * 0x1p-53;
}

// ---- logprobs ------------------------------------------------------------------------------------

RawLogprobs::RawLogprobs(std::span<const float> logits, std::int32_t limit) : logits_(logits), limit_(limit) {
  const float m = kernels().argmax(logits.data(), std::ssize(logits)).value;
  log_sum_ = m + std::log(kernels().sum_exp(logits.data(), m, 1.0f, std::ssize(logits), nullptr));
}

float RawLogprobs::logprob(std::int32_t id) const {
  return static_cast<float>(static_cast<double>(logits_[static_cast<std::size_t>(id)]) - log_sum_);
}

TokenLogprob RawLogprobs::of(std::int32_t id) const {
  const float x = logits_[static_cast<std::size_t>(id)];
  std::int32_t rank = 1;
  for (std::int32_t i = 0; i < limit_; ++i) rank += logits_[static_cast<std::size_t>(i)] > x || (logits_[static_cast<std::size_t>(i)] == x && i < id);
  return {id, logprob(id), rank};
}

std::vector<TokenLogprob> RawLogprobs::best(std::int32_t k) const {
  std::vector<TokenLogprob> out;
  std::int32_t rank = 0;
  for (const Candidate& c : best_of(logits_.first(static_cast<std::size_t>(limit_)), k, [](float) { return true; }))
    out.push_back({c.id, logprob(c.id), ++rank});
  return out;
}

// ---- choosing ------------------------------------------------------------------------------------

Sampler::Sampler(const SamplingParams& params, std::int32_t limit, std::span<const std::int32_t> prompt,
                 std::vector<std::int32_t> end_ids, std::uint64_t seed)
    : params_(params), limit_(limit), end_ids_(std::move(end_ids)), seed_(seed) {
  if (params.repetition_penalty != 1.0) {
    prompt_ids_.assign(prompt.begin(), prompt.end());
    std::ranges::sort(prompt_ids_);
    prompt_ids_.erase(std::ranges::unique(prompt_ids_).begin(), prompt_ids_.end());
  }
}

bool Sampler::changes_logits() const {
  const SamplingParams& p = params_;
  return p.constraint || !p.allowed_token_ids.empty() || !p.bad_words.empty() || generated() < p.min_tokens || !p.logit_bias.empty() ||
         p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0;
}

bool Sampler::plain_greedy() const { return params_.temperature < 1e-5 && params_.logprobs < 0 && !changes_logits(); }

void Sampler::change(std::span<const float> logits, std::vector<float>& row) const {
  const SamplingParams& p = params_;
  const auto known = [&](std::int32_t id) { return id >= 0 && id < limit_; };
  row.assign(logits.begin(), logits.begin() + limit_);
  if (p.constraint) {
    if (const auto bits = p.constraint->allowed(); !bits.empty())
      for (std::int32_t w = 0; w * 32 < limit_; ++w) {
        const std::uint32_t word = w < std::ssize(bits) ? bits[static_cast<std::size_t>(w)] : 0;
        if (word == ~0u) continue;
        const std::int32_t end = std::min(32, limit_ - w * 32);
        float* x = row.data() + w * 32;
        if (word == 0) std::fill_n(x, end, kNone);
        else
          for (std::int32_t i = 0; i < end; ++i)
            if (!(word >> i & 1)) x[i] = kNone;
      }
  }
  if (!p.allowed_token_ids.empty()) {
    std::vector<Candidate> keep;
    for (const std::int32_t id : p.allowed_token_ids)
      if (known(id)) keep.push_back({row[static_cast<std::size_t>(id)], id});
    std::ranges::fill(row, kNone);
    for (const Candidate& c : keep) row[static_cast<std::size_t>(c.id)] = c.p;
  }
  for (const auto& word : p.bad_words) {
    const std::size_t before = word.size() - 1;
    if (before <= output_.size() && std::equal(word.begin(), word.end() - 1, output_.end() - static_cast<std::ptrdiff_t>(before)) && known(word.back()))
      row[static_cast<std::size_t>(word.back())] = kNone;
  }
  if (generated() < p.min_tokens)
    for (const std::int32_t id : end_ids_)
      if (known(id)) row[static_cast<std::size_t>(id)] = kNone;
  for (const auto& [id, bias] : p.logit_bias)
    if (known(id)) row[static_cast<std::size_t>(id)] += bias;
  if (p.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(p.repetition_penalty);
    const auto punish = [&](std::int32_t id) {
      if (float* x = known(id) ? &row[static_cast<std::size_t>(id)] : nullptr) *x = *x > 0 ? *x / penalty : *x * penalty;
    };
    for (const std::int32_t id : prompt_ids_) punish(id);
    for (const auto& [id, n] : counts_)
      if (!std::ranges::binary_search(prompt_ids_, id)) punish(id);
  }
  for (const auto& [id, n] : counts_)
    if (known(id)) row[static_cast<std::size_t>(id)] -= static_cast<float>(p.frequency_penalty) * static_cast<float>(n) + static_cast<float>(p.presence_penalty);
}

std::int32_t Sampler::draw(std::span<const float> row, float largest) const {
  const SamplingParams& p = params_;
  const std::int64_t n = std::ssize(row);
  const double u = uniform(seed_, static_cast<std::uint64_t>(generated()));
  probs.resize(row.size());
  double total = kernels().sum_exp(row.data(), largest, static_cast<float>(1.0 / p.temperature), n, probs.data());
  // The most likely token has weight 1, so min_p is a bound on the weight itself.
  const auto least = std::max(static_cast<float>(p.min_p), std::numeric_limits<float>::denorm_min());
  const bool top_k = p.top_k > 0 && p.top_k < n, top_p = p.top_p < 1.0;

  if (!top_k && !top_p && p.min_p <= 0) {
    double left = u * total;
    std::int32_t last = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      const float w = probs[static_cast<std::size_t>(i)];
      if (w == 0) continue;
      last = i;
      if ((left -= w) < 0) break;
    }
    return last;
  }

  std::vector<Candidate> few;
  const auto gather = [&](float cut) {
    few.clear();
    double mass = 0;
    for (std::int32_t i = 0; i < n; ++i)
      if (const float w = probs[static_cast<std::size_t>(i)]; w >= cut) {
        few.push_back({w, i});
        mass += w;
      }
    return mass;
  };
  if (top_k) {
    few = best_of(probs, p.top_k, [&](float w) { return w >= least; });
    total = 0;
    for (const Candidate& c : few) total += c.p;
  } else if (p.min_p > 0) {
    total = gather(least);
  } else {
    // Only as many as the nucleus needs: lower the bar until their weight reaches it.
    for (float bar = 1.0f / 16;; bar /= 256)
      if (gather(std::max(bar, least)) >= p.top_p * total || bar <= least) break;
  }
  double kept = total;
  if (top_p) {
    // The best whose weight together reaches top_p: halves are kept or left whole, the last one is sorted.
    auto begin = few.begin(), end = few.end();
    kept = 0;
    while (end - begin > 32) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, better);
      double mass = 0;
      for (auto c = begin; c != middle; ++c) mass += c->p;
      if (kept + mass >= p.top_p * total) {
        end = middle;
      } else {
        kept += mass;
        begin = middle;
      }
    }
    std::sort(begin, end, better);
    while (begin != end && (begin == few.begin() || kept < p.top_p * total)) kept += (begin++)->p;
    few.erase(begin, few.end());
  }
  double left = u * kept;
  for (const Candidate& c : few)
    if ((left -= c.p) < 0) return c.id;
  return few.back().id;
}

SampleResult Sampler::sample(std::span<const float> logits) const {
  const Kernels& k = kernels();
  SampleResult r;
  Argmax top = k.argmax(logits.data(), limit_);
  const bool rest = limit_ == std::ssize(logits) || k.argmax(logits.data() + limit_, std::ssize(logits) - limit_).finite;
  if (!top.finite || !rest) {
    r.status = SampleResult::Status::kNonFinite;
    return r;
  }
  std::span<const float> row = logits.first(static_cast<std::size_t>(limit_));
  if (changes_logits()) {
    change(logits, changed);
    row = changed;
    top = k.argmax(row.data(), limit_);
    if (top.value == kNone) {
      r.status = SampleResult::Status::kNothingAllowed;
      return r;
    }
  }
  r.token = params_.temperature < 1e-5 ? top.index : draw(row, top.value);
  if (params_.logprobs >= 0) {
    const RawLogprobs raw(logits, limit_);
    r.logprob = raw.of(r.token);
    if (params_.logprobs > 0) r.top = raw.best(params_.logprobs);
  }
  return r;
}

void Sampler::accept(std::int32_t token) {
  output_.push_back(token);
  if (params_.repetition_penalty != 1.0 || params_.frequency_penalty != 0.0 || params_.presence_penalty != 0.0) ++counts_[token];
}

}  // namespace qengine
