#include "core/server/request.hpp"

#include <gtest/gtest.h>

#include "core/server/api_error.hpp"

namespace qengine::server {
namespace {

ApiError refusal(bool chat, const char* body) {
  try {
    const Json j = parse_body(body, 64);
    chat ? read_chat(j, {}) : read_completion(j, {});
  } catch (const ApiError& e) {
    return e;
  }
  ADD_FAILURE() << "accepted: " << body;
  return ApiError("");
}

TEST(CompletionRequest, EveryKindOfPrompt) {
  const auto read = [](const char* body) { return read_completion(parse_body(body, 64), {}); };
  EXPECT_EQ(read(R"({"prompt":"a"})").prompts.at(0).text, "a");
  EXPECT_EQ(read(R"({"prompt":["a","b"]})").prompts.size(), 2u);
  EXPECT_EQ(read(R"({"prompt":[1,2]})").prompts.at(0).ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(read(R"({"prompt":[[1],[2,3]]})").prompts.at(1).ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(read(R"({"prompt":"a"})").sampling.max_tokens, 16);
  EXPECT_EQ(read(R"({"prompt":"a","frobnicate":1})").ignored_fields, std::vector<std::string>{"frobnicate"});
}

TEST(CompletionRequest, Constraints) {
  const auto read = [](const char* body) { return read_completion(parse_body(body, 64), {}).constraint; };
  EXPECT_EQ(read(R"({"prompt":"a","response_format":{"type":"text"}})").kind, Constraint::Kind::kNone);
  EXPECT_EQ(read(R"({"prompt":"a","response_format":{"type":"json_object"}})").kind, Constraint::Kind::kJsonObject);
  const Constraint schema = read(R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"z":1,"a":2}}}})");
  EXPECT_EQ(schema.kind, Constraint::Kind::kJsonSchema);
  EXPECT_EQ(schema.schema.dump(), R"({"z":1,"a":2})");  // in the client's order
  EXPECT_EQ(schema.param, "response_format.json_schema.schema");
  EXPECT_EQ(read(R"({"prompt":"a","guided_choice":["x","y"]})").choices.size(), 2u);
  EXPECT_EQ(read(R"({"prompt":"a","guided_json":"{\"type\":\"null\"}"})").schema.dump(), R"({"type":"null"})");
  EXPECT_FALSE(read(R"({"prompt":"a","structured_outputs":{"json":{},"disable_any_whitespace":true}})").blanks);
  EXPECT_EQ(read(R"({"prompt":"a","structured_outputs":{"regex":"a+"}})").text, "a+");
  EXPECT_EQ(read(R"({"prompt":"a","structured_outputs":{"json":{},"whitespace_pattern":" ?"}})").blank_pattern, " ?");
  EXPECT_EQ(read(R"({"prompt":"a","guided_json":{},"guided_whitespace_pattern":""})").blank_pattern, "");
  const Constraint grammar = read(R"({"prompt":"a","structured_outputs":{"grammar":"root ::= \"x\""}})");
  EXPECT_EQ(grammar.kind, Constraint::Kind::kGrammar);
  EXPECT_EQ(grammar.text, "root ::= \"x\"");
  EXPECT_EQ(read(R"({"prompt":"a","guided_grammar":"root ::= []"})").param, "guided_grammar");
}

TEST(CompletionRequest, RefusalsNameTheField) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"({})", "prompt", ""},
      {R"({"prompt":5})", "prompt", ""},
      {R"({"prompt":[]})", "prompt", ""},
      {R"({"prompt":[[]]})", "prompt[0]", ""},
      {R"({"prompt":[-1]})", "prompt", ""},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens", ""},
      {R"({"prompt":"a","max_tokens":1.5})", "max_tokens", ""},
      {R"({"prompt":"a","max_tokens":0})", "max_tokens", ""},
      {R"({"prompt":"a","temperature":"hot"})", "temperature", ""},
      {R"({"prompt":"a","top_p":0})", "top_p", ""},
      {R"({"prompt":"a","n":129})", "n", ""},
      {R"({"prompt":"a","logprobs":21})", "logprobs", ""},
      {R"({"prompt":"a","suffix":"x"})", "suffix", "unsupported_parameter"},
      {R"({"prompt":"a","best_of":3})", "best_of", "unsupported_parameter"},
      {R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias", ""},
      {R"({"prompt":"a","logit_bias":{"1":101}})", "logit_bias", ""},
      {R"({"prompt":"a","stream_options":{}})", "stream_options", ""},
      {R"({"prompt":"a","stream":true,"prompt_logprobs":1})", "prompt_logprobs", ""},
      {R"({"prompt":"a","response_format":{"type":"xml"}})", "response_format.type", ""},
      {R"({"prompt":"a","structured_outputs":{"grammar":["root"]}})", "structured_outputs.grammar", ""},
      {R"({"prompt":"a","structured_outputs":{"lark":"start: x"}})", "structured_outputs.lark", "unsupported_parameter"},
      {R"({"prompt":"a","structured_outputs":{"json":{},"whitespace_pattern":5}})", "structured_outputs.whitespace_pattern", ""},
      {R"({"prompt":"a","structured_outputs":{"json":{},"whitespace_pattern":" ","disable_any_whitespace":true}})", "structured_outputs.whitespace_pattern", ""},
      {R"({"prompt":"a","structured_outputs":{"choice":[]}})", "structured_outputs.choice", ""},
      {R"({"prompt":"a","guided_regex":"a","response_format":{"type":"json_object"}})", "guided_regex", ""},
  };
  for (const auto& [body, param, code] : cases) {
    const ApiError e = refusal(false, body);
    EXPECT_EQ(e.status, 400) << body;
    EXPECT_EQ(e.param, param) << body;
    EXPECT_EQ(e.code, code) << body;
  }
}

TEST(ChatRequest, RefusalsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[{"role":"wizard","content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":3})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", "tool_choice"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})", "tools[0]"},
      {R"({"messages":[{"role":"user","content":"a"}],"chat_template":"x"})", "chat_template"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(refusal(true, body).param, param) << body;
}

TEST(ChatRequest, PartsJoinAndArgumentsBecomeObjects) {
  const ApiRequest r = read_chat(parse_body(R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]}]})", 64), {});
  EXPECT_EQ(r.messages[0]["role"], "system");
  EXPECT_EQ(r.messages[0]["content"], "a\nb");
  EXPECT_EQ(r.messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
}

TEST(Body, DepthAndSyntaxAreBounded) {
  const std::string deep(100000, '[');
  for (const std::string& body : {std::string("{"), deep, std::string("{\"a\":\xff}"), std::string("")}) {
    try {
      parse_body(body, 64);
      ADD_FAILURE() << "accepted";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.code, "invalid_json");
      EXPECT_LT(e.message.size(), 500u);
    }
  }
}

}  // namespace
}  // namespace qengine::server
