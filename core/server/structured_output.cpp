#include "core/server/structured_output.hpp"

#include <optional>

#include "core/server/api_error.hpp"
#include "core/server/tool_grammar.hpp"
#include "core/structured/ebnf.hpp"
#include "core/structured/regex.hpp"
#include "core/structured/schema.hpp"

namespace qengine::server {
namespace {

using structured::GrammarBuilder;
using structured::GrammarError;
using structured::RuleId;
using structured::StateId;

RuleId constraint_rule(GrammarBuilder& b, const Constraint& c) {
  const structured::SchemaOptions options{.blanks = c.blanks, .blank_pattern = c.blank_pattern};
  switch (c.kind) {
    case Constraint::Kind::kJsonObject: return structured::add_any_object(b, options);
    case Constraint::Kind::kJsonSchema: return structured::add_schema(b, c.schema, options);
    case Constraint::Kind::kRegex: {
      const RuleId r = b.rule();
      const StateId end = b.state();
      b.accept(end);
      b.dfa(b.start(r), structured::compile_regex(c.text, structured::RegexMode::kWhole, b.budget()), end);
      return r;
    }
    case Constraint::Kind::kGrammar: return structured::add_ebnf(b, c.text);
    default: {  // kChoice
      const RuleId r = b.rule();
      const StateId end = b.state();
      b.accept(end);
      b.dfa(b.start(r), structured::one_of({c.choices.begin(), c.choices.end()}, b.budget()), end);
      return r;
    }
  }
}

// <think>...</think> before what `root` says; `inside`: the prompt has opened it.
RuleId after_reasoning(GrammarBuilder& b, RuleId root, bool inside) {
  const RuleId r = b.rule();
  const StateId thought = b.state(), go = b.state(), end = b.state(), start = b.start(r);
  b.accept(end);
  b.dfa(inside ? start : b.text(start, "<think>"), structured::up_to("</think>", b.budget()), thought);
  b.jump(thought, go);
  b.jump(b.text(thought, "\n"), go);
  b.jump(b.text(thought, "\n\n"), go);
  if (!inside) b.jump(start, go);
  b.call(go, root, end);
  return r;
}

}  // namespace

StructuredOutput::StructuredOutput(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens, std::string tool_style, std::string reasoning)
    : compiler_(std::move(tokenizer), std::move(end_tokens)), tool_style_(tool_style.empty() || tool_style == "none" ? "hermes" : std::move(tool_style)), reasoning_(std::move(reasoning)) {}

std::shared_ptr<const structured::Automaton> StructuredOutput::compile(const ApiRequest& r, bool inside_reasoning) {
  const Constraint& c = r.constraint;
  const bool constrained = c.kind != Constraint::Kind::kNone;
  const std::optional<ToolRule> tools = tool_rule(r);
  if (tools && constrained && tools->forced)
    throw ApiError("tool_choice \"" + r.tool_choice + "\" and " + c.param + " cannot both shape the answer; give one", "tool_choice", "invalid_grammar");
  if (!constrained && !tools) return nullptr;

  std::string key = reasoning_ + (inside_reasoning ? " inside " : " ");
  if (constrained) {
    key += std::to_string(static_cast<int>(c.kind)) + (c.blanks ? "b" : "") + (c.blank_pattern ? std::to_string(c.blank_pattern->size()) + ":" + *c.blank_pattern : "") + "\n" + c.text + (c.kind == Constraint::Kind::kJsonSchema ? c.schema.dump() : "");
    for (const std::string& choice : c.choices) key += std::to_string(choice.size()) + ":" + choice;
  } else {
    key += "tools " + std::string(tools->forced ? "forced " : "free ") + (tools->several ? "several " : "one ") + tools->tools.dump();
  }
  const bool reasons = r.chat && !reasoning_.empty() && reasoning_ != "none";
  try {
    return compiler_.compile(key, [&](GrammarBuilder& b) {
      const RuleId root = constrained ? constraint_rule(b, c) : add_tool_calls(b, tool_style_, *tools);
      return reasons ? after_reasoning(b, root, inside_reasoning) : root;
    });
  } catch (const GrammarError& e) {
    const std::string param = constrained ? c.param : "tools", place = e.place();
    std::string where = constrained ? (c.kind == Constraint::Kind::kJsonSchema ? "the schema" : param) : "the schema of a tool";
    if (!place.empty()) where = constrained ? "the schema at #" + place : place;
    std::string what = e.what();
    if (c.kind == Constraint::Kind::kGrammar && !place.empty()) throw ApiError("the grammar at " + place + ": " + what, param, "invalid_grammar");
    throw ApiError(where + (what.starts_with("the ") || what.starts_with("$ref") || what.starts_with("format") || what.starts_with("alternatives") ? ": " : " ") + what, param, "invalid_grammar");
  }
}

}  // namespace qengine::server
