#include "core/structured/compiler.hpp"

#include <algorithm>
#include <utility>

namespace qengine::structured {

Compiler::Compiler(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens) : Compiler(std::move(tokenizer), std::move(end_tokens), Limits()) {}

Compiler::Compiler(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::int32_t> end_tokens, Limits limits)
    : tokenizer_(std::move(tokenizer)), end_tokens_(std::move(end_tokens)), limits_(limits) {}

std::shared_ptr<const TokenTrie> Compiler::trie() {
  std::call_once(once_, [&] {
    std::vector<std::string> bytes(static_cast<std::size_t>(tokenizer_->size()));
    for (std::int32_t id = 0; id < tokenizer_->size(); ++id)
      if (!tokenizer_->is_special(id) && std::ranges::find(end_tokens_, id) == end_tokens_.end()) bytes[static_cast<std::size_t>(id)] = tokenizer_->token_bytes(id);
    trie_ = std::make_shared<TokenTrie>(bytes);
  });
  return trie_;
}

std::shared_ptr<const Automaton> Compiler::compile(const std::string& key, const std::function<RuleId(GrammarBuilder&)>& build) {
  const auto find = [&]() -> std::shared_ptr<const Automaton> {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find(kept_, key, [](const auto& k) -> const std::string& { return k.first; });
    if (it == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, it);
    return it->second;
  };
  if (auto known = find()) return known;
  const auto vocabulary = trie();
  Budget budget(limits_.bytes, limits_.time);
  GrammarBuilder builder(budget);
  const RuleId root = build(builder);
  auto made = std::make_shared<const Automaton>(builder.finish(root, vocabulary), end_tokens_, limits_.bytes);
  if (auto known = find()) return known;  // two requests at once
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, made);
  if (kept_.size() > limits_.kept) kept_.pop_back();
  return made;
}

}  // namespace qengine::structured
