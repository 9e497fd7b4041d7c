// Answers to extraction and tool tasks: what counts, and at which step the others fail.
#include "core/eval/tasks.hpp"

#include <gtest/gtest.h>

#include <set>

#include "core/base/error.hpp"

namespace qengine {
namespace {

using Json = nlohmann::ordered_json;

TEST(BuiltInTasks, AreAsManyAsPromisedAndTheirExpectedAnswersSucceed) {
  const auto structured = built_in_tasks(Suite::kStructured), tools = built_in_tasks(Suite::kTools);
  EXPECT_EQ(structured.size(), 18u);
  EXPECT_EQ(tools.size(), 36u);
  std::set<std::string> ids;
  int silent = 0;
  for (const TaskCase& c : structured) {
    EXPECT_TRUE(ids.insert(c.id).second) << c.id;
    const StructuredScore s = score_structured(c, c.expected.dump());
    EXPECT_TRUE(s.ok() && s.bare) << c.id << ": " << s.why;
    EXPECT_FALSE(score_structured(c, "{}").valid) << c.id << " asks for nothing";
    EXPECT_NE(c.messages[0]["content"].get<std::string>().find(c.schema.dump()), std::string::npos);
  }
  ids.clear();
  for (const TaskCase& c : tools) {
    EXPECT_TRUE(ids.insert(c.id).second) << c.id;
    std::vector<ToolCall> calls;
    for (const Json& call : c.expected) calls.insert(calls.begin(), {call["name"], call["arguments"].dump()});  // in the other order
    const ToolScore s = score_tools(c, calls);
    EXPECT_TRUE(s.ok()) << c.id << ": " << s.why;
    silent += c.expected.empty();
    for (const Json& call : c.expected) EXPECT_EQ(schema_violation(call_schema(c.tools), call), "") << c.id;
    EXPECT_NE(schema_violation(call_schema(c.tools), {{"name", "nothing_like_it"}, {"arguments", Json::object()}}), "");
  }
  EXPECT_GE(silent, 3);
}

TEST(Structured, EachStepIsToldApart) {
  TaskCase c;
  c.schema = Json::parse(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"enum":["x","y"]}}},"required":["a"],"additionalProperties":false})");
  c.expected = Json::parse(R"({"a":3,"b":["x"]})");
  const auto steps = [&](const char* answer) {
    const StructuredScore s = score_structured(c, answer);
    EXPECT_EQ(s.ok(), s.why.empty()) << answer;
    return std::string() + (s.bare ? "b" : "-") + (s.parsed ? "p" : "-") + (s.valid ? "v" : "-") + (s.exact ? "e" : "-");
  };
  EXPECT_EQ(steps(R"({"b":["x"],"a":3})"), "bpve");  // order does not matter
  EXPECT_EQ(steps("```json\n{\"a\":3,\"b\":[\"x\"]}\n```"), "-pve");
  EXPECT_EQ(steps(R"(Sure: {"a":3,"b":["x"]} and a } more)"), "-pve");
  EXPECT_EQ(steps(R"({"a":4,"b":["x"]})"), "bpv-");
  EXPECT_EQ(steps(R"({"a":3,"b":["z"]})"), "bp--");
  EXPECT_EQ(steps(R"({"a":3,"c":1})"), "bp--");
  EXPECT_EQ(steps(R"({"a":3,"b":["x"])"), "----");
  EXPECT_EQ(steps("nothing"), "----");
  EXPECT_EQ(steps(R"({"a":"}"} )"), "bp--");  // a bracket inside a text
  c.expected = nullptr;
  EXPECT_EQ(steps(R"({"a":9})"), "bpve");  // nothing particular was expected
}

TEST(Tools, EachStepIsToldApart) {
  TaskCase c;
  c.suite = Suite::kTools;
  c.tools = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":5}},"required":["n"],"additionalProperties":false}}},{"type":"function","function":{"name":"g"}}])");
  c.expected = Json::parse(R"([{"name":"f","arguments":{"n":2}},{"name":"g"}])");
  const auto steps = [&](const std::vector<ToolCall>& calls) {
    const ToolScore s = score_tools(c, calls);
    EXPECT_EQ(s.ok(), s.why.empty());
    return std::string() + (s.called ? "c" : "-") + (s.parsed ? "p" : "-") + (s.known ? "k" : "-") + (s.valid ? "v" : "-") + (s.matched ? "m" : "-");
  };
  EXPECT_EQ(steps({{"g", "{}"}, {"f", "{\"n\":2}"}}), "cpkvm");
  EXPECT_EQ(steps({{"f", "{\"n\":2}"}}), "cpkv-");
  EXPECT_EQ(steps({{"f", "{\"n\":2}"}, {"g", "{}"}, {"g", "{}"}}), "cpkv-");
  EXPECT_EQ(steps({{"f", "{\"n\":9}"}, {"g", "{}"}}), "cpk--");
  EXPECT_EQ(steps({{"h", "{}"}}), "cp---");
  EXPECT_EQ(steps({{"f", "{\"n\":"}}), "c----");
  EXPECT_EQ(steps({}), "-----");
  c.expected = Json::array();
  EXPECT_EQ(steps({}), "cpkvm");
  EXPECT_EQ(steps({{"f", "{\"n\":2}"}}), "-----");
}

TEST(ParseTasks, MistakesNameTheirLine) {
  const std::string set = "{\"toolset\":\"t\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}\n";
  EXPECT_EQ(parse_tasks(Suite::kTools, set + "{\"text\":\"x\",\"tools\":\"t\",\"expected\":{\"name\":\"f\"}}", "c.jsonl")[0].expected.size(), 1u);
  for (const std::string& line : {std::string("{\"text\":\"x\",\"tools\":\"u\",\"expected\":[]}"), std::string("{\"text\":\"x\",\"tools\":\"t\",\"expected\":[{\"name\":\"h\"}]}"), std::string("{\"text\":\"x\",\"tools\":\"t\"}"),
                                  std::string("{\"tools\":\"t\",\"expected\":[]}"), std::string("[]"), std::string("{\"text\":\"x\",\"tools\":[],\"expected\":[]}")}) {
    try {
      parse_tasks(Suite::kTools, set + line, "c.jsonl");
      ADD_FAILURE() << line;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("c.jsonl:2"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(parse_tasks(Suite::kStructured, "{\"text\":\"x\"}", "c"), Error);
  EXPECT_THROW(parse_tasks(Suite::kStructured, "{\"text\":\"x\",\"schema\":{\"type\":17}}", "c"), Error);
  EXPECT_THROW(parse_tasks(Suite::kStructured, "", "c"), Error);
}

}  // namespace
}  // namespace qengine
