#include "core/server/chat_parser.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/model/checkpoint.hpp"

namespace qengine::server {
namespace {

struct Whole {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Whole&) const = default;
};
void PrintTo(const Whole& w, std::ostream* out) {
  *out << "content \"" << w.content << "\" reasoning \"" << w.reasoning << "\"";
  for (const auto& [n, a] : w.calls) *out << " " << n << a;
}

void add(Whole& w, const ChatDelta& d) {
  w.content += d.content;
  w.reasoning += d.reasoning;
  for (const auto& t : d.tools) {
    if (!t.id.empty()) {
      EXPECT_EQ(t.id.size(), 29u);
      EXPECT_EQ(t.index, static_cast<int>(w.calls.size()));
      w.calls.emplace_back(t.name, t.arguments);
    } else {
      ASSERT_LT(static_cast<std::size_t>(t.index), w.calls.size());
      w.calls[static_cast<std::size_t>(t.index)].second += t.arguments;
    }
  }
}

Whole parse(std::string_view style, std::string_view reasoning, bool inside, std::string_view text, std::size_t piece) {
  auto p = make_chat_parser(style, reasoning, inside);
  Whole w;
  for (std::size_t i = 0; i < text.size(); i += piece) add(w, p->push(text.substr(i, piece)));
  add(w, p->finish());
  EXPECT_EQ(p->calls(), static_cast<int>(w.calls.size()));
  return w;
}

struct Case {
  const char *name, *style, *reasoning, *text;
  Whole want;
  bool inside = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ChatParserCase : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Texts, ChatParserCase, ::testing::Values(
    Case{"plain", "none", "none", "Hello <tool_call> there", {"Hello <tool_call> there", "", {}}},
    Case{"hermes_one", "hermes", "none", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", {"", "", {{"f", "{\"a\": 1}"}}}},
    Case{"hermes_two_with_text", "hermes", "none",
         "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a } </tool_call> {\"}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"x\":[{\"y\":2},{}]}}</tool_call> bye",
         {"Let me see.bye", "", {{"f", "{\"s\":\"a } </tool_call> {\"}"}, {"g", "{\"x\":[{\"y\":2},{}]}"}}}},
    Case{"hermes_arguments_as_text", "hermes", "none", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", {"", "", {{"f", "{\"a\":1}"}}}},
    Case{"hermes_broken_is_content", "hermes", "none", "<tool_call>{\"name\": 5}</tool_call>", {"<tool_call>{\"name\": 5}</tool_call>", "", {}}},
    Case{"hermes_cut_is_content", "hermes", "none", "x <tool_call>{\"name\": \"f\", \"argu", {"x <tool_call>{\"name\": \"f\", \"argu", "", {}}},
    Case{"hermes_unclosed_but_whole", "hermes", "none", "<tool_call>{\"name\":\"f\",\"arguments\":{}}", {"", "", {{"f", "{}"}}}},
    Case{"hermes_almost_a_tag", "hermes", "none", "a < b <tool", {"a < b <tool", "", {}}},
    Case{"llama_whole_answer", "llama3_json", "none", "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}", {"", "", {{"f", "{\"q\": \"x\"}"}}}},
    Case{"llama_two", "llama3_json", "none", "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{\"a\":[1]}}", {"", "", {{"f", "{}"}, {"g", "{\"a\":[1]}"}}}},
    Case{"llama_json_that_is_no_call", "llama3_json", "none", "{\"answer\": 42}", {"{\"answer\": 42}", "", {}}},
    Case{"mistral_list", "mistral", "none", "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{\"a\":1}}]", {"", "", {{"f", "{\"a\":1}"}}}},
    Case{"mistral_named", "mistral", "none", "[TOOL_CALLS]f[ARGS]{\"a\":1}", {"", "", {{"f", "{\"a\":1}"}}}},
    Case{"think_then_call", "hermes", "think", "<think>\nwhat? <tool_call>\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", {"", "\nwhat? <tool_call>\n", {{"f", "{}"}}}},
    Case{"think_opened_by_the_prompt", "none", "think", "so\n</think>yes", {"yes", "so\n", {}}, true},
    Case{"no_thinking", "none", "think", "<thing> yes", {"<thing> yes", "", {}}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(ChatParserCase, IsTheSameInAnyPieces) {
  const Case& c = GetParam();
  const std::string_view text = c.text;
  for (std::size_t piece = 1; piece <= text.size(); ++piece) ASSERT_EQ(parse(c.style, c.reasoning, c.inside, text, piece), c.want) << "pieces of " << piece;
}

TEST(ChatParser, NeverLosesACharacterOfTextWithoutCalls) {
  std::mt19937 rng(5);
  const char* words[] = {"<tool_call>", "</tool_call>", "{", "}", "\"", "\n", " ", "x", "<th", "[TOOL_", "\\", "name", ":", "<"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = static_cast<int>(rng() % 12); i >= 0; --i) text += words[rng() % std::size(words)];
    for (const char* style : {"hermes", "mistral"}) {
      const Whole whole = parse(style, "none", false, text, text.size() + 1), small = parse(style, "none", false, text, 1 + rng() % 4);
      ASSERT_EQ(whole, small) << text;
    }
  }
}

}  // namespace
}  // namespace qengine::server
