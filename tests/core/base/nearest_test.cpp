#include "core/base/nearest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace qengine {
namespace {

// The definition, by recursion.
int slow_distance(std::string_view a, std::string_view b) {
  if (a.empty()) return static_cast<int>(b.size());
  if (b.empty()) return static_cast<int>(a.size());
  int d = std::min({slow_distance(a.substr(1), b) + 1, slow_distance(a, b.substr(1)) + 1,
                    slow_distance(a.substr(1), b.substr(1)) + (a[0] != b[0])});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0]) d = std::min(d, slow_distance(a.substr(2), b.substr(2)) + 1);
  return d;
}

TEST(EditDistance, AgreesWithItsDefinitionUpToTheLimit) {
  std::mt19937 rng(7);
  const auto word = [&] {
    std::string w(rng() % 7, ' ');
    for (char& c : w) c = static_cast<char>('a' + rng() % 3);
    return w;
  };
  for (int i = 0; i < 1000; ++i) {
    const std::string a = word(), b = word();
    const int exact = slow_distance(a, b), limit = static_cast<int>(rng() % 5);
    ASSERT_EQ(edit_distance(a, b), exact) << a << " " << b;
    ASSERT_EQ(edit_distance(a, b, limit), std::min(exact, limit + 1)) << a << " " << b << " " << limit;
  }
}

TEST(Nearest, FindsSlipsAndNothingFar) {
  const std::vector<std::string> names{"max-model-len", "max-num-seqs", "model", "prompt"};
  EXPECT_EQ(nearest("max-mdoel-len", names), "max-model-len");
  EXPECT_EQ(nearest("promt", names), "prompt");
  EXPECT_EQ(nearest("max-model-length", names), "");
  EXPECT_EQ(nearest("max-model-length", names, 4), "max-model-len");
  EXPECT_EQ(nearest("zebra", names), "");
}

}  // namespace
}  // namespace qengine
