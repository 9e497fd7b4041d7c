// Compiler: grammars ready to run over one model's vocabulary, each compiled once and kept while it
// is among the last used.
//
// Thread-safe; compile() is meant for the threads that prepare requests, never for the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/structured/automaton.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace qengine::structured {

class Compiler {
 public:
  struct Limits {
    std::size_t bytes = std::size_t{64} << 20;  // of one compilation, and of what a grammar keeps while it runs
    std::chrono::milliseconds time{2000};
    std::size_t kept = 64;  // grammars
  };

  // `end_tokens`: what ends an answer.
  Compiler(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens);
  Compiler(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens, Limits limits);

  // `build` puts the grammar together and returns its root; `key` says everything it depends on.
  // Throws GrammarError. The tree of the vocabulary is made with the first call.
  std::shared_ptr<const Automaton> compile(const std::string& key, const std::function<RuleId(GrammarBuilder&)>& build);

 private:
  std::shared_ptr<const TokenTrie> trie();

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::int32_t> end_tokens_;
  Limits limits_;
  std::once_flag once_;
  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const Automaton>>> kept_;  // last used first
};

}  // namespace qengine::structured
