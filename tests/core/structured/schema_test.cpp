#include "core/structured/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "tests/core/structured/vocabulary.hpp"

namespace qengine::structured {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  const char* schema;
  std::vector<const char*> in, out;
};
void PrintTo(const Case& c, std::ostream* o) { *o << c.name; }

class SchemaCase : public ::testing::TestWithParam<Case> {};
TEST_P(SchemaCase, AllowsAndRefuses) {
  const Case& c = GetParam();
  const auto a = automaton_of(Json::parse(c.schema));
  for (const char* text : c.in) EXPECT_TRUE(accepts(*a, text)) << text;
  for (const char* text : c.out) EXPECT_FALSE(accepts(*a, text)) << text;
  // The vocabulary makes only texts that are whole JSON.
  std::mt19937 rng(1);
  for (int i = 0; i < 20; ++i) {
    const std::string text = random_text(a, rng, 200);
    EXPECT_TRUE(Json::accept(text)) << text;
  }
}
INSTANTIATE_TEST_SUITE_P(Keywords, SchemaCase, ::testing::Values(
    Case{"types", R"({"type":["null","boolean","integer"]})", {"null", "true", "false", "0", "-12"}, {"1.5", "\"\"", "[]", "{}", "nul", ""}},
    Case{"anything", "true", {"1", "[1, {\"a\":null}]", "{}", "\"x\"", "{\"a\": [\n  1,2]}"}, {"", "{", "[1,]", "{\"a\"}", " 1", "1 ", "01"}},
    Case{"object", R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"],"additionalProperties":false})",
         {R"({"b":"x"})", R"({"a": 1, "b": ""})", "{\n  \"a\": 1,\n  \"b\": \"y\"\n}"}, {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","c":1})", R"({"b":1})"}},
    Case{"additional", R"({"type":"object","properties":{"a":true},"additionalProperties":{"type":"integer"}})", {"{}", R"({"a":"x","b":1})", R"({"zz":2})"}, {R"({"b":"x"})", R"({"\u0061":1})", R"({"b":1,"a":1})"}},
    Case{"open_map", R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1})", {R"({"b":1})", R"({"b":1,"c":2})"}, {"{}", R"({"b":null})"}},
    Case{"declared_is_closed_by_default", R"({"type":"object","properties":{"a":{"type":"integer"}}})", {"{}", R"({"a":1})"}, {R"({"b":1})"}},
    Case{"required_only", R"({"type":"object","required":["x","y"]})", {R"({"x":1,"y":[]})"}, {R"({"x":1})", R"({"y":1,"x":1})"}},
    Case{"patterns_of_names", R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"^s_":{"type":"string"}},"additionalProperties":false})", {"{}", R"({"n_a":1,"s_b":"x"})"}, {R"({"n_a":"x"})", R"({"b":1})"}},
    Case{"a_pattern_also_binds_declared_names", R"({"type":"object","properties":{"n_a":{"minimum":5}},"patternProperties":{"^n_":{"type":"integer"}}})", {R"({"n_a":7})"}, {R"({"n_a":3})", R"({"n_a":"x"})", R"({"n_a":7.5})"}},
    Case{"property_names", R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$","maxLength":2}})", {R"({"ab":1})", "{}"}, {R"({"abc":1})", R"({"d":1})", R"({"":1})"}},
    Case{"counts_of_properties", R"({"type":"object","properties":{"a":{"const":1},"b":{"const":1},"c":{"const":1}},"minProperties":2,"maxProperties":2})", {R"({"a":1,"b":1})", R"({"a":1,"c":1})", R"({"b":1,"c":1})"}, {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})"}},
    Case{"arrays", R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})", {"[1]", "[1, 2,3]"}, {"[]", "[1,2,3,4]", "[true]", "[1,]"}},
    Case{"unbounded_array", R"({"type":"array","items":{"type":"boolean"},"minItems":2})", {"[true,false]", "[true,false,true,true]"}, {"[true]", "[]"}},
    Case{"tuples", R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})", {"[]", "[1]", "[1,\"a\"]"}, {"[\"a\"]", "[1,\"a\",2]"}},
    Case{"old_tuples", R"({"type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"string"}})", {"[]", "[1]", "[1,\"a\",\"b\"]"}, {"[\"a\"]", "[1,2]"}},
    Case{"lengths", R"({"type":"string","minLength":2,"maxLength":3})", {"\"ab\"", "\"é€😀\"", "\"\\n\\u00e9\"", "\"\\ud83d\\ude00x\""}, {"\"a\"", "\"abcd\"", "\"\\ud83d\""}},
    Case{"escapes", R"({"type":"string"})", {R"("\"\\\/\b\f\n\r\t\u12aB")"}, {"\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"", "\"\xC3\""}},
    Case{"patterns", R"({"type":"string","pattern":"^[A-Z]{2}[0-9]+$","maxLength":4})", {"\"AB1\"", "\"AB12\""}, {"\"AB\"", "\"AB123\"", "\"ab1\"", "\"\\u0041B1\""}},
    Case{"pattern_needs_escaping", R"({"type":"string","pattern":"^\"\\\\\n$"})", {R"("\"\\\n")"}, {"\"\"\\\n\""}},
    Case{"a_pattern_is_searched", R"({"type":"string","pattern":"b"})", {"\"abc\"", "\"b\""}, {"\"ac\"", "\"\""}},
    Case{"formats", R"({"type":"string","format":"date-time"})", {"\"2024-02-28T23:59:59Z\"", "\"2024-12-31T00:00:00.5+01:00\""}, {"\"2024-02-30T00:00:00Z\"", "\"2024-13-01T00:00:00Z\"", "\"2024-02-28\""}},
    Case{"uuid", R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
    Case{"bounds", R"({"type":"integer","minimum":-3,"exclusiveMaximum":12})", {"-3", "0", "11"}, {"-4", "12", "1.0"}},
    Case{"old_bounds", R"({"type":"integer","minimum":3,"exclusiveMinimum":true})", {"4"}, {"3"}},
    Case{"fractions", R"({"type":"number","minimum":0.5,"maximum":1.25})", {"0.5", "1", "1.25", "1.2500"}, {"0.4", "1.26", "2", "0"}},
    Case{"multiples", R"({"type":"number","multipleOf":5,"minimum":1})", {"5", "100"}, {"0", "7", "5.0"}},
    Case{"enum", R"({"enum":["a","é\n",1,null,{"k":[1,2]}]})", {"\"a\"", "\"é\\n\"", "1", "null", R"({"k":[1,2]})"}, {"2", "\"b\"", "{}"}},
    Case{"enum_meets_its_neighbours", R"({"enum":["a",1,2,300],"type":"integer","maximum":100})", {"1", "2"}, {"\"a\"", "300"}},
    Case{"const_", R"({"const":"only"})", {"\"only\""}, {"\"other\""}},
    Case{"any_of", R"({"anyOf":[{"type":"string","maxLength":1},{"type":"integer"}]})", {"\"a\"", "5"}, {"\"ab\"", "null"}},
    Case{"any_of_with_neighbours", R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],"anyOf":[{"properties":{"x":{"type":"integer"}},"required":["x"]},{"properties":{"y":{"type":"integer"}},"required":["y"]}]})",
         {R"({"k":"","x":1})", R"({"k":"","y":1})"}, {R"({"k":""})", R"({"x":1})"}},
    Case{"one_of", R"({"oneOf":[{"properties":{"t":{"const":"a"}},"required":["t"],"type":"object"},{"properties":{"t":{"const":"b"},"n":{"type":"integer"}},"required":["t","n"],"type":"object"}]})",
         {R"({"t":"a"})", R"({"t":"b","n":1})"}, {R"({"t":"b"})", R"({"t":"c"})"}},
    Case{"all_of", R"({"allOf":[{"type":"object","properties":{"a":{"type":"number","minimum":2}},"required":["a"]},{"properties":{"a":{"maximum":4},"b":{"type":"null"}}}]})",
         {R"({"a":3})", R"({"a":2.5,"b":null})"}, {R"({"a":5})", R"({"a":1})", "{}"}},
    Case{"references", R"({"$ref":"#/$defs/p","$defs":{"p":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/p"}}},"additionalProperties":false}}})",
         {"{}", R"({"c":[{},{"c":[]}]})"}, {R"({"c":[1]})", R"({"d":1})"}},
    Case{"a_reference_with_neighbours", R"({"$ref":"#/$defs/n","maximum":5,"$defs":{"n":{"type":"integer","minimum":3}}})", {"3", "5"}, {"2", "6"}},
    Case{"reference_to_the_root", R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["next"]})", {R"({"next":null})", R"({"next":{"next":null}})"}, {"{}"}},
    Case{"anchor", R"({"$ref":"#here","$defs":{"x":{"$anchor":"here","type":"null"}}})", {"null"}, {"1"}},
    Case{"nullable_is_no_trap", R"({"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a"]})", {R"({"a":null})", R"({"a":"x"})"}, {R"({"a":1})"}},
    Case{"impossible_options_vanish", R"({"type":"object","properties":{"a":false,"b":{"type":"integer"}}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}}),
    [](const auto& info) { return std::string(info.param.name); });

std::pair<std::string, std::string> refusal(const char* schema) {
  try {
    automaton_of(Json::parse(schema));
  } catch (const GrammarError& e) {
    return {e.place(), e.what()};
  }
  return {"accepted", "accepted"};
}

TEST(Schema, RefusesByNameAndPlace) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "/properties/a/not", "\"not\" is not supported"},
      {R"({"type":"string","maxlength":3})", "/maxlength", "did you mean maxLength"},
      {R"({"if":{},"then":{}})", "/if", "not supported"},
      {R"({"type":"array","uniqueItems":true})", "/uniqueItems", "uniqueItems"},
      {R"({"type":"array","contains":{}})", "/contains", "contains"},
      {R"({"type":"strange"})", "/type", "must be one of"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "/pattern", "lookahead"},
      {R"({"type":"string","format":"phone"})", "/format", "format \"phone\" is not supported; supported: date"},
      {R"({"type":"number","multipleOf":0.1})", "/multipleOf", "multipleOf"},
      {R"({"$ref":"http://x/y"})", "/$ref", "within the schema itself"},
      {R"({"$ref":"#/$defs/none"})", "/$ref", "points to nothing"},
      {R"({"type":"object","required":[1]})", "/required", "list of strings"},
      {R"({"properties":{"a/b":{"items":5}}})", "/properties/a~1b/items", "must be a schema"},
      {R"({"minLength":-1})", "/minLength", "not negative"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "/oneOf", "use anyOf"},
      {R"({"oneOf":[{"type":"string","maxLength":5},{"type":"string","pattern":"a"}]})", "/oneOf", "alternatives 0 and 1"},
      {R"({"type":"object","properties":{"a":true},"minProperties":5})", "/minProperties", "declared properties"},
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "/patternProperties", "match the same names"},
      {R"({"enum":[]})", "", "allows no value at all"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "", "allows no value at all"},
      {R"({"$ref":"#"})", "accepted", ""},  // a schema that only says "as I am" asserts nothing
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "", "allows no value at all"},
      {R"({"type":"string","minLength":1000000})", "/minLength", "larger than"},
      {"5", "", "must be a JSON schema"}};
  for (const auto& [schema, place, words] : cases) {
    const auto [where, what] = refusal(schema);
    EXPECT_EQ(where, place) << schema << ": " << what;
    EXPECT_THAT(what, HasSubstr(words)) << schema;
  }
}

TEST(Schema, ExplosionsAreRefusedInTime) {
  // Every property a long pattern; nested counts; alternatives of alternatives.
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 300; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", "^[a-z]{1,100}x" + std::to_string(i) + "$"}};
  Json deep = {{"type", "integer"}};
  for (int i = 0; i < 20; ++i) deep = {{"type", "array"}, {"minItems", 1000}, {"items", deep}};
  Json cross = {{"allOf", Json::array()}};
  for (int i = 0; i < 12; ++i) {
    Json any = Json::array();
    for (int j = 0; j < 10; ++j) any.push_back({{"minLength", i * 10 + j}});
    cross["allOf"].push_back({{"anyOf", any}});
  }
  for (const Json& schema : {wide, deep, cross}) {
    const std::clock_t begin = std::clock();
    try {
      automaton_of(schema);
    } catch (const GrammarError&) {
    }
    EXPECT_LT(std::clock() - begin, 4 * CLOCKS_PER_SEC) << schema.dump().substr(0, 100);
  }
}

TEST(Schema, WithoutBlanks) {
  const auto a = automaton_of(Json::parse(R"({"type":"object","properties":{"a":{"type":"array"}},"required":["a"]})"), {.blanks = false});
  EXPECT_TRUE(accepts(*a, R"({"a":[1,{"b":2}]})"));
  EXPECT_FALSE(accepts(*a, R"({"a": []})"));
  EXPECT_FALSE(accepts(*a, R"({"a":[1, 2]})"));
}

TEST(Schema, BlanksEnd) {
  const auto a = automaton_of(Json::parse(R"({"type":"array"})"));
  EXPECT_TRUE(accepts(*a, "[\n" + std::string(16, ' ') + "]"));
  EXPECT_FALSE(accepts(*a, "[" + std::string(17, ' ') + "]"));
  EXPECT_FALSE(accepts(*a, "[\n\n]"));
}

TEST(Schema, AnObjectWhateverTheSchemaSays) {
  const auto a = automaton_of(Json::parse("{}"), {.object = true});
  EXPECT_TRUE(accepts(*a, "{\"x\":1}"));
  EXPECT_FALSE(accepts(*a, "1"));
}

TEST(Schema, WhiteSpaceLooksAsAsked) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "array"}, {"items", {{"type", "integer"}}}}}}}, {"required", {"a"}}};
  const auto with = [&](const char* pattern) { return automaton_of(schema, {.blank_pattern = pattern}); };
  EXPECT_TRUE(accepts(*with(""), R"({"a":[1,2]})"));
  EXPECT_FALSE(accepts(*with(""), R"({"a": [1,2]})"));
  EXPECT_TRUE(accepts(*with(" ?"), R"({ "a": [1, 2 ] })"));
  EXPECT_FALSE(accepts(*with(" ?"), R"({  "a":[1,2]})"));
  EXPECT_FALSE(accepts(*with("[ ]"), R"({ "a":[ 1, 2 ] })"));  // where blanks stand, one must
  EXPECT_TRUE(accepts(*with("[ ]"), R"({ "a": [ 1, 2 ] })"));
  EXPECT_TRUE(accepts(*with("\\r\\n\\t+|"), "{\r\n\t\"a\":[1]\r\n\t\t}"));
  // No run of blanks is endless, whatever the pattern says.
  EXPECT_TRUE(accepts(*with("[\n ]*"), "{" + std::string(16, ' ') + "\"a\":[1]}"));
  EXPECT_FALSE(accepts(*with("[\n ]*"), "{" + std::string(17, ' ') + "\"a\":[1]}"));
  const auto refusal = [&](const char* pattern) {
    try {
      with(pattern);
      return std::string("accepted");
    } catch (const GrammarError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_TRUE(accepts(*with("\\s*"), "{\n\t\"a\": [1]}"));
  EXPECT_FALSE(accepts(*with("\\s*"), "{\v\"a\": [1]}"));  // white space, but not to JSON
  EXPECT_EQ(refusal("[ a]*"), "the white space pattern matches other things than white space");
  EXPECT_EQ(refusal(" {17}"), "the white space pattern matches nothing of at most 16 characters");
  EXPECT_EQ(refusal("( "), "the regular expression has a ( without its ) (at byte 2)");
}

}  // namespace
}  // namespace qengine::structured
