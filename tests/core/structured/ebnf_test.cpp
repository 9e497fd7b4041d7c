#include "core/structured/ebnf.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/core/structured/vocabulary.hpp"

namespace qengine::structured {
namespace {

std::shared_ptr<const Automaton> ebnf(std::string_view text) {
  return automaton_of([&](GrammarBuilder& b) { return add_ebnf(b, text); });
}

// "line 1, column 5: what is wrong" of a grammar that is refused.
std::string refusal(std::string_view text) {
  try {
    ebnf(text);
    return "accepted";
  } catch (const GrammarError& e) {
    return (e.place().empty() ? "" : e.place() + ": ") + e.what();
  }
}

struct Case {
  const char* grammar;
  std::vector<const char*> in, out;
};

TEST(Ebnf, EachFormMeansWhatItSays) {
  const Case cases[] = {
      {R"g(root ::= "a" [0-9]+ ( x | y )
x ::= "x"   # a comment ::= "no rule"
y ::= "y"
)g",
       {"a1x", "a123y"}, {"a1", "ax", "a1xy", "a1z"}},
      {"root::=a a::=\"b\"?", {"", "b"}, {"bb"}},  // rules need no lines of their own
      {R"g(root ::= "a"{2} "b"{2,} "c"{0,2} ("de" | "f"){1,3})g", {"aabbde", "aabbbbccfdef"}, {"aabde", "abbde", "aabbcccf", "aabbffff", "aabb"}},
      {R"(root ::= [^a-c\n\]] [-x] [x-] [\^\-a])", {"d-xa", "--x^", "\xC3\xA9x--"}, {"a-xa", "\nxxa", "]xxa", "dyxa"}},
      {R"(root ::= "\"\\\n\t\x41\u00e9\U0001F600" .)", {"\"\\\n\tA\xC3\xA9\xF0\x9F\x98\x80\xE2\x82\xAC", "\"\\\n\tA\xC3\xA9\xF0\x9F\x98\x80\n"}, {"\"\\\n\tA\xC3\xA9\xF0\x9F\x98\x80"}},
      {"root ::= \"\" | \"\xC3\xA9\" [\xC3\xA0-\xC3\xAF]", {"", "\xC3\xA9\xC3\xA9"}, {"\xC3\xA9", "\xC3\xA9\xC3"}},
      {R"g(root ::= "(" root ")" | "(" root "]" | "")g", {"", "((()])", "((((((((((((((((((((()]]])])])])])])])])])"}, {"(", "(()"}},
      {R"g(root ::= ("a" | "ab") ("c" | "bc"))g", {"ac", "abc", "abbc"}, {"a", "ab", "abb"}},
      {"root ::= e\ne ::= e [+*] t | t\nt ::= \"(\" e \")\" | [0-9]+", {"1", "1+2*3", "(1+2)*(3)", "((((1))))+1"}, {"", "1+", "+1", "(1"}},
      {"# first\n#\nroot ::= # here\n \"a\" # and here", {"a"}, {""}},
      {"root ::= a-b_1.c\na-b_1.c ::= \"x\"", {"x"}, {}},
  };
  for (const Case& c : cases) {
    const auto a = ebnf(c.grammar);
    for (const char* text : c.in) EXPECT_TRUE(accepts(*a, text)) << c.grammar << "\n" << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(*a, text)) << c.grammar << "\n" << text;
  }
}

TEST(Ebnf, ARefusalNamesLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "line 1, column 1: has no rule called root, where the text begins"},
      {"a ::= \"b\"", "line 1, column 10: has no rule called root, where the text begins"},
      {"root ::= a\n  b \"x\"", "line 1, column 10: the rule \"a\" is not defined"},
      {"root ::= \"x\"\nroot ::= \"y\"", "line 2, column 1: the rule \"root\" is there twice"},
      {"root ::= \"\xC3\xA9\xC3\xA9\" ]", "line 1, column 15: expects a text, a class, a name or a group"},
      {"start: \"a\" \"b\"", "line 1, column 6: expects ::= after the name of a rule (Lark and other forms are not supported)"},
      {"root # c", "line 1, column 9: expects ::= after the name of a rule"},
      {"root = \"a\"", "line 1, column 6: expects ::= after the name of a rule (Lark and other forms are not supported)"},
      {"root ::= \"a\" |", "line 1, column 15: expects a text, a class, a name or a group (\"\" is the empty text)"},
      {"root ::= ()", "line 1, column 11: expects a text, a class, a name or a group (\"\" is the empty text)"},
      {"root ::= (\"a\"\n", "line 1, column 10: has a ( without its )"},
      {"root ::= \"a\")", "line 1, column 13: has a ) without its ("},
      {"root ::= \"abc\n\"", "line 1, column 10: has a text without its closing quote"},
      {"root ::= [a-z", "line 1, column 10: has a [ without its ]"},
      {"root ::= []", "line 1, column 10: has an empty class"},
      {"root ::= [z-a]", "line 1, column 10: has a range whose ends are the wrong way round"},
      {"root ::= \"\\q\"", "line 1, column 11: has an escape that is not known"},
      {"root ::= \"\\u12\"", "line 1, column 11: has an escape with too few hexadecimal digits"},
      {"root ::= \"\\ud800\"", "line 1, column 11: has an escape that is no character"},
      {"root ::= \"\xFF\"", "line 1, column 11: is not UTF-8"},
      {"root ::= \"a\"**", "line 1, column 14: repeats a repetition; put the inner one in ( )"},
      {"root ::= * \"a\"", "line 1, column 10: has a * with nothing to repeat"},
      {"root ::= \"a\"{3,1}", "line 1, column 18: has a count whose bounds are the wrong way round"},
      {"root ::= \"a\"{x}", "line 1, column 14: expects a count"},
      {"root ::= \"a\"{999999999}", "line 1, column 19: repeats more than 100000 times"},
      {"root ::= \"a\" (= \"b\")", "line 1, column 15: has a lookahead (= ...), which is not supported"},
      {"root ::= <think>", "line 1, column 10: has a token <...>, which is not supported; write its text"},
      {"root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\"", "line 3, column 1: refers to itself without anything in between"},
      {"root ::= \"a\" root", "line 1, column 1: allows no value at all"},
      {"root ::= root", "line 1, column 1: allows no value at all"},
  };
  for (const auto& [grammar, what] : cases) EXPECT_EQ(refusal(grammar), what) << grammar;
}

TEST(Ebnf, NoGrammarCostsMoreThanItsBounds) {
  std::string names = "root ::= \"x\"\n", deep, wide = "root ::= \"x\"";
  for (int i = 0; i < 30000; ++i) names += "r" + std::to_string(i) + " ::= \"a\"\n";
  for (int i = 0; i < 100000; ++i) deep += "(";
  for (int i = 0; i < 100000; ++i) wide += " | \"" + std::to_string(i) + "\"";
  EXPECT_EQ(refusal(names), "accepted");
  EXPECT_NE(refusal("root ::= " + deep).find("nested deeper"), std::string::npos);
  EXPECT_EQ(refusal("root ::= \"a\"" + std::string(500000, '*')), "line 1, column 14: repeats a repetition; put the inner one in ( )");
  for (const std::string& g : {std::string("root ::= (\"\"{100000}){100000}"), std::string("root ::= ((\"a\"?){1000}){1000}"), "root ::= (" + std::string(90, '(') + "\"\"" + std::string(90, ')') + "{0,100000}){0,100000}", wide, wide + " root"}) {
    const std::string r = refusal(g);
    EXPECT_TRUE(r == "accepted" || r.find("is too") != std::string::npos) << g.substr(0, 80) << ": " << r.substr(0, 200);
  }
}

// Readings that double with every byte: given up after a bounded effort, and the request ends.
TEST(Ebnf, ATextWithTooManyReadingsIsGivenUp) {
  const auto a = ebnf("root ::= x | y\nx ::= \"a\" x \"b\" | z\ny ::= \"a\" y \"c\" | z\nz ::= \"a\" u \"d\" | \"a\" root \"e\" | \"a\"\nu ::= \"a\" root");
  Matcher m(a, 100000);
  const auto token = [](std::string_view s) {
    for (std::int32_t t = 0;; ++t)
      if (test_trie()->bytes(t) == s) return t;
  };
  bool stopped = false;
  for (int i = 0; i < 200 && !stopped; ++i) {
    const auto bits = m.allowed();
    stopped = !(bits['a' / 32] >> ('a' % 32) & 1) || !m.accept(token("a"));
  }
  EXPECT_TRUE(stopped);
}

// ---- against the dumbest model: all texts of a small grammar, by adding until nothing is new ------

constexpr std::size_t kLongest = 5;
using Language = std::set<std::string>;

Language join(const Language& a, const Language& b) {
  Language out;
  for (const std::string& x : a)
    for (const std::string& y : b)
      if (x.size() + y.size() <= kLongest) out.insert(x + y);
  return out;
}

struct Expression {
  int kind = 0;  // 0 text, 1 class, 2 name, 3 group, 4 repetition
  std::string text;
  Language set;
  std::vector<std::vector<Expression>> parts;
  int least = 0, most = -1;
};

Expression expression(std::mt19937& rng, int depth) {
  Expression e;
  e.kind = static_cast<int>(rng() % (depth > 0 ? 7 : 5));
  if (e.kind <= 1) {
    const char* const texts[] = {"", "a", "b", "ab", "ba"};
    e.kind = 0;
    e.set = {texts[rng() % 5]};
    e.text = "\"" + *e.set.begin() + "\"";
  } else if (e.kind == 2) {
    e.kind = 1;
    e.set = rng() % 2 ? Language{"a", "b"} : Language{"b"};
    e.text = e.set.size() == 2 ? "[a-b]" : "[b]";
  } else if (e.kind <= 4) {
    e.kind = 2;
    e.text = std::string(1, "rxyz"[rng() % 4]);
    if (e.text == "r") e.text = "root";
  } else {
    e.kind -= 2;
    const std::size_t n = e.kind == 4 ? 1 : 1 + rng() % 3;
    for (std::size_t i = 0; i < n; ++i) {
      e.parts.emplace_back();
      for (std::size_t k = e.kind == 4 ? 1 : 1 + rng() % 3; k > 0; --k) e.parts.back().push_back(expression(rng, depth - 1));
    }
    e.least = static_cast<int>(rng() % 3);
    e.most = rng() % 2 ? -1 : e.least + static_cast<int>(rng() % 3);
  }
  return e;
}

std::string written(const Expression& e) {
  if (e.kind < 3) return e.text;
  std::string out = "(";
  for (const auto& s : e.parts) {
    if (out.size() > 1) out += "|";
    for (const Expression& x : s) out += " " + written(x);
  }
  out += ")";
  if (e.kind == 3) return out;
  if (e.least == 0 && e.most == -1) return out + "*";
  return out + "{" + std::to_string(e.least) + (e.most == e.least ? "" : "," + (e.most < 0 ? "" : std::to_string(e.most))) + "}";
}

Language meant(const Expression& e, const std::map<std::string, Language>& rules) {
  if (e.kind < 2) return e.set;
  if (e.kind == 2) return rules.at(e.text);
  Language one;
  for (const auto& s : e.parts) {
    Language all = {""};
    for (const Expression& x : s) all = join(all, meant(x, rules));
    one.insert(all.begin(), all.end());
  }
  if (e.kind == 3) return one;
  Language out, power = {""};
  for (int i = 0; i <= (e.most < 0 ? e.least + static_cast<int>(kLongest) : e.most); ++i) {
    if (i >= e.least) out.insert(power.begin(), power.end());
    power = join(power, one);
  }
  return out;
}

class EbnfAgainstSets : public ::testing::TestWithParam<unsigned> {};

TEST_P(EbnfAgainstSets, TheSameTexts) {
  std::mt19937 rng(GetParam());
  int checked = 0, given_up = 0;
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, Expression> rules;
    std::map<std::string, Language> languages;
    std::string text;
    for (const char* name : {"root", "x", "y", "z"}) {
      Expression e;
      e.kind = 3;
      for (std::size_t n = 1 + rng() % 3; n > 0; --n) {
        e.parts.emplace_back();
        for (std::size_t k = 1 + rng() % 3; k > 0; --k) e.parts.back().push_back(expression(rng, 2));
      }
      const std::string w = written(e);
      text += std::string(name) + " ::= " + w.substr(1, w.size() - 2) + "\n";  // alternatives without a group, so that left recursion is seen
      languages[name] = {};
      rules[name] = std::move(e);
    }
    for (bool more = true; more;) {
      more = false;
      for (const auto& [name, e] : rules) {
        Language now = meant(e, languages);
        if (now != languages[name]) languages[name] = std::move(now), more = true;
      }
    }
    std::shared_ptr<const Automaton> a;
    try {
      a = ebnf(text);
    } catch (const GrammarError& e) {
      const std::string what = e.what();
      ASSERT_TRUE(what == "refers to itself without anything in between" || what == "allows no value at all") << what << "\n" << text;
      if (what.starts_with("allows")) { ASSERT_TRUE(languages["root"].empty()) << text; }
      continue;
    }
    ++checked;
    try {
      for (std::size_t n = 0; n <= kLongest; ++n)
        for (unsigned bits = 0; bits < 1u << n; ++bits) {
          std::string s;
          for (std::size_t i = 0; i < n; ++i) s += bits >> i & 1 ? 'b' : 'a';
          ASSERT_EQ(accepts(*a, s), languages["root"].contains(s)) << "\"" << s << "\"\n" << text;
        }
    } catch (const GrammarError&) {
      ++given_up;  // thousands of readings of a few letters
    }
  }
  EXPECT_GT(checked, 40);
  EXPECT_LE(given_up, 3);
}

INSTANTIATE_TEST_SUITE_P(Seed, EbnfAgainstSets, ::testing::Range(0u, 10u));

// Whatever the budget, what comes out is a whole text of the grammar.
TEST(Ebnf, TextsEndWithinTheirBudget) {
  const auto a = ebnf(R"g(root ::= "SELECT " name ("," name)* " FROM " name (" WHERE " cond)? ";"
name ::= [a-z]{1,8}
cond ::= cond " AND " cond | name "=" ([0-9]+ | "(" cond ")"))g");
  std::mt19937 rng(7);
  for (int i = 0; i < 100; ++i) {
    const int budget = a->cost(a->start()) + static_cast<int>(rng() % 60);
    bool finished = false;
    const std::string text = random_text(a, rng, budget, &finished);
    EXPECT_TRUE(finished && accepts(*a, text)) << text;
  }
}

}  // namespace
}  // namespace qengine::structured
