#include "core/server/tool_grammar.hpp"

#include <algorithm>

#include "core/structured/regex.hpp"
#include "core/structured/schema.hpp"

namespace qengine::server {
namespace {

using structured::GrammarBuilder;
using structured::GrammarError;
using structured::RuleId;
using structured::StateId;

bool strict(const Json& tool) {
  const Json& f = tool["function"];
  return f.contains("strict") && f["strict"].is_boolean() && f["strict"].get<bool>();
}

// {"name": ..., "arguments": ...} of one of the tools.
RuleId add_call(GrammarBuilder& b, const ToolRule& rule, const char* arguments) {
  const RuleId r = b.rule();
  const StateId end = b.state();
  b.accept(end);
  for (const Json& tool : rule.tools) {
    const Json& f = tool["function"];
    const std::string name = f["name"].get<std::string>();
    // Where only strict tools ask for it, the others keep their freedom: any object.
    static const Json none = {{"type", "object"}, {"properties", Json::object()}};  // OpenAI: no parameters, an empty list
    const Json& parameters = f.contains("parameters") && !f["parameters"].is_null() ? f["parameters"] : none;
    RuleId value;
    try {
      value = rule.forced || strict(tool) ? structured::add_schema(b, parameters, {.blanks = true, .object = true}) : structured::add_any_object(b);
    } catch (const GrammarError& e) {
      throw GrammarError("tools/" + name + "/parameters" + e.place(), e.what());
    }
    const StateId begin = b.text(b.start(r), "{\"name\": " + structured::json_string(name) + ", \"" + arguments + "\": "), close = b.state();
    b.call(begin, value, close);
    b.text(close, "}", end);
  }
  return r;
}

// Free text in which every `tag` begins a call.
void free_text(GrammarBuilder& b, StateId at, const char* tag, StateId call, StateId end) {
  b.dfa(at, structured::up_to(tag, b.budget()), call);
  b.dfa(at, structured::never(tag, b.budget()), end);
}

}  // namespace

std::optional<ToolRule> tool_rule(const ApiRequest& r) {
  if (!r.chat || r.tools.is_null() || r.tools.empty()) return std::nullopt;
  ToolRule rule;
  rule.several = r.parallel_tool_calls;
  if (r.tool_choice == "required") {
    rule.tools = r.tools;
    rule.forced = true;
  } else if (r.tool_choice == "function") {
    rule.tools = Json::array();
    for (const Json& t : r.tools)
      if (t["function"]["name"] == r.tool_name) rule.tools.push_back(t);
    rule.forced = true;
    rule.several = false;
  } else if (r.tool_choice == "auto" && std::ranges::any_of(r.tools, strict)) {
    rule.tools = r.tools;
  } else {
    return std::nullopt;
  }
  return rule;
}

RuleId add_tool_calls(GrammarBuilder& b, const std::string& style, const ToolRule& rule) {
  const RuleId r = b.rule();
  const StateId end = b.state(), start = b.start(r);
  b.accept(end);
  if (style == "mistral") {
    const RuleId call = add_call(b, rule, "arguments");
    const StateId open = b.state(), after = b.state();
    if (rule.forced) b.text(start, "[TOOL_CALLS]", open);
    else free_text(b, start, "[TOOL_CALLS]", open, end);
    const StateId first = b.text(open, " [");
    b.call(first, call, after);
    if (rule.several) b.call(b.text(after, ", "), call, after);
    b.text(after, "]", end);
  } else if (style == "llama3_json") {  // a call is the whole answer
    b.call(start, add_call(b, rule, "parameters"), end);
    if (!rule.forced) b.dfa(start, structured::compile_regex("(?:[^\\s{][^]*)?", structured::RegexMode::kWhole, b.budget()), end);
  } else {
    const RuleId call = add_call(b, rule, "arguments");
    const StateId open = b.state(), close = b.state(), after = b.state();
    if (rule.forced) b.text(start, "<tool_call>", open);
    else free_text(b, start, "<tool_call>", open, end);
    b.call(b.text(open, "\n"), call, close);
    b.text(close, "\n</tool_call>", after);
    b.jump(after, end);
    if (rule.several) b.text(after, "\n<tool_call>", open);
  }
  return r;
}

}  // namespace qengine::server
