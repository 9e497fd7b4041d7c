#include "apps/qengine/chat_frame.hpp"

namespace qengine {
namespace {

// The form of Qwen2.5's and Hermes' own templates.
std::string tools_text(const Json& tools) {
  std::string out = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const Json& t : tools) out += "\n" + t.dump();
  return out + "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
}

// A model without a template: the conversation in plain lines.
std::string plain_text(const Json& messages) {
  std::string out;
  for (const Json& m : messages) {
    std::string role = m.value("role", std::string("user"));
    if (!role.empty() && role[0] >= 'a' && role[0] <= 'z') role[0] = static_cast<char>(role[0] - 'a' + 'A');
    out += role + ": " + (m.contains("content") && m["content"].is_string() ? m["content"].get<std::string>() : std::string()) + "\n";
  }
  return out + "Assistant:";
}

}  // namespace

ChatFrame::ChatFrame(const Invocation& in, std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
  const std::string file = in.values.knows("chat-template") ? in.values.text("chat-template") : "";
  const std::string source = file.empty() ? tokenizer_->chat_template() : read_text(file, 1 << 20);
  if (in.values.knows("default-chat-template-kwargs") && in.values.has("default-chat-template-kwargs")) {
    kwargs_ = Json::parse(in.values.text("default-chat-template-kwargs"), nullptr, false);
    if (!kwargs_.is_object()) throw Error("E101", "--default-chat-template-kwargs is not a JSON object").hint("for example --default-chat-template-kwargs '{\"enable_thinking\":false}'");
  }
  tool_parser_ = source.empty() ? "hermes" : server::detect_tool_parser(source);
  reasoning_ = source.empty() ? "none" : server::detect_reasoning_parser(source);
  if (!source.empty()) {
    template_.emplace(source, tokenizer_->bos_text(), tokenizer_->eos_text());
    const Json probe = Json::array({{{"role", "user"}, {"content", "x"}}});
    const Json tool = Json::array({{{"type", "function"}, {"function", {{"name", "probe_of_tools"}, {"description", "x"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
    try {
      takes_tools_ = render(probe, tool, Json::object()).find("probe_of_tools") != std::string::npos;
    } catch (const Error&) {  // its author did not think of tools
    }
  }
  if (!takes_tools_ || tool_parser_ == "none") tool_parser_ = "hermes";
}

std::string ChatFrame::render(const Json& messages, const Json& tools, const Json& kwargs) const {
  Json v = kwargs_;
  for (const auto& [key, value] : kwargs.items()) v[key] = value;
  v["messages"] = messages;
  v["add_generation_prompt"] = true;
  if (!tools.is_null() && !tools.empty()) v["tools"] = tools;
  return template_->render(v);
}

std::vector<std::int32_t> ChatFrame::prompt(const Json& messages, const Json& tools, const Json& kwargs) const {
  const bool any = tools.is_array() && !tools.empty();
  Json all = messages;
  if (any && !takes_tools_) {
    if (!all.empty() && all[0].value("role", std::string()) == "system" && all[0].contains("content") && all[0]["content"].is_string())
      all[0]["content"] = all[0]["content"].get<std::string>() + "\n\n" + tools_text(tools);
    else all.insert(all.begin(), Json{{"role", "system"}, {"content", tools_text(tools)}});
  }
  if (!template_) return tokenizer_->encode(plain_text(all), /*add_special=*/true);
  return tokenizer_->encode(render(all, any && takes_tools_ ? tools : Json(), kwargs), /*add_special=*/false);
}

ChatAnswer ChatFrame::read(const std::string& text, bool tools) const {
  const auto parser = server::make_chat_parser(tools ? tool_parser_ : "none", reasoning_, /*inside_reasoning=*/false);
  ChatAnswer a;
  for (const server::ChatDelta& d : {parser->push(text), parser->finish()}) {
    a.content += d.content;
    for (const server::ToolDelta& t : d.tools) {
      if (static_cast<std::size_t>(t.index) >= a.calls.size()) a.calls.resize(static_cast<std::size_t>(t.index) + 1);
      ToolCall& call = a.calls[static_cast<std::size_t>(t.index)];
      call.name += t.name;
      call.arguments += t.arguments;
    }
  }
  while (!a.content.empty() && (a.content.back() == '\n' || a.content.back() == ' ')) a.content.pop_back();
  a.content.erase(0, a.content.find_first_not_of(" \n"));
  return a;
}

std::string ChatFrame::how(bool tools) const {
  if (!template_) return "no chat template: plain lines";
  return !tools || takes_tools_ ? "the model's chat template" : "the model's chat template, tools in a system message";
}

}  // namespace qengine
