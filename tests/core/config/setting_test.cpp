#include "core/config/setting.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace qengine {
namespace {

TEST(ParseInteger, KnowsDecimalAndBinarySuffixes) {
  const std::pair<const char*, long long> good[] = {{"0", 0},      {"4k", 4000},       {"4K", 4096}, {"-1", -1},
                                                    {"2m", 2000000}, {"1M", 1 << 20}, {"1g", 1000000000}, {"1G", 1 << 30}};
  for (const auto& [text, value] : good) EXPECT_EQ(parse_integer(text, false), value) << text;
  EXPECT_EQ(parse_integer("4GiB", true), 4LL << 30);
  EXPECT_EQ(parse_integer("512MiB", true), 512LL << 20);
  for (const char* bad : {"", "k", "4 K", "4kb", "1.5K", "0x10", "4GiB", "9223372036854775807K", "99999999999999999999", "--1", "1e3"})
    EXPECT_EQ(parse_integer(bad, false), std::nullopt) << bad;
}

TEST(ParseNumber, TakesFiniteDecimalsOnly) {
  EXPECT_EQ(parse_number("0.92"), 0.92);
  EXPECT_EQ(parse_number("1e-3"), 1e-3);
  for (const char* bad : {"", "nan", "inf", ".", "1,5", "0.5x", "1e999"}) EXPECT_EQ(parse_number(bad), std::nullopt) << bad;
}

TEST(Normalize, SaysWhatWasExpected) {
  const Setting port{.name = "port", .kind = Kind::kInt, .value = "N", .least = 0, .most = 65535};
  std::string expected;
  EXPECT_EQ(normalize(port, "8k", &expected), "8000");
  EXPECT_EQ(normalize(port, "65536", &expected), std::nullopt);
  EXPECT_EQ(expected, "an integer from 0 to 65535");
  const Setting length{.name = "max-model-len", .kind = Kind::kInt, .value = "N|auto", .least = -1};
  EXPECT_EQ(normalize(length, "auto", &expected), "auto");
  EXPECT_EQ(normalize(length, "longest", &expected), std::nullopt);
  EXPECT_NE(expected.find("or auto"), std::string::npos) << expected;
  const Setting format{.name = "log-format", .kind = Kind::kChoice, .value = "text|json"};
  EXPECT_EQ(normalize(format, "xml", &expected), std::nullopt);
  EXPECT_EQ(expected, "text or json");
}

// What the generated flags, keys, environment names and help texts rely on.
TEST(Registry, EverySettingIsWellFormed) {
  std::set<std::string> keys, names;
  for (const SettingGroup* g : profile_groups())
    for (const Setting& s : g->settings) {
      const std::string name = s.name, key = s.key;
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      EXPECT_FALSE(name.empty() || name[0] == '-' || name.starts_with("no-")) << name;
      EXPECT_TRUE(std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '-'; })) << name;
      EXPECT_TRUE(*s.help) << name;
      EXPECT_TRUE(s.kind == Kind::kBool ? *s.fallback : *s.value) << name;
      std::string expected;
      EXPECT_TRUE(!*s.fallback || normalize(s, s.fallback, &expected)) << name << " has a default that is not " << expected;
      if (key.empty()) continue;
      EXPECT_TRUE(keys.insert(key).second) << key << " twice";
      EXPECT_EQ(setting_of_key(key), &s);
      // A key is its flag with _ for -, but for the few that read better in their table.
      std::string flag = key.substr(key.find('.') + 1);
      std::replace(flag.begin(), flag.end(), '_', '-');
      const std::set<std::string> others{"model.path", "plugins.paths", "log.level", "log.format", "engine.ignore_tensors"};
      if (key.starts_with("canary.")) {  // which canary flags say of themselves
        flag = "canary-" + flag;
        if (const auto at = flag.find("abort-if."); at != flag.npos) flag.erase(at, 9);
      }
      EXPECT_TRUE(flag == name || others.count(key)) << key;
    }
}

}  // namespace
}  // namespace qengine
