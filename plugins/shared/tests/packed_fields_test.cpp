#include "shared/packed_fields.hpp"

#include <gtest/gtest.h>

#include "packers.hpp"

namespace qengine {
namespace {

using packed::PackedFields;
using packed::Packing;
using test::Codes;
using test::Words;

PackedFields row_of(const Words& words, Packing packing = Packing::kStream) {
  return {reinterpret_cast<const std::byte*>(words.data()), 0, 4, packing};
}

Codes unpack(const Words& words, int bits, std::size_t count, Packing packing = Packing::kStream) {
  Codes out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(get_field(row_of(words, packing), bits, 0, i));
  return out;
}

// The words printed in the format descriptions.
TEST(PackedFields, ReadsThePublishedVectors) {
  EXPECT_EQ(unpack({0x3C780F91}, 4, 8), (Codes{1, 9, 15, 0, 8, 7, 12, 3}));
  EXPECT_EQ(unpack({0xFF008082}, 8, 4), (Codes{130, 128, 0, 255}));
  EXPECT_EQ(unpack({0xE4E4E4E4}, 2, 16), (Codes{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  Codes ramp;
  for (std::uint32_t k = 0; k < 32; ++k) ramp.push_back(k % 8);
  EXPECT_EQ(unpack({0x88FAC688, 0xC688FAC6, 0xFAC688FA}, 3, 32), ramp);
  Codes straddling(32);
  straddling[10] = straddling[21] = 7;
  EXPECT_EQ(unpack({0xC0000000, 0x80000001, 0x00000003}, 3, 32), straddling);
  EXPECT_EQ(unpack({0x9A4BF870}, 4, 8), (Codes{0, 7, 8, 15, 11, 4, 10, 9}));  // -8 -1 0 7 3 -4 2 1, plus 8
  EXPECT_EQ(unpack({0x3709C8F1}, 4, 8, Packing::kAwq), (Codes{1, 9, 15, 0, 8, 7, 12, 3}));
  EXPECT_EQ(unpack({0x8F978088}, 4, 8, Packing::kAwq), (Codes{8, 7, 8, 9, 0, 15, 8, 8}));
}

class PackedFieldsOfBits : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Bits, PackedFieldsOfBits, ::testing::Values(2, 3, 4, 5, 6, 7, 8));

TEST_P(PackedFieldsOfBits, UnpackUndoesEachPacker) {
  const int bits = GetParam();
  for (std::size_t count : {32, 64, 96, 1024}) {
    const Codes codes = test::random_codes(count, bits, static_cast<std::uint32_t>(count + bits));
    EXPECT_EQ(unpack(test::pack_stream(codes, bits), bits, count), codes) << count;
    EXPECT_EQ(unpack(test::pack_planar(codes, bits), bits, count, Packing::kPlanar), codes) << count;
    EXPECT_EQ(unpack(test::pack_padded(codes, bits), bits, count, Packing::kPadded), codes) << count;
  }
  for (std::size_t count : {1, 5, 31, 33, 47}) {  // tails: what a short last word holds
    const Codes codes = test::random_codes(count, bits, static_cast<std::uint32_t>(7 * count + bits));
    Words stream = test::pack_stream(codes, bits), padded = test::pack_padded(codes, bits);
    ASSERT_EQ(static_cast<std::int64_t>(stream.size()), packed::words(Packing::kStream, bits, count));
    ASSERT_EQ(static_cast<std::int64_t>(padded.size()), packed::words(Packing::kPadded, bits, count));
    EXPECT_EQ(unpack(stream, bits, count), codes) << count;
    EXPECT_EQ(unpack(padded, bits, count, Packing::kPadded), codes) << count;
  }
}

TEST_P(PackedFieldsOfBits, GptqColumnsAreStreamsAlongK) {
  const int bits = GetParam();
  const std::size_t k = 96, n = 40;
  const Codes kn = test::random_codes(k * n, bits, 11u + bits);
  for (bool planar : {false, true}) {
    const Words words = test::pack_gptq(kn, k, n, bits, planar);
    const PackedFields f{reinterpret_cast<const std::byte*>(words.data()), 4, static_cast<std::int64_t>(4 * n),
                         planar ? Packing::kPlanar : Packing::kStream};
    for (std::size_t c = 0; c < n; ++c)
      for (std::size_t r = 0; r < k; ++r) ASSERT_EQ(get_field(f, bits, c, r), kn[r * n + c]) << c << " " << r;
  }
}

TEST(PackedFields, ReadsFromOddAddresses) {
  const Codes codes = test::random_codes(64, 3, 5);
  const Words words = test::pack_stream(codes, 3);
  std::vector<std::byte> shifted(words.size() * 4 + 1);
  std::memcpy(shifted.data() + 1, words.data(), words.size() * 4);
  const PackedFields f{shifted.data() + 1, 0, 4, Packing::kStream};
  for (std::size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(f.get<3>(0, i), codes[i]);
}

TEST(Marlin, PlaceUndoesThePacker) {
  for (auto [k, n] : {std::pair<std::size_t, std::size_t>{128, 64}, {16, 128}, {256, 320}}) {
    const Codes kn = test::random_codes(k * n, 4, static_cast<std::uint32_t>(k + n));
    const Words words = test::pack_marlin(kn, k, n);
    ASSERT_EQ(words.size(), k / 16 * 2 * n);
    for (std::size_t r = 0; r < k; ++r)
      for (std::size_t c = 0; c < n; ++c) {
        const auto place = packed::marlin_place(r, c);
        ASSERT_EQ(words[r / 16 * 2 * n + place.word] >> 4 * place.nibble & 15, kn[r * n + c]) << r << " " << c;
      }
  }
}

TEST(Marlin, ScalePlaceUndoesThePermutation) {
  std::vector<int> columns(192);
  for (int i = 0; i < 192; ++i) columns[i] = i;
  for (bool grouped : {false, true}) {
    const auto stored = test::marlin_scales(columns, grouped);
    for (int c = 0; c < 192; ++c) ASSERT_EQ(stored[packed::marlin_scale_place(c, grouped)], c) << grouped;
  }
}

TEST(GemvFast, PlaceUndoesThePacker) {
  const std::size_t n = 12, k = 192;
  const Codes nk = test::random_codes(n * k, 4, 3);
  const auto words = test::pack_gemv_fast(nk, n, k);
  ASSERT_EQ(words.size(), n / 4 * k);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c < k; ++c) {
      const auto place = packed::gemv_fast_place(r, c);
      ASSERT_EQ(words[place.row * k + place.word] >> 4 * place.nibble & 15u, nk[r * k + c]) << r << " " << c;
    }
}

}  // namespace
}  // namespace qengine
