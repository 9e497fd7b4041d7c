#include "core/server/chat_parser.hpp"

#include <algorithm>
#include <cctype>
#include <optional>
#include <random>

#include "core/model/checkpoint.hpp"  // Json

namespace qengine::server {
namespace {

std::string call_id() {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::mt19937_64 rng{std::random_device{}()};
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kAlphabet[rng() % 62];
  return id;
}

// Length of the longest proper prefix of `tag` that `text` ends with.
std::size_t partial_tag(std::string_view text, std::string_view tag) {
  for (std::size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

// Where the JSON value that starts at `at` ends; npos when it is not complete yet. Only brackets and
// strings are looked at: whether it is JSON is decided by the parser afterwards.
std::size_t value_end(std::string_view s, std::size_t at) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = at; i < s.size(); ++i) {
    const char c = s[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') {
        in_string = false;
        if (depth == 0) return i + 1;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return i;  // the end of what surrounds a bare value
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r')) {
      return i;  // a bare number or word
    }
  }
  return std::string_view::npos;
}

std::size_t skip_space(std::string_view s, std::size_t i) {
  while (i < s.size() && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r')) ++i;
  return i;
}

struct Call {
  std::string name, arguments;
};

// {"name": ..., "arguments" | "parameters": ...}; the arguments' text is kept as it was written.
std::optional<Call> read_call(std::string_view text) {
  const Json j = Json::parse(text.begin(), text.end(), nullptr, false);
  if (j.is_discarded() || !j.is_object()) return std::nullopt;
  const auto name = j.find("name");
  if (name == j.end() || !name->is_string() || name->get<std::string>().empty()) return std::nullopt;
  const char* key = j.contains("arguments") ? "arguments" : j.contains("parameters") ? "parameters" : nullptr;
  Call call{name->get<std::string>(), "{}"};
  if (!key) return call;
  if (j[key].is_string()) {  // some models write the object as a string
    call.arguments = j[key].get<std::string>();
    const Json inner = Json::parse(call.arguments, nullptr, false);
    return inner.is_discarded() || !inner.is_object() ? std::nullopt : std::optional(call);
  }
  if (!j[key].is_object()) return std::nullopt;
  // Walk the keys of the outer object to the value's own text.
  std::size_t i = text.find('{') + 1;
  for (;;) {
    i = skip_space(text, i);
    const std::size_t key_end = value_end(text, i);
    const std::string_view k = text.substr(i, key_end - i);
    i = skip_space(text, text.find(':', key_end) + 1);
    const std::size_t end = value_end(text, i);
    if (k == "\"" + std::string(key) + "\"") {
      call.arguments = std::string(text.substr(i, end - i));
      return call;
    }
    i = skip_space(text, end);
    if (i >= text.size() || text[i] != ',') return std::nullopt;
    ++i;
  }
}

enum class Style { kNone, kHermes, kLlama, kMistral };

class Parser final : public ChatParser {
 public:
  Parser(Style style, bool think, bool inside) : style_(style), think_(think), state_(think && inside ? State::kReasoning : State::kStart) {}

  ChatDelta push(std::string_view text) override {
    held_.append(text);
    ChatDelta out;
    while (step(out, false)) {
    }
    return out;
  }

  ChatDelta finish() override {
    ChatDelta out;
    while (step(out, true)) {
    }
    return out;
  }

  int calls() const override { return calls_; }
  int failures() const override { return failures_; }

 private:
  enum class State { kStart, kReasoning, kContent, kCall };

  // One move; false when more text is needed. `last`: none will come.
  bool step(ChatDelta& out, bool last) {
    switch (state_) {
      case State::kStart: {
        if (!think_) return to(State::kContent);
        const std::size_t i = skip_space(held_, 0);
        const std::string_view rest = std::string_view(held_).substr(i);
        if (rest.starts_with(kThink)) {
          held_.erase(0, i + kThink.size());
          return to(State::kReasoning);
        }
        if (!last && (rest.empty() || kThink.starts_with(rest))) return false;
        return to(State::kContent);
      }
      case State::kReasoning: {
        const auto end = held_.find(kEndThink);
        if (end != std::string::npos) {
          out.reasoning += held_.substr(0, end);
          held_.erase(0, end + kEndThink.size());
          return to(State::kContent);
        }
        give(out.reasoning, last ? 0 : partial_tag(held_, kEndThink));
        return false;
      }
      case State::kContent: return content(out, last);
      case State::kCall: return call(out, last);
    }
    return false;
  }

  bool to(State s) {
    state_ = s;
    return s != State::kContent || !held_.empty();
  }

  void give(std::string& where, std::size_t keep) {
    where.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }

  std::string_view tag() const { return style_ == Style::kHermes ? "<tool_call>" : style_ == Style::kMistral ? "[TOOL_CALLS]" : "<|python_tag|>"; }

  bool content(ChatDelta& out, bool last) {
    if (after_call_) {  // blanks that only set calls apart
      held_.erase(0, skip_space(held_, 0));
      after_call_ = held_.empty();
    }
    if (held_.empty()) return false;
    if (style_ == Style::kNone) {
      give(out.content, 0);
      return false;
    }
    if (style_ == Style::kLlama && !said_) {  // a call is the whole answer: it begins with a brace
      const std::size_t i = skip_space(held_, 0);
      if (i == held_.size() && !last) return false;
      if (i < held_.size() && held_[i] == '{') return to(State::kCall);
    }
    const auto at = held_.find(tag());
    if (at != std::string::npos) {
      std::string before = held_.substr(0, at);
      if (style_ == Style::kHermes)  // line breaks that only set the call off
        while (!before.empty() && before.back() == '\n') before.pop_back();
      out.content += before;
      said_ |= !before.empty();
      raw_ = std::string(tag());
      held_.erase(0, at + tag().size());
      state_ = State::kCall;
      return true;
    }
    std::size_t keep = last ? 0 : partial_tag(held_, tag());
    if (!last && style_ == Style::kHermes)
      while (keep < held_.size() && held_[held_.size() - keep - 1] == '\n') ++keep;
    if (held_.size() > keep) said_ = true;
    give(out.content, keep);
    return false;
  }

  void add(ChatDelta& out, Call c) {
    out.tools.push_back({calls_, call_id(), std::move(c.name), ""});
    out.tools.push_back({calls_, "", "", std::move(c.arguments)});
    ++calls_;
  }

  // Not a call after all: give back every character of it.
  bool not_a_call(ChatDelta& out, std::size_t length) {
    ++failures_;
    out.content += raw_ + held_.substr(0, length);
    said_ = true;
    raw_.clear();
    held_.erase(0, length);
    return to(State::kContent);
  }

  bool call(ChatDelta& out, bool last) {
    const std::size_t begin = skip_space(held_, 0);
    if (begin == held_.size()) {
      if (!last) return false;
      return raw_.empty() ? to(State::kContent) : not_a_call(out, held_.size());
    }
    if (style_ == Style::kMistral && held_[begin] != '[' && held_[begin] != '{') {  // name[ARGS]{...}
      const auto args = held_.find('{', begin);
      if (args == std::string::npos) return last ? not_a_call(out, held_.size()) : false;
      const auto end = value_end(held_, args);
      if (end == std::string::npos) return last ? not_a_call(out, held_.size()) : false;
      std::string name = held_.substr(begin, args - begin);
      if (const auto mark = name.find("[ARGS]"); mark != std::string::npos) name.resize(mark);
      while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
      const std::string body = held_.substr(args, end - args);
      const Json parsed = Json::parse(body, nullptr, false);
      if (parsed.is_discarded() || name.empty()) return not_a_call(out, end);
      add(out, {name, body});
      held_.erase(0, end);
      raw_.clear();
      return to(State::kContent);
    }
    const char open = held_[begin];
    if (open != '{' && !(open == '[' && style_ == Style::kMistral)) return not_a_call(out, begin + 1);
    const std::size_t end = value_end(held_, begin);
    if (end == std::string::npos) return last ? not_a_call(out, held_.size()) : false;
    const std::string body = held_.substr(begin, end - begin);
    if (open == '[') {
      const Json list = Json::parse(body, nullptr, false);
      std::vector<Call> found;
      if (!list.is_discarded())
        for (const auto& e : list)
          if (auto c = read_call(e.dump())) found.push_back(std::move(*c));
      if (found.empty() || found.size() != list.size()) return not_a_call(out, end);
      for (auto& c : found) add(out, std::move(c));
      held_.erase(0, end);
      raw_.clear();
      return to(State::kContent);
    }
    auto c = read_call(body);
    if (!c) return not_a_call(out, end);
    std::size_t after = end;
    if (style_ == Style::kHermes) {  // take the closing tag along; wait until it is whole
      constexpr std::string_view kClose = "</tool_call>";
      const std::size_t i = skip_space(held_, end);
      const std::string_view rest = std::string_view(held_).substr(i);
      if (!last && kClose.starts_with(rest) && rest.size() < kClose.size()) return false;
      if (rest.starts_with(kClose)) after = i + kClose.size();
    } else if (style_ == Style::kLlama) {  // calls separated by a semicolon
      const std::size_t i = skip_space(held_, end);
      if (i == held_.size() && !last) return false;
      if (i < held_.size() && held_[i] == ';') after = i + 1;
    }
    add(out, std::move(*c));
    held_.erase(0, after);
    raw_.clear();
    after_call_ = true;
    return to(State::kContent);
  }

  static constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
  Style style_;
  bool think_;
  State state_;
  std::string held_;  // text not yet given out
  std::string raw_;   // the opening tag of the call being read
  bool said_ = false;  // some content was given out
  bool after_call_ = false;
  int calls_ = 0, failures_ = 0;
};

}  // namespace

std::unique_ptr<ChatParser> make_chat_parser(std::string_view tool_parser, std::string_view reasoning, bool inside_reasoning) {
  const Style style = tool_parser == "hermes" ? Style::kHermes : tool_parser == "llama3_json" ? Style::kLlama : tool_parser == "mistral" ? Style::kMistral : Style::kNone;
  return std::make_unique<Parser>(style, reasoning != "none" && !reasoning.empty(), inside_reasoning);
}

std::string detect_tool_parser(std::string_view t) {
  auto has = [&](std::string_view s) { return t.find(s) != std::string_view::npos; };
  if (has("<tool_call>")) return "hermes";
  if (has("[TOOL_CALLS]")) return "mistral";
  if (has("<|python_tag|>") || (has("\"parameters\"") && has("tools"))) return "llama3_json";
  return has("tools") ? "hermes" : "none";
}

std::string detect_reasoning_parser(std::string_view t) { return t.find("<think>") != std::string_view::npos || t.find("</think>") != std::string_view::npos ? "think" : "none"; }

}  // namespace qengine::server
