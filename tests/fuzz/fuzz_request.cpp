// Bodies of requests: refused in OpenAI's shape, or a request whose numbers the engine may use; and
// what a model writes gives the same answer whole and in pieces.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/server/api_error.hpp"
#include "core/server/chat_parser.hpp"
#include "core/server/request.hpp"

using namespace qengine;
using namespace qengine::server;

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

void check(const ApiRequest& r, const Limits& limits) {
  require(r.n >= 1 && r.n <= limits.max_n);
  require(r.sampling.max_tokens >= 0 && r.sampling.logprobs <= limits.max_logprobs && r.sampling.prompt_logprobs <= limits.max_logprobs);
  require(std::isfinite(r.sampling.temperature) && r.sampling.temperature >= 0);
  require(r.sampling.top_p >= 0 && r.sampling.top_p <= 1 && r.sampling.min_p >= 0 && r.sampling.min_p <= 1);
  require(static_cast<std::int64_t>(r.sampling.stop.size()) <= limits.max_stop);
  require(static_cast<std::int64_t>(r.prompts.size()) <= limits.max_prompts);
  require(!r.chat || r.messages.is_array());
  require(r.tools.is_null() || r.tools.is_array());
}

template <class Read>
void read(const Json& body, const Limits& limits, Read&& reader) {
  try {
    check(reader(body, limits), limits);
  } catch (const ApiError& e) {
    require(e.status >= 400 && e.status < 500);  // a client's mistake is never a 5xx
    require(Json::accept(e.body()));
  }
}

struct Answer {
  std::string content, reasoning;
  std::vector<std::string> names, arguments;
  void add(const ChatDelta& d) {
    content += d.content;
    reasoning += d.reasoning;
    for (const ToolDelta& t : d.tools) {
      require(t.index >= 0 && static_cast<std::size_t>(t.index) <= names.size());
      if (static_cast<std::size_t>(t.index) == names.size()) names.emplace_back(), arguments.emplace_back();
      names[static_cast<std::size_t>(t.index)] += t.name;
      arguments[static_cast<std::size_t>(t.index)] += t.arguments;
    }
  }
  bool operator==(const Answer&) const = default;
};

Answer answer(std::string_view text, const char* tools, std::size_t piece) {
  const auto parser = make_chat_parser(tools, "think", /*inside_reasoning=*/false);
  Answer a;
  for (std::size_t i = 0; i < text.size(); i += piece) a.add(parser->push(text.substr(i, piece)));
  a.add(parser->finish());
  return a;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Limits limits;
  try {
    const Json body = parse_body(text, limits.max_json_depth);
    read(body, limits, read_completion);
    read(body, limits, read_chat);
  } catch (const ApiError& e) {
    require(e.status == 400 && e.code == "invalid_json" && Json::accept(e.body()));
  }
  for (const char* tools : {"none", "hermes", "llama3_json", "mistral"}) {
    const Answer whole = answer(text, tools, std::max<std::size_t>(size, 1));
    require(whole == answer(text, tools, 1) && whole == answer(text, tools, 7));
  }
  return 0;
}
