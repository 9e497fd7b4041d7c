// Texts that grammars allow, for checks by other programs: one JSON object a line in, one out.
//
//   {"schema": S, "n": 20, "seed": 1, "max_tokens": 60}  ->  {"texts": [...]} or {"error", "place"}
//   {"regex": R, ...}                                     likewise, the whole text matching R
#include <iostream>

#include "core/structured/regex.hpp"
#include "tests/core/structured/vocabulary.hpp"

int main() {
  using namespace qengine;
  using namespace qengine::structured;
  for (std::string line; std::getline(std::cin, line);) {
    Json out = Json::object();
    try {
      const Json in = Json::parse(line);
      const auto a = in.contains("regex") ? automaton_of([&](GrammarBuilder& b) {
        const RuleId r = b.rule();
        const StateId end = b.state();
        b.accept(end);
        b.dfa(b.start(r), compile_regex(in["regex"].get<std::string>(), RegexMode::kWhole, b.budget()), end);
        return r;
      })
                                          : automaton_of(in["schema"]);
      std::mt19937 rng(in.value("seed", 1u));
      out["texts"] = Json::array();
      // Below what the shortest text needs nobody can finish; from there on every text is whole.
      const int least = a->cost(a->start());
      for (int i = in.value("n", 20); i > 0; --i) out["texts"].push_back(random_text(a, rng, least + static_cast<int>(rng() % static_cast<unsigned>(in.value("max_tokens", 60)))));
    } catch (const GrammarError& e) {
      out = {{"error", e.what()}, {"place", e.place()}};
    } catch (const std::exception& e) {
      out = {{"fault", e.what()}};
    }
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}
