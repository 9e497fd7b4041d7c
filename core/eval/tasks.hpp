// Structured extraction and tool calls: the cases, and how an answer is judged. Running a model is the commands' part.
//
// A case is one JSON object a line:
//   structured  {"id", "text" or "messages", "schema", "expected"?}
//   tools       {"id", "text" or "messages", "tools", "expected": [{"name","arguments"}, ...], [] for no call}
// "text" is a user's message; structured cases get a standard instruction around it. "tools" is a list in OpenAI's form, or the
// name of a line {"toolset": NAME, "tools": [...]} further up. Schemas are JSON Schema (draft 4 to 7).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace qengine {

enum class Suite { kStructured, kTools };
const char* to_string(Suite);

struct TaskCase {
  Suite suite = Suite::kStructured;
  std::string id;
  nlohmann::ordered_json messages;  // OpenAI's form
  nlohmann::ordered_json schema;    // structured
  nlohmann::ordered_json tools;     // tools
  nlohmann::ordered_json expected;  // null: not said
};

// The 18 extractions or 36 tool calls that are built in.
std::vector<TaskCase> built_in_tasks(Suite suite);
// `name` stands for the text in messages. Throws Error E101 with its line.
std::vector<TaskCase> parse_tasks(Suite suite, std::string_view text, const std::string& name);

struct ToolCall {
  std::string name, arguments;  // arguments: JSON as it was written
};

// What was asked for, in the order in which things go wrong. A later one is only ever true when the earlier ones are.
struct StructuredScore {
  bool bare = false;    // apart from the order: the whole answer is one JSON value, no fence, no further text
  bool parsed = false;  // a JSON value is in it
  bool valid = false;   // and follows the schema
  bool exact = false;   // and equals what was expected (or nothing was)
  bool ok() const { return exact; }
  std::string why;      // the first thing that is wrong; "" when ok
};
struct ToolScore {
  bool called = false;  // called when it should, and not otherwise
  bool parsed = false;  // every call has JSON arguments
  bool known = false;   // and a name that exists
  bool valid = false;   // and arguments that follow its schema
  bool matched = false;  // and they are the calls that were expected, in any order
  bool ok() const { return matched; }
  std::string why;
};

StructuredScore score_structured(const TaskCase& c, std::string_view answer);
// `calls`: what the parser of tool calls found in the answer.
ToolScore score_tools(const TaskCase& c, const std::vector<ToolCall>& calls);

// The schema that any call of these tools follows: {"name": one of them, "arguments": its parameters}.
nlohmann::ordered_json call_schema(const nlohmann::ordered_json& tools);

// "" or the first way in which `value` breaks `schema`. Throws Error E101 when the schema itself is broken.
std::string schema_violation(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value);

}  // namespace qengine
