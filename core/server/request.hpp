// What a client asked for, read out of JSON and checked: every value is in range, every unsupported
// value was refused with the name of its field. Nothing here needs the engine.
//
// Fields: formats.md 10.1 and 10.3, vLLM's extras in serving.md 3.2.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/checkpoint.hpp"  // Json
#include "core/sampling/params.hpp"

namespace qengine::server {

// Caps of serving.md 3.4; each refusal names its number.
struct Limits {
  std::int64_t max_n = 128, max_prompts = 2048, max_stop = 64, max_logit_bias = 1024, max_tools = 256;
  std::int64_t max_logprobs = 20;  // --max-logprobs; -1: the whole vocabulary
  std::size_t max_schema_bytes = 1 << 20;
  int max_json_depth = 64;
  bool trust_request_chat_template = false;
};

// What the output must look like; compiled by the structured-output room.
struct Constraint {
  enum class Kind { kNone, kJsonObject, kJsonSchema, kRegex, kGrammar, kChoice };
  Kind kind = Kind::kNone;
  Json schema;                       // kJsonSchema
  std::string text;                  // kRegex, kGrammar
  std::vector<std::string> choices;  // kChoice
  bool blanks = true;                // white space between tokens of JSON,
  std::optional<std::string> blank_pattern;  // and what it looks like: a regular expression
  std::string param;                 // the field that asked for it
};

struct Prompt {
  std::string text;                // when !is_ids
  std::vector<std::int32_t> ids;   // used verbatim
  bool is_ids = false;
};

struct ApiRequest {
  bool chat = false;
  std::string model;           // "" = the served one
  std::vector<Prompt> prompts;  // completions
  Json messages;               // chat, an array
  Json tools;                  // array or null
  std::string tool_choice = "auto";  // auto none required function
  std::string tool_name;             // tool_choice function
  Json template_kwargs = Json::object();
  std::string chat_template;   // only with trust_request_chat_template
  bool parallel_tool_calls = true;
  bool add_generation_prompt = true, continue_final_message = false;
  std::optional<bool> add_special_tokens;

  SamplingParams sampling;     // max_tokens: see has_max_tokens; n is separate
  bool has_max_tokens = false;
  std::set<std::string, std::less<>> given;  // sampling fields that the client set
  std::int64_t n = 1;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool echo = false;
  bool return_token_ids = false, tokens_as_ids = false, include_reasoning = true;
  std::int64_t truncate_prompt_tokens = 0;  // 0: no
  std::vector<std::int32_t> allowed_token_ids;
  std::vector<std::string> bad_words;
  Constraint constraint;
  std::string cache_salt, request_id, user;
  std::vector<std::string> ignored_fields;  // unknown ones, for one debug line
};

// Parses a body: UTF-8 checked, depth bounded. Throws ApiError(invalid_json).
Json parse_body(std::string_view body, int max_depth);

ApiRequest read_completion(const Json& body, const Limits& limits);
ApiRequest read_chat(const Json& body, const Limits& limits);

}  // namespace qengine::server
