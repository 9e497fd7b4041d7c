#include "core/server/tool_grammar.hpp"

#include <gtest/gtest.h>

#include "core/server/api_error.hpp"
#include "core/server/chat_parser.hpp"
#include "tests/core/structured/vocabulary.hpp"

namespace qengine::server {
namespace {

const Json kTools = Json::parse(R"([
  {"type":"function","function":{"name":"look up","parameters":{"type":"object","properties":{"q":{"type":"string","maxLength":6},"n":{"type":"integer","minimum":1,"maximum":9}},"required":["q"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"stop"}}])");

ApiRequest request(const char* choice, const char* more = "") {
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"tools":)" + kTools.dump() + R"(,"tool_choice":)" + choice + more + "}";
  return read_chat(parse_body(body, 64), {});
}

std::shared_ptr<const structured::Automaton> automaton(const char* style, const ApiRequest& r) {
  return structured::automaton_of([&](structured::GrammarBuilder& b) { return add_tool_calls(b, style, *tool_rule(r)); });
}

struct Read {
  std::string content;
  std::vector<std::pair<std::string, Json>> calls;
  int failures = 0;
};
Read read(const char* style, const std::string& text) {
  auto p = make_chat_parser(style, "none", false);
  ChatDelta d = p->push(text), rest = p->finish();
  d.tools.insert(d.tools.end(), rest.tools.begin(), rest.tools.end());
  Read out{d.content + rest.content, {}, p->failures()};
  std::string arguments;
  for (const ToolDelta& t : d.tools) {
    if (!t.id.empty()) out.calls.emplace_back(t.name, Json());
    else out.calls.back().second = Json::parse(t.arguments);
  }
  return out;
}

// Whatever the grammar lets through, the parser of the same style reads as calls of the right form.
class ToolStyle : public ::testing::TestWithParam<const char*> {};
TEST_P(ToolStyle, ForcedCallsAreRead) {
  std::mt19937 rng(11);
  bool several = false;
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"look up"}})"}) {
    const ApiRequest r = request(choice);
    const auto a = automaton(GetParam(), r);
    for (int i = 0; i < 60; ++i) {
      const std::string text = structured::random_text(a, rng, 400);
      const Read got = read(GetParam(), text);
      ASSERT_EQ(got.failures, 0) << text;
      ASSERT_FALSE(got.calls.empty()) << text;
      ASSERT_EQ(got.content, "") << text;
      several |= got.calls.size() > 1;
      for (const auto& [name, arguments] : got.calls) {
        ASSERT_TRUE(name == "look up" || (name == "stop" && r.tool_choice == "required")) << text;
        if (name == "stop") {
          ASSERT_EQ(arguments, Json::object()) << text;
        } else {
          ASSERT_TRUE(arguments.contains("q") && arguments["q"].is_string() && (!arguments.contains("n") || (arguments["n"] >= 1 && arguments["n"] <= 9))) << text;
        }
      }
      if (r.tool_choice == "function") { ASSERT_EQ(got.calls.size(), 1u) << text; }
    }
  }
  EXPECT_EQ(several, std::string(GetParam()) != "llama3_json");
}
TEST_P(ToolStyle, OneCallWhereParallelOnesAreOff) {
  std::mt19937 rng(5);
  const auto a = automaton(GetParam(), request(R"("required")", R"(,"parallel_tool_calls":false)"));
  for (int i = 0; i < 40; ++i) ASSERT_EQ(read(GetParam(), structured::random_text(a, rng, 400)).calls.size(), 1u);
}
INSTANTIATE_TEST_SUITE_P(Styles, ToolStyle, ::testing::Values("hermes", "llama3_json", "mistral"), [](const auto& i) { return std::string(i.param); });

TEST(ToolGrammar, StrictToolsUnderAutoLeaveTextFree) {
  ApiRequest r = request(R"("auto")");
  EXPECT_FALSE(tool_rule(r).has_value());
  r.tools[0]["function"]["strict"] = true;
  const auto a = automaton("hermes", r);
  EXPECT_TRUE(structured::accepts(*a, "Just text, a < b and <tool."));
  EXPECT_TRUE(structured::accepts(*a, "So:\n<tool_call>\n{\"name\": \"look up\", \"arguments\": {\"q\": \"x\"}}\n</tool_call>"));
  EXPECT_FALSE(structured::accepts(*a, "<tool_call>\n{\"name\": \"look up\", \"arguments\": {\"q\": 5}}\n</tool_call>"));
  EXPECT_TRUE(structured::accepts(*a, "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"any\": [1]}}\n</tool_call>"));  // not strict
  EXPECT_FALSE(structured::accepts(*a, "<tool_call>\nnothing"));
  const auto llama = automaton("llama3_json", r);
  EXPECT_TRUE(structured::accepts(*llama, "Text."));
  EXPECT_TRUE(structured::accepts(*llama, ""));
  EXPECT_FALSE(structured::accepts(*llama, "{\"x\":1}"));
}

TEST(ToolGrammar, AFaultNamesTheTool) {
  ApiRequest r = request(R"("required")");
  r.tools[0]["function"]["parameters"]["properties"]["q"]["not"] = Json::object();
  try {
    automaton("hermes", r);
    FAIL();
  } catch (const structured::GrammarError& e) {
    EXPECT_EQ(e.place(), "tools/look up/parameters/properties/q/not");
  }
}

TEST(ToolGrammar, NoneNeedsNoGrammar) {
  EXPECT_FALSE(tool_rule(request(R"("none")")).has_value());
}

}  // namespace
}  // namespace qengine::server
