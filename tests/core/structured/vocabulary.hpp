// A small vocabulary for grammars: every byte, the pieces that JSON is written in, and pieces that end
// inside a character or stretch over several rules.
#pragma once

#include <concepts>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/structured/automaton.hpp"
#include "core/structured/matcher.hpp"
#include "core/structured/schema.hpp"

namespace qengine::structured {

inline std::shared_ptr<const TokenTrie> test_trie() {
  static const auto trie = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, static_cast<char>(b)));
    for (const char* s : {"\"", "\",", "\":", "\": ", "\": \"", "\", \"", "\"}", "\"]", "{\"", "[\"", "{}", "[]", "}}", "]}", "}]", "},", "],", ", ", "true", "false", "null", "tr", "ue", "12", "123", "0.", ".5",
                          "-1", "1e", "e+", "\\\"", "\\u", "\\u00", "\\ud83d", "\\ude00", "\n", "\n  ", "    ", "a", "ab", "abc", "name", "age", "id", "value", "type", "the", " the", " and", "\xC3\xA9", "\xF0\x9F", "\x98\x80", "\xE2\x82", "\xE2\x82\xAC",
                          "<tool_call>", "</tool_call>", "call>", "arguments", "2024", "-01", ":00", "T1"})
      bytes.push_back(s);
    bytes.push_back("");  // the end token has no text
    return std::make_shared<const TokenTrie>(bytes);
  }();
  return trie;
}
inline std::int32_t test_end() { return test_trie()->vocab_size() - 1; }

template <class Build>
  requires std::invocable<Build, GrammarBuilder&>
std::shared_ptr<const Automaton> automaton_of(Build&& build) {
  Budget budget;
  GrammarBuilder b(budget);
  const RuleId root = build(b);
  return std::make_shared<const Automaton>(b.finish(root, test_trie()), std::vector<std::int32_t>{test_end()});
}

inline std::shared_ptr<const Automaton> automaton_of(const Json& schema, const SchemaOptions& options = {}) {
  return automaton_of([&](GrammarBuilder& b) { return add_schema(b, schema, options); });
}

inline bool accepts(const Automaton& a, std::string_view text) {
  auto place = a.start();
  return a.advance(place, text) && a.may_end(place);
}

// A text that random choices among the allowed tokens give; `finished`: it ended by itself.
inline std::string random_text(const std::shared_ptr<const Automaton>& a, std::mt19937& rng, int max_tokens, bool* finished = nullptr, bool* cut = nullptr) {
  Matcher m(a, max_tokens);
  std::string text;
  if (finished) *finished = false;
  for (int i = 0; i < max_tokens; ++i) {
    const auto bits = m.allowed();
    std::vector<std::int32_t> ids;
    for (std::int32_t t = 0; t < test_trie()->vocab_size(); ++t)
      if (bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) ids.push_back(t);
    if (ids.empty()) throw std::runtime_error("nothing is allowed after " + text);
    const std::int32_t t = ids[rng() % ids.size()];
    if (!m.accept(t)) throw std::runtime_error("an allowed token was refused after " + text);
    text += test_trie()->bytes(t);
    if (m.complete()) {
      if (finished) *finished = true;
      break;
    }
  }
  if (cut) *cut = m.cut();
  return text;
}

}  // namespace qengine::structured
