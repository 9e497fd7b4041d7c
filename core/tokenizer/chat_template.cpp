#include "core/tokenizer/chat_template.hpp"

#include "core/base/error.hpp"
#include "core/tokenizer/jinja/interpreter.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

constexpr std::size_t kMaxSource = 1 << 20;

std::string place(const jinja::Failure& f) {
  return f.pos.line > 0 ? "line " + std::to_string(f.pos.line) + ", column " + std::to_string(f.pos.column) + ": " : "";
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Body body;
  std::string bos, eos;
};

ChatTemplate::ChatTemplate(std::string source, std::string bos_token, std::string eos_token) : program_(std::make_unique<Program>()) {
  program_->bos = std::move(bos_token);
  program_->eos = std::move(eos_token);
  if (source.size() > kMaxSource) throw Error("E504", "chat_template has " + std::to_string(source.size()) + " bytes").from("at most 1 MiB");
  try {
    program_->body = jinja::parse(unicode::sanitize(source));
  } catch (const jinja::Failure& f) {
    throw Error("E504", "chat_template does not parse: " + place(f) + f.what()).hint("--chat-template FILE names another one");
  }
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const Json& variables) const {
  const auto messages = variables.is_object() ? variables.find("messages") : variables.end();
  if (!variables.is_object() || messages == variables.end() || !messages->is_array() || messages->empty())
    throw Error("E504", "a chat needs at least one message").from("messages is empty or no list");
  try {
    // Every template finds these, also where the request says nothing of them.
    std::vector<std::pair<std::string, jinja::Value>> globals;
    globals.emplace_back("tools", jinja::Value::none());
    globals.emplace_back("documents", jinja::Value::none());
    globals.emplace_back("add_generation_prompt", jinja::Value::boolean(false));
    if (!program_->bos.empty()) globals.emplace_back("bos_token", jinja::Value::string(program_->bos));
    if (!program_->eos.empty()) globals.emplace_back("eos_token", jinja::Value::string(program_->eos));
    const std::size_t defaults = globals.size();
    for (const auto& [name, json] : variables.items()) {
      jinja::Value v = jinja::Value::from_json(json);
      bool known = false;
      for (std::size_t i = 0; i < defaults; ++i)
        if (globals[i].first == name) globals[i].second = v, known = true;
      if (!known) globals.emplace_back(name, std::move(v));
    }
    return jinja::Interpreter(std::move(globals)).render(program_->body);
  } catch (const jinja::Failure& f) {
    if (f.raised) throw Error("E504", "the chat template refuses these messages: " + std::string(f.what()));
    throw Error("E504", "chat_template failed: " + place(f) + f.what());
  }
}

}  // namespace qengine
