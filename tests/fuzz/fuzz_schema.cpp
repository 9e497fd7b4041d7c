// Schemas and patterns from outside: compiled within their budget or refused, and what is compiled
// gives texts that are JSON.
#include <cstdint>
#include <random>
#include <string_view>

#include "core/structured/regex.hpp"
#include "tests/core/structured/vocabulary.hpp"

using namespace qengine;
using namespace qengine::structured;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Json schema = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) {
    try {
      Budget budget(std::size_t{4} << 20, std::chrono::milliseconds(500));
      compile_regex(text, RegexMode::kSearch, budget);
    } catch (const GrammarError&) {
    }
    return 0;
  }
  try {
    Budget budget(std::size_t{8} << 20, std::chrono::milliseconds(500));
    GrammarBuilder b(budget);
    const RuleId root = add_schema(b, schema);
    const auto a = std::make_shared<const Automaton>(b.finish(root, test_trie()), std::vector{test_end()}, std::size_t{4} << 20);
    std::mt19937 rng(static_cast<unsigned>(size));
    const int least = a->cost(a->start());
    if (least > 2000) return 0;
    const std::string out = random_text(a, rng, least + 20);
    if (!Json::accept(out)) __builtin_trap();
  } catch (const GrammarError&) {
  }
  return 0;
}
