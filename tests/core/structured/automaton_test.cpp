#include "core/structured/automaton.hpp"

#include <gtest/gtest.h>

#include "core/structured/regex.hpp"
#include "tests/core/structured/vocabulary.hpp"

namespace qengine::structured {
namespace {

const char* const kSchemas[] = {
    "true",
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"enum":["a","ab","abc"]}}},"required":["name","age"]})",
    R"({"type":"array","items":{"anyOf":[{"type":"string","pattern":"^[ab]+$"},{"type":"string","maxLength":3},{"$ref":"#"}]}})",
    R"({"type":"object","additionalProperties":{"type":["number","null"]}})",
    R"({"type":"string","format":"date-time"})",
    R"({"type":"object","properties":{"s":{"type":"string"},"far":{"type":"object","properties":{"one_long_name":{"type":"string","minLength":30},"x":{"const":"abcdefgh"}},"required":["one_long_name","x"]},"t":{"type":"string"}}})",
    R"({"anyOf":[{"type":"object","properties":{"a":{"type":"string"},"b":{"const":1}},"required":["a","b"]},{"type":"object","properties":{"a":{"type":"string"},"b":{"const":2}},"required":["a","b"]}]})",
};

class MaskWalk : public ::testing::TestWithParam<int> {};

// The mask against the dumbest model: try every token by itself.
TEST_P(MaskWalk, AllowsExactlyWhatCanFollow) {
  const auto a = automaton_of(Json::parse(kSchemas[GetParam()]));
  const TokenTrie& trie = *test_trie();
  std::mt19937 rng(static_cast<unsigned>(GetParam()));
  for (int walk = 0; walk < 6; ++walk) {
    auto place = a->start();
    for (int step = 0; step < 60; ++step) {
      const auto mask = a->mask(place);
      std::vector<std::int32_t> ids;
      std::vector<std::pair<std::int32_t, std::int32_t>> costs;
      for (std::int32_t t = 0; t < trie.vocab_size(); ++t) {
        const bool bit = mask->bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1;
        bool can = t == test_end() ? a->may_end(place) : false;
        if (!trie.bytes(t).empty()) {
          auto there = place;
          can = a->advance(there, trie.bytes(t));
          if (can) {
            costs.emplace_back(t, a->cost(there));
            ASSERT_LE(a->cost(there), mask->worst) << "token " << t;
          }
        }
        ASSERT_EQ(bit, can) << "token \"" << trie.bytes(t) << "\" at step " << step;
        if (bit && t != test_end()) ids.push_back(t);
      }
      if (ids.empty()) break;
      // With a budget: exactly the tokens that leave enough of it.
      for (const int budget : {a->cost(place), a->cost(place) + 5, a->cost(place) + 17, a->cost(place) + 30, a->cost(place) + 60}) {
        const Mask within = a->mask_within(place, budget);
        for (const auto& [t, cost] : costs)
          ASSERT_EQ(within.bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1, cost <= budget) << "token \"" << trie.bytes(t) << "\" needs " << cost << " of " << budget;
      }
      ASSERT_TRUE(a->advance(place, trie.bytes(ids[rng() % ids.size()])));
    }
  }
}

// Whatever the budget, what comes out is whole, and within it.
TEST_P(MaskWalk, ShortBudgetsStillGiveWholeTexts) {
  const Json schema = Json::parse(kSchemas[GetParam()]);
  const auto a = automaton_of(schema);
  const int least = a->cost(a->start());
  std::mt19937 rng(7);
  for (int budget = least; budget < least + 40; ++budget)
    for (int i = 0; i < 10; ++i) {
      bool finished = false;
      const std::string text = random_text(a, rng, budget, &finished);
      ASSERT_TRUE(accepts(*a, text)) << "budget " << budget << ": " << text;
      ASSERT_TRUE(Json::accept(text)) << text;
    }
}

// With the tables dropped at every chance the same texts come out.
TEST_P(MaskWalk, ForgettingChangesNothing) {
  Budget budget;
  GrammarBuilder b(budget);
  const RuleId root = add_schema(b, Json::parse(kSchemas[GetParam()]));
  const auto grammar = b.finish(root, test_trie());
  const auto keeps = std::make_shared<const Automaton>(grammar, std::vector{test_end()});
  const auto forgets = std::make_shared<const Automaton>(grammar, std::vector{test_end()}, /*max_bytes=*/1);
  for (unsigned seed = 0; seed < 5; ++seed) {
    std::mt19937 x(seed), y(seed);
    ASSERT_EQ(random_text(keeps, x, 120), random_text(forgets, y, 120));
  }
  EXPECT_LT(forgets->bytes(), keeps->bytes());
}

INSTANTIATE_TEST_SUITE_P(Schema, MaskWalk, ::testing::Range(0, static_cast<int>(std::size(kSchemas))));

TEST(Matcher, SaysWhenTheTextIsWhole) {
  const auto a = automaton_of(Json::parse(R"({"enum":[true]})"));
  Matcher m(a, 100);
  for (const char c : std::string_view("true")) {
    EXPECT_FALSE(m.complete());
    ASSERT_TRUE(m.accept(static_cast<unsigned char>(c)));
  }
  EXPECT_TRUE(m.complete());
  EXPECT_FALSE(m.cut());
  EXPECT_FALSE(Matcher(a, 10).accept('x'));
}

TEST(Matcher, ANumberMayGoOnOrEnd) {
  const auto a = automaton_of(Json::parse(R"({"type":"integer"})"));
  Matcher m(a, 100);
  const auto ends = [&] { return m.allowed()[static_cast<std::size_t>(test_end()) / 32] >> (test_end() % 32) & 1; };
  EXPECT_FALSE(ends());
  ASSERT_TRUE(m.accept('1'));
  EXPECT_FALSE(m.complete());
  EXPECT_TRUE(ends());
  ASSERT_TRUE(m.accept(test_end()));
  EXPECT_TRUE(m.complete());
}

TEST(Matcher, IsLedToTheEndAndSaysSo) {
  const auto a = automaton_of(Json::parse(R"({"type":"string"})"));
  Matcher m(a, 3);
  ASSERT_TRUE(m.accept('"'));
  m.allowed();
  EXPECT_FALSE(m.cut() && m.complete());
  ASSERT_TRUE(m.accept('x'));
  const auto bits = m.allowed();  // one token left: only the quote
  EXPECT_FALSE(bits['x' / 32] >> ('x' % 32) & 1);
  EXPECT_TRUE(bits['"' / 32] >> ('"' % 32) & 1);
  EXPECT_TRUE(m.cut());
  ASSERT_TRUE(m.accept('"'));
  EXPECT_TRUE(m.complete());
}

// Forced text is counted in tokens, not in bytes: "name" costs one.
TEST(Grammar, CostOfForcedTextIsInTokens) {
  const auto a = automaton_of(Json::parse(R"({"type":"object","properties":{"name":{"const":true}},"required":["name"],"additionalProperties":false})"));
  EXPECT_EQ(a->cost(a->start()), 6);  // {  "  name  ":  true  }: blanks may stand after the brace
}

TEST(Grammar, LeftRecursionIsRefused) {
  EXPECT_THROW(automaton_of([](GrammarBuilder& b) {
                 const RuleId r = b.rule();
                 const StateId end = b.state(), more = b.state();
                 b.accept(end);
                 b.text(b.start(r), "a", end);
                 b.call(b.start(r), r, more);
                 b.text(more, "b", end);
                 return r;
               }),
               GrammarError);
}

TEST(Automaton, DeepNestingEndsBeforeTheStackDoes) {
  const auto a = automaton_of(Json::parse("true"));
  auto place = a->start();
  int depth = 0;
  while (depth < 1000 && a->advance(place, "[")) ++depth;
  EXPECT_GT(depth, 60);
  EXPECT_LT(depth, 400);
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(a->advance(place, "]")) << i;
  EXPECT_TRUE(a->must_end(place));
}

TEST(Automaton, BrokenUtf8NeverFollows) {
  const auto a = automaton_of(Json::parse(R"({"type":"string"})"));
  auto place = a->start();
  ASSERT_TRUE(a->advance(place, "\"\xF0\x9F"));
  EXPECT_FALSE(a->advance(place, "x"));
  EXPECT_FALSE(a->advance(place, "\""));
  EXPECT_TRUE(a->advance(place, "\x98\x80\""));
}

TEST(TokenTrie, EveryTokenIsWhereItsBytesLead) {
  const TokenTrie& trie = *test_trie();
  EXPECT_TRUE(trie.all_bytes());
  std::size_t found = 0;
  for (std::int32_t t = 0; t < trie.vocab_size(); ++t) {
    std::int32_t node = 0;
    for (const char c : trie.bytes(t)) ASSERT_GT(node = trie.child(node, static_cast<std::uint8_t>(c)), 0) << t;
    if (trie.bytes(t).empty()) continue;
    const auto here = trie.tokens(node);
    ASSERT_NE(std::ranges::find(here, t), here.end()) << t;
    ++found;
  }
  std::size_t all = 0;
  for (std::int32_t i = 0; i < trie.size(); ++i) all += trie.tokens(i).size();
  EXPECT_EQ(all, found);
  EXPECT_FALSE(TokenTrie({"a", "b"}).all_bytes());
}

}  // namespace
}  // namespace qengine::structured
