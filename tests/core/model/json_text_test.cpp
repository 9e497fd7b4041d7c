// Small JSON files: what the library's own parser would let pass.
#include "core/model/json_text.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace qengine {
namespace {

std::string complaint(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "x.json", limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E208");
    EXPECT_TRUE(e.message().starts_with("x.json ")) << e.message();
    return e.message();
  }
  return "accepted";
}

TEST(JsonText, KeepsOrderTypesAndNesting) {
  const Json j = parse_json(R"({"z":1,"a":[true,null,-2,1.5,"é"],"o":{"k":{}}})", "x.json");
  EXPECT_EQ(j.dump(), R"({"z":1,"a":[true,null,-2,1.5,"é"],"o":{"k":{}}})");
  EXPECT_TRUE(j["z"].is_number_unsigned());
  EXPECT_TRUE(j["a"][2].is_number_integer());
  EXPECT_EQ(parse_json("  3 ", "x.json"), 3);
}

TEST(JsonText, RefusesWhatIsNotJson) {
  EXPECT_NE(complaint("{\"a\":NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint("{\"a\":1,}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint("{\"a\":1} {}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint("{\"a\":1e999}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint("{\"a\":\"\xff\"}").find("UTF-8"), std::string::npos);
  EXPECT_NE(complaint(std::string_view("{}\0junk", 7)).find("NUL"), std::string::npos);
  EXPECT_NE(complaint("{\n\"a\":\n?}").find("line 3"), std::string::npos);
}

TEST(JsonText, OneKeyTwiceIsAnError) {
  EXPECT_NE(complaint(R"({"a":1,"b":2,"a":1})").find("\"a\" twice"), std::string::npos);
  EXPECT_NE(complaint(R"({"o":{"a":1,"a":1}})").find("\"a\" twice"), std::string::npos);
  EXPECT_EQ(complaint(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(JsonText, LimitsHold) {
  const std::string deep = std::string(100'000, '[');
  EXPECT_NE(complaint(deep).find("nested more than 64"), std::string::npos);
  EXPECT_NE(complaint("[1,2,3]", {.values = 3}).find("more than 3 values"), std::string::npos);
  EXPECT_EQ(complaint("[1,2]", {.values = 3}), "accepted");
  EXPECT_NE(complaint("[1,2,3]", {.bytes = 6}).find("7 bytes"), std::string::npos);
}

// An object of many keys is built in linear time: a lookup for each would take minutes here.
TEST(JsonText, ManyKeysInOneObject) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_EQ(parse_json(text + "}", "x.json").size(), 300'000u);
}

TEST(JsonText, TextOfTheFileIsMadeFitToPrint) {
  const std::string text = complaint("{\"a\x1b[31m\":1}");
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_LT(complaint("{\"" + std::string(5000, 'k')).size(), 400u);
}

}  // namespace
}  // namespace qengine
