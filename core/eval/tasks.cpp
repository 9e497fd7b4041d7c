#include "core/eval/tasks.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "core/base/error.hpp"

namespace qengine {

extern const char* const kStructuredTasks;  // config/tasks/*.jsonl, compiled in
extern const char* const kToolTasks;

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShown = 160;

std::string excerpt(std::string_view text) {
  std::string out(text.substr(0, kShown));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text.size() > kShown ? out + "..." : out;
}

Json user_message(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

std::string instruction(const std::string& text, const Json& schema) {
  return "Extract the information from the text as one JSON object that follows this JSON schema:\n" + schema.dump() + "\nAnswer with the JSON object alone, without any other words.\n\nText: " + text;
}

// Equal, numbers by value (3 and 3.0), members in any order, texts without outer blanks.
bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  if (a.type() != b.type() && !(a.is_structured() && b.is_structured())) return false;
  if (a.is_string()) {
    const auto trimmed = [](std::string s) {
      s.erase(0, std::min(s.find_first_not_of(" \t\n"), s.size()));
      s.erase(s.find_last_not_of(" \t\n") + 1);
      return s;
    };
    return trimmed(a.get<std::string>()) == trimmed(b.get<std::string>());
  }
  if (a.is_array()) return b.is_array() && a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
  if (!a.is_object()) return a == b;
  if (!b.is_object() || a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || !same(value, b[key])) return false;
  return true;
}

// The JSON value in an answer: the whole of it, what a fence holds, or from the first bracket to its partner.
std::optional<Json> find_json(std::string_view answer, bool& bare) {
  const auto whole = Json::parse(answer, nullptr, false);
  bare = !whole.is_discarded();
  if (bare) return whole;
  const auto open = answer.find_first_of("{[");
  if (open == answer.npos) return std::nullopt;
  int depth = 0;
  bool text = false;
  for (std::size_t i = open; i < answer.size(); ++i) {
    const char c = answer[i];
    if (text) {
      if (c == '\\') ++i;
      else if (c == '"') text = false;
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      const auto part = Json::parse(answer.substr(open, i - open + 1), nullptr, false);
      if (!part.is_discarded()) return part;
      return std::nullopt;
    }
  }
  return std::nullopt;
}

const Json* find_tool(const Json& tools, const std::string& name) {
  for (const Json& t : tools)
    if (t["function"]["name"] == name) return &t["function"];
  return nullptr;
}

}  // namespace

const char* to_string(Suite s) { return s == Suite::kStructured ? "structured" : "tools"; }

std::vector<TaskCase> built_in_tasks(Suite suite) {
  return suite == Suite::kStructured ? parse_tasks(suite, kStructuredTasks, "config/tasks/structured.jsonl") : parse_tasks(suite, kToolTasks, "config/tasks/tools.jsonl");
}

std::vector<TaskCase> parse_tasks(Suite suite, std::string_view text, const std::string& name) {
  std::vector<TaskCase> out;
  std::map<std::string, Json> sets;
  std::size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view one = text.substr(begin, end - begin);
    begin = end + 1;
    if (one.find_first_not_of(" \t\r") == one.npos) continue;
    const auto wrong = [&](const std::string& what) { return Error("E101", name + ":" + std::to_string(line) + ": " + what); };
    const Json j = Json::parse(one, nullptr, false);
    if (!j.is_object()) throw wrong("expected a JSON object");
    const auto check_tools = [&](const Json& tools) {
      if (!tools.is_array() || tools.empty()) throw wrong("\"tools\" is no list of tools");
      for (const Json& t : tools)
        if (!t.is_object() || !t.contains("function") || !t["function"].is_object() || !t["function"].contains("name") || !t["function"]["name"].is_string())
          throw wrong("a tool is not {\"type\":\"function\",\"function\":{\"name\",...}}");
    };
    if (j.contains("toolset")) {
      if (!j["toolset"].is_string() || !j.contains("tools")) throw wrong("a toolset needs a name and \"tools\"");
      check_tools(j["tools"]);
      sets[j["toolset"].get<std::string>()] = j["tools"];
      continue;
    }
    TaskCase c;
    c.suite = suite;
    c.id = j.contains("id") && j["id"].is_string() ? j["id"].get<std::string>() : "line " + std::to_string(line);
    if (j.contains("expected")) c.expected = j["expected"];
    if (suite == Suite::kStructured) {
      if (!j.contains("schema") || !j["schema"].is_object()) throw wrong("\"schema\" is no JSON schema");
      c.schema = j["schema"];
      schema_violation(c.schema, Json());  // throws when it is broken
    } else {
      if (!j.contains("tools")) throw wrong("no \"tools\"");
      c.tools = j["tools"];
      if (c.tools.is_string()) {
        const auto it = sets.find(c.tools.get<std::string>());
        if (it == sets.end()) throw wrong("no toolset is called \"" + c.tools.get<std::string>() + "\" above this line");
        c.tools = it->second;
      }
      check_tools(c.tools);
      if (c.expected.is_object()) c.expected = Json::array({c.expected});
      if (!c.expected.is_array()) throw wrong("\"expected\" is no list of calls").hint("[] when nothing should be called");
      for (const Json& call : c.expected)
        if (!call.is_object() || !call.contains("name") || !call["name"].is_string() || !find_tool(c.tools, call["name"].get<std::string>())) throw wrong("\"expected\" names a tool that is not there");
    }
    if (j.contains("messages") && j["messages"].is_array() && !j["messages"].empty()) c.messages = j["messages"];
    else if (j.contains("text") && j["text"].is_string()) c.messages = Json::array({user_message(suite == Suite::kStructured ? instruction(j["text"].get<std::string>(), c.schema) : j["text"].get<std::string>())});
    else throw wrong("neither \"messages\" nor \"text\"");
    out.push_back(std::move(c));
  }
  if (out.empty()) throw Error("E101", name + " holds no case");
  return out;
}

StructuredScore score_structured(const TaskCase& c, std::string_view answer) {
  StructuredScore s;
  const auto value = find_json(answer, s.bare);
  if (!value) return s.why = "no JSON value in: " + excerpt(answer), s;
  s.parsed = true;
  if (const std::string broken = schema_violation(c.schema, *value); !broken.empty()) return s.why = "schema: " + broken + ", in: " + excerpt(value->dump()), s;
  s.valid = true;
  if (!c.expected.is_null() && !same(*value, c.expected)) return s.why = "expected " + excerpt(c.expected.dump()) + ", got " + excerpt(value->dump()), s;
  s.exact = true;
  return s;
}

ToolScore score_tools(const TaskCase& c, const std::vector<ToolCall>& calls) {
  ToolScore s;
  if (c.expected.empty()) {
    if (!calls.empty()) return s.why = "called " + calls[0].name + ", and nothing should be", s;
    s.called = s.parsed = s.known = s.valid = s.matched = true;
    return s;
  }
  if (calls.empty()) return s.why = "called nothing", s;
  s.called = true;
  std::vector<Json> arguments;
  for (const ToolCall& call : calls) {
    arguments.push_back(Json::parse(call.arguments, nullptr, false));
    if (!arguments.back().is_object()) return s.why = "arguments of " + call.name + " are no JSON object: " + excerpt(call.arguments), s;
  }
  s.parsed = true;
  for (const ToolCall& call : calls)
    if (!find_tool(c.tools, call.name)) return s.why = "no tool is called " + excerpt(call.name), s;
  s.known = true;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Json& tool = *find_tool(c.tools, calls[i].name);
    if (!tool.contains("parameters")) continue;
    if (const std::string broken = schema_violation(tool["parameters"], arguments[i]); !broken.empty()) return s.why = calls[i].name + ": " + broken + ", in: " + excerpt(arguments[i].dump()), s;
  }
  s.valid = true;
  std::vector<bool> used(calls.size());
  for (const Json& want : c.expected) {
    const Json none = Json::object();
    const Json& wanted = want.contains("arguments") ? want["arguments"] : none;
    std::size_t i = 0;
    while (i < calls.size() && (used[i] || calls[i].name != want["name"].get<std::string>() || !same(arguments[i], wanted))) ++i;
    if (i == calls.size()) return s.why = "expected " + want["name"].get<std::string>() + " " + excerpt(wanted.dump()) + ", got " + calls[0].name + " " + excerpt(arguments[0].dump()), s;
    used[i] = true;
  }
  if (calls.size() != c.expected.size()) return s.why = std::to_string(calls.size()) + " calls, expected " + std::to_string(c.expected.size()), s;
  s.matched = true;
  return s;
}

nlohmann::ordered_json call_schema(const nlohmann::ordered_json& tools) {
  Json any = Json::array();
  for (const Json& t : tools) {
    const Json& f = t["function"];
    any.push_back({{"type", "object"},
                   {"properties", {{"name", {{"const", f["name"]}}}, {"arguments", f.contains("parameters") ? f["parameters"] : Json{{"type", "object"}}}}},
                   {"required", {"name", "arguments"}},
                   {"additionalProperties", false}});
  }
  return any.size() == 1 ? any[0] : Json{{"anyOf", std::move(any)}};
}

std::string schema_violation(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value) {
  const auto plain = [](const Json& j) { return nlohmann::json::parse(j.dump(-1, ' ', false, Json::error_handler_t::replace)); };
  const nlohmann::json rules = plain(schema), checked = plain(value);
  valijson::Schema parsed;
  try {
    valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(rules), parsed);
  } catch (const std::exception& e) {
    throw Error("E101", std::string("a JSON schema is broken: ") + e.what()).in(excerpt(schema.dump()));
  }
  valijson::ValidationResults results;
  try {
    if (valijson::Validator().validate(parsed, valijson::adapters::NlohmannJsonAdapter(checked), &results)) return {};
  } catch (const std::exception& e) {  // a pattern that std::regex does not take
    return e.what();
  }
  // The last one is the innermost: "Failed to validate against child schema" comes after what failed.
  valijson::ValidationResults::Error error, first;
  bool any = false;
  while (results.popError(error)) {
    if (!any) first = error, any = true;
  }
  std::string where;
  for (const std::string& part : first.context) where += part == "<root>" ? "" : part;
  return (where.empty() ? "" : where + ": ") + first.description;
}

}  // namespace qengine
