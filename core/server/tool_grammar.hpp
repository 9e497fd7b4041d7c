// The form of tool calls as a grammar: what chat_parser.hpp reads, and the schema of each tool's
// arguments inside it.
#pragma once

#include <optional>
#include <string>

#include "core/server/request.hpp"
#include "core/structured/grammar.hpp"

namespace qengine::server {

struct ToolRule {
  Json tools;            // those that may be called, as in the request
  bool forced = false;   // the answer is a call; else calls may stand in free text (strict tools)
  bool several = false;  // more than one call may follow
};

// nullopt: calls are not constrained.
std::optional<ToolRule> tool_rule(const ApiRequest& request);

// Throws GrammarError whose place begins with "tools/NAME".
structured::RuleId add_tool_calls(structured::GrammarBuilder& builder, const std::string& style, const ToolRule& rule);

}  // namespace qengine::server
