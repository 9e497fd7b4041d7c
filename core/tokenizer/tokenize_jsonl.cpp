#include "core/tokenizer/tokenize_jsonl.hpp"

#include "core/base/error.hpp"
#include "core/tokenizer/chat_template.hpp"

namespace qengine {
namespace {

std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json failure(const std::string& what) { return {{"error", what}}; }

// A string, or what the tokenizer says where the key is absent. null: none.
std::string special(const Json& in, const char* key, std::string otherwise) {
  const auto it = in.find(key);
  if (it == in.end()) return otherwise;
  if (it->is_null()) return {};
  if (!it->is_string()) throw Error("E107", std::string(key) + " is no string");
  return it->get<std::string>();
}

std::string model_template(const Tokenizer& t, bool tools) {
  std::string source = tools ? t.chat_template("tool_use") : std::string();
  if (source.empty()) source = t.chat_template();
  if (source.empty())
    throw Error("E504", "no chat template: the model's files have none").hint("--chat-template FILE, or send the prompt as plain text");
  return source;
}

bool has_tools(const Json& variables) {
  const auto tools = variables.find("tools");
  return tools != variables.end() && tools->is_array() && !tools->empty();
}

Json encode(const Tokenizer& t, const Json& in) {
  if (!in["text"].is_string()) throw Error("E107", "text is no string");
  const auto flag = in.find("add_special_tokens");
  if (flag != in.end() && !flag->is_boolean()) throw Error("E107", "add_special_tokens is neither true nor false");
  return {{"tokens", t.encode(in["text"].get<std::string>(), flag == in.end() || flag->get<bool>())}};
}

Json decode(const std::shared_ptr<const Tokenizer>& t, const Json& in) {
  if (!in["ids"].is_array()) throw Error("E107", "ids is no list");
  StreamDecoder stream(t, /*skip_special=*/false);
  std::string text;
  Json chunks = Json::array();
  for (const Json& id : in["ids"]) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= t->size())
      throw Error("E107", "ids holds " + dump(id).substr(0, 40) + ", expected 0 to " + std::to_string(t->size() - 1));
    chunks.push_back(stream.push(id.get<std::int32_t>()));
    text += chunks.back().get_ref<const std::string&>();
  }
  const std::string flush = stream.flush();
  return {{"text", text + flush}, {"chunks", std::move(chunks)}, {"flush", flush}};
}

Json chat(const Tokenizer& t, const Json& in) {
  const Json& variables = in["chat"];
  if (!variables.is_object()) throw Error("E107", "chat is no object");
  const auto source = in.find("template");
  if (source != in.end() && !source->is_string() && !source->is_null()) throw Error("E107", "template is no string");
  const bool own = source != in.end() && source->is_string();
  const ChatTemplate chat_template(own ? source->get<std::string>() : model_template(t, has_tools(variables)),
                                   special(in, "bos_token", t.bos_text()), special(in, "eos_token", t.eos_text()));
  const std::string text = chat_template.render(variables);
  return {{"text", text}, {"tokens", t.encode(text, false)}};
}

}  // namespace

std::string render_chat(const Tokenizer& t, const Json& variables) {
  return ChatTemplate(model_template(t, has_tools(variables)), t.bos_text(), t.eos_text()).render(variables);
}

std::string tokenize_jsonl(const std::shared_ptr<const Tokenizer>& t, std::string_view line) {
  try {
    const Json in = Json::parse(line);
    if (!in.is_object()) return dump(failure("the line is no JSON object"));
    if (in.contains("chat")) return dump(chat(*t, in));
    if (in.contains("ids")) return dump(decode(t, in));
    if (in.contains("text")) return dump(encode(*t, in));
    return dump(failure("the line has none of text, ids and chat"));
  } catch (const Json::exception& e) {
    return dump(failure(std::string("the line is not valid JSON: ") + e.what()));
  } catch (const std::exception& e) {
    return dump(failure(e.what()));
  }
}

}  // namespace qengine
