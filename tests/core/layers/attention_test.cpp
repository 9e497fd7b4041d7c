#include "core/layers/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace qengine {
namespace {

float from_cache(KvDtype dtype, const std::byte* p) {
  if (dtype == KvDtype::kF32) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  if (dtype == KvDtype::kF16) {
    _Float16 f;
    std::memcpy(&f, &h, 2);
    return static_cast<float>(f);
  }
  const std::uint32_t u = std::uint32_t{h} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

struct Case {
  int heads, kv_heads, head_dim, block_size, window;
  KvDtype dtype;
  int threads;
};

// A few sequences in shuffled blocks, and their queries for every position.
class Attend : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kLayers = 2, kLayer = 1;
  const Case c = GetParam();
  std::vector<int> lengths{1, 17, 333, 128};
  ThreadPool pool{GetParam().threads};
  KvCache cache{{kLayers, c.kv_heads, c.head_dim, c.block_size, c.dtype}, 64};
  std::vector<std::vector<BlockId>> tables;
  std::vector<std::vector<float>> queries;  // per sequence [len][heads][head_dim]

  void fill(const Kernels& k) {
    std::mt19937 rng(1);
    std::normal_distribution<float> d;
    std::vector<BlockId> ids(64);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    std::memset(cache.k_at(0, 0, 0, 0), 0xff, cache.bytes());  // NaN wherever nothing was stored
    for (const int len : lengths) {
      auto& table = tables.emplace_back();
      for (int b = 0; b * c.block_size < len; ++b) table.push_back(ids.back()), ids.pop_back();
      auto& q = queries.emplace_back();
      std::vector<float> row(static_cast<std::size_t>(c.head_dim));
      for (int t = 0; t < len; ++t) {
        for (int h = 0; h < c.kv_heads; ++h) {
          const BlockId block = table[static_cast<std::size_t>(t / c.block_size)];
          for (float& v : row) v = d(rng);
          k.store_k(c.dtype, row.data(), c.head_dim, c.block_size, cache.k_at(kLayer, block, h, t % c.block_size));
          for (float& v : row) v = d(rng);
          k.store_v(c.dtype, row.data(), c.head_dim, (c.head_dim + 7) / 8 * 8, cache.v_at(kLayer, block, h, t % c.block_size));
        }
        for (int i = 0; i < c.heads * c.head_dim; ++i) q.push_back(0.3f * d(rng));
      }
    }
  }

  // The dumbest attention: double precision, one key after the other.
  std::vector<double> expected(std::size_t s, int t, int head) const {
    const int kv = head / (c.heads / c.kv_heads);
    const float* q = queries[s].data() + (static_cast<std::size_t>(t) * c.heads + head) * c.head_dim;
    std::vector<double> weights, out(static_cast<std::size_t>(c.head_dim));
    double sum = 0, best = -1e30;
    const int from = c.window > 0 ? std::max(0, t - c.window + 1) : 0;
    const std::int64_t e = kv_element_size(c.dtype);
    const auto block = [&](int j) { return tables[s][static_cast<std::size_t>(j / c.block_size)]; };
    for (int j = from; j <= t; ++j) {
      double dot = 0;
      for (int i = 0; i < c.head_dim; ++i) dot += q[i] * from_cache(c.dtype, cache.k_at(kLayer, block(j), kv, j % c.block_size) + i * c.block_size * e);
      weights.push_back(dot);
      best = std::max(best, dot);
    }
    for (double& w : weights) sum += w = std::exp(w - best);
    for (int j = from; j <= t; ++j)
      for (int i = 0; i < c.head_dim; ++i)
        out[i] += weights[j - from] / sum * from_cache(c.dtype, cache.v_at(kLayer, block(j), kv, j % c.block_size) + i * e);
    return out;
  }

  // Runs spans (sequence, first, count) as one batch; results [rows][heads * head_dim].
  struct Span {
    std::size_t seq;
    int first, count;
  };
  std::vector<float> run(const Kernels& k, const std::vector<Span>& spans, ThreadPool& threads) {
    const std::int64_t width = c.heads * c.head_dim, stride = width + 5;
    std::vector<AttnSeq> seqs;
    std::vector<float> q, out;
    std::int64_t rows = 0;
    for (const Span& s : spans) {
      seqs.push_back({tables[s.seq].data(), s.first, s.count, rows});
      rows += s.count;
      for (int t = s.first; t < s.first + s.count; ++t) {
        q.insert(q.end(), queries[s.seq].begin() + t * width, queries[s.seq].begin() + (t + 1) * width);
        q.insert(q.end(), 5, NAN);
      }
    }
    out.assign(static_cast<std::size_t>(rows * width), -77);
    Attention attention(k, threads, c.heads, c.kv_heads, c.head_dim);
    attention.plan(seqs);
    attention.run(cache, kLayer, c.window, q.data(), stride, out.data(), width);
    return out;
  }
};

// A score is a chain of head_dim roundings of a sum that grows to 0.3 sqrt(head_dim): sqrt(d) * 2^-24 *
// 0.3 sqrt(d) at one deviation, which moves the weights and so the result by as much times |v| = 1.
// Five deviations, and 2e-6 for exp and the sums.
TEST_P(Attend, WholePromptsInOneBatchGiveTheSoftmaxOfTheirVisibleKeys) {
  fill(kernels());
  std::vector<Span> spans;
  for (std::size_t s = 0; s < lengths.size(); ++s) spans.push_back({s, 0, lengths[s]});
  const auto out = run(kernels(), spans, pool);
  const std::int64_t width = c.heads * c.head_dim;
  std::int64_t row = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    for (int t = 0; t < lengths[s]; ++t, ++row)
      if (t % 7 == 0 || t + 1 == lengths[s])
        for (int h = 0; h < c.heads; ++h) {
          const auto want = expected(s, t, h);
          for (int i = 0; i < c.head_dim; ++i)
            ASSERT_NEAR(out[static_cast<std::size_t>(row * width + h * c.head_dim + i)], want[i], 2e-6 + 5 * 0.3 * c.head_dim * 0x1p-24) << "sequence " << s << " position " << t << " head " << h;
        }
}

TEST_P(Attend, EveryCutAndEveryCompanyGivesTheSameBits) {
  fill(kernels());
  const std::int64_t width = c.heads * c.head_dim;
  const auto whole = run(kernels(), {{2, 0, 333}}, pool);
  const auto expect_rows = [&](const std::vector<float>& got, std::int64_t got_row, int first, int count, const char* how) {
    EXPECT_EQ(std::memcmp(got.data() + got_row * width, whole.data() + first * width, static_cast<std::size_t>(count * width) * 4), 0)
        << how << ' ' << first << '+' << count;
  };
  ThreadPool alone(1);
  for (const auto& [first, count] : {std::pair{0, 1}, {5, 1}, {127, 1}, {128, 1}, {332, 1}, {100, 60}, {129, 204}, {7, 13}}) {
    expect_rows(run(kernels(), {{2, first, count}}, pool), 0, first, count, "alone");
    expect_rows(run(kernels(), {{2, first, count}}, alone), 0, first, count, "one thread");
    expect_rows(run(kernels(), {{1, 16, 1}, {0, 0, 1}, {2, first, count}, {3, 0, 128}}, pool), 2, first, count, "in company");
    expect_rows(run(kernels_ref(), {{2, first, count}}, alone), 0, first, count, "reference build");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attend,
                         ::testing::Values(Case{9, 3, 64, 16, 0, KvDtype::kBf16, 2}, Case{4, 2, 128, 16, 0, KvDtype::kF32, 2},
                                           Case{4, 4, 32, 32, 0, KvDtype::kF16, 3}, Case{14, 2, 64, 16, 50, KvDtype::kBf16, 2},
                                           Case{3, 1, 20, 64, 0, KvDtype::kF32, 1}, Case{2, 2, 256, 128, 200, KvDtype::kBf16, 2},
                                           Case{40, 1, 16, 16, 0, KvDtype::kBf16, 4}, Case{5, 1, 8, 16, 1, KvDtype::kF32, 2}));

}  // namespace
}  // namespace qengine
