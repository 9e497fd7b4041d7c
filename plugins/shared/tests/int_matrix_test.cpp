#include "shared/int_matrix.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "packers.hpp"

namespace qengine {
namespace {

using packed::IntMatrix;
using packed::Packing;
using test::Codes;
using test::Words;

IntMatrix matrix(int bits, std::int64_t n, std::int64_t k) {
  IntMatrix m;
  m.bits = bits;
  m.n = n;
  m.k = k;
  return m;
}

template <int Bits>
void expect_rows(const IntMatrix& m, const Codes& nk) {
  const int k = static_cast<int>(m.k);
  for (int row : {0, 8, 16})
    for (int rows : {8, 5, 1})
      for (int k0 : {0, 32, 64, 7}) {
        std::vector<std::uint8_t> out(8 * 300, 0xee);
        m.unpack<Bits>(row, rows, k0, k - k0, out.data(), 300);
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < k - k0; ++i)
            ASSERT_EQ(out[r * 300 + i], nk[(row + r) * k + k0 + i]) << Bits << " bits, row " << row + r << ", input " << k0 + i;
        for (int r = rows; r < 8; ++r) ASSERT_EQ(out[r * 300], 0xee) << "rows beyond those asked for were written";
      }
}

template <int Bits>
void check_bits(std::size_t k) {
  const std::size_t n = 24;
  const Codes nk = test::random_codes(n * k, Bits, 3 + Bits);
  Codes kn(n * k);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < k; ++j) kn[j * n + i] = nk[i * k + j];
  IntMatrix m = matrix(Bits, n, k);

  Words words = test::pack_gptq(kn, k, n, Bits);
  m.q = {reinterpret_cast<const std::byte*>(words.data()), 4, static_cast<std::int64_t>(4 * n), Packing::kStream};
  expect_rows<Bits>(m, nk);
  words = test::pack_rows(nk, n, k, [](const Codes& row) { return test::pack_stream(row, Bits); });
  m.q = {reinterpret_cast<const std::byte*>(words.data()), static_cast<std::int64_t>(4 * words.size() / n), 4, Packing::kStream};
  expect_rows<Bits>(m, nk);
  words = test::pack_rows(nk, n, k, [](const Codes& row) { return test::pack_padded(row, Bits); });
  m.q = {reinterpret_cast<const std::byte*>(words.data()), static_cast<std::int64_t>(4 * words.size() / n), 4, Packing::kPadded};
  expect_rows<Bits>(m, nk);
  if constexpr (Bits == 4) {
    words = test::pack_rows(kn, k, n, test::pack_awq);
    m.codes = IntMatrix::Codes::kColumns;
    m.q = {reinterpret_cast<const std::byte*>(words.data()), static_cast<std::int64_t>(4 * n / 8), 4, Packing::kAwq};
    expect_rows<4>(m, nk);
  }
}

// Several rows at once must be what one code at a time is; 160 is whole blocks, 185 leaves a tail.
TEST(IntMatrixRows, AreTheCodesOneByOne) {
  for (std::size_t k : {160, 185}) {
    check_bits<2>(k);
    check_bits<3>(k);
    check_bits<4>(k);
    check_bits<5>(k);
    check_bits<6>(k);
    check_bits<7>(k);
    check_bits<8>(k);
  }
}

IntMatrix indexed(const std::vector<std::int32_t>& g_idx, std::int64_t groups, std::int64_t size) {
  IntMatrix m = matrix(4, 8, static_cast<std::int64_t>(g_idx.size()));
  packed::set_plain_groups(m, size);
  m.groups = groups;
  EXPECT_FALSE(packed::set_group_index(m, g_idx.data()));
  return m;
}

TEST(GroupIndex, InPlainOrderNeedsNoOrder) {
  const IntMatrix m = indexed({0, 0, 0, 1, 1, 1, 2}, 3, 3);
  EXPECT_TRUE(m.order.empty());
  EXPECT_TRUE(m.g_idx.empty());
  EXPECT_EQ(m.run, 3);
}

TEST(GroupIndex, OfEqualGroupsIsSortedIntoRunsOfThatSize) {
  const IntMatrix m = indexed({1, 0, 2, 0, 1, 0, 1}, 3, 3);  // the last group is short
  EXPECT_EQ(m.order, (std::vector<std::int32_t>{1, 3, 5, 0, 4, 6, 2}));
  EXPECT_EQ(m.run, 3);
}

TEST(GroupIndex, ThatIsSortedButNotPlainKeepsTheColumns) {
  const IntMatrix m = indexed({0, 0, 1, 1, 2, 2}, 3, 3);  // groups of two, though the configuration says three
  EXPECT_TRUE(m.order.empty());
  EXPECT_EQ(m.run, 2);
  EXPECT_EQ(m.group_of(5), 2);
}

TEST(GroupIndex, OfUnequalGroupsIsPaddedToWholeRuns) {
  std::vector<std::int32_t> g_idx(100);
  std::mt19937 rng(4);
  for (auto& g : g_idx) g = static_cast<std::int32_t>(rng() % 5);
  const IntMatrix m = indexed(g_idx, 5, 20);
  ASSERT_EQ(m.run, 32);
  std::vector<bool> seen(100);
  for (std::size_t run = 0; run < m.order.size(); run += 32) {
    std::int64_t group = -1;
    for (std::size_t c = run; c < std::min(m.order.size(), run + 32); ++c) {
      if (m.order[c] < 0) continue;
      EXPECT_FALSE(seen[m.order[c]]);
      seen[m.order[c]] = true;
      if (group < 0) group = g_idx[m.order[c]];
      EXPECT_EQ(g_idx[m.order[c]], group) << "a run holds two groups";
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 100);
}

TEST(GroupIndex, OutOfRangeIsAFault) {
  for (std::int32_t bad : {-1, 3}) {
    IntMatrix m = matrix(4, 8, 6);
    packed::set_plain_groups(m, 2);
    m.groups = 3;
    const std::vector<std::int32_t> g_idx{0, 0, bad, 1, 2, 2};
    const auto fault = packed::set_group_index(m, g_idx.data());
    EXPECT_NE(fault.message.find("at input 2"), std::string::npos) << fault.message;
  }
}

}  // namespace
}  // namespace qengine
