// The container of GPUs without one: what is packed reads back, and a plan covers every unit once.
#include <gtest/gtest.h>
#include <qe/cuda/container.hpp>
#include <qe/cuda/work.hpp>

#include <random>
#include <set>

#include "tests/sdk/cuda/formats.hpp"
#include "tests/support/mock_host.hpp"

namespace {

using namespace qe_test;

template <class F>
class DeviceContainer : public testing::Test {};
#define QE_TEST_TYPE(name, ...) , Fmt##name
template <class Skip, class... F> struct TypesOf { using type = testing::Types<F...>; };
using Formats = TypesOf<void QE_TEST_FORMATS(QE_TEST_TYPE)>::type;
TYPED_TEST_SUITE(DeviceContainer, Formats);

struct Shape { std::int64_t n, k; int group; };
template <class F> constexpr bool two_level = qe::meta_super_bytes<typename F::Meta> > 0;

TYPED_TEST(DeviceContainer, ReadsBackEveryWeight) {
  using F = TypeParam;
  using M = typename F::Meta;
  qengine::test::MockHost host;
  qe::detail::host_table = &host.table;
  std::vector<Shape> shapes = {{16, 256, 32}, {7, 256, 16}, {33, 512, 32}};
  if (!two_level<F>) shapes.insert(shapes.end(), {{24, 512, 128}, {48, 768, 0}, {8, 40, 32}, {13, 100, 24}, {5, 33, 0}, {17, 272, 128}, {1, 1, 0}, {20, 330, 48}, {11, 95, 10}, {9, 640, 64}, {3, 384, 96}});
  for (const Shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.n << " x " << s.k << " group " << s.group);
    const Source source{s.group};
    if constexpr (requires { F::width(); }) F::width() = s.k;
    const qe::cuda::Layout l = qe::cuda::layout<F>(source, s.n, s.k);
    ASSERT_GT(l.unit_bytes, 0);
    ASSERT_EQ(l.unit_bytes % 32, 0);
    const auto map = qe::cuda::column_map<F>(source, l);
    std::vector<qe::Code<F>> scratch;
    for (std::int64_t strip = 0; strip < l.strips; ++strip) {
      std::vector<std::byte> bytes(std::size_t(l.strip_bytes()), std::byte{0xee});
      float factors[16] = {};
      const int rows = int(std::min<std::int64_t>(16, s.n - strip * 16));
      qe::cuda::pack_strip<F>(source, l, map, strip * 16, rows, 0, bytes.data(), factors, scratch);
      std::vector<int> seen(std::size_t(s.k), 0);
      for (std::int64_t c = 0; c < l.units * 128; ++c) {
        const std::int64_t k = map.empty() ? (c < s.k ? c : -1) : map[std::size_t(c)];
        if (k >= 0) ++seen[std::size_t(k)];
        const std::byte* unit = bytes.data() + c / 128 * l.unit_bytes;
        for (int r = 0; r < 16; ++r) {
          const std::uint32_t code = qe::cuda::code_at<F>(unit, r, int(c % 128), l.run);
          const std::int64_t n = strip * 16 + r;
          if (k < 0 || r >= rows) {
            ASSERT_EQ(code, 0u) << "padding";
            continue;
          }
          ASSERT_EQ(code, F::code(source, n, k)) << n << ' ' << k;
          std::byte record[16]{}, super[16]{};
          M::pack(F::meta(source, n, k), record);
          if constexpr (two_level<F>) M::pack_super(F::super(source, n, k), super);
          const qe::Terms expected = qe::terms_of<M>(super, record), found = qe::cuda::terms_at<F>(unit, r, int(c % 128), l.run);
          ASSERT_EQ(found.scale, expected.scale) << n << ' ' << k;
          ASSERT_EQ(found.zero, expected.zero) << n << ' ' << k;
          ASSERT_EQ(found.offset, expected.offset) << n << ' ' << k;
        }
      }
      for (const int times : seen) {
        ASSERT_EQ(times, 1);
      }
      if constexpr (qe::HasRowScale<F>)
        for (int r = 0; r < rows; ++r) ASSERT_EQ(factors[r], F::row_scale(source, strip * 16 + r));
    }
  }
}

// The kernel's walk: every unit once, at most one piece at each end of a warp, and pieces found again in order.
TEST(DeviceWork, CoversEveryUnitOnce) {
  std::mt19937 rng(7);
  int with_slices = 0;
  for (int round = 0; round < 3000; ++round) {
    qe::cuda::Kernel k{1 + int(rng() % 2), 8 + 4 * int(rng() % 2), 128, (const int[]){384, 1088, 2048, 4096, 8192}[rng() % 5]};
    qe::cuda::Gpu gpu;
    k.bulk = k.unit_bytes >= 2048;
    if (rng() % 4 == 0) gpu = {80, 108, 165888}, k.bulk = false;
    if (rng() % 4 == 0) gpu = {120, 170, 100352};
    const int strips = 1 + int(rng() % (rng() % 8 ? 600 : 9000)), width = 1 + int(rng() % (rng() % 8 ? 40 : 240)), m = 1 + int(rng() % unsigned(8 * k.tiles));
    const qe::cuda::Work w = qe::cuda::plan_work(k, gpu, strips, width, m, {rng() % 2 == 0, false, false});
    if (!w.fits) continue;
    ASSERT_LE(w.shared, std::size_t(gpu.shared));
    ASSERT_LE(w.blocks, gpu.sms);
    ASSERT_EQ(w.blocks % w.slices, 0);
    ASSERT_TRUE(gpu.clusters() || w.slices == 1);
    ASSERT_GE(w.depth, k.bulk ? 1 : 2);
    ASSERT_LE(w.depth, k.bulk ? 32 : 8);
    with_slices += w.slices > 1;
    const int clusters = w.blocks / w.slices;
    std::vector<int> covered(std::size_t(strips) * std::size_t(width), 0);
    for (int c = 0; c < clusters; ++c) {
      const qe::cuda::Share rows = qe::cuda::share_of(strips, c, clusters);
      ASSERT_LE(rows.count, w.strips);
      for (int s = 0; s < w.slices; ++s) {
        const qe::cuda::Share columns = qe::cuda::share_of(width, s, w.slices);
        ASSERT_GE(columns.count, 1);
        ASSERT_LE(columns.count * 256, w.token_bytes);
        const int units = rows.count * columns.count, active = std::min(k.warps, units);
        std::vector<int> pieces(std::size_t(rows.count), 0);  // units of each strip that came in pieces, as the joining warp finds them
        std::vector<int> whole(std::size_t(rows.count), 0);
        for (int warp = 0; warp < active; ++warp) {
          const int begin = int(std::int64_t(units) * warp / active), end = int(std::int64_t(units) * (warp + 1) / active);
          ASSERT_GT(end, begin);
          for (int u = begin; u < end; ++u) {
            const int strip = u / columns.count;
            ++covered[std::size_t(rows.begin + strip) * std::size_t(width) + std::size_t(columns.begin + u % columns.count)];
            if (strip * columns.count >= begin && (strip + 1) * columns.count <= end) ++whole[std::size_t(strip)];
          }
          if (warp > 0 && begin % columns.count != 0) {
            const int strip = begin / columns.count, before = int(std::int64_t(units) * (warp - 1) / active);
            if (before <= strip * columns.count) {
              pieces[std::size_t(strip)] += begin - strip * columns.count;
              for (int v = warp; v < active; ++v) {
                const int first = int(std::int64_t(units) * v / active), last = int(std::int64_t(units) * (v + 1) / active);
                if (first >= (strip + 1) * columns.count) break;
                pieces[std::size_t(strip)] += std::min(last, (strip + 1) * columns.count) - first;
              }
            }
          }
        }
        for (int i = 0; i < rows.count; ++i) ASSERT_EQ(pieces[std::size_t(i)] + whole[std::size_t(i)], columns.count) << "strip " << i;
      }
    }
    for (const int times : covered) ASSERT_EQ(times, 1);
  }
  EXPECT_GT(with_slices, 100);
}

// The same for 17 to 64 tokens: strips are dealt out to warps in passes, and what slices exchange fits where the tokens were.
TEST(DeviceWork, WideTakesEveryStripOnce) {
  std::mt19937 rng(11);
  int with_slices = 0, fitting = 0;
  for (int round = 0; round < 3000; ++round) {
    const bool pairs = rng() % 3 == 0;
    const qe::cuda::Kernel k{qe::cuda::kWideTokens / 8, qe::cuda::kWideWarps, (const int[]){0, 16, 32, 128}[rng() % 4], (const int[]){384, 1088, 2048, 4096, 8192}[rng() % 5]};
    qe::cuda::Gpu gpu;
    if (rng() % 4 == 0) gpu = {120, 170, 100352};
    const int strips = (1 + int(rng() % (rng() % 8 ? 600 : 9000))) * (pairs ? 2 : 1), width = 1 + int(rng() % (rng() % 8 ? 40 : 240)), m = 17 + int(rng() % 48);
    const qe::cuda::Work w = qe::cuda::plan_work(k, gpu, strips, width, m, {false, false, pairs});
    if (gpu.shared > 200000) {
      ASSERT_EQ(w.fits, k.unit_bytes <= 4096) << "all but float32, of which two units a warp are too much";
    }
    if (!w.fits) continue;
    ++fitting, with_slices += w.slices > 1;
    ASSERT_LE(w.shared, std::size_t(gpu.shared));
    ASSERT_LE(w.blocks, gpu.sms);
    ASSERT_EQ(w.blocks % w.slices, 0);
    ASSERT_GE(w.depth, 2);
    ASSERT_LE(std::size_t(qe::cuda::kWideOwners) * std::size_t(w.depth) * std::size_t(w.batch * k.unit_bytes + 8), w.tokens_at);
    ASSERT_LE(w.tokens_at + std::size_t(qe::cuda::kWideTokensBytes), w.squares_at);
    ASSERT_LE(w.squares_at + std::size_t(qe::cuda::kWideSumsBytes), w.rows_at);
    ASSERT_LE(w.rows_at + std::size_t(qe::cuda::kWideHandedBytes), w.tiles_at);
    ASSERT_LE(w.tiles_at + std::size_t(2 * 8 * qe::cuda::kWideStages), w.shared);
    const int each = pairs ? 2 : 1, clusters = w.blocks / w.slices;
    std::vector<int> taken(std::size_t(strips), 0);
    for (int c = 0; c < clusters; ++c) {
      const qe::cuda::Share items = qe::cuda::share_of(strips / each, c, clusters), share{items.begin * each, items.count * each};
      ASSERT_GE(share.count, 1);
      ASSERT_LE(share.count, w.strips);
      if (w.slices > 1) {
        ASSERT_FALSE(pairs);
        ASSERT_LE(share.count, qe::cuda::kWideOwners) << "one pass";
        ASSERT_LE(std::size_t(share.count * m * 64), std::size_t(qe::cuda::kWideTokensBytes) - 1024);
        for (int s = 0; s < w.slices; ++s) ASSERT_GE(qe::cuda::share_of(width, s, w.slices).count, 1);
      }
      for (int first = 0; first < share.count; first += qe::cuda::kWideOwners)
        for (int warp = 0; warp < qe::cuda::kWideOwners && first + warp < share.count; ++warp) ++taken[std::size_t(share.begin + first + warp)];
    }
    for (const int times : taken) ASSERT_EQ(times, 1);
  }
  EXPECT_GT(with_slices, 100);
  EXPECT_GT(fitting, 1500);
  EXPECT_FALSE(qe::cuda::plan_work({qe::cuda::kWideTokens / 8, qe::cuda::kWideWarps, 128, 2112}, {80, 108, 165888}, 256, 16, 64).fits) << "bulk copies and clusters come with sm_90";
}

// Up to eight tokens are one kernel with one order of sums.
TEST(DeviceWork, SlicesDoNotDependOnTheNumberOfTokens) {
  for (const int unit_bytes : {1088, 2048, 4096})
    for (const int strips : {4, 64, 160, 256, 1216, 9496})
      for (const int width : {1, 8, 20, 76, 112, 224}) {
        const qe::cuda::Kernel k{1, 12, 128, unit_bytes};
        const int slices = qe::cuda::plan_work(k, {}, strips, width, 8, {true, false, false}).slices;
        for (int m = 1; m < 8; ++m) EXPECT_EQ(qe::cuda::plan_work(k, {}, strips, width, m, {true, false, false}).slices, slices) << strips << ' ' << width << ' ' << m;
      }
}

// Behind a kernel that is no product: not two blocks on a multiprocessor, but one of the next product beside it.
TEST(DeviceWork, TheFirstOfAChainSharesWithTheNextAlone) {
  constexpr std::size_t kReserved = 1024, kStatic = 512;  // of a block, by the runtime and by the kernel itself
  const qe::cuda::Gpu gpu;
  const std::size_t all = std::size_t(gpu.shared) + 2 * kReserved;
  int beside = 0;
  for (const int unit_bytes : {1088, 2048, 4096})
    for (const int strips : {64, 160, 256, 384, 1216})
      for (const int width : {8, 20, 32, 76}) {
        qe::cuda::Kernel k{1, unit_bytes < 2048 ? 8 : 12, 128, unit_bytes};
        if (unit_bytes < 2048) k.held = 4;
        const qe::cuda::Work next = qe::cuda::plan_work(k, gpu, strips, width, 1);
        qe::cuda::Work first = next;
        qe::cuda::StreamArgs a{};
        qe::cuda::join_chain(first, a, gpu, true, false);
        EXPECT_GT(2 * (first.shared + kReserved), all);
        EXPECT_LE(first.shared, std::size_t(gpu.shared));
        EXPECT_EQ(a.pdl, next.blocks == gpu.sms ? qe::cuda::kPdlEarly : qe::cuda::kPdlLate);
        if (next.shared < first.shared) {
          EXPECT_LE(first.shared + next.shared + 2 * (kReserved + kStatic), all) << strips << ' ' << width << ' ' << unit_bytes;
          ++beside;
        }
        qe::cuda::Work other = next;
        qe::cuda::join_chain(other, a, gpu, false, true);
        EXPECT_EQ(other.shared, next.shared);
        EXPECT_EQ(a.pdl, qe::cuda::kPdlLate);
      }
  EXPECT_GT(beside, 30);
}

}  // namespace
