// The block types against written vectors, against values made by ggml's own Python package
// (make_blocks.py), and the fast forms against the definitions.
#include "plugins/gguf/format.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/support/paths.hpp"

namespace qe_gguf {
namespace {

TEST(GgufVectors, Q4_0PutsValue16InTheHighNibbleOfByte0) {
  Q4_0::Block b{};
  b.d = qe::f16::from(0.5f);
  b.qs[0] = 0x9f;
  EXPECT_EQ(weight<Q4_0>(b, 0), 3.5f);
  EXPECT_EQ(weight<Q4_0>(b, 16), 0.5f);
  EXPECT_EQ(weight<Q4_0>(b, 1), -4.0f);
}

TEST(GgufVectors, Q3_KScalesAreSixBitsInThreePlaces) {
  Q3_K::Block b{};
  const std::uint8_t bytes[12] = {0x41, 0x82, 0xc3, 0x04, 0x45, 0x86, 0xc7, 0x08, 0x21, 0x43, 0x65, 0x87};
  std::memcpy(b.scales, bytes, 12);
  const int expected[16] = {-15, 18, -13, 20, -27, -26, -9, -8, 4, -24, 12, -32, -28, -8, -4, 0};
  for (int j = 0; j < 16; ++j) EXPECT_EQ(Q3_K::sub_scale(b, j), expected[j]) << j;
}

TEST(GgufVectors, Q4_KScalesAndMinimaShareTwelveBytes) {
  Q4_K::Block b{};
  const std::uint8_t bytes[12] = {0x41, 0x82, 0xc3, 0x04, 0x45, 0x86, 0xc7, 0x08, 0x21, 0x43, 0x65, 0x87};
  std::memcpy(b.scales, bytes, 12);
  const int expected[8][2] = {{1, 5}, {2, 6}, {3, 7}, {4, 8}, {17, 18}, {35, 36}, {53, 54}, {7, 8}};
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(Q4_K::sub_scale(b, j), expected[j][0]) << j;
    EXPECT_EQ(Q4_K::sub_min(b, j), expected[j][1]) << j;
  }
}

// Every code, as float32 that equals ggml's bit for bit.
TEST(GgufBlocks, DequantizeAsTheReferencePackage) {
  std::ifstream file(qengine::test::source_dir() / "plugins/gguf/tests/blocks.bin", std::ios::binary);
  ASSERT_TRUE(file);
  int types = 0;
  for (std::uint32_t head[4]; file.read(reinterpret_cast<char*>(head), sizeof head); ++types) {
    std::vector<char> blocks(head[1] * head[2]);
    std::vector<float> expected(head[1] * head[3]);
    file.read(blocks.data(), std::ssize(blocks));
    file.read(reinterpret_cast<char*>(expected.data()), std::ssize(expected) * 4);
    ASSERT_TRUE(file);
    const bool known = with_type(std::int32_t(head[0]), [&](auto t) {
      using T = decltype(t);
      ASSERT_EQ(sizeof(typename T::Block), head[2]);
      ASSERT_EQ(std::uint32_t(T::kValues), head[3]);
      EXPECT_EQ(block_size(T::kId).bytes, head[2]);
      EXPECT_EQ(block_size(T::kId).values, head[3]);
      for (std::uint32_t i = 0; i < head[1]; ++i) {
        typename T::Block b;
        std::memcpy(&b, blocks.data() + i * sizeof b, sizeof b);
        for (int j = 0; j < T::kValues; ++j)
          ASSERT_EQ(std::bit_cast<std::uint32_t>(weight<T>(b, j)), std::bit_cast<std::uint32_t>(expected[i * head[3] + std::uint32_t(j)]))
              << type_name(T::kId) << " block " << i << " value " << j << ": " << weight<T>(b, j) << ", expected "
              << expected[i * head[3] + std::uint32_t(j)];
      }
    });
    EXPECT_TRUE(known) << head[0];
  }
  EXPECT_EQ(types, 13);
}

// All codes of a block at once = one after the other, and within kBits.
TEST(GgufBlocks, CodesAgreeWithCode) {
  std::mt19937 rng(7);
  for (std::int32_t id = 0; id < 48; ++id)
    with_type(id, [&](auto t) {
      using T = decltype(t);
      for (int round = 0; round < 50; ++round) {
        typename T::Block b;
        auto* bytes = reinterpret_cast<std::uint8_t*>(&b);
        for (std::size_t i = 0; i < sizeof b; ++i) bytes[i] = std::uint8_t(rng());
        std::uint8_t codes[T::kValues];
        T::codes(b, codes);
        for (int i = 0; i < T::kValues; ++i) {
          ASSERT_EQ(codes[i], T::code(b, i)) << type_name(id) << " value " << i;
          ASSERT_LT(codes[i], 1u << T::kBits) << type_name(id);
        }
      }
    });
}

// A NaN or infinity in any half of a block is noticed, and nothing else is.
TEST(GgufBlocks, FiniteLooksAtEveryScale) {
  const auto all_ones = [](auto t) {
    using T = decltype(t);
    typename T::Block b;
    std::memset(&b, 0x3f, sizeof b);
    EXPECT_TRUE(T::finite(b)) << type_name(T::kId);
    int noticed = 0;
    auto* bytes = reinterpret_cast<std::uint8_t*>(&b);
    for (std::size_t i = 0; i < sizeof b; ++i) {
      const std::uint8_t kept = bytes[i];
      bytes[i] = T::kId == kMXFP4 ? 0xff : 0x7f;  // the high byte of a half: NaN
      noticed += !T::finite(b);
      bytes[i] = kept;
    }
    EXPECT_EQ(noticed, T::kOffset ? 2 : 1) << type_name(T::kId);
  };
  for (std::int32_t id = 0; id < 48; ++id) with_type(id, all_ones);
}

// Row h*hd + s*hd/2 + i of the model is row h*hd + 2i + s of the file: a permutation within heads.
TEST(GgufRows, RotaryPairsAreApartInTheModelAndTogetherInTheFile) {
  const RowOrder order{8};
  EXPECT_EQ(order.file_row(0), 0);
  EXPECT_EQ(order.file_row(4), 1);  // s = 1, i = 0
  EXPECT_EQ(order.file_row(1), 2);
  EXPECT_EQ(order.file_row(7), 7);
  EXPECT_EQ(order.file_row(8 + 5), 8 + 3);
  std::set<std::int64_t> seen;
  for (std::int64_t n = 0; n < 64; ++n) {
    EXPECT_EQ(order.file_row(n) / 8, n / 8);
    seen.insert(order.file_row(n));
  }
  EXPECT_EQ(seen.size(), 64u);
  EXPECT_EQ(RowOrder{}.file_row(13), 13);
}

TEST(GgufNames, TypesThatAreNotReadHaveNamesAndRetiredNumbersHaveNone) {
  EXPECT_STREQ(type_name(kQ4_K), "Q4_K");
  EXPECT_STREQ(type_name(kMXFP4), "MXFP4");
  EXPECT_STREQ(type_name(21), "IQ3_S");
  EXPECT_EQ(type_name(4), nullptr);
  EXPECT_EQ(type_name(36), nullptr);
  EXPECT_EQ(type_name(-1), nullptr);
  EXPECT_EQ(type_name(1000), nullptr);
  EXPECT_EQ(block_size(21).values, 0);
}

}  // namespace
}  // namespace qe_gguf
