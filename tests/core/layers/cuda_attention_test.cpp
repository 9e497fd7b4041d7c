// The cache and attention on a GPU, against plain loops in double over what the cache holds.
#include <cuda_fp8.h>

#include <cmath>
#include <random>

#include "core/layers/cuda/kernels.hpp"
#include "tests/support/gpu.hpp"

namespace qengine {
namespace {

using test::bf16_bits;
using test::bf16_value;
using test::OnGpu;

struct Case {
  int head_dim, heads, kv_heads, block, window;
  cuda::KvType type;
  bool head_major;  // how a block lies
};
void PrintTo(const Case& c, std::ostream* o) {
  *o << "dim " << c.head_dim << " heads " << c.heads << '/' << c.kv_heads << " block " << c.block << " window " << c.window << (c.type == cuda::KvType::kE4m3 ? " e4m3" : " bf16");
}

// Blocks that share a sequence, and how many of them work side by side.
struct Split {
  int splits, cluster;
};
std::vector<Split> splits_to_try() {
  std::vector<Split> all = {{1, 1}, {2, 1}, {5, 1}};
  if (list_gpus().gpus[0].device.sm >= 90) all.insert(all.end(), {{2, 2}, {4, 4}, {8, 8}, {16, 8}, {24, 8}});
  return all;
}

float e4m3_value(std::uint8_t bits) { return static_cast<float>(reinterpret_cast<const __nv_fp8_e4m3&>(bits)); }

// A cache filled through qkv_finish, sequence by sequence, with everything that no token wrote poisoned.
class CudaAttention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    QE_NEEDS_GPU();
    c = GetParam();
    std::mt19937 rng(static_cast<unsigned>(c.head_dim + c.heads));
    std::normal_distribution<float> normal(0, 1);
    int blocks = 1;
    for (const int len : lens) blocks += (len + c.block - 1) / c.block;
    width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const std::size_t pool_size = static_cast<std::size_t>(blocks) * c.block * c.kv_heads * c.head_dim * (c.type == cuda::KvType::kBf16 ? 2 : 1);
    k = std::make_unique<OnGpu<std::uint8_t>>(pool_size);
    v = std::make_unique<OnGpu<std::uint8_t>>(pool_size);
    k->fill(0xff);  // NaN in both types
    v->fill(0xff);
    stride = 0;
    for (const int len : lens) stride = std::max(stride, (len + c.block - 1) / c.block);
    std::vector<std::int32_t> order(static_cast<std::size_t>(blocks));
    for (int i = 0; i < blocks; ++i) order[static_cast<std::size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), rng);
    std::size_t next = 0;
    std::vector<std::int32_t> tables;
    for (const int len : lens) {
      std::vector<std::int32_t> t(static_cast<std::size_t>(stride), 0);
      for (int b = 0; b * c.block < len; ++b) t[static_cast<std::size_t>(b)] = order[next++];
      tables.insert(tables.end(), t.begin(), t.end());
    }
    table = std::make_unique<OnGpu<std::int32_t>>(tables);
    host_table = tables;
    for (int h = 0; h < c.kv_heads; ++h) k_scale.push_back(0.01f + 0.002f * static_cast<float>(h)), v_scale.push_back(0.02f - 0.001f * static_cast<float>(h));
    gk_scale = std::make_unique<OnGpu<float>>(k_scale);
    gv_scale = std::make_unique<OnGpu<float>>(v_scale);
    pool.k = k->get();
    pool.v = v->get();
    pool.type = c.type;
    pool.block_tokens = c.block;
    pool.block_stride = std::int64_t{c.block} * c.kv_heads * c.head_dim;
    pool.token_stride = c.head_major ? c.head_dim : c.kv_heads * c.head_dim;
    pool.head_stride = c.head_major ? c.block * c.head_dim : c.head_dim;
    if (c.type == cuda::KvType::kE4m3) pool.k_scale = gk_scale->get(), pool.v_scale = gv_scale->get();

    // All tokens of all sequences in one call; the q of every token is kept.
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> positions;
    for (std::size_t s = 0; s < lens.size(); ++s)
      for (int p = 0; p < lens[s]; ++p) {
        slots.push_back(std::int64_t{tables[s * static_cast<std::size_t>(stride) + static_cast<std::size_t>(p / c.block)]} * c.block + p % c.block);
        positions.push_back(p);
      }
    rows = static_cast<int>(slots.size());
    host_qkv.resize(static_cast<std::size_t>(rows) * width);
    for (auto& x : host_qkv) x = bf16_bits(normal(rng));
    qkv = std::make_unique<OnGpu<std::uint16_t>>(host_qkv);
    OnGpu<std::int64_t> gs(slots);
    ASSERT_EQ(cuda::qkv_finish({.qkv = bf(*qkv), .stride = width, .slot = gs.get(), .pool = pool, .rows = rows, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}, {}), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(qkv->read(), host_qkv) << "without norm and rotation q stays as it is";
  }

  static __nv_bfloat16* bf(const OnGpu<std::uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }
  int first_row(std::size_t s) const {
    int r = 0;
    for (std::size_t i = 0; i < s; ++i) r += lens[i];
    return r;
  }
  // What the cache should hold of a value.
  double stored(std::size_t row, int column, float scale) const {
    const float x = bf16_value(host_qkv[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(column)]);
    if (c.type == cuda::KvType::kBf16) return x;
    const __nv_fp8_storage_t bits = __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3);
    return double{e4m3_value(bits)} * scale;
  }
  std::vector<double> reference(std::size_t s, int position) const {
    std::vector<double> out;
    const int group = c.heads / c.kv_heads;
    const std::size_t row0 = static_cast<std::size_t>(first_row(s)), row = row0 + static_cast<std::size_t>(position);
    for (int h = 0; h < c.heads; ++h) {
      const int kv = h / group, from = c.window > 0 ? std::max(0, position + 1 - c.window) : 0;
      std::vector<double> p;
      double most = -INFINITY, sum = 0;
      for (int key = from; key <= position; ++key) {
        double dot = 0;
        for (int i = 0; i < c.head_dim; ++i)
          dot += double{bf16_value(host_qkv[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(h * c.head_dim + i)])} *
                 stored(row0 + static_cast<std::size_t>(key), (c.heads + kv) * c.head_dim + i, k_scale[static_cast<std::size_t>(kv)]);
        p.push_back(dot * scale());
        most = std::max(most, p.back());
      }
      for (double& x : p) sum += x = std::exp(x - most);
      for (int i = 0; i < c.head_dim; ++i) {
        double o = 0;
        for (std::size_t key = 0; key < p.size(); ++key)
          o += p[key] * stored(row0 + static_cast<std::size_t>(from) + key, (c.heads + c.kv_heads + kv) * c.head_dim + i, v_scale[static_cast<std::size_t>(kv)]);
        out.push_back(o / sum);
      }
    }
    return out;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.head_dim)); }
  cuda::Attention attention(const std::uint16_t* q, OnGpu<std::uint16_t>& out, const OnGpu<std::int32_t>& len, const OnGpu<std::int32_t>& cu) const {
    return {.q = reinterpret_cast<const __nv_bfloat16*>(q), .q_stride = width, .out = bf(out), .out_stride = c.heads * c.head_dim, .pool = pool, .block_table = table->get(), .table_stride = stride,
            .seq_len = len.get(), .cu_q = cu.get(), .scale = scale(), .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .window = c.window};
  }

  const std::vector<int> lens = {1, 15, 16, 17, 63, 200, 333, 1100};
  Case c{};
  int width = 0, rows = 0, stride = 0;
  std::vector<std::uint16_t> host_qkv;
  std::vector<std::int32_t> host_table;
  std::vector<float> k_scale, v_scale;
  std::unique_ptr<OnGpu<std::uint8_t>> k, v;
  std::unique_ptr<OnGpu<std::uint16_t>> qkv;
  std::unique_ptr<OnGpu<std::int32_t>> table;
  std::unique_ptr<OnGpu<float>> gk_scale, gv_scale;
  cuda::KvPool pool;
};

TEST_P(CudaAttention, DecodeSeesItsSequenceAndNothingElse) {
  QE_NEEDS_GPU();
  // The last token of every sequence, then a padding row.
  const int n = static_cast<int>(lens.size()), width_out = c.heads * c.head_dim;
  std::vector<std::uint16_t> q;
  std::vector<std::int32_t> len, cu;
  std::vector<double> want;
  for (int s = 0; s < n; ++s) {
    const std::size_t row = static_cast<std::size_t>(first_row(static_cast<std::size_t>(s)) + lens[static_cast<std::size_t>(s)] - 1);
    q.insert(q.end(), host_qkv.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(width)), host_qkv.begin() + static_cast<std::ptrdiff_t>((row + 1) * static_cast<std::size_t>(width)));
    len.push_back(lens[static_cast<std::size_t>(s)]);
    cu.push_back(s);
    const auto one = reference(static_cast<std::size_t>(s), lens[static_cast<std::size_t>(s)] - 1);
    want.insert(want.end(), one.begin(), one.end());
  }
  q.resize(q.size() + static_cast<std::size_t>(width), 0x7fc0);  // NaN
  len.push_back(0);
  cu.push_back(n);
  cu.push_back(n + 1);
  want.resize(want.size() + static_cast<std::size_t>(width_out), 0.0);
  OnGpu<std::uint16_t> gq(q), out(static_cast<std::size_t>((n + 1) * width_out));
  OnGpu<std::int32_t> glen(len), gcu(cu);
  OnGpu<std::uint32_t> counters(static_cast<std::size_t>(cuda::decode_counters(n + 1, c.heads)));
  counters.fill(0);
  for (const auto& [splits, cluster] : splits_to_try()) {
    SCOPED_TRACE(testing::Message() << "splits " << splits << " cluster " << cluster);
    OnGpu<float> partial(static_cast<std::size_t>(cuda::partial_floats(n + 1, c.heads, c.head_dim, splits)));
    std::vector<std::uint16_t> before;
    for (int round = 0; round < 3; ++round) {
      out.fill(0xff);
      partial.fill(0xff);
      ASSERT_EQ(cuda::attention_decode({.a = attention(gq.get(), out, glen, gcu), .n_seqs = n + 1, .splits = splits, .cluster = cluster, .partial = partial.get(), .counters = counters.get()}, {}), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto bits = out.read();
      if (round) EXPECT_EQ(bits, before);
      before = bits;
    }
    if (cuda::decode_finishes(c.heads, c.kv_heads, c.head_dim)) {  // and with the new key and value made in there: the same bits
      std::vector<std::int64_t> slots;
      std::vector<std::int32_t> positions;
      for (int s = 0; s < n; ++s) {
        const int p = lens[static_cast<std::size_t>(s)] - 1;
        positions.push_back(p);
        slots.push_back(std::int64_t{host_table[static_cast<std::size_t>(s * stride + p / c.block)]} * c.block + p % c.block);
      }
      positions.push_back(0);
      slots.push_back(-1);
      OnGpu<std::int64_t> gslots(slots);
      OnGpu<std::int32_t> gpositions(positions);
      cuda::QkvFinish finish{.qkv = bf(gq), .stride = width, .position = gpositions.get(), .slot = gslots.get(), .pool = pool, .rows = n + 1, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
      OnGpu<std::uint16_t> poison(std::vector<std::uint16_t>(q.size(), 0x7fc0));
      cuda::QkvFinish spoil = finish;
      spoil.qkv = bf(poison);
      ASSERT_EQ(cuda::qkv_finish(spoil, {}), cudaSuccess);
      out.fill(0xff);
      ASSERT_EQ(cuda::attention_decode({.a = attention(gq.get(), out, glen, gcu), .n_seqs = n + 1, .splits = splits, .cluster = cluster, .partial = partial.get(), .counters = counters.get(), .finishes = true, .finish = finish}, {}), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(out.read(), before);
    }
    std::vector<float> got;
    for (const std::uint16_t b : before) got.push_back(bf16_value(b));
    EXPECT_LT(test::nmse(got, want), 1e-5);
    EXPECT_GT(test::nmse(got, want), 1e-8);
    EXPECT_EQ(counters.read(), std::vector<std::uint32_t>(counters.size(), 0));
  }
}

// Norms, rotation and bias in there: the bits of qkv_finish and attention one after the other.
TEST_P(CudaAttention, FinishesAsTheKernelForIt) {
  QE_NEEDS_GPU();
  if (!cuda::decode_finishes(c.heads, c.kv_heads, c.head_dim)) GTEST_SKIP() << "these heads take a kernel of their own";
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0, 1);
  const int n = static_cast<int>(lens.size()), rot = c.head_dim / 2 / (c.window ? 2 : 1) * 2;
  std::vector<float> bias(static_cast<std::size_t>(width)), q_norm(static_cast<std::size_t>(c.head_dim)), k_norm(q_norm);
  for (auto* v : {&bias, &q_norm, &k_norm})
    for (float& f : *v) f = normal(rng);
  std::vector<float> table_of_angles(static_cast<std::size_t>(2000 * rot));
  for (int p = 0; p < 2000; ++p)
    for (int i = 0; i < rot / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / rot);
      table_of_angles[static_cast<std::size_t>(p * rot + i)] = static_cast<float>(std::cos(angle));
      table_of_angles[static_cast<std::size_t>(p * rot + rot / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  std::vector<std::uint16_t> q;
  std::vector<std::int32_t> len, cu{0}, positions;
  std::vector<std::int64_t> slots;
  for (int s = 0; s < n; ++s) {
    const int p = lens[static_cast<std::size_t>(s)] - 1;
    const auto from = host_qkv.begin() + static_cast<std::ptrdiff_t>(first_row(static_cast<std::size_t>(s)) + p) * width;
    q.insert(q.end(), from, from + width);
    len.push_back(p + 1);
    cu.push_back(s + 1);
    positions.push_back(p);
    slots.push_back(std::int64_t{host_table[static_cast<std::size_t>(s * stride + p / c.block)]} * c.block + p % c.block);
  }
  const std::size_t outputs = static_cast<std::size_t>(n * c.heads * c.head_dim);
  OnGpu<float> gbias(bias), gq_norm(q_norm), gk_norm(k_norm), gangles(table_of_angles);
  OnGpu<std::uint16_t> raw(q), finished(q), poison(std::vector<std::uint16_t>(q.size(), 0x7fc0)), out(outputs);
  OnGpu<std::int32_t> glen(len), gcu(cu), gpositions(positions);
  OnGpu<std::int64_t> gslots(slots);
  OnGpu<std::uint32_t> counters(static_cast<std::size_t>(cuda::decode_counters(n, c.heads)));
  counters.fill(0);
  const cuda::QkvFinish finish{.qkv = bf(finished), .stride = width, .bias = gbias.get(), .q_norm = gq_norm.get(), .k_norm = gk_norm.get(), .eps = 1e-6f, .cos_sin = gangles.get(),
                               .position = gpositions.get(), .slot = gslots.get(), .pool = pool, .rows = n, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .rot_dim = rot};
  cuda::QkvFinish spoil{.qkv = bf(poison), .stride = width, .slot = gslots.get(), .pool = pool, .rows = n, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
  cuda::QkvFinish inside = finish;
  inside.qkv = bf(raw);
  for (const auto& [splits, cluster] : splits_to_try()) {
    SCOPED_TRACE(testing::Message() << "splits " << splits << " cluster " << cluster);
    OnGpu<float> partial(static_cast<std::size_t>(cuda::partial_floats(n, c.heads, c.head_dim, splits)));
    partial.fill(0xff);
    finished.write(q);
    ASSERT_EQ(cuda::qkv_finish(finish, {}), cudaSuccess);
    out.fill(0xff);
    ASSERT_EQ(cuda::attention_decode({.a = attention(finished.get(), out, glen, gcu), .n_seqs = n, .splits = splits, .cluster = cluster, .partial = partial.get(), .counters = counters.get()}, {}), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto want = out.read();
    const auto keys = k->read(), values = v->read();
    for (const std::uint16_t x : want) ASSERT_TRUE(std::isfinite(bf16_value(x)));
    ASSERT_EQ(cuda::qkv_finish(spoil, {}), cudaSuccess);
    out.fill(0xff);
    ASSERT_EQ(cuda::attention_decode({.a = attention(raw.get(), out, glen, gcu), .n_seqs = n, .splits = splits, .cluster = cluster, .partial = partial.get(), .counters = counters.get(), .finishes = true, .finish = inside}, {}),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(out.read(), want);
    EXPECT_EQ(k->read(), keys);
    EXPECT_EQ(v->read(), values);
    EXPECT_EQ(raw.read(), q) << "the product's result is only read";
  }
}

TEST_P(CudaAttention, PrefillAndItsChunks) {
  QE_NEEDS_GPU();
  const int width_out = c.heads * c.head_dim, tile = cuda::prefill_tile_tokens(c.heads, c.kv_heads);
  // All of one sequence at once; the last 70 tokens of another, as a later chunk.
  struct Piece {
    std::size_t seq;
    int first, count;
  };
  const std::vector<Piece> pieces = {{6, 0, 333}, {5, 130, 70}, {4, 0, 63}};
  std::vector<std::uint16_t> q;
  std::vector<std::int32_t> len(lens.size(), 0), cu{0};
  std::vector<cuda::Tile> tiles;
  std::vector<double> want;
  // Sequences keep their rows of the block table: those that do not run have no query rows.
  std::vector<Piece> by_seq(lens.size(), Piece{0, 0, 0});
  for (const Piece& p : pieces) by_seq[p.seq] = p;
  for (std::size_t s = 0; s < lens.size(); ++s) {
    const Piece& p = by_seq[s];
    for (int i = 0; i < p.count; ++i) {
      const std::size_t row = static_cast<std::size_t>(first_row(s) + p.first + i);
      q.insert(q.end(), host_qkv.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(width)), host_qkv.begin() + static_cast<std::ptrdiff_t>((row + 1) * static_cast<std::size_t>(width)));
      const auto one = reference(s, p.first + i);
      want.insert(want.end(), one.begin(), one.end());
    }
    len[s] = p.first + p.count;
    cu.push_back(cu.back() + p.count);
    for (int t = 0; t < p.count; t += tile) tiles.push_back({static_cast<std::int32_t>(s), t});
  }
  OnGpu<std::uint16_t> gq(q), out(static_cast<std::size_t>(cu.back() * width_out));
  OnGpu<std::int32_t> glen(len), gcu(cu);
  OnGpu<cuda::Tile> gt(tiles);
  out.fill(0xff);
  ASSERT_EQ(cuda::attention_prefill({.a = attention(gq.get(), out, glen, gcu), .tiles = gt.get(), .n_tiles = static_cast<int>(tiles.size())}, {}), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<float> got;
  for (const std::uint16_t b : out.read()) got.push_back(bf16_value(b));
  EXPECT_LT(test::nmse(got, want), 1e-5);
  EXPECT_GT(test::nmse(got, want), 1e-8);
}

constexpr cuda::KvType kB = cuda::KvType::kBf16, kE = cuda::KvType::kE4m3;
INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention,
                         ::testing::Values(Case{128, 16, 8, 16, 0, kB, true}, Case{128, 32, 8, 16, 0, kE, false}, Case{64, 9, 3, 16, 0, kB, true}, Case{64, 32, 8, 48, 100, kB, false},
                                           Case{96, 8, 8, 32, 0, kB, true}, Case{96, 4, 2, 16, 40, kE, false}, Case{256, 8, 1, 16, 0, kB, true}, Case{256, 4, 4, 16, 0, kE, false},
                                           Case{32, 4, 2, 16, 0, kB, true}, Case{80, 6, 2, 16, 33, kB, true}, Case{128, 40, 2, 64, 0, kB, true}));

TEST(CudaQkvFinish, BiasNormRotationAndTheCache) {
  QE_NEEDS_GPU();
  for (const int dim : {64, 96, 128, 256, 80}) {
    const int heads = 4, kv_heads = 2, rows = 3, rot = dim == 80 ? 32 : dim, width = (heads + 2 * kv_heads) * dim;
    std::mt19937 rng(static_cast<unsigned>(dim));
    std::normal_distribution<float> normal(0, 1);
    std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * width));
    for (auto& b : x) b = bf16_bits(normal(rng));
    std::vector<float> bias(static_cast<std::size_t>(width)), qn(static_cast<std::size_t>(dim)), kn(qn), table(static_cast<std::size_t>(50 * rot));
    for (auto* v : {&bias, &qn, &kn})
      for (float& f : *v) f = normal(rng);
    for (int p = 0; p < 50; ++p)
      for (int i = 0; i < rot / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rot);
        table[static_cast<std::size_t>(p * rot + i)] = static_cast<float>(std::cos(angle));
        table[static_cast<std::size_t>(p * rot + rot / 2 + i)] = static_cast<float>(std::sin(angle));
      }
    const std::vector<std::int32_t> position = {0, 7, 49};
    const std::vector<std::int64_t> slot = {5, -1, 17};
    OnGpu<std::uint16_t> gx(x), k(static_cast<std::size_t>(32 * kv_heads * dim)), v(k.size());
    k.fill(0xff);
    v.fill(0xff);
    OnGpu<float> gb(bias), gq(qn), gk(kn), gt(table);
    OnGpu<std::int32_t> gp(position);
    OnGpu<std::int64_t> gs(slot);
    cuda::KvPool pool{.k = k.get(), .v = v.get(), .block_stride = std::int64_t{16} * kv_heads * dim, .token_stride = kv_heads * dim, .head_stride = dim};
    ASSERT_EQ(cuda::qkv_finish({.qkv = reinterpret_cast<__nv_bfloat16*>(gx.get()), .stride = width, .bias = gb.get(), .q_norm = gq.get(), .k_norm = gk.get(), .eps = 1e-6f, .cos_sin = gt.get(), .position = gp.get(),
                                .slot = gs.get(), .pool = pool, .rows = rows, .heads = heads, .kv_heads = kv_heads, .head_dim = dim, .rot_dim = rot},
                               {}),
              cudaSuccess);
    const auto q = gx.read(), gotk = k.read(), gotv = v.read();
    std::vector<float> got;
    std::vector<double> want;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads + 2 * kv_heads; ++h) {
        std::vector<double> y(static_cast<std::size_t>(dim));
        double sum = 0;
        for (int i = 0; i < dim; ++i) {
          y[static_cast<std::size_t>(i)] = bf16_value(x[static_cast<std::size_t>(r * width + h * dim + i)]) + bias[static_cast<std::size_t>(h * dim + i)];
          sum += y[static_cast<std::size_t>(i)] * y[static_cast<std::size_t>(i)];
        }
        if (h < heads + kv_heads) {
          const auto& w = h < heads ? qn : kn;
          for (int i = 0; i < dim; ++i) y[static_cast<std::size_t>(i)] *= w[static_cast<std::size_t>(i)] / std::sqrt(sum / dim + 1e-6);
          const auto z = y;
          for (int i = 0; i < rot / 2; ++i) {
            const double cs = table[static_cast<std::size_t>(position[static_cast<std::size_t>(r)] * rot + i)], sn = table[static_cast<std::size_t>(position[static_cast<std::size_t>(r)] * rot + rot / 2 + i)];
            y[static_cast<std::size_t>(i)] = z[static_cast<std::size_t>(i)] * cs - z[static_cast<std::size_t>(i + rot / 2)] * sn;
            y[static_cast<std::size_t>(i + rot / 2)] = z[static_cast<std::size_t>(i + rot / 2)] * cs + z[static_cast<std::size_t>(i)] * sn;
          }
        }
        const std::int64_t s = slot[static_cast<std::size_t>(r)];
        for (int i = 0; i < dim; ++i) {
          if (h < heads) got.push_back(bf16_value(q[static_cast<std::size_t>(r * width + h * dim + i)]));
          else if (s < 0) continue;
          else {
            const bool is_k = h < heads + kv_heads;
            got.push_back(bf16_value((is_k ? gotk : gotv)[static_cast<std::size_t>((s * kv_heads + (h - heads) % kv_heads) * dim + i)]));
          }
          want.push_back(y[static_cast<std::size_t>(i)]);
        }
      }
    EXPECT_LT(test::nmse(got, want), 1e-5) << dim;
    std::size_t untouched = 0;
    for (const std::uint16_t b : gotk) untouched += b == 0xffff;
    EXPECT_EQ(untouched, static_cast<std::size_t>(30 * kv_heads * dim)) << "a slot of -1, or a neighbour, was written";
  }
}

}  // namespace
}  // namespace qengine
