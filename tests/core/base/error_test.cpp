#include "core/base/error.hpp"

#include <gtest/gtest.h>

namespace qengine {
namespace {

TEST(Error, TextShowsWhatWhereAndWhatToDo) {
  Error e("E202", "missing tensor a.scales");
  e.from("needs qweight, scales").hint("download again");
  EXPECT_STREQ(e.what(), "E202 missing tensor a.scales\n  from  needs qweight, scales\n  hint  download again");
  EXPECT_EQ(e.find("hint"), "download again");
}

TEST(Error, ExitCodeFollowsTheFamily) {
  const std::pair<const char*, int> cases[] = {{"E101", 2}, {"E204", 3}, {"E304", 4}, {"E403", 5}, {"E501", 7}, {"E000", 1}};
  for (const auto& [code, exit] : cases) EXPECT_EQ(Error(code, "x").exit_code(), exit) << code;
}

}  // namespace
}  // namespace qengine
