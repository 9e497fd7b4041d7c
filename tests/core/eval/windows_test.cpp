#include "core/eval/windows.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace qengine {
namespace {

std::vector<std::int32_t> numbers(int n) {
  std::vector<std::int32_t> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}

// Every token but the first of a document is scored exactly once, with as much before it as the cut allows.
TEST(DocumentWindows, ScoreEachTokenOnce) {
  for (int size : {0, 1, 2, 7, 8, 9, 16, 23})
    for (int context : {2, 5, 8})
      for (int stride = 1; stride < context; ++stride) {
        std::vector<int> scored(size);
        for (const Window& w : document_windows({numbers(size)}, context, stride)) {
          EXPECT_LE(std::ssize(w.ids), context);
          EXPECT_GE(w.first, 1);
          for (std::size_t i = w.first; i < w.ids.size(); ++i) ++scored[w.ids[i]];
          EXPECT_EQ(w.ids[0], w.position);
        }
        for (int i = 0; i < size; ++i) EXPECT_EQ(scored[i], i > 0) << size << " " << context << " " << stride << " token " << i;
      }
}

TEST(DocumentWindows, AShortDocumentIsOneWindow) {
  const auto w = document_windows({numbers(5), numbers(1), numbers(3)}, 8, 4);
  ASSERT_EQ(w.size(), 2u);
  EXPECT_EQ(w[0].first, 1);
  EXPECT_EQ(w[1].document, 2);
  EXPECT_EQ(scored_tokens(w), 6);
}

// llama.cpp: context 8 scores the 3 last tokens of each whole piece; token 0 gives way to BOS.
TEST(ChunkWindows, ScoreTheSecondHalf) {
  const auto w = chunk_windows(numbers(17), 8, 99);
  ASSERT_EQ(w.size(), 2u);
  EXPECT_EQ(w[1].ids, (std::vector<std::int32_t>{99, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(w[1].first, 5);
  EXPECT_EQ(scored_tokens(w), 6);
  EXPECT_EQ(chunk_windows(numbers(8), 8, std::nullopt)[0].ids[0], 0);
  EXPECT_TRUE(chunk_windows(numbers(7), 8, 99).empty());
}

}  // namespace
}  // namespace qengine
