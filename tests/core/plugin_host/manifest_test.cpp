#include "core/plugin_host/manifest.hpp"

#include <gtest/gtest.h>

#include "tests/core/plugin_host/toys.hpp"

namespace qengine {
namespace {

const std::string kSha(64, 'a');
const std::string kGood = "schema = 1\nid = \"com.acme.int5_demo\"\nname = \"int5_demo\"\nversion = \"0.1.0\"\nlibrary = \"int5_demo.so\"\nsha256 = \"" + kSha +
                          "\"\nabi = { major = 0, built = 1, needs = 1 }\nsdk = \"0.1.0\"\n";

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "x.qeplugin.toml");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E306") << e.what();
    return e.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Manifest, EveryKeyArrives) {
  const Manifest m = parse_manifest(kGood +
                                        "vendor = \"Acme\"\nsummary = \"5 bits\"\noptions = [\"speed\"]\n"
                                        "method = [{ name = \"int5\", quant_method = \"int5_demo\", devices = [\"cpu:1\", \"cuda80+:2\", \"cuda90-100:3\", \"cuda89:1\", \"cuda:1\"] }]\n"
                                        "alias = [{ kind = \"name\", alias = \"int5\", condition = \"none\", replacement = \"int5_demo\", since = \"0.1.0\", removed_in = \"0.3.0\", message = \"renamed\" }]\n",
                                    "x");
  EXPECT_EQ(m.plugin.id, "com.acme.int5_demo");
  EXPECT_EQ(m.plugin.vendor, "Acme");
  EXPECT_EQ(m.library, "int5_demo.so");
  EXPECT_EQ(m.sha256, kSha);
  EXPECT_EQ(m.plugin.options, std::vector<std::string>{"speed"});
  ASSERT_EQ(m.plugin.methods.size(), 1u);
  const auto& rows = m.plugin.methods[0].rows;
  ASSERT_EQ(rows.size(), 5u);
  const int expected[5][4] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}, {QE_CUDA, 90, 100, 3}, {QE_CUDA, 89, 89, 1}, {QE_CUDA, 0, 0, 1}};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(rows[i].kind, expected[i][0]) << i;
    EXPECT_EQ(rows[i].sm_min, expected[i][1]) << i;
    EXPECT_EQ(rows[i].sm_max, expected[i][2]) << i;
    EXPECT_EQ(rows[i].tier, expected[i][3]) << i;
  }
  ASSERT_EQ(m.plugin.aliases.size(), 1u);
  EXPECT_EQ(m.plugin.aliases[0].kind, 2);
  EXPECT_EQ(m.plugin.aliases[0].owner, "com.acme.int5_demo");
  EXPECT_TRUE(m.plugin.aliases[0].deprecated());
}

TEST(Manifest, WhatIsWrongIsNamedWithItsPlace) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "has no schema"},
      {kGood + "colour = 1\n", "x.qeplugin.toml:9:10: unknown key colour"},
      {kGood + "sumary = \"x\"\n", "did you mean summary?"},
      {kGood + "dialect = [{ quant_method = \"a\" }]\n", "a dialect has one of file, key and tensors"},
      {kGood + "dialect = [{ key = \"k\", file = \"f\" }]\n", "a dialect has one of file, key and tensors"},
      {kGood + "dialect = [{ key = \"k\" }]\n", "needs a quant_method"},
      {kGood + "dialect = [{ file = \"../f.json\" }]\n", "must be a bare file name"},
      {kGood + "dialect = [{ file = \"config.json\" }]\n", "needs the key at which it lies"},
      {kGood + "dialect = [{ key = \"k\", quant_method = \"GPTQ\" }]\n", "must be in lower case"},
      {kGood + "dialect = [{ tensors = [\"\"], quant_method = \"a\" }]\n", "has an empty ending"},
      {kGood + "method = [{ name = \"a\", quantmethod = \"b\" }]\n", "unknown key method.quantmethod"},
      {replaced(kGood, "schema = 1", "schema = 2"), "schema 2; this qengine reads 1"},
      {replaced(kGood, "com.acme.int5_demo", "int5"), "must be reverse DNS"},
      {replaced(kGood, "com.acme.int5_demo", "Com.Acme"), "must be reverse DNS"},
      {replaced(kGood, "name = \"int5_demo\"", "name = \"int5 demo\""), "must be made of a-z"},
      {replaced(kGood, "0.1.0", "1.0"), "MAJOR.MINOR.PATCH"},
      {replaced(kGood, "library = \"int5_demo.so\"", "library = \"../int5_demo.so\""), "bare file name"},
      {replaced(kGood, "library = \"int5_demo.so\"", "library = \"/tmp/x.so\""), "bare file name"},
      {replaced(kGood, "library = \"int5_demo.so\"", "library = \"\""), "must be a file name"},
      {replaced(kGood, kSha, "abc"), "64 lower-case hex"},
      {replaced(kGood, "sha256 = \"" + kSha + "\"\n", ""), "has no sha256"},
      {replaced(kGood, "abi = { major = 0, built = 1, needs = 1 }\n", ""), "has no abi"},
      {replaced(kGood, "needs = 1", "needs = -1"), "between 0 and"},
      {replaced(kGood, "needs = 1", "needs = 1.5"), "abi.needs must be an integer"},
      {replaced(kGood, "needs = 1", "wants = 1"), "has no abi.needs"},
      {replaced(kGood, "name = \"int5_demo\"", "name = 5"), "name must be a string"},
      {kGood + "options = \"x\"\n", "options must be an array of strings"},
      {kGood + "options = [1]\n", "options must be an array of strings"},
      {kGood + "method = [{ name = \"a\", devices = [\"gpu:1\"] }]\n", "has \"gpu:1\""},
      {kGood + "method = [{ name = \"a\", devices = [\"cpu:4\"] }]\n", "has \"cpu:4\""},
      {kGood + "method = [{ name = \"a\", replacement = \"b\" }]\n", "for manifests without a library"},
      {kGood + "alias = [{ kind = \"word\", alias = \"a\", replacement = \"b\" }]\n", "expected flag, name, option or value"},
      {kGood + "alias = [{ kind = \"name\", alias = \"a\" }]\n", "has no alias.replacement"},
      {"schema = 1\nid = \"a.b\"\nname = \"b\"\nversion = \"1.0.0\"\nmethod = [{ name = \"a\" }]\n", "needs a replacement"},
      {kGood + "broken = [\n", "x.qeplugin.toml:"},
      {std::string(70000, '#'), "larger than 64 KiB"},
      {kGood + "deep = " + std::string(5000, '['), "x.qeplugin.toml:"},
  };
  for (const auto& [text, expected] : cases) EXPECT_TRUE(test::has_text(refusal(text), expected)) << refusal(text) << "\n  expected: " << expected;
}

TEST(Manifest, VersionsAreOrderedAsSemanticVersioningSays) {
  const char* rising[] = {"0.9.1", "0.10.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc1", "1.0.0", "1.0.1", "10.0.0"};
  for (std::size_t i = 0; i < std::size(rising); ++i)
    for (std::size_t j = 0; j < std::size(rising); ++j) {
      const int c = compare_versions(rising[i], rising[j]);
      EXPECT_EQ(c < 0 ? -1 : c > 0, i < j ? -1 : i > j) << rising[i] << " " << rising[j];
    }
  EXPECT_EQ(compare_versions("1.0.0+build5", "1.0.0"), 0);
}

TEST(Manifest, AFileThatIsNoFileIsRefused) {
  const test::Folder folder;
  EXPECT_EQ(test::error_of([&] { read_manifest_file(folder.path()); }).code(), "E306");
  EXPECT_EQ(test::error_of([&] { read_manifest_file(folder.path() / "none.qeplugin.toml"); }).code(), "E306");
  test::spit(folder.path() / "big.qeplugin.toml", std::string(70000, '#'));
  EXPECT_TRUE(test::has_text(test::error_of([&] { read_manifest_file(folder.path() / "big.qeplugin.toml"); }).what(), "64 KiB"));
}

}  // namespace
}  // namespace qengine
