// Grammars from outside: compiled within their budget or refused, and a text that is written under one belongs to it.
#include <cstdint>
#include <random>
#include <string_view>

#include "core/structured/ebnf.hpp"
#include "tests/core/structured/vocabulary.hpp"

using namespace qengine;
using namespace qengine::structured;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    Budget budget(std::size_t{4} << 20, std::chrono::milliseconds(500));
    GrammarBuilder b(budget);
    const RuleId root = add_ebnf(b, {reinterpret_cast<const char*>(data), size});
    const auto a = std::make_shared<const Automaton>(b.finish(root, test_trie()), std::vector{test_end()}, std::size_t{4} << 20);
    const int least = a->cost(a->start());
    if (least > 500) return 0;
    Matcher m(a, least + 20);
    std::mt19937 rng(static_cast<unsigned>(size));
    std::string text;
    for (int i = 0; i < least + 20 && !m.complete(); ++i) {
      const auto bits = m.allowed();
      std::vector<std::int32_t> ids;
      for (std::int32_t t = 0; t < test_trie()->vocab_size(); ++t)
        if (bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) ids.push_back(t);
      if (ids.empty()) return 0;  // more readings than are followed
      const std::int32_t t = ids[rng() % ids.size()];
      if (!m.accept(t)) return 0;  // the same
      text += test_trie()->bytes(t);
    }
    auto place = a->start();
    if (m.complete() && !(a->advance(place, text) && a->may_end(place))) __builtin_trap();
  } catch (const GrammarError&) {
  }
  return 0;
}
