// tokenize: text or a chat to token ids, ids to text. Reads tokenizer files only, never weights.
#include <charconv>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/qengine/command.hpp"
#include "core/tokenizer/chat_template.hpp"
#include "core/tokenizer/tokenize_jsonl.hpp"

namespace qengine {
namespace {

const SettingGroup& tokenize_settings() {
  static const SettingGroup group{
      "Tokenize",
      {
          {.name = "model", .kind = Kind::kPath, .value = "DIR", .help = "model folder or GGUF file; MODEL is the same"},
          {.name = "tokenizer", .kind = Kind::kPath, .value = "DIR", .shown = "the model's",
           .help = "folder with tokenizer.json, or a GGUF file"},
          {.name = "text", .value = "TEXT", .shown = "stdin", .help = "text to encode"},
          {.name = "chat", .kind = Kind::kPath, .value = "FILE.json",
           .help = "messages, or {messages, tools, ...}, to render by the chat template and encode; - is stdin"},
          {.name = "chat-template", .kind = Kind::kPath, .value = "FILE", .shown = "the model's", .help = "Jinja template of the chat"},
          {.name = "decode", .kind = Kind::kList, .value = "IDS", .help = "ids to turn into text: 1,2,3"},
          {.name = "add-special-tokens", .kind = Kind::kBool, .fallback = "true",
           .help = "put BOS and the like around a text, as the model wants it; a chat brings its own"},
          {.name = "skip-special-tokens", .kind = Kind::kBool, .fallback = "false", .help = "leave special tokens out of decoded text"},
          {.name = "jsonl", .kind = Kind::kBool, .fallback = "false",
           .help = "one JSON object a line on stdin, one on stdout: text, ids or chat"},
      }};
  return group;
}

std::string read_all(const std::string& path, const char* flag) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in && text.empty()) throw Error("E101", std::string("--") + flag + " " + path + " cannot be read");
  return text;
}

std::string render(const Tokenizer& tokenizer, const Values& values) {
  const std::string path = values.text("chat");
  Json request;
  try {
    request = Json::parse(read_all(path, "chat"));
  } catch (const Json::exception& e) {
    throw Error("E101", "--chat " + path + " is not valid JSON").from(e.what());
  }
  if (request.is_array()) {
    Json messages = std::move(request);
    request = Json::object();
    request["messages"] = std::move(messages);
    request["add_generation_prompt"] = true;
  }
  if (!request.is_object()) throw Error("E101", "--chat " + path + " is neither a list of messages nor an object with one");
  if (!values.has("chat-template")) return render_chat(tokenizer, request);
  const std::string source = read_all(values.text("chat-template"), "chat-template");
  return ChatTemplate(source, tokenizer.bos_text(), tokenizer.eos_text()).render(request);
}

std::vector<std::int32_t> parse_ids(const std::vector<std::string>& texts) {
  std::vector<std::int32_t> ids;
  for (const std::string& t : texts) {
    std::int32_t id = 0;
    const auto r = std::from_chars(t.data(), t.data() + t.size(), id);
    if (r.ec != std::errc() || r.ptr != t.data() + t.size() || id < 0) throw Error("E101", "--decode " + t + " is no token id");
    ids.push_back(id);
  }
  return ids;
}

int run_tokenize(const Invocation& in) {
  const Values& v = in.values;
  const std::string path = v.has("tokenizer") ? v.text("tokenizer") : v.text("model");
  if (path.empty()) throw Error("E101", "tokenize needs a model or a tokenizer").hint("qengine tokenize MODEL --text TEXT, or --tokenizer DIR");
  const auto tokenizer = Tokenizer::load(path);

  if (v.flag("jsonl")) {
    for (std::string line; std::getline(std::cin, line);)
      if (line.find_first_not_of(" \t\r") != std::string::npos) print(tokenize_jsonl(tokenizer, line) + "\n");
    return 0;
  }

  std::string text;
  std::vector<std::int32_t> ids;
  if (v.has("decode")) {
    ids = parse_ids(v.list("decode"));
    text = tokenizer->decode(ids, v.flag("skip-special-tokens"));
    if (!in.json()) return print(text + "\n"), 0;
  } else if (v.has("chat")) {
    text = render(*tokenizer, v);
    ids = tokenizer->encode(text, false);
  } else {
    text = v.has("text") ? v.text("text") : read_all("-", "text");
    ids = tokenizer->encode(text, v.flag("add-special-tokens"));
  }

  Json pieces = Json::array();
  for (const std::int32_t id : ids) pieces.push_back(tokenizer->piece(id));
  if (in.json()) {
    Json document = json_document(in.command);
    document["tokens"] = ids;
    document["pieces"] = std::move(pieces);
    document["count"] = ids.size();
    document["text"] = text;
    print_json(document);
    return 0;
  }
  for (std::size_t i = 0; i < ids.size(); ++i)
    print(std::to_string(ids[i]) + "\t" + pieces[i].dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  note(in, std::to_string(ids.size()) + " tokens");
  return 0;
}

}  // namespace

extern const Command tokenize_command;
const Command tokenize_command = {
    .name = "tokenize",
    .summary = "text or a chat to token ids, ids to text",
    .usage = {"MODEL --text TEXT", "--tokenizer DIR --chat MESSAGES.json", "--tokenizer DIR --decode 1,2,3", "--tokenizer DIR --jsonl"},
    .details = "A folder with tokenizer.json or a GGUF file is enough; no weights are read.",
    .groups = {&tokenize_settings()},
    .positional = "model",
    .run = run_tokenize};

}  // namespace qengine
