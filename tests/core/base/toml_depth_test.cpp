#include "core/base/toml_depth.hpp"

#include <gtest/gtest.h>

#include <string>

namespace qengine {
namespace {

std::string deep(int dots) {
  std::string key = "a";
  for (int i = 0; i < dots; ++i) key += ".a";
  return key;
}

TEST(TomlDepth, CountsTheDotsOfKeysOnly) {
  EXPECT_EQ(line_of_deep_toml_key(""), 0);
  EXPECT_EQ(line_of_deep_toml_key(deep(32) + " = 1\n"), 0);
  EXPECT_EQ(line_of_deep_toml_key("x = 1\n" + deep(33) + " = 1\n"), 2);
  EXPECT_EQ(line_of_deep_toml_key("[" + deep(33) + "]\n"), 1);
  EXPECT_EQ(line_of_deep_toml_key("[[" + deep(33) + "]]\n"), 1);
  EXPECT_EQ(line_of_deep_toml_key("x = {y = 1, " + deep(33) + " = 2}"), 1);
  const std::string dots(100, '.');
  EXPECT_EQ(line_of_deep_toml_key("x = \"" + dots + "\"\n# " + dots + "\ny = '" + dots + "'\nz = \"\"\"\n" + dots + "\\\"\"\"\"\n"), 0);
  std::string numbers = "x = [";
  for (int i = 0; i < 100; ++i) numbers += "1.5, ";
  EXPECT_EQ(line_of_deep_toml_key(numbers + "]"), 0);
  // Line numbers go on after texts of several lines, and a quoted part of a key does not hide its dots.
  EXPECT_EQ(line_of_deep_toml_key("z = '''\n\n'''\n" + deep(33)), 4);
  std::string quoted = "\"a\"";
  for (int i = 0; i < 33; ++i) quoted += ".\"a\"";
  EXPECT_EQ(line_of_deep_toml_key(quoted + " = 1"), 1);
}

}  // namespace
}  // namespace qengine
